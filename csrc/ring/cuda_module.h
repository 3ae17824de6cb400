// Connects the CUDA module's memory of rings to the CPU module, which owns the rings.
#ifndef JAXKERN_RING_CUDA_MODULE_H_
#define JAXKERN_RING_CUDA_MODULE_H_

#include "ring/program_ring.h"

namespace jaxkern::ring {

// Sets the functions of the CPU module; called before the first allocation. The table is never
// destroyed.
void set_program_access(const ProgramAccess* access);

// Returns an allocator of page-locked memory, from which copies to any device are asynchronous. It
// allocates in the context of `device`, the CUDA ordinal of a device that the ring feeds.
Allocator pinned_allocator(int device);

}  // namespace jaxkern::ring

#endif  // JAXKERN_RING_CUDA_MODULE_H_
