// The CUDA entries of the image chain and of mixing: launches on a stream, without FFI types.
#ifndef JAXKERN_IMAGE_CUDA_H_
#define JAXKERN_IMAGE_CUDA_H_

#include <cuda_runtime_api.h>

#include "image/cuda_chain.h"
#include "image/cuda_mix.h"

namespace jaxkern::image {

// Enqueues one segment. `source` is the dtype of what the segment reads.
cudaError_t launch_chain(const ChainCall& call, Dtype source, cudaStream_t stream);

cudaError_t launch_mix(const MixCall& call, cudaStream_t stream);

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_CUDA_H_
