// CUDA handlers of the correlators' ops: enqueue the calls that operands.h checks. A negative
// `seen` in device memory counts as 0; the CPU handler returns an error for it.
#include <string>

#include "core/handler.h"
#include "correlators/cuda.h"
#include "correlators/operands.h"
#include "correlators/ops.h"

namespace jaxkern::correlators {
namespace {

template <typename Op>
ffi::Error on_cuda(const Op& op, cudaStream_t stream) {
  if (!op.call.ok()) return op.call.error();
  const cudaError_t status = launch(op.work, stream);
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(op.call.op() + ": the CUDA launch failed: " +
                              cudaGetErrorName(status) + " (" + cudaGetErrorString(status) + ")");
}

}  // namespace
}  // namespace jaxkern::correlators

#define JAXKERN_ON_CUDA(name, target) \
  JAXKERN_CUDA_HANDLER(name, jaxkern::correlators::on_cuda<jaxkern::correlators::name>)
JAXKERN_CORRELATORS_OPS(JAXKERN_ON_CUDA)
