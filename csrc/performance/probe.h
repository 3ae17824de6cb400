// What this machine can do at best: bytes and multiply-adds per second, on one thread or several.
#ifndef JAXKERN_PERFORMANCE_PROBE_H_
#define JAXKERN_PERFORMANCE_PROBE_H_

#include <cstdint>

#include "core/simd_level.h"

namespace jaxkern::performance {

// Bytes a second. A copy's bytes are those read and those written. `*_streaming` goes around the
// caches; which way is faster differs between machines.
struct MemoryRates {
  double load = 0;
  double store = 0;
  double store_streaming = 0;
  double copy = 0;
  double copy_streaming = 0;
};

// Operations a second, a multiply and an add being two.
struct ComputeRates {
  double f32 = 0;
  double f64 = 0;
};

// The best of repeated passes over `bytes` of fresh memory (at least a block per thread and
// buffer), split over `threads`, each of which touches its own part first. Every kind of access is
// repeated for `seconds`, but at least twice. Throws std::invalid_argument for a level that this
// machine lacks or sizes below 1, and std::bad_alloc.
MemoryRates measure_memory(SimdLevel level, int64_t threads, int64_t bytes, double seconds);

// The best of repeated runs of independent multiply-add chains on each thread.
ComputeRates measure_compute(SimdLevel level, int64_t threads, double seconds);

}  // namespace jaxkern::performance

#endif  // JAXKERN_PERFORMANCE_PROBE_H_
