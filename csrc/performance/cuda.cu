// The probe kernels of a GPU: each thread streams 16 bytes at a time, or chains multiply-adds.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>

#include "performance/cuda.h"

namespace jaxkern::performance {
namespace {

constexpr int kThreads = 256;
constexpr int kChains = 8;
constexpr int kRounds = 4096;

__global__ void load_kernel(const uint4* from, int64_t count, uint32_t* sink) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  uint32_t sum = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const uint4 words = from[i];
    sum += words.x ^ words.y ^ words.z ^ words.w;
  }
  // Never true of memory that the store kernel has filled, which the compiler cannot know.
  if (sum == 0x5bd1e995u) *sink = sum;
}

__global__ void store_kernel(uint4* to, int64_t count, uint32_t value) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  const uint4 words = make_uint4(value, value, value, value);
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    to[i] = words;
  }
}

__global__ void copy_kernel(const uint4* from, uint4* to, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    to[i] = from[i];
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

// What a measurement holds; released on every way out.
struct Held {
  void *first = nullptr, *second = nullptr, *sink = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  int previous = -1;

  ~Held() {
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

// What a launch does (bytes or operations) a second in the shortest of repeated launches.
cudaError_t measure(const Held& held, double seconds, double done,
                    const std::function<void()>& launch, double* rate) {
  double best = std::numeric_limits<double>::infinity();
  double spent = 0;
  for (int run = 0; run < 3 || spent < seconds; ++run) {
    JAXKERN_TRY(cudaEventRecord(held.begin, held.stream));
    launch();
    JAXKERN_TRY(cudaGetLastError());
    JAXKERN_TRY(cudaEventRecord(held.end, held.stream));
    JAXKERN_TRY(cudaEventSynchronize(held.end));
    float milliseconds = 0;
    JAXKERN_TRY(cudaEventElapsedTime(&milliseconds, held.begin, held.end));
    const double taken = std::max(static_cast<double>(milliseconds) * 1e-3, 1e-7);
    // The first launch loads the kernel's code.
    if (run > 0) best = std::min(best, taken);
    spent += taken;
  }
  *rate = done / best;
  return cudaSuccess;
}

template <typename Real>
cudaError_t measure_fma(const Held& held, int blocks, double seconds, double* rate) {
  const double flops = 2.0 * kChains * kRounds * static_cast<double>(kThreads) * blocks;
  const auto launch = [&] {
    fma_kernel<Real><<<blocks, kThreads, 0, held.stream>>>(Real(0.5), Real(1), Real(-12345),
                                                           static_cast<Real*>(held.sink));
  };
  return measure(held, seconds, flops, launch, rate);
}

}  // namespace

cudaError_t measure_device(int ordinal, double seconds, Rates& rates) {
  Held held;
  JAXKERN_TRY(cudaGetDevice(&held.previous));
  JAXKERN_TRY(cudaSetDevice(ordinal));
  int processors = 0, resident = 0, cache = 0;
  JAXKERN_TRY(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, ordinal));
  JAXKERN_TRY(cudaDeviceGetAttribute(&resident, cudaDevAttrMaxThreadsPerMultiProcessor, ordinal));
  JAXKERN_TRY(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, ordinal));
  constexpr int64_t kLeast = int64_t{128} << 20;
  const int64_t half = (std::max(kLeast, 2 * int64_t{cache}) + 15) / 16 * 16;
  const int64_t count = half / 16;
  // As many threads as the GPU holds at once: a second, smaller wave of them would run slower.
  const int blocks = processors * std::max(resident / kThreads, 1);
  JAXKERN_TRY(cudaMalloc(&held.first, static_cast<size_t>(half)));
  JAXKERN_TRY(cudaMalloc(&held.second, static_cast<size_t>(half)));
  JAXKERN_TRY(cudaMalloc(&held.sink, sizeof(double)));
  JAXKERN_TRY(cudaStreamCreateWithFlags(&held.stream, cudaStreamNonBlocking));
  JAXKERN_TRY(cudaEventCreate(&held.begin));
  JAXKERN_TRY(cudaEventCreate(&held.end));
  uint4* const first = static_cast<uint4*>(held.first);
  uint4* const second = static_cast<uint4*>(held.second);
  uint32_t* const sink = static_cast<uint32_t*>(held.sink);

  const double both = 2.0 * static_cast<double>(half);
  const auto store = [&] {
    store_kernel<<<blocks, kThreads, 0, held.stream>>>(first, count, 1u);
    store_kernel<<<blocks, kThreads, 0, held.stream>>>(second, count, 1u);
  };
  const auto load = [&] {
    load_kernel<<<blocks, kThreads, 0, held.stream>>>(first, count, sink);
    load_kernel<<<blocks, kThreads, 0, held.stream>>>(second, count, sink);
  };
  const auto copy = [&] {
    copy_kernel<<<blocks, kThreads, 0, held.stream>>>(first, second, count);
  };
  JAXKERN_TRY(measure(held, seconds, both, store, &rates["store"]));
  JAXKERN_TRY(measure(held, seconds, both, load, &rates["load"]));
  JAXKERN_TRY(measure(held, seconds, both, copy, &rates["copy"]));
  JAXKERN_TRY(measure_fma<float>(held, blocks, seconds, &rates["fma_f32"]));
  JAXKERN_TRY(measure_fma<double>(held, blocks, seconds, &rates["fma_f64"]));
  rates["cache_bytes"] = cache;
  rates["buffer_bytes"] = both;
  return cudaSuccess;
}
#undef JAXKERN_TRY

}  // namespace jaxkern::performance
