// What joins the CUDA module's handlers of the ring to the CPU module, where the rings are.
#ifndef JAXKERN_RING_CUDA_MODULE_H_
#define JAXKERN_RING_CUDA_MODULE_H_

#include "ring/program_ring.h"

namespace jaxkern::ring {

// Before the first program runs: where the rings are. The table lives as long as the process.
void set_program_access(const ProgramAccess* access);

// Page-locked memory, from which copies to any device run while the host continues. It is made in
// the context of `device`, the CUDA ordinal of a device that the ring serves.
Allocator pinned_allocator(int device);

}  // namespace jaxkern::ring

#endif  // JAXKERN_RING_CUDA_MODULE_H_
