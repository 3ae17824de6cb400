// Random numbers of an image by counter, shared by the CPU and CUDA loops.
//
// Number n of a key is a function of the two alone. Threefry-2x32 with 20 rounds (Salmon, Moraes,
// Dror, Shaw, Parallel random numbers: as easy as 1, 2, 3, 2011), the generator of JAX's keys, maps
// a counter to two words. Normal numbers come in pairs by the Box-Muller transform in float64,
// accurate to the last bits, so that every implementation rounds them to the same levels.
#ifndef JAXKERN_IMAGE_RANDOM_H_
#define JAXKERN_IMAGE_RANDOM_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/host_device.h"
#include "image/pixel.h"
#include "image/program.h"

namespace jaxkern::image {

struct NoiseKey {
  uint32_t word[2];
};

// The key at the end of a step's values.
JAXKERN_HD NoiseKey key_of(const float* values) {
  uint32_t part[4];
  for (int32_t k = 0; k < 4; ++k)
    part[k] = static_cast<uint32_t>(clamp_to_int(values[kProgramValues - 4 + k], 0, 0xFFFF));
  return {{part[0] | part[1] << 16, part[2] | part[3] << 16}};
}

JAXKERN_HD uint32_t rotated(uint32_t x, int32_t bits) { return (x << bits) | (x >> (32 - bits)); }

// Computes the two words of a counter.
JAXKERN_HD void random_words(NoiseKey key, int64_t counter, uint32_t* first, uint32_t* second) {
  const uint32_t keys[3] = {key.word[0], key.word[1], key.word[0] ^ key.word[1] ^ 0x1BD11BDAu};
  const int32_t rotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  uint32_t x = static_cast<uint32_t>(static_cast<uint64_t>(counter) >> 32) + keys[0];
  uint32_t y = static_cast<uint32_t>(counter) + keys[1];
  for (int32_t group = 0; group < 5; ++group) {
    for (int32_t round = 0; round < 4; ++round) {
      x += y;
      y = rotated(y, rotations[group % 2][round]) ^ x;
    }
    x += keys[(group + 1) % 3];
    y += keys[(group + 2) % 3] + static_cast<uint32_t>(group) + 1;
  }
  *first = x;
  *second = y;
}

// Maps a word to [-1, 1), exactly.
JAXKERN_HD float uniform_number(uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-23f - 1.f;
}

JAXKERN_HD uint64_t bits_of(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
JAXKERN_HD double of_bits(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// ln x of a normal floating-point number: the exponent times ln 2, plus the series of
// 2 artanh((m - 1) / (m + 1)) for the significand m between the square roots of 1/2 and 2.
JAXKERN_HD double natural_logarithm(double x) {
  const uint64_t bits = bits_of(x);
  // Converts an integer below 2^52 to float64 without a 64-bit conversion instruction.
  double exponent = of_bits((bits >> 52) | 0x4330000000000000u) - 0x1p52 - 1023.0;
  double m = of_bits((bits & 0x000FFFFFFFFFFFFFu) | 0x3FF0000000000000u);
  const bool upper = m > 1.4142135623730951;
  m = upper ? 0.5 * m : m;
  exponent = upper ? exponent + 1.0 : exponent;
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  double series = 1.0 / 19;
  for (int32_t k = 17; k >= 1; k -= 2) series = series * z + 1.0 / k;
  return exponent * 0.6931471805599453 + 2.0 * s * series;
}

// Computes the two normal numbers of a counter: the radius times the cosine and the sine of an
// angle of b / 2^32 turns, by Taylor series around the middle of its quadrant.
JAXKERN_HD void normal_pair(uint32_t a, uint32_t b, double* first, double* second) {
  const double uniform =
      (static_cast<double>(static_cast<int32_t>(a ^ 0x80000000u)) + 0x1p31 + 0.5) * 0x1p-32;
  const double radius = sqrt(-2.0 * natural_logarithm(uniform));
  const int32_t part = static_cast<int32_t>(b & 0x3FFFFFFFu) - (1 << 29);
  const double t = static_cast<double>(part) * (1.5707963267948966 * 0x1p-30), z = t * t;
  double sine = 1.0, cosine = 1.0;
  for (int32_t k = 8; k >= 1; --k) {
    sine = 1.0 - sine * z * (1.0 / (2 * k * (2 * k + 1)));
    cosine = 1.0 - cosine * z * (1.0 / (2 * k * (2 * k - 1)));
  }
  sine *= t;
  const double across = (cosine - sine) * 0.7071067811865476;
  const double down = (cosine + sine) * 0.7071067811865476;
  const bool odd = (b >> 30 & 1) != 0, half = b >> 31 != 0;
  const double x = odd ? -down : across, y = odd ? across : down;
  *first = radius * (half ? -x : x);
  *second = radius * (half ? -y : y);
}

// Adds noise to a level. Like torchvision, it truncates the noise to an integer; the sum is clamped
// if `clip`, else it wraps.
JAXKERN_HD uint8_t noisy(uint8_t x, double noise, bool clip) {
  const double least = noise > -32768.0 ? noise : -32768.0;
  const int32_t sum = x + static_cast<int32_t>(least < 32767.0 ? least : 32767.0);
  if (!clip) return static_cast<uint8_t>(sum & 255);
  return static_cast<uint8_t>(sum < 0 ? 0 : (sum > 255 ? 255 : sum));
}
JAXKERN_HD float noisy(float x, double noise, bool clip) {
  const float sum = x + static_cast<float>(noise);
  return clip ? unit_of(sum) : sum;
}

// Returns the point of output pixel i of an elastic warp along one axis, in float32 and in
// torchvision's order of operations. `displacement` is in units of half the side.
JAXKERN_HD float elastic_point(int32_t i, int32_t side, double displacement) {
  const float middle = static_cast<float>(2 * i + 1 - side) / static_cast<float>(side);
  const float at = middle + static_cast<float>(displacement);
  return (at + 1.f) * (0.5f * static_cast<float>(side)) - 0.5f;
}

struct Box {
  int32_t top, left, bottom, right;  // bottom and right are exclusive
};

// Returns the box (top, left, height, width) clipped to an image.
JAXKERN_HD Box box_of(const float* values, int32_t height, int32_t width) {
  int32_t at[4];
  for (int32_t k = 0; k < 4; ++k) at[k] = clamp_to_int(values[k], -(1 << 24), 1 << 24);
  const auto within = [](int32_t index, int32_t side) {
    return index < 0 ? 0 : (index < side ? index : side);
  };
  return {within(at[0], height), within(at[1], width), within(at[0] + at[2], height),
          within(at[1] + at[3], width)};
}

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_RANDOM_H_
