// The vector operations of simd-inl.h in plain C++: one lane of four values.
#ifndef JAXKERN_CORE_SIMD_FLOATS_PORTABLE_INL_H_
#define JAXKERN_CORE_SIMD_FLOATS_PORTABLE_INL_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/half.h"

namespace jaxkern::simd::JAXKERN_LEVEL {
namespace {

constexpr int kLanes = 1;
constexpr int kFloats = 4;

struct Floats {
  float v[kFloats];
};
struct Ints {
  uint8_t b[16];
};

inline Floats load(const float* p) {
  Floats r;
  memcpy(&r, p, sizeof r);
  return r;
}
inline void store(float* p, Floats x) { memcpy(p, &x, sizeof x); }
inline Floats splat(float x) { return {{x, x, x, x}}; }
inline Floats multiply(Floats a, Floats b) {
  for (int i = 0; i < kFloats; ++i) a.v[i] *= b.v[i];
  return a;
}
inline Floats multiply_add(Floats a, Floats b, Floats c) {
  for (int i = 0; i < kFloats; ++i) c.v[i] += a.v[i] * b.v[i];
  return c;
}

// Clamps x to [0, high]; NaN becomes 0.
inline Floats limit(Floats x, Floats high) {
  for (int i = 0; i < kFloats; ++i) {
    x.v[i] = x.v[i] > 0.f ? x.v[i] : 0.f;
    x.v[i] = x.v[i] < high.v[i] ? x.v[i] : high.v[i];
  }
  return x;
}

inline Ints load_windows(const uint8_t* row, const int32_t* offset) {
  Ints r;
  memcpy(&r, row + offset[0], sizeof r);
  return r;
}
inline Ints load_shared_window(const uint8_t* row, int32_t offset) {
  return load_windows(row, &offset);
}
inline Ints pick_bytes(Ints x, const uint8_t* mask) {
  Ints r;
  for (int i = 0; i < 16; ++i) r.b[i] = mask[i] & 0x80 ? 0 : x.b[mask[i] & 15];
  return r;
}
inline Ints either(Ints a, Ints b) {
  for (int i = 0; i < 16; ++i) a.b[i] = static_cast<uint8_t>(a.b[i] | b.b[i]);
  return a;
}
inline Ints multiply_pairs(Ints x, const int16_t* weight) {
  int16_t word[8];
  int32_t sum[4];
  memcpy(word, &x, sizeof word);
  for (int i = 0; i < 4; ++i)
    sum[i] = word[2 * i] * weight[2 * i] + word[2 * i + 1] * weight[2 * i + 1];
  memcpy(&x, sum, sizeof sum);
  return x;
}
inline Ints add_ints(Ints a, Ints b) {
  int32_t x[4], y[4];
  memcpy(x, &a, sizeof x);
  memcpy(y, &b, sizeof y);
  for (int i = 0; i < 4; ++i) x[i] += y[i];
  memcpy(&a, x, sizeof x);
  return a;
}
inline Floats ints_to_floats(Ints x) {
  int32_t word[4];
  Floats r;
  memcpy(word, &x, sizeof word);
  for (int i = 0; i < 4; ++i) r.v[i] = static_cast<float>(word[i]);
  return r;
}
inline Floats bytes_to_floats(const uint8_t* p) {
  Floats r;
  for (int i = 0; i < 4; ++i) r.v[i] = p[i];
  return r;
}

inline void stream_f32(float* p, Floats x) { store(p, x); }
inline void put_bf16(uint16_t* p, Floats x) {
  for (int i = 0; i < kFloats; ++i) p[i] = float_to_bfloat16(x.v[i]);
}
inline void put_f16(uint16_t* p, Floats x) {
  for (int i = 0; i < kFloats; ++i) p[i] = float_to_float16(x.v[i]);
}
inline uint8_t clamp_to_byte(float x, float high) {
  const float positive = x > 0.f ? x : 0.f;
  return static_cast<uint8_t>(static_cast<int32_t>(positive < high ? positive : high));
}
inline void put_u8_nearest(uint8_t* p, Floats x) {
  for (int i = 0; i < kFloats; ++i) p[i] = clamp_to_byte(rintf(x.v[i]), 255.f);
}
inline void put_u8_truncate(uint8_t* p, Floats x) {
  for (int i = 0; i < kFloats; ++i) p[i] = clamp_to_byte(x.v[i], 255.999f);
}
inline void put2_bf16(uint16_t* p, Floats x, Floats y) {
  put_bf16(p, x);
  put_bf16(p + kFloats, y);
}
inline void stream2_bf16(uint16_t* p, Floats x, Floats y) { put2_bf16(p, x, y); }
inline void put2_f16(uint16_t* p, Floats x, Floats y) {
  put_f16(p, x);
  put_f16(p + kFloats, y);
}
inline void stream2_f16(uint16_t* p, Floats x, Floats y) { put2_f16(p, x, y); }
inline void put2_u8_nearest(uint8_t* p, Floats x, Floats y) {
  put_u8_nearest(p, x);
  put_u8_nearest(p + kFloats, y);
}
inline void put2_u8_truncate(uint8_t* p, Floats x, Floats y) {
  put_u8_truncate(p, x);
  put_u8_truncate(p + kFloats, y);
}
inline void end_streaming() {}

}  // namespace
}  // namespace jaxkern::simd::JAXKERN_LEVEL

#endif  // JAXKERN_CORE_SIMD_FLOATS_PORTABLE_INL_H_
