// The FFI handlers of the image domain on CUDA, for the binding table.
#ifndef JAXKERN_IMAGE_CUDA_HANDLERS_H_
#define JAXKERN_IMAGE_CUDA_HANDLERS_H_

#include "core/ffi.h"

extern "C" {
XLA_FFI_Error* JaxkernImageChainCuda(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* JaxkernImageChainRaggedCuda(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* JaxkernImageMixCuda(XLA_FFI_CallFrame* frame);
}

#endif  // JAXKERN_IMAGE_CUDA_HANDLERS_H_
