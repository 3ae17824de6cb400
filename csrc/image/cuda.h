// The launches of the image ops on a CUDA stream, without FFI types.
#ifndef JAXKERN_IMAGE_CUDA_H_
#define JAXKERN_IMAGE_CUDA_H_

#include <cuda_runtime_api.h>

#include "image/cuda_chain.h"
#include "image/cuda_program_block.h"

namespace jaxkern::image {

// Enqueues one segment. `source` is the dtype of the segment's input.
cudaError_t launch_chain(const ChainCall& call, Dtype source, cudaStream_t stream);

// Chooses the grid of a program on the current device.
cudaError_t program_grid(const ProgramCall& call, ProgramGrid* grid);

// Enqueues a program; `scratch` has program_scratch(call, grid) bytes.
cudaError_t launch_program(ProgramCall call, ProgramGrid grid, char* scratch, cudaStream_t stream);

// Enqueues the call of another op; cuda.cu has an instance for each.
template <typename OpCall>
cudaError_t launch(const OpCall& call, cudaStream_t stream);

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_CUDA_H_
