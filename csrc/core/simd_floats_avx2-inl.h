// The vector operations of simd-inl.h with AVX2, FMA and F16C: two lanes of four values.
#ifndef JAXKERN_CORE_SIMD_FLOATS_AVX2_INL_H_
#define JAXKERN_CORE_SIMD_FLOATS_AVX2_INL_H_

#include <immintrin.h>

#include <cstdint>

namespace jaxkern::simd::JAXKERN_LEVEL {
namespace {

constexpr int kLanes = 2;
constexpr int kFloats = 8;
using Floats = __m256;
using Ints = __m256i;

inline Floats load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Floats x) { _mm256_storeu_ps(p, x); }
inline Floats splat(float x) { return _mm256_set1_ps(x); }
inline Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }

// Clamps x to [0, high]; NaN becomes 0.
inline Floats limit(Floats x, Floats high) {
  return _mm256_min_ps(_mm256_max_ps(x, _mm256_setzero_ps()), high);
}

inline Ints load_windows(const uint8_t* row, const int32_t* offset) {
  const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + offset[0]));
  const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + offset[1]));
  return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}
// One window for all lanes.
inline Ints load_shared_window(const uint8_t* row, int32_t offset) {
  return _mm256_broadcastsi128_si256(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + offset)));
}
inline Ints pick_bytes(Ints x, const uint8_t* mask) {
  return _mm256_shuffle_epi8(x, _mm256_load_si256(reinterpret_cast<const __m256i*>(mask)));
}
inline Ints either(Ints a, Ints b) { return _mm256_or_si256(a, b); }
inline Ints multiply_pairs(Ints x, const int16_t* weight) {
  return _mm256_madd_epi16(x, _mm256_load_si256(reinterpret_cast<const __m256i*>(weight)));
}
inline Ints add_ints(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
inline Floats ints_to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }
inline Floats bytes_to_floats(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadu_si64(p)));
}

inline void stream_f32(float* p, Floats x) { _mm256_stream_ps(p, x); }

// bfloat16 in the low halves, zeros above. The values are never NaN (see fast-inl.h). Adding half a
// unit rounds to nearest with ties away from zero; a tie leaves a low half of 0, to which the
// saturating addition gives a mask that clears the last remaining bit, and to any other low half
// all ones.
inline __m256i round_to_bf16(Floats x) {
  const __m256i away = _mm256_add_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(0x8000));
  const __m256i even = _mm256_adds_epu16(away, _mm256_set1_epi32(0xfffe));
  return _mm256_and_si256(_mm256_srli_epi32(away, 16), even);
}
// Packing works within 128-bit halves. This restores the order of the four quarters.
inline __m256i in_order(__m256i x) { return _mm256_permute4x64_epi64(x, 0xd8); }
inline __m256i pack_bf16(Floats x, Floats y) {
  return in_order(_mm256_packus_epi32(round_to_bf16(x), round_to_bf16(y)));
}
inline void put_bf16(uint16_t* p, Floats x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(pack_bf16(x, x)));
}
inline void put2_bf16(uint16_t* p, Floats x, Floats y) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), pack_bf16(x, y));
}
inline void stream2_bf16(uint16_t* p, Floats x, Floats y) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), pack_bf16(x, y));
}
inline __m128i round_to_f16(Floats x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
inline void put_f16(uint16_t* p, Floats x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), round_to_f16(x));
}
inline void put2_f16(uint16_t* p, Floats x, Floats y) {
  put_f16(p, x);
  put_f16(p + kFloats, y);
}
inline void stream2_f16(uint16_t* p, Floats x, Floats y) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(p), round_to_f16(x));
  _mm_stream_si128(reinterpret_cast<__m128i*>(p + kFloats), round_to_f16(y));
}

// Packing clamps at 0, and the minimum clamps at 255 before a conversion can overflow.
inline __m128i pack_bytes(__m256i x, __m256i y) {
  const __m256i words = in_order(_mm256_packus_epi32(x, y));
  return _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
inline __m256i nearest_level(Floats x) {
  return _mm256_cvtps_epi32(_mm256_min_ps(x, _mm256_set1_ps(255.f)));
}
inline __m256i truncated_level(Floats x) {
  return _mm256_cvttps_epi32(_mm256_min_ps(x, _mm256_set1_ps(255.999f)));
}
inline void put_u8_nearest(uint8_t* p, Floats x) {
  const __m256i level = nearest_level(x);
  _mm_storeu_si64(p, pack_bytes(level, level));
}
inline void put_u8_truncate(uint8_t* p, Floats x) {
  const __m256i level = truncated_level(x);
  _mm_storeu_si64(p, pack_bytes(level, level));
}
inline void put2_u8_nearest(uint8_t* p, Floats x, Floats y) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), pack_bytes(nearest_level(x), nearest_level(y)));
}
inline void put2_u8_truncate(uint8_t* p, Floats x, Floats y) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   pack_bytes(truncated_level(x), truncated_level(y)));
}
inline void end_streaming() { _mm_sfence(); }

}  // namespace
}  // namespace jaxkern::simd::JAXKERN_LEVEL

#endif  // JAXKERN_CORE_SIMD_FLOATS_AVX2_INL_H_
