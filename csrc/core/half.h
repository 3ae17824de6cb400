// float16 and bfloat16 as bit patterns, converted to and from float32, rounding to nearest even.
#ifndef JAXKERN_CORE_HALF_H_
#define JAXKERN_CORE_HALF_H_

#include <cstdint>
#include <cstring>

#include "core/host_device.h"

namespace jaxkern {

JAXKERN_HD uint32_t float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

JAXKERN_HD float float_from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

JAXKERN_HD float bfloat16_to_float(uint16_t half) {
  return float_from_bits(static_cast<uint32_t>(half) << 16);
}

JAXKERN_HD uint16_t float_to_bfloat16(float value) {
  const uint32_t bits = float_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {  // NaN: keep the sign and some payload, set quiet
    return static_cast<uint16_t>((bits >> 16) | 0x40u);
  }
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

JAXKERN_HD float float16_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_from_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude < 0x400u) {  // subnormal: an integer times 2^-24, exact in float
    const float value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;
    return float_from_bits(sign | float_bits(value));
  }
  return float_from_bits(sign | ((magnitude << 13) + (112u << 23)));
}

JAXKERN_HD uint16_t float_to_float16(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
  }
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // from 65520 up
  if (magnitude < 0x38800000u) {  // below 2^-14: one unit in the last place of 0.5 is 2^-24
    const float shifted = float_from_bits(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (float_bits(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

}  // namespace jaxkern

#endif  // JAXKERN_CORE_HALF_H_
