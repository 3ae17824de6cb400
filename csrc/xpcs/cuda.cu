// The CUDA kernels of the XPCS ops: loops over the bodies of cuda_*.h, and their launches.
#include <algorithm>
#include <cstdint>

#include "xpcs/cuda.h"

namespace jaxkern::xpcs {
namespace {

constexpr int64_t kMaxBlocks = (int64_t{1} << 31) - 1;
constexpr int32_t kItemThreads = 256;
constexpr int64_t kItemBlocks = 1 << 16;  // more than run at once on any device; blocks loop

static_assert(sizeof(MatrixCall) <= kKernelParameterBytes &&
              sizeof(CotangentCall) <= kKernelParameterBytes &&
              sizeof(NormalCall) <= kKernelParameterBytes &&
              sizeof(PointCall) <= kKernelParameterBytes);

unsigned blocks_for(int64_t units) { return static_cast<unsigned>(std::min(units, kMaxBlocks)); }

// Kernels without shared memory: run(call, flat) for each item.
template <typename Call, void (*run)(const Call&, int64_t)>
__global__ void __launch_bounds__(kItemThreads)
    item_kernel(const __grid_constant__ Call call, int64_t items) {
  for (int64_t flat = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; flat < items;
       flat += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    run(call, flat);
  }
}

template <typename Call, void (*run)(const Call&, int64_t)>
cudaError_t start_items(const Call& call, int64_t items, cudaStream_t stream) {
  if (items == 0) return cudaSuccess;  // an empty grid is an error
  const int64_t blocks = std::min((items + kItemThreads - 1) / kItemThreads, kItemBlocks);
  item_kernel<Call, run><<<static_cast<unsigned>(blocks), kItemThreads, 0, stream>>>(call, items);
  return cudaGetLastError();
}

cudaError_t prepare(const AngleCall& call, cudaStream_t stream) {
  cudaError_t status = cudaSuccess;
  if (call.nonzero != nullptr) {
    const size_t flags = static_cast<size_t>(call.samples) * (1 + call.tables_a);
    status = cudaMemsetAsync(call.nonzero, 0, flags * sizeof(int32_t), stream);
  }
  if (status == cudaSuccess) {
    status = start_items<AngleCall, prepare_angle>(call, angle_items(call), stream);
  }
  if (status != cudaSuccess || call.nonzero == nullptr) return status;
  return start_items<AngleCall, list_nonzero>(call, call.samples, stream);
}

template <typename Body>
__global__ void __launch_bounds__(kMatrixThreads, Body::kBlocks)
    matrix_kernel(const __grid_constant__ MatrixCall call) {
  __shared__ typename Body::Shared shared;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  for (int64_t flat = blockIdx.x; flat < matrix_tiles(call); flat += gridDim.x) {
    Body::load(call, flat, thread, shared);
    __syncthreads();
    Body::compute(call, thread, shared);
    __syncthreads();
    Body::mirror(call, thread, shared);
    __syncthreads();
  }
}

template <MatrixOp op, typename Real>
cudaError_t start_matrix(const MatrixCall& call, cudaStream_t stream) {
  const auto start = [&](auto kernel) {
    kernel<<<blocks_for(matrix_tiles(call)), kMatrixThreads, 0, stream>>>(call);
    return cudaGetLastError();
  };
  const int32_t components = call.angle.components;
  if (components == 0) return start(matrix_kernel<MatrixBody<op, Real>>);
  return components <= kFewComponents
             ? start(matrix_kernel<ComponentMatrixBody<op, Real, kFewComponents>>)
             : start(matrix_kernel<ComponentMatrixBody<op, Real, kMaxComponents>>);
}

template <MatrixOp op>
cudaError_t start_matrix(const MatrixCall& call, cudaStream_t stream) {
  return call.angle.single ? start_matrix<op, float>(call, stream)
                           : start_matrix<op, double>(call, stream);
}

template <typename Real, typename Slopes>
__global__ void __launch_bounds__(kCotangentThreads)
    cotangent_kernel(const __grid_constant__ CotangentCall call) {
  using Body = CotangentBody<Real, Slopes>;
  __shared__ typename Body::Shared shared;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  for (int64_t flat = blockIdx.x; flat < cotangent_units(call); flat += gridDim.x) {
    typename Body::Thread state;
    Body::begin(call, flat, thread, state);
    for (int32_t step = 0; step < Body::steps(call, state); ++step) {
      Body::load(call, step, thread, state, shared);
      __syncthreads();
      Body::compute(call, step, thread, shared, state);
      __syncthreads();
    }
    Body::end(call, state);
  }
}

template <typename Slopes>
cudaError_t start_cotangent(const CotangentCall& call, cudaStream_t stream) {
  const unsigned blocks = blocks_for(cotangent_units(call));
  if (call.angle.single) {
    cotangent_kernel<float, Slopes><<<blocks, kCotangentThreads, 0, stream>>>(call);
  } else {
    cotangent_kernel<double, Slopes><<<blocks, kCotangentThreads, 0, stream>>>(call);
  }
  return cudaGetLastError();
}

__global__ void __launch_bounds__(kCotangentThreads)
    cotangent_total_kernel(const __grid_constant__ CotangentCall call) {
  __shared__ CotangentTotal shared;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  for (int64_t sample = blockIdx.x; sample < call.angle.samples; sample += gridDim.x) {
    gather_total(call, sample, thread, shared);
    __syncthreads();
    fold_total(call, sample, thread, shared);
    __syncthreads();
  }
}

template <typename Columns, bool kRobust>
__global__ void __launch_bounds__(kNormalThreads, 2)
    normal_kernel(const __grid_constant__ NormalCall call) {
  using Body = NormalBody<Columns, kRobust>;
  __shared__ typename Body::Shared shared;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  for (int64_t flat = blockIdx.x; flat < normal_units(call, Columns::parts(call.layout));
       flat += gridDim.x) {
    typename Body::Thread state;
    Body::load(call, flat, thread, shared, state);
    if (!state.active) continue;  // the same for all threads of the block
    __syncthreads();
    Body::accumulate(call, thread, shared, state);
    JAXKERN_UNROLL
    for (int32_t fold = 0; fold < Body::kFolds; ++fold) {
      __syncthreads();
      Body::stage(fold, thread, state, shared);
      __syncthreads();
      Body::fold(thread, shared);
      __syncthreads();
      Body::write(call, fold, thread, state, shared);
    }
    __syncthreads();
  }
}

template <typename Body>
__global__ void __launch_bounds__(kNormalThreads, Body::kBlocks)
    component_normal_kernel(const __grid_constant__ NormalCall call) {
  __shared__ typename Body::Shared shared;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  for (int64_t flat = blockIdx.x; flat < normal_units(call, 1); flat += gridDim.x) {
    typename Body::Thread state;
    Body::load(call, flat, thread, shared, state);
    if (!state.active) continue;  // the same for all threads of the block
    __syncthreads();
    for (int32_t step = 0; step < Body::steps(call, state); ++step) {
      Body::begin(call, step, thread, state);
      for (int32_t i = 0; i < state.step_rows; ++i) {
        Body::evaluate(call, i, shared, state, thread);
        __syncthreads();
        Body::add(call, thread, shared, state);
        __syncthreads();
      }
    }
    Body::stage(thread, state, shared);
    __syncthreads();
    Body::write(call, thread, state, shared);
    __syncthreads();
  }
}

template <int kMost>
cudaError_t start_components(const NormalCall& call, cudaStream_t stream) {
  const int64_t units = normal_units(call, 1);
  if (units == 0) return cudaSuccess;
  if (call.loss == Loss::kLinear) {
    component_normal_kernel<ComponentNormalBody<kMost, false>>
        <<<blocks_for(units), kNormalThreads, 0, stream>>>(call);
  } else {
    component_normal_kernel<ComponentNormalBody<kMost, true>>
        <<<blocks_for(units), kNormalThreads, 0, stream>>>(call);
  }
  return cudaGetLastError();
}

template <typename Columns>
cudaError_t start_normal(const NormalCall& call, cudaStream_t stream) {
  const int64_t units = normal_units(call, Columns::parts(call.layout));
  if (units == 0) return cudaSuccess;
  if (call.loss == Loss::kLinear) {
    normal_kernel<Columns, false><<<blocks_for(units), kNormalThreads, 0, stream>>>(call);
  } else {
    normal_kernel<Columns, true><<<blocks_for(units), kNormalThreads, 0, stream>>>(call);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_matrix(MatrixOp op, const MatrixCall& call, cudaStream_t stream) {
  if (matrix_tiles(call) == 0) return cudaSuccess;
  if (const cudaError_t status = prepare(call.angle, stream); status != cudaSuccess) return status;
  switch (op) {
    case MatrixOp::kG2:
      return start_matrix<MatrixOp::kG2>(call, stream);
    case MatrixOp::kTangent:
      return start_matrix<MatrixOp::kTangent>(call, stream);
    case MatrixOp::kResidual:
      return start_matrix<MatrixOp::kResidual>(call, stream);
    case MatrixOp::kCotangent:
      break;
  }
  return cudaErrorInvalidValue;
}

cudaError_t launch_cotangent(const CotangentCall& call, cudaStream_t stream) {
  if (call.angle.samples == 0) return cudaSuccess;
  cudaError_t status = prepare(call.angle, stream);
  if (status == cudaSuccess && cotangent_units(call) > 0) {
    const int32_t components = call.angle.components;
    status = components == 0 ? start_cotangent<LaminarSlopes>(call, stream)
             : components <= kFewComponents
                 ? start_cotangent<SlopesOfComponents<kFewComponents>>(call, stream)
                 : start_cotangent<SlopesOfComponents<kMaxComponents>>(call, stream);
  }
  if (status == cudaSuccess) {
    status = start_items<CotangentCall, add_cotangent>(call, cotangent_frames(call), stream);
  }
  if (status != cudaSuccess) return status;
  cotangent_total_kernel<<<blocks_for(call.angle.samples), kCotangentThreads, 0, stream>>>(call);
  return cudaGetLastError();
}

cudaError_t launch_normal(NormalCall call, int64_t chunk, cudaStream_t stream) {
  cudaError_t status = prepare(call.angle, stream);
  const int64_t samples = call.angle.samples;
  const int32_t a = call.layout.tables_a, x = call.layout.tables_x;
  for (call.first = 0; call.first < samples && status == cudaSuccess; call.first += chunk) {
    call.count = std::min(chunk, samples - call.first);
    if (call.angle.components != 0) {
      status = call.angle.components <= kFewComponents
                   ? start_components<kFewComponents>(call, stream)
                   : start_components<kMaxComponents>(call, stream);
    } else if (a <= 3 && x == 0) {
      status = start_normal<WholeGram<3, 0>>(call, stream);
    } else if (a <= 3 && x <= 4) {
      status = start_normal<WholeGram<3, 4>>(call, stream);
    } else {
      status = start_normal<GramPart>(call, stream);
    }
    if (status == cudaSuccess) {
      status = start_items<NormalCall, add_blocks>(call, state_items(call), stream);
    }
  }
  return status;
}

cudaError_t launch_points(const PointCall& call, cudaStream_t stream) {
  return start_items<PointCall, run_point>(call, point_items(call), stream);
}

}  // namespace jaxkern::xpcs
