// The CUDA kernels: loops over the bodies of cuda_chain.h and mix.h, and their launches.
#include <algorithm>
#include <cstdint>

#include "image/cuda.h"
#include "image/mix.h"

namespace jaxkern::image {
namespace {

static_assert(sizeof(ChainTile) % 16 == 0);  // the stage follows it
static_assert(sizeof(ChainCall) <= kKernelParameterBytes &&
              sizeof(MixCall) <= kKernelParameterBytes);
// Without a change of the kernel's attributes.
static_assert(sizeof(ChainTile) +
                  sizeof(float) * stage_floats({kMaxThreads, 1, 1, 0}, kMaxChannels) <=
              48 << 10);

// Resident blocks of kMaxThreads per multiprocessor, which leaves 64 registers per thread, or 80
// for the weights of bicubic filters.
template <Filter filter>
constexpr int32_t kResidentBlocks = filter == Filter::kBicubic ? 3 : 4;
constexpr int64_t kMaxBlocks = (int64_t{1} << 31) - 1;

template <int C, Dtype source, Filter filter>
__global__ void __launch_bounds__(kMaxThreads, kResidentBlocks<filter>)
    chain_kernel(const __grid_constant__ ChainCall call) {
  using Body = ChainBody<C, source, filter>;
  extern __shared__ __align__(16) unsigned char memory[];
  ChainTile& shared = *reinterpret_cast<ChainTile*>(memory);
  float* const stage = reinterpret_cast<float*>(memory + sizeof(ChainTile));
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t threads = static_cast<int32_t>(blockDim.x);
  for (int64_t flat = blockIdx.x; flat < tiles_of(call); flat += gridDim.x) {
    typename Body::Thread state;
    Body::prepare(call, flat, thread, threads, shared, state);
    __syncthreads();
    // Read here, because after the last barrier another thread may write the next tile.
    const int32_t rows = shared.tile.rows;
    for (int32_t pass = 0; pass * kPassRows < rows; ++pass) {
      Body::compute(call, shared, state, pass, thread, stage);
      __syncthreads();
      Body::store(call, shared, pass, thread, threads, stage);
      __syncthreads();
    }
  }
}

template <int C, Dtype source, Filter filter>
cudaError_t start_chain(const ChainCall& call, cudaStream_t stream) {
  const int64_t tiles = tiles_of(call);
  const size_t shared =
      sizeof(ChainTile) + sizeof(float) * static_cast<size_t>(stage_floats(call.tiling, C));
  chain_kernel<C, source, filter>
      <<<static_cast<unsigned>(std::min(tiles, kMaxBlocks)),
         static_cast<unsigned>(call.tiling.threads), shared, stream>>>(call);
  return cudaGetLastError();
}

template <int C, Dtype source>
cudaError_t start_filter(const ChainCall& call, cudaStream_t stream) {
  switch (call.plan.segment[call.segment].filter) {
    case Filter::kNone:
    case Filter::kNearest:
      return start_chain<C, source, Filter::kNearest>(call, stream);
    case Filter::kBilinear:
      return start_chain<C, source, Filter::kBilinear>(call, stream);
    case Filter::kAntialias:
      return start_chain<C, source, Filter::kAntialias>(call, stream);
    case Filter::kBicubic:
    case Filter::kBicubicAntialias:
    case Filter::kBicubicLevels:
    case Filter::kBicubicAntialiasLevels:
      return start_chain<C, source, Filter::kBicubic>(call, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t launch_chain(const ChainCall& call, Dtype source, cudaStream_t stream) {
  if (tiles_of(call) == 0) return cudaSuccess;  // an empty grid is an error
  return with_dtype(source, [&](auto dtype) {
    switch (call.plan.channels) {
      case 1:
        return start_filter<1, dtype>(call, stream);
      case 3:
        return start_filter<3, dtype>(call, stream);
      case 4:
        return start_filter<4, dtype>(call, stream);
    }
    return cudaErrorInvalidValue;
  });
}

// ---------------------------------------------------------------- mixing

namespace {

template <Dtype dtype, int32_t kElements>
__global__ void __launch_bounds__(kMixThreads) mix_kernel(const __grid_constant__ MixCall call) {
  using Body = MixBody<dtype, kElements>;
  for (int64_t flat = blockIdx.x; flat < Body::shares(call); flat += gridDim.x)
    Body::run(call, flat, static_cast<int32_t>(threadIdx.x));
}

template <Dtype dtype, int32_t kElements>
cudaError_t start_mix(const MixCall& call, cudaStream_t stream) {
  const int64_t blocks = std::min(MixBody<dtype, kElements>::shares(call), kMaxBlocks);
  mix_kernel<dtype, kElements><<<static_cast<unsigned>(blocks), kMixThreads, 0, stream>>>(call);
  return cudaGetLastError();
}

cudaError_t start(const MixCall& call, cudaStream_t stream) {
  if (call.samples == 0 || call.elements() == 0) return cudaSuccess;
  return with_dtype(call.dtype, [&](auto dtype) {
    constexpr int32_t kVector =
        kStoreBytes / static_cast<int32_t>(sizeof(typename Stored<dtype>::Type));
    return mix_in_vectors(call) ? start_mix<dtype, kVector>(call, stream)
                                : start_mix<dtype, 1>(call, stream);
  });
}

}  // namespace

template <typename OpCall>
cudaError_t launch(const OpCall& call, cudaStream_t stream) {
  return start(call, stream);
}
template cudaError_t launch(const MixCall& call, cudaStream_t stream);

}  // namespace jaxkern::image
