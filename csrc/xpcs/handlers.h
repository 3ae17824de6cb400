// The FFI handlers of the XPCS domain on the CPU, for the binding table.
#ifndef JAXKERN_XPCS_HANDLERS_H_
#define JAXKERN_XPCS_HANDLERS_H_

#include "core/ffi.h"

extern "C" {
XLA_FFI_Error* JaxkernTwoTimeG2Cpu(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* JaxkernTwoTimeG2TangentCpu(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* JaxkernTwoTimeG2CotangentCpu(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* JaxkernTwoTimeResidualCpu(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* JaxkernTwoTimeG2AtCpu(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* JaxkernTwoTimeNormalEquationsCpu(XLA_FFI_CallFrame* frame);
}

#endif  // JAXKERN_XPCS_HANDLERS_H_
