// The CUDA entries of the XPCS ops: launches on a stream, without FFI types.
#ifndef JAXKERN_XPCS_CUDA_H_
#define JAXKERN_XPCS_CUDA_H_

#include <cuda_runtime_api.h>

#include "xpcs/cuda_components.h"
#include "xpcs/cuda_cotangent.h"
#include "xpcs/cuda_matrix.h"
#include "xpcs/cuda_normal.h"
#include "xpcs/cuda_tables.h"
#include "xpcs/points.h"

namespace jaxkern::xpcs {

// Each function enqueues the kernel of the tables first.
cudaError_t launch_matrix(MatrixOp op, const MatrixCall& call, cudaStream_t stream);
cudaError_t launch_cotangent(const CotangentCall& call, cudaStream_t stream);
// `blocks` can hold the sums of `chunk` angles, which are processed together.
cudaError_t launch_normal(NormalCall call, int64_t chunk, cudaStream_t stream);

cudaError_t launch_points(const PointCall& call, cudaStream_t stream);

}  // namespace jaxkern::xpcs

#endif  // JAXKERN_XPCS_CUDA_H_
