// What one GPU can do at best, without FFI types: bytes and multiply-adds per second.
#ifndef JAXKERN_PERFORMANCE_CUDA_H_
#define JAXKERN_PERFORMANCE_CUDA_H_

#include <cuda_runtime_api.h>

#include "performance/rates.h"

namespace jaxkern::performance {

// load, store and copy (whose bytes are those read and those written), fma_f32 and fma_f64; with
// cache_bytes of the L2 cache and the buffer_bytes that were streamed over. The best of repeated
// launches, `seconds` of each kind and at least two, over two buffers that together are four times
// the L2 cache and at least 256 MiB. Leaves the calling thread's current device as it was.
cudaError_t measure_device(int ordinal, double seconds, Rates& rates);

}  // namespace jaxkern::performance

#endif  // JAXKERN_PERFORMANCE_CUDA_H_
