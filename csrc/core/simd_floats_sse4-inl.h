// The vector operations of simd-inl.h with SSE4.1: one lane of four values.
#ifndef JAXKERN_CORE_SIMD_FLOATS_SSE4_INL_H_
#define JAXKERN_CORE_SIMD_FLOATS_SSE4_INL_H_

#include <immintrin.h>

#include <cstdint>

#include "core/half.h"

namespace jaxkern::simd::JAXKERN_LEVEL {
namespace {

constexpr int kLanes = 1;
constexpr int kFloats = 4;
using Floats = __m128;
using Ints = __m128i;

inline Floats load(const float* p) { return _mm_loadu_ps(p); }
inline void store(float* p, Floats x) { _mm_storeu_ps(p, x); }
inline Floats splat(float x) { return _mm_set1_ps(x); }
inline Floats multiply(Floats a, Floats b) { return _mm_mul_ps(a, b); }
inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm_add_ps(_mm_mul_ps(a, b), c); }

// Clamps x to [0, high]; NaN becomes 0.
inline Floats limit(Floats x, Floats high) {
  return _mm_min_ps(_mm_max_ps(x, _mm_setzero_ps()), high);
}

inline Ints load_windows(const uint8_t* row, const int32_t* offset) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + offset[0]));
}
inline Ints load_shared_window(const uint8_t* row, int32_t offset) {
  return load_windows(row, &offset);
}
inline Ints pick_bytes(Ints x, const uint8_t* mask) {
  return _mm_shuffle_epi8(x, _mm_load_si128(reinterpret_cast<const __m128i*>(mask)));
}
inline Ints either(Ints a, Ints b) { return _mm_or_si128(a, b); }
inline Ints multiply_pairs(Ints x, const int16_t* weight) {
  return _mm_madd_epi16(x, _mm_load_si128(reinterpret_cast<const __m128i*>(weight)));
}
inline Ints add_ints(Ints a, Ints b) { return _mm_add_epi32(a, b); }
inline Floats ints_to_floats(Ints x) { return _mm_cvtepi32_ps(x); }
inline Floats bytes_to_floats(const uint8_t* p) {
  return _mm_cvtepi32_ps(_mm_cvtepu8_epi32(_mm_loadu_si32(p)));
}

inline void stream_f32(float* p, Floats x) { _mm_stream_ps(p, x); }

// bfloat16 in the low halves, zeros above. The values are never NaN (see fast-inl.h). Adding half a
// unit rounds to nearest with ties away from zero; a tie leaves a low half of 0, to which the
// saturating addition gives a mask that clears the last remaining bit, and to any other low half
// all ones.
inline __m128i round_to_bf16(Floats x) {
  const __m128i away = _mm_add_epi32(_mm_castps_si128(x), _mm_set1_epi32(0x8000));
  const __m128i even = _mm_adds_epu16(away, _mm_set1_epi32(0xfffe));
  return _mm_and_si128(_mm_srli_epi32(away, 16), even);
}
inline __m128i pack_bf16(Floats x, Floats y) {
  return _mm_packus_epi32(round_to_bf16(x), round_to_bf16(y));
}
inline void put_bf16(uint16_t* p, Floats x) { _mm_storeu_si64(p, pack_bf16(x, x)); }
inline void put2_bf16(uint16_t* p, Floats x, Floats y) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), pack_bf16(x, y));
}
inline void stream2_bf16(uint16_t* p, Floats x, Floats y) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(p), pack_bf16(x, y));
}
inline void put_f16(uint16_t* p, Floats x) {
  float value[4];
  _mm_storeu_ps(value, x);
  for (int i = 0; i < 4; ++i) p[i] = float_to_float16(value[i]);
}
inline void put2_f16(uint16_t* p, Floats x, Floats y) {
  put_f16(p, x);
  put_f16(p + kFloats, y);
}
inline void stream2_f16(uint16_t* p, Floats x, Floats y) { put2_f16(p, x, y); }

// Packing clamps at 0, and the minimum clamps at 255 before a conversion can overflow.
inline __m128i pack_bytes(__m128i x, __m128i y) {
  const __m128i words = _mm_packus_epi32(x, y);
  return _mm_packus_epi16(words, words);
}
inline __m128i nearest_level(Floats x) {
  return _mm_cvtps_epi32(_mm_min_ps(x, _mm_set1_ps(255.f)));
}
inline __m128i truncated_level(Floats x) {
  return _mm_cvttps_epi32(_mm_min_ps(x, _mm_set1_ps(255.999f)));
}
inline void put_u8_nearest(uint8_t* p, Floats x) {
  const __m128i level = nearest_level(x);
  _mm_storeu_si32(p, pack_bytes(level, level));
}
inline void put_u8_truncate(uint8_t* p, Floats x) {
  const __m128i level = truncated_level(x);
  _mm_storeu_si32(p, pack_bytes(level, level));
}
inline void put2_u8_nearest(uint8_t* p, Floats x, Floats y) {
  _mm_storeu_si64(p, pack_bytes(nearest_level(x), nearest_level(y)));
}
inline void put2_u8_truncate(uint8_t* p, Floats x, Floats y) {
  _mm_storeu_si64(p, pack_bytes(truncated_level(x), truncated_level(y)));
}
inline void end_streaming() { _mm_sfence(); }

}  // namespace
}  // namespace jaxkern::simd::JAXKERN_LEVEL

#endif  // JAXKERN_CORE_SIMD_FLOATS_SSE4_INL_H_
