// What one GPU can do at best, without FFI types: bytes and multiply-adds per second.
#ifndef JAXKERN_PERFORMANCE_CUDA_H_
#define JAXKERN_PERFORMANCE_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace jaxkern::performance {

// Bytes and operations a second; a copy's bytes are those read and those written.
struct DeviceRates {
  double load = 0, store = 0, copy = 0;
  double fma_f32 = 0, fma_f64 = 0;
  int64_t cache_bytes = 0;   // of the L2 cache
  int64_t buffer_bytes = 0;  // that were streamed over
};

// The best of repeated launches, `seconds` of each kind and at least two, over two buffers that
// together are four times the L2 cache and at least 256 MiB. Leaves the calling thread's current
// device as it was.
cudaError_t measure_device(int ordinal, double seconds, DeviceRates* rates);

}  // namespace jaxkern::performance

#endif  // JAXKERN_PERFORMANCE_CUDA_H_
