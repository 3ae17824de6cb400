// The CUDA kernel of image programs: blocks over the body of cuda_program.h, and its launch. Like
// program_levels.cc, it is compiled without contraction of products and sums.
#include <algorithm>
#include <cstdint>

#include "image/cuda.h"
#include "image/cuda_program.h"

namespace jaxkern::image {
namespace {

struct CudaBlock {
  static constexpr int32_t threads = kProgramThreads;

  template <typename Body>
  JAXKERN_HD_MEMBER void run(const Body& body) {
#ifdef __CUDA_ARCH__
    body(static_cast<int32_t>(threadIdx.x));
    __syncthreads();
#endif
  }
  template <typename Number>
  JAXKERN_HD_MEMBER void add(Number* target, Number value) {
#ifdef __CUDA_ARCH__
    atomicAdd(target, value);
#endif
  }
};

template <typename T, int C>
__global__ void __launch_bounds__(kProgramThreads)
    program_kernel(const __grid_constant__ ProgramCall call, char* scratch, int64_t each) {
  __shared__ ProgramShared shared;
  CudaBlock block;
  ProgramBody<T, C, CudaBlock> body = {call, shared, block, scratch + each * blockIdx.x};
  for (int64_t i = blockIdx.x; i < call.samples; i += gridDim.x) body.run(i);
}

template <typename T>
cudaError_t start(const ProgramCall& call, char* scratch, int64_t each, cudaStream_t stream) {
  const unsigned blocks = static_cast<unsigned>(program_blocks(call));
  const auto launched = [&](auto kernel) {
    kernel<<<blocks, kProgramThreads, 0, stream>>>(call, scratch, each);
    return cudaGetLastError();
  };
  if (call.channels == 1) return launched(program_kernel<T, 1>);
  if (call.channels == 3) return launched(program_kernel<T, 3>);
  return launched(program_kernel<T, 4>);
}

}  // namespace

cudaError_t launch_program(const ProgramCall& call, char* scratch, cudaStream_t stream) {
  if (program_blocks(call) == 0 || call.elements() == 0) return cudaSuccess;
  const int64_t each = program_memory(call).bytes;
  return (call.dtype == Dtype::kU8 ? start<uint8_t> : start<float>)(call, scratch, each, stream);
}

}  // namespace jaxkern::image
