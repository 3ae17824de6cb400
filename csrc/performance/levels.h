// The loops of the machine probes, which levels.cc defines once per instruction-set level.
#ifndef JAXKERN_PERFORMANCE_LEVELS_H_
#define JAXKERN_PERFORMANCE_LEVELS_H_

#include <cstdint>

#include "core/simd_dispatch.h"

namespace jaxkern::performance {

// Alignment of the buffers; their sizes are multiples of it.
constexpr int64_t kBlockBytes = 512;

// Reads `bytes` bytes and returns the sum of their 8-byte words modulo 2^64.
JAXKERN_LEVEL_FUNCTION(uint64_t, load_bytes, const char* source, int64_t bytes)

// Fills `bytes` bytes with the word `value`, or copies them; bypasses the caches if `streaming` is
// true and the level supports it.
JAXKERN_LEVEL_FUNCTION(void, store_bytes, char* target, int64_t bytes, uint64_t value,
                       bool streaming)
JAXKERN_LEVEL_FUNCTION(void, copy_bytes, const char* source, char* target, int64_t bytes,
                       bool streaming)

// Repeats x = x * 0.5 + 1 `rounds` times on independent vectors that begin at `start`; returns
// their mean.
JAXKERN_LEVEL_FUNCTION(double, multiply_add_f32, int64_t rounds, float start)
JAXKERN_LEVEL_FUNCTION(double, multiply_add_f64, int64_t rounds, double start)

// Number of multiplications and additions in one round.
JAXKERN_LEVEL_FUNCTION(int64_t, round_flops_f32)
JAXKERN_LEVEL_FUNCTION(int64_t, round_flops_f64)

}  // namespace jaxkern::performance

#endif  // JAXKERN_PERFORMANCE_LEVELS_H_
