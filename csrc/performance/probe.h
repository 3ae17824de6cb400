// What this machine can do at best: bytes and multiply-adds per second, on one thread or several.
#ifndef JAXKERN_PERFORMANCE_PROBE_H_
#define JAXKERN_PERFORMANCE_PROBE_H_

#include <cstdint>

#include "core/simd_dispatch.h"
#include "performance/rates.h"

namespace jaxkern::performance {

// Bytes a second of load, store, store_streaming, copy (those read and those written) and
// copy_streaming. `*_streaming` goes around the caches; which way is faster differs between
// machines. The best of repeated passes over `bytes` of fresh memory (at least a block per thread
// and buffer), split over `threads`, each of which touches its own part first. Every kind of access
// is repeated for `seconds`, but at least twice. Throws std::invalid_argument for a level that this
// machine lacks or sizes below 1, and std::bad_alloc.
Rates measure_memory(SimdLevel level, int64_t threads, int64_t bytes, double seconds);

// Operations a second of fma_f32 and fma_f64, a multiply and an add being two: the best of
// repeated runs of independent multiply-add chains on each thread.
Rates measure_compute(SimdLevel level, int64_t threads, double seconds);

}  // namespace jaxkern::performance

#endif  // JAXKERN_PERFORMANCE_PROBE_H_
