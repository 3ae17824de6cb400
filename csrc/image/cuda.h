// The launches of the image ops on a CUDA stream, without FFI types.
#ifndef JAXKERN_IMAGE_CUDA_H_
#define JAXKERN_IMAGE_CUDA_H_

#include <cuda_runtime_api.h>

#include "image/cuda_chain.h"
#include "image/program.h"

namespace jaxkern::image {

// Enqueues one segment. `source` is the dtype of the segment's input.
cudaError_t launch_chain(const ChainCall& call, Dtype source, cudaStream_t stream);

// Enqueues a program; `scratch` has program_memory(call).bytes for each of program_blocks(call).
cudaError_t launch_program(const ProgramCall& call, char* scratch, cudaStream_t stream);

// Enqueues the call of another op; cuda.cu has an instance for each.
template <typename OpCall>
cudaError_t launch(const OpCall& call, cudaStream_t stream);

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_CUDA_H_
