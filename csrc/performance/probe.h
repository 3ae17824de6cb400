// Ceilings of this machine: bytes and multiply-adds per second, on one thread or several.
#ifndef JAXKERN_PERFORMANCE_PROBE_H_
#define JAXKERN_PERFORMANCE_PROBE_H_

#include <cstdint>

#include "core/simd_dispatch.h"
#include "performance/rates.h"

namespace jaxkern::performance {

// Measures bytes per second of load, store, store_streaming, copy (bytes read plus bytes written)
// and copy_streaming. `*_streaming` bypasses the caches; which variant is faster depends on the
// machine. A rate is the best of repeated passes over `bytes` of new memory (at least a block per
// thread and buffer). The memory is split over `threads`, each of which touches its own part first.
// Every kind of access is repeated for `seconds`, at least twice. Throws std::invalid_argument for
// an unsupported level or sizes below 1, and std::bad_alloc.
Rates measure_memory(SimdLevel level, int64_t threads, int64_t bytes, double seconds);

// Measures operations per second of fma_f32 and fma_f64, where a multiply-add is two operations:
// the best of repeated runs of independent chains of multiply-adds on each thread.
Rates measure_compute(SimdLevel level, int64_t threads, double seconds);

}  // namespace jaxkern::performance

#endif  // JAXKERN_PERFORMANCE_PROBE_H_
