// The FFI handlers of the image domain on the CPU, for the binding table.
#ifndef JAXKERN_IMAGE_HANDLERS_H_
#define JAXKERN_IMAGE_HANDLERS_H_

#include "core/ffi.h"

extern "C" {
XLA_FFI_Error* JaxkernImageChainCpu(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* JaxkernImageChainRaggedCpu(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* JaxkernImageMixCpu(XLA_FFI_CallFrame* frame);
}

#endif  // JAXKERN_IMAGE_HANDLERS_H_
