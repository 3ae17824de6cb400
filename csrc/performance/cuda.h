// Ceilings of a GPU: bytes and multiply-adds per second.
#ifndef JAXKERN_PERFORMANCE_CUDA_H_
#define JAXKERN_PERFORMANCE_CUDA_H_

#include <cuda_runtime_api.h>

namespace jaxkern::performance {

// Bytes per second of load, store and copy (bytes read plus bytes written), operations per second
// of fma_f32 and fma_f64, the size of the L2 cache, and the size of the streamed buffers. No class
// of the standard library: CUDA code and its callers may be compiled with different ones.
struct DeviceRates {
  double load = 0, store = 0, copy = 0, fma_f32 = 0, fma_f64 = 0, cache_bytes = 0, buffer_bytes = 0;
};

// A rate is the best of repeated launches: at least two, for `seconds` per kind, over two buffers
// whose total size is four times the L2 cache and at least 256 MiB. Restores the calling thread's
// current device.
cudaError_t measure_device(int ordinal, double seconds, DeviceRates& rates);

}  // namespace jaxkern::performance

#endif  // JAXKERN_PERFORMANCE_CUDA_H_
