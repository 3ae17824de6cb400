// The FFI handlers of the ring on the CPU, for the binding table.
#ifndef JAXKERN_RING_HANDLERS_H_
#define JAXKERN_RING_HANDLERS_H_

#include "core/ffi.h"

extern "C" {
XLA_FFI_Error* JaxkernRingPopCpu(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* JaxkernRingPushCpu(XLA_FFI_CallFrame* frame);
}

#endif  // JAXKERN_RING_HANDLERS_H_
