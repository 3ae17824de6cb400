// The FFI handlers of the ring on CUDA, for the binding table, and what joins them to the CPU
// module.
#ifndef JAXKERN_RING_CUDA_HANDLERS_H_
#define JAXKERN_RING_CUDA_HANDLERS_H_

#include "core/ffi.h"
#include "ring/program_ring.h"

extern "C" {
XLA_FFI_Error* JaxkernRingPopCuda(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* JaxkernRingPushCuda(XLA_FFI_CallFrame* frame);
}

namespace jaxkern::ring {

// Before the first program runs: where the rings are. The table lives as long as the process.
void set_program_access(const ProgramAccess* access);

// Page-locked memory, from which copies to a device run while the host goes on.
const Allocator& pinned_allocator();

}  // namespace jaxkern::ring

#endif  // JAXKERN_RING_CUDA_HANDLERS_H_
