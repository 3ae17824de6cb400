// Ceilings of a GPU: bytes and multiply-adds per second.
#ifndef JAXKERN_PERFORMANCE_CUDA_H_
#define JAXKERN_PERFORMANCE_CUDA_H_

#include <cuda_runtime_api.h>

#include "performance/rates.h"

namespace jaxkern::performance {

// Measures bytes per second of load, store and copy (bytes read plus bytes written), and operations
// per second of fma_f32 and fma_f64; also returns cache_bytes, the size of the L2 cache, and
// buffer_bytes, the size of the streamed buffers. A rate is the best of repeated launches: at least
// two, for `seconds` per kind, over two buffers whose total size is four times the L2 cache and at
// least 256 MiB. Restores the calling thread's current device.
cudaError_t measure_device(int ordinal, double seconds, Rates& rates);

}  // namespace jaxkern::performance

#endif  // JAXKERN_PERFORMANCE_CUDA_H_
