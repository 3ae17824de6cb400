// The loops of the machine probes, which levels.cc defines once per instruction-set level.
#ifndef JAXKERN_PERFORMANCE_LEVELS_H_
#define JAXKERN_PERFORMANCE_LEVELS_H_

#include <cstdint>

#include "core/simd_dispatch.h"

namespace jaxkern::performance {

// Buffers are aligned to this and as many bytes long, times a whole number.
constexpr int64_t kBlockBytes = 512;

// Reads `bytes` bytes; the sum modulo 2^64 of their 8-byte words.
JAXKERN_LEVEL_FUNCTION(uint64_t, load_bytes, const char* from, int64_t bytes)

// Writes the word `value` over `bytes` bytes, around the caches where `streaming` says so and the
// level can.
JAXKERN_LEVEL_FUNCTION(void, store_bytes, char* to, int64_t bytes, uint64_t value, bool streaming)
JAXKERN_LEVEL_FUNCTION(void, copy_bytes, const char* from, char* to, int64_t bytes, bool streaming)

// `rounds` of x = x * 0.5 + 1 on independent vectors that begin at `start`; their mean.
JAXKERN_LEVEL_FUNCTION(double, multiply_add_f32, int64_t rounds, float start)
JAXKERN_LEVEL_FUNCTION(double, multiply_add_f64, int64_t rounds, double start)

// Multiplies and adds of one round.
JAXKERN_LEVEL_FUNCTION(int64_t, round_flops_f32)
JAXKERN_LEVEL_FUNCTION(int64_t, round_flops_f64)

}  // namespace jaxkern::performance

#endif  // JAXKERN_PERFORMANCE_LEVELS_H_
