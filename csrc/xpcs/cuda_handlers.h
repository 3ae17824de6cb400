// The FFI handlers of the XPCS domain on CUDA, for the binding table.
#ifndef JAXKERN_XPCS_CUDA_HANDLERS_H_
#define JAXKERN_XPCS_CUDA_HANDLERS_H_

#include "core/ffi.h"

extern "C" {
XLA_FFI_Error* JaxkernTwoTimeG2Cuda(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* JaxkernTwoTimeG2TangentCuda(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* JaxkernTwoTimeG2CotangentCuda(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* JaxkernTwoTimeResidualCuda(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* JaxkernTwoTimeG2AtCuda(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* JaxkernTwoTimeNormalEquationsCuda(XLA_FFI_CallFrame* frame);
}

#endif  // JAXKERN_XPCS_CUDA_HANDLERS_H_
