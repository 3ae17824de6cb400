// Probe kernels of a GPU: each thread streams 16 bytes at a time, or chains multiply-adds.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "performance/cuda.h"

namespace jaxkern::performance {
namespace {

constexpr int kThreads = 256;
constexpr int kChains = 8;
constexpr int kRounds = 4096;

__global__ void load_kernel(const uint4* source, int64_t count, uint32_t* sink) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  uint32_t sum = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const uint4 words = source[i];
    sum += words.x ^ words.y ^ words.z ^ words.w;
  }
  // Never true for memory filled by the store kernel; the compiler cannot remove the loads.
  if (sum == 0x5bd1e995u) *sink = sum;
}

__global__ void store_kernel(uint4* target, int64_t count, uint32_t value) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  const uint4 words = make_uint4(value, value, value, value);
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    target[i] = words;
  }
}

__global__ void copy_kernel(const uint4* source, uint4* target, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    target[i] = source[i];
  }
}

template <typename Real>
__global__ void fma_kernel(Real factor, Real term, Real never, Real* sink) {
  Real x[kChains];
#pragma unroll
  for (int k = 0; k < kChains; ++k) x[k] = static_cast<Real>(threadIdx.x + k);
  for (int i = 0; i < kRounds; ++i) {
#pragma unroll
    for (int k = 0; k < kChains; ++k) x[k] = x[k] * factor + term;
  }
  Real sum = 0;
#pragma unroll
  for (int k = 0; k < kChains; ++k) sum += x[k];
  if (sum == never) *sink = sum;
}

// Resources of a measurement, released by the destructor.
struct Resources {
  void *first = nullptr, *second = nullptr, *sink = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  int previous = -1;

  ~Resources() {
    if (begin != nullptr) cudaEventDestroy(begin);
    if (end != nullptr) cudaEventDestroy(end);
    if (stream != nullptr) cudaStreamDestroy(stream);
    for (void* memory : {first, second, sink}) {
      if (memory != nullptr) cudaFree(memory);
    }
    if (previous >= 0) cudaSetDevice(previous);
  }
};

#define JAXKERN_TRY(call)                                                        \
  do {                                                                           \
    if (const cudaError_t status = (call); status != cudaSuccess) return status; \
  } while (false)

// Bytes or operations per second (`work` per launch) in the shortest of repeated launches.
template <typename Launch>
cudaError_t measure(const Resources& resources, double seconds, double work, const Launch& launch,
                    double* rate) {
  double best = std::numeric_limits<double>::infinity();
  double spent = 0;
  for (int run = 0; run < 3 || spent < seconds; ++run) {
    JAXKERN_TRY(cudaEventRecord(resources.begin, resources.stream));
    launch();
    JAXKERN_TRY(cudaGetLastError());
    JAXKERN_TRY(cudaEventRecord(resources.end, resources.stream));
    JAXKERN_TRY(cudaEventSynchronize(resources.end));
    float milliseconds = 0;
    JAXKERN_TRY(cudaEventElapsedTime(&milliseconds, resources.begin, resources.end));
    const double elapsed = std::max(static_cast<double>(milliseconds) * 1e-3, 1e-7);
    // The first launch loads the kernel's code.
    if (run > 0) best = std::min(best, elapsed);
    spent += elapsed;
  }
  *rate = work / best;
  return cudaSuccess;
}

template <typename Real>
cudaError_t measure_fma(const Resources& resources, int blocks, double seconds, double* rate) {
  const double flops = 2.0 * kChains * kRounds * static_cast<double>(kThreads) * blocks;
  const auto launch = [&] {
    fma_kernel<Real><<<blocks, kThreads, 0, resources.stream>>>(Real(0.5), Real(1), Real(-12345),
                                                                static_cast<Real*>(resources.sink));
  };
  return measure(resources, seconds, flops, launch, rate);
}

}  // namespace

cudaError_t measure_device(int ordinal, double seconds, DeviceRates& rates) {
  Resources resources;
  JAXKERN_TRY(cudaGetDevice(&resources.previous));
  JAXKERN_TRY(cudaSetDevice(ordinal));
  int processors = 0, resident = 0, cache = 0;
  JAXKERN_TRY(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, ordinal));
  JAXKERN_TRY(cudaDeviceGetAttribute(&resident, cudaDevAttrMaxThreadsPerMultiProcessor, ordinal));
  JAXKERN_TRY(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, ordinal));
  constexpr int64_t kMinBytes = int64_t{128} << 20;
  const int64_t half = (std::max(kMinBytes, 2 * int64_t{cache}) + 15) / 16 * 16;
  const int64_t count = half / 16;
  // As many threads as are resident at once: a second, partial wave would reduce the rate.
  const int blocks = processors * std::max(resident / kThreads, 1);
  JAXKERN_TRY(cudaMalloc(&resources.first, static_cast<size_t>(half)));
  JAXKERN_TRY(cudaMalloc(&resources.second, static_cast<size_t>(half)));
  JAXKERN_TRY(cudaMalloc(&resources.sink, sizeof(double)));
  JAXKERN_TRY(cudaStreamCreateWithFlags(&resources.stream, cudaStreamNonBlocking));
  JAXKERN_TRY(cudaEventCreate(&resources.begin));
  JAXKERN_TRY(cudaEventCreate(&resources.end));
  uint4* const first = static_cast<uint4*>(resources.first);
  uint4* const second = static_cast<uint4*>(resources.second);
  uint32_t* const sink = static_cast<uint32_t*>(resources.sink);

  const double both = 2.0 * static_cast<double>(half);
  const auto store = [&] {
    store_kernel<<<blocks, kThreads, 0, resources.stream>>>(first, count, 1u);
    store_kernel<<<blocks, kThreads, 0, resources.stream>>>(second, count, 1u);
  };
  const auto load = [&] {
    load_kernel<<<blocks, kThreads, 0, resources.stream>>>(first, count, sink);
    load_kernel<<<blocks, kThreads, 0, resources.stream>>>(second, count, sink);
  };
  const auto copy = [&] {
    copy_kernel<<<blocks, kThreads, 0, resources.stream>>>(first, second, count);
  };
  JAXKERN_TRY(measure(resources, seconds, both, store, &rates.store));
  JAXKERN_TRY(measure(resources, seconds, both, load, &rates.load));
  JAXKERN_TRY(measure(resources, seconds, both, copy, &rates.copy));
  JAXKERN_TRY(measure_fma<float>(resources, blocks, seconds, &rates.fma_f32));
  JAXKERN_TRY(measure_fma<double>(resources, blocks, seconds, &rates.fma_f64));
  rates.cache_bytes = cache;
  rates.buffer_bytes = both;
  return cudaSuccess;
}
#undef JAXKERN_TRY

}  // namespace jaxkern::performance
