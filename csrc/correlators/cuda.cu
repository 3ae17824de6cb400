// The CUDA kernel of multi-tau states: a loop over the body of multitau_update.h, and its launch.
#include <algorithm>
#include <cstdint>

#include "correlators/cuda.h"

namespace jaxkern::correlators {
namespace {

static_assert(sizeof(MultiTauCall) <= kKernelParameterBytes);
constexpr int32_t kThreads = 128;
constexpr int64_t kBlocks = 1 << 16;  // more than any device holds at once; the rest is a loop

template <typename Body>
__global__ void __launch_bounds__(kThreads)
    multitau_kernel(const __grid_constant__ MultiTauCall call) {
  const int64_t items = call.items();
  for (int64_t flat = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; flat < items;
       flat += static_cast<int64_t>(gridDim.x) * blockDim.x)
    Body::run(call, flat);
}

}  // namespace

cudaError_t launch(const MultiTauCall& call, cudaStream_t stream) {
  if (call.items() == 0) return cudaSuccess;
  const int64_t blocks = std::min((call.items() + kThreads - 1) / kThreads, kBlocks);
  return with_body(call.dtype, [&](auto body) {
    multitau_kernel<decltype(body)><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(call);
    return cudaGetLastError();
  });
}

}  // namespace jaxkern::correlators
