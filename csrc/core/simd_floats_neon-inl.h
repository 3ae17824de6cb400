// The vector operations of simd-inl.h with NEON: one lane of four values.
#ifndef JAXKERN_CORE_SIMD_FLOATS_NEON_INL_H_
#define JAXKERN_CORE_SIMD_FLOATS_NEON_INL_H_

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace jaxkern::simd::JAXKERN_LEVEL {
namespace {

constexpr int kLanes = 1;
constexpr int kFloats = 4;
using Floats = float32x4_t;
using Ints = uint8x16_t;

inline Floats load(const float* p) { return vld1q_f32(p); }
inline void store(float* p, Floats x) { vst1q_f32(p, x); }
inline Floats splat(float x) { return vdupq_n_f32(x); }
inline Floats multiply(Floats a, Floats b) { return vmulq_f32(a, b); }
inline Floats multiply_add(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }

// Clamps x to [0, high]; NaN becomes 0.
inline Floats limit(Floats x, Floats high) {
  return vminnmq_f32(vmaxnmq_f32(x, vdupq_n_f32(0)), high);
}

inline Ints load_windows(const uint8_t* row, const int32_t* offset) {
  return vld1q_u8(row + offset[0]);
}
inline Ints load_shared_window(const uint8_t* row, int32_t offset) {
  return vld1q_u8(row + offset);
}
inline Ints pick_bytes(Ints x, const uint8_t* mask) { return vqtbl1q_u8(x, vld1q_u8(mask)); }
inline Ints either(Ints a, Ints b) { return vorrq_u8(a, b); }
// Adds the products of neighbouring 16-bit words.
inline int32x4_t add_word_products(int16x8_t a, int16x8_t b) {
  return vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b));
}
inline Ints multiply_pairs(Ints x, const int16_t* weight) {
  return vreinterpretq_u8_s32(add_word_products(vreinterpretq_s16_u8(x), vld1q_s16(weight)));
}
inline Ints add_ints(Ints a, Ints b) {
  return vreinterpretq_u8_s32(vaddq_s32(vreinterpretq_s32_u8(a), vreinterpretq_s32_u8(b)));
}
inline Floats ints_to_floats(Ints x) { return vcvtq_f32_s32(vreinterpretq_s32_u8(x)); }
inline Floats bytes_to_floats(const uint8_t* p) {
  uint32_t four;
  memcpy(&four, p, sizeof four);
  const uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(four));
  return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))));
}

// The architecture's non-temporal stores are a hint that common cores ignore.
inline void stream_f32(float* p, Floats x) { store(p, x); }

// The values are never NaN (see fast-inl.h). Adds half a unit, or one less if the last bit of the
// result is 0, and takes the upper halves: rounds to the nearest, ties to even.
inline uint16x4_t round_to_bf16(Floats x) {
  const uint32x4_t bits = vreinterpretq_u32_f32(x);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  return vaddhn_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
}
inline void put_bf16(uint16_t* p, Floats x) { vst1_u16(p, round_to_bf16(x)); }
inline void put2_bf16(uint16_t* p, Floats x, Floats y) {
  vst1q_u16(p, vcombine_u16(round_to_bf16(x), round_to_bf16(y)));
}
inline void stream2_bf16(uint16_t* p, Floats x, Floats y) { put2_bf16(p, x, y); }
inline uint16x4_t round_to_f16(Floats x) { return vreinterpret_u16_f16(vcvt_f16_f32(x)); }
inline void put_f16(uint16_t* p, Floats x) { vst1_u16(p, round_to_f16(x)); }
inline void put2_f16(uint16_t* p, Floats x, Floats y) {
  vst1q_u16(p, vcombine_u16(round_to_f16(x), round_to_f16(y)));
}
inline void stream2_f16(uint16_t* p, Floats x, Floats y) { put2_f16(p, x, y); }

// Conversions and the narrowing of words clamp at both ends.
inline uint8x8_t pack_bytes(uint32x4_t x, uint32x4_t y) {
  return vqmovn_u16(vcombine_u16(vqmovn_u32(x), vqmovn_u32(y)));
}
inline void put_four(uint8_t* p, uint32x4_t x) {
  const uint32_t four = vget_lane_u32(vreinterpret_u32_u8(pack_bytes(x, x)), 0);
  memcpy(p, &four, sizeof four);
}
inline void put_u8_nearest(uint8_t* p, Floats x) { put_four(p, vcvtnq_u32_f32(x)); }
inline void put_u8_truncate(uint8_t* p, Floats x) { put_four(p, vcvtq_u32_f32(x)); }
inline void put2_u8_nearest(uint8_t* p, Floats x, Floats y) {
  vst1_u8(p, pack_bytes(vcvtnq_u32_f32(x), vcvtnq_u32_f32(y)));
}
inline void put2_u8_truncate(uint8_t* p, Floats x, Floats y) {
  vst1_u8(p, pack_bytes(vcvtq_u32_f32(x), vcvtq_u32_f32(y)));
}
inline void end_streaming() {}

}  // namespace
}  // namespace jaxkern::simd::JAXKERN_LEVEL

#endif  // JAXKERN_CORE_SIMD_FLOATS_NEON_INL_H_
