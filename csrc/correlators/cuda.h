// The CUDA entries of the correlators' ops: launches on a stream, without FFI types.
#ifndef JAXKERN_CORRELATORS_CUDA_H_
#define JAXKERN_CORRELATORS_CUDA_H_

#include <cuda_runtime_api.h>

#include "correlators/multitau_update.h"

namespace jaxkern::correlators {

cudaError_t launch(const MultiTauCall& call, cudaStream_t stream);

}  // namespace jaxkern::correlators

#endif  // JAXKERN_CORRELATORS_CUDA_H_
