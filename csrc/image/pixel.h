// The operations of an image program on one pixel, level or weight, shared by the CPU and CUDA
// loops, with every product rounded before it is added.
#ifndef JAXKERN_IMAGE_PIXEL_H_
#define JAXKERN_IMAGE_PIXEL_H_

#include <cmath>
#include <cstdint>

#include "core/host_device.h"
#include "image/program.h"

namespace jaxkern::image {

// ---------------------------------------------------------------- operands of a step

struct Blend {
  float factor, rest;  // weights of the image and of the other operand
};

JAXKERN_HD bool is_finite(float x) { return x - x == 0.f; }

JAXKERN_HD float factor_of(float x) {
  return x < -kMaxFactor ? -kMaxFactor : (x > kMaxFactor ? kMaxFactor : x);
}
JAXKERN_HD Blend blend_of(const float* values) {
  return {factor_of(values[0]), factor_of(values[1])};
}

// Rounds to the nearest integer within bounds.
JAXKERN_HD int32_t clamp_to_int(float x, int32_t low, int32_t high) {
  const float least = static_cast<float>(low), most = static_cast<float>(high);
  return static_cast<int32_t>(rintf(x < least ? least : (x > most ? most : x)));
}

// Returns the operation that a step draws, or kNone if the step does not declare it.
JAXKERN_HD Code drawn_code(const ProgramStep& step, int32_t op, const float* values) {
  if (op < 0 || op >= kCodes || ((step.codes >> op) & 1) == 0) return Code::kNone;
  for (int32_t k = 0; k < kProgramValues; ++k) {
    if (!is_finite(values[k])) return Code::kNone;
  }
  return static_cast<Code>(op);
}

// ---------------------------------------------------------------- colours

// a * b + c, rounded once like torchvision's fused additions. Without the instruction it is
// computed in double, where the product is exact, and the sum accurate enough for every level.
JAXKERN_HD float fused(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__CUDA_ARCH__)
  return fmaf(a, b, c);
#else
  return static_cast<float>(static_cast<double>(a) * static_cast<double>(b) +
                            static_cast<double>(c));
#endif
}

// Clamps to the levels of a byte image and truncates; NaN becomes 0.
JAXKERN_HD float level_of(float value) {
  const float positive = value > 0.f ? value : 0.f;
  return truncf(positive < 255.f ? positive : 255.f);
}
// Clamps to [0, 1], the range of a float image; NaN is preserved.
JAXKERN_HD float unit_of(float value) {
  const float positive = value < 0.f ? 0.f : value;
  return positive > 1.f ? 1.f : positive;
}
template <typename T>
JAXKERN_HD float bounded(float value) {
  return sizeof(T) == 1 ? level_of(value) : unit_of(value);
}

// ITU-R 601-2 luma. For bytes it is floored exactly: float32 represents the sum in units of 1 /
// 10,000 plus half a unit, so the quotient is at least 1 / 20,000 away from any integer.
JAXKERN_HD float luma(float r, float g, float b, uint8_t) {
  const float parts = 2989.f * r + 5870.f * g + 1140.f * b;
  return truncf((parts + 0.5f) * (1.f / 10000.f));
}
JAXKERN_HD float luma(float r, float g, float b, float) {
  return fused(b, 0.114f, fused(g, 0.587f, r * 0.2989f));
}

struct Floor {
  JAXKERN_HD_MEMBER float operator()(float x) const { return floorf(x); }
};

// Converts to hue, saturation and value, shifts the hue and converts back, for levels or floats.
// Real is float, or a vector for levels. NaN is never converted to an integer and propagates to the
// value. Cases that occur only in floats, such as values outside [0, 1], cost nothing for levels,
// whose range is 0 or above `least`.
template <typename T, typename Real, typename Floored = Floor>
JAXKERN_HD void turn_hue(float shift, Real* red, Real* green, Real* blue,
                         const Floored& floored = {}) {
  constexpr bool kLevels = sizeof(T) == 1;
  const Real zero = {}, one = zero + 1.f, two = zero + 2.f, four = zero + 4.f;
  const Real r = *red, g = *green, b = *blue;
  const Real high_rg = r > g ? r : g, low_rg = r < g ? r : g;
  const Real value = high_rg > b ? high_rg : b, low = low_rg < b ? low_rg : b;
  const Real range = value - low;
  // The hue depends on the two channels other than the value. `near` is the one that is not the
  // lowest: its distance from the value is a fraction of the range. The distance of the lowest
  // channel is the whole range, NaN if the range is infinite.
  const auto is_red = value == r, is_green = value == g;
  const Real first = is_red ? b : (is_green ? r : g);
  const Real second = is_red ? g : (is_green ? b : r);
  const Real start = is_red ? zero : (is_green ? two : four);
  const auto lowest = first == low;
  const Real near = lowest ? second : first;
  Real share, part_near, part_low;
  if constexpr (kLevels) {
    const Real least = zero + 0x1p-20f;
    share = range / (value > least ? value : least);
    part_near = (value - near) / (range > least ? range : least);
    part_low = one;
  } else {
    const bool flat = value == low;
    share = flat ? 0.f : range / value;
    part_near = (value - near) / (flat ? 1.f : range);
    part_low = flat ? 0.f : 1.f + (range - range);
  }
  const Real added = lowest ? part_low : part_near, removed = lowest ? part_near : part_low;
  Real hue = ((start + added) - removed) * (1.f / 6.f) + 1.f;
  hue = hue - floored(hue);
  hue = hue + shift;
  hue = hue - floored(hue);
  hue = hue - floored(hue);  // rounding can give 1
  const Real scaled = hue * 6.f, sextant = floored(scaled), part = scaled - sextant;
  const Real grown = share * part, rest = 1.f - share;
  const auto within = [](Real x) {
    if constexpr (kLevels) {
      return x;
    } else {
      return unit_of(x);
    }
  };
  const Real p = within(rest * value);
  const Real q = within((1.f - grown) * value);
  const Real t = within((grown + rest) * value);
  // Sextants are compared as floats, and NaN is below all of them. There is one choice per line,
  // because compilers turn nested choices into branches.
  const auto from1 = sextant >= 1.f, from2 = sextant >= 2.f, from3 = sextant >= 3.f,
             from4 = sextant >= 4.f, from5 = sextant >= 5.f;
  Real x = from5 ? value : t;
  x = from4 ? x : p;
  x = from2 ? x : q;
  *red = from1 ? x : value;
  Real y = from4 ? p : q;
  y = from3 ? y : value;
  *green = from1 ? y : t;
  Real z = from5 ? q : value;
  z = from3 ? z : t;
  *blue = from2 ? z : p;
}

// ---------------------------------------------------------------- levels

JAXKERN_HD uint8_t inverted(uint8_t x) { return static_cast<uint8_t>(255 - x); }
JAXKERN_HD float inverted(float x) { return 1.f - x; }

JAXKERN_HD uint8_t brightness_level(uint8_t x, float factor) {
  return static_cast<uint8_t>(level_of(static_cast<float>(x) * factor));
}
JAXKERN_HD uint8_t contrast_level(uint8_t x, Blend blend, float mean) {
  return static_cast<uint8_t>(level_of(static_cast<float>(x) * blend.factor + mean * blend.rest));
}
JAXKERN_HD uint8_t posterize_level(uint8_t x, int32_t bits) {
  return static_cast<uint8_t>(x & (((1 << bits) - 1) << (8 - bits)));
}
JAXKERN_HD uint8_t solarize_level(uint8_t x, float threshold) {
  return static_cast<float>(x) >= threshold ? static_cast<uint8_t>(255 - x) : x;
}

// Computes the table of Pillow's equalization for a channel. Returns false if it changes nothing.
JAXKERN_HD bool equalized(const uint32_t* count, int64_t pixels, uint8_t* level) {
  int32_t last = 255;
  while (last > 0 && count[last] == 0) --last;
  const int64_t step = (pixels - static_cast<int64_t>(count[last])) / 255;
  if (step == 0) return false;
  int64_t before = 0;
  for (int32_t k = 0; k < 256; ++k) {
    const int64_t value = (before + step / 2) / step;
    level[k] = static_cast<uint8_t>(value < 255 ? value : 255);
    before += static_cast<int64_t>(count[k]);
  }
  return true;
}

JAXKERN_HD uint8_t unit_level(float x) { return static_cast<uint8_t>(level_of(x * 255.999f)); }

// ---------------------------------------------------------------- warps

// A point in pixels of the input; (0, 0) is the centre of the first pixel. Real is a float or a
// vector.
template <typename Real>
struct PointOf {
  Real x, y;
};
using WarpPoint = PointOf<float>;

// The map from output pixels to points, with c0 to c5 in units of half the input's sides.
struct WarpMap {
  float c[kWarpCoefficients];
  float half_width, half_height;
  float first_x, first_y;  // position of the first output pixel
};

JAXKERN_HD WarpMap warp_map(const Warp& warp, const float* coefficients) {
  WarpMap map;
  map.half_width = 0.5f * static_cast<float>(warp.in_width);
  map.half_height = 0.5f * static_cast<float>(warp.in_height);
  for (int32_t k = 0; k < 3; ++k) {
    map.c[k] = coefficients[k] / map.half_width;
    map.c[k + 3] = coefficients[k + 3] / map.half_height;
  }
  map.c[6] = coefficients[6];
  map.c[7] = coefficients[7];
  map.first_x = warp.perspective ? 0.5f : static_cast<float>(1 - warp.width) * 0.5f;
  map.first_y = warp.perspective ? 0.5f : static_cast<float>(1 - warp.height) * 0.5f;
  return map;
}

// Returns the point of an output pixel, or of several pixels of a row.
template <bool kPerspective, typename Real>
JAXKERN_HD PointOf<Real> mapped_point(const WarpMap& map, Real column, float row) {
  const Real x = column + map.first_x;
  const float y = row + map.first_y;
  Real across = (map.c[0] * x + map.c[1] * y) + map.c[2];
  Real down = (map.c[3] * x + map.c[4] * y) + map.c[5];
  if constexpr (kPerspective) {
    const Real depth = (map.c[6] * x + map.c[7] * y) + 1.f;
    across = across / depth - 1.f;
    down = down / depth - 1.f;
  }
  return {(across + 1.f) * map.half_width - 0.5f, (down + 1.f) * map.half_height - 0.5f};
}
template <bool kPerspective>
JAXKERN_HD WarpPoint warp_point(const WarpMap& map, int32_t column, int32_t row) {
  return mapped_point<kPerspective>(map, static_cast<float>(column), static_cast<float>(row));
}

// Clamps a coordinate so that it fits an integer; NaN becomes -2. Every point outside [-1, side]
// shows no pixel.
JAXKERN_HD float clamped_point(float x, int32_t side) {
  const float beyond = static_cast<float>(side) + 1.f;
  x = x > -2.f ? x : -2.f;
  return x < beyond ? x : beyond;
}

JAXKERN_HD bool warp_inside(int32_t x, int32_t y, int32_t width, int32_t height) {
  return (static_cast<uint32_t>(x) < static_cast<uint32_t>(width)) &
         (static_cast<uint32_t>(y) < static_cast<uint32_t>(height));
}

// Converts to a u8, rounded and clamped (NaN becomes 0), or to a float.
template <typename Element>
JAXKERN_HD Element stored_value(double value) {
  if constexpr (sizeof(Element) == 1) {
    const double positive = value > 0.0 ? value : 0.0;
    return static_cast<uint8_t>(static_cast<int32_t>(rint(positive < 255.0 ? positive : 255.0)));
  } else {
    return static_cast<Element>(value);
  }
}

template <typename Element, int32_t kChannels>
JAXKERN_HD void put_pixel(const Element* pixel, Element* out) {
  for (int32_t c = 0; c < kChannels; ++c) out[c] = pixel[c];
}

// Computes a pixel in float64, for any point.
template <typename Element, int32_t kChannels>
JAXKERN_HD_NOINLINE void blend_pixel(const Warp& warp, const Element* in, WarpPoint at,
                                     const Element* outside, Element* out) {
  const double px = static_cast<double>(clamped_point(at.x, warp.in_width));
  const double py = static_cast<double>(clamped_point(at.y, warp.in_height));
  const double fx = floor(px), fy = floor(py);
  const int32_t x = static_cast<int32_t>(fx), y = static_cast<int32_t>(fy);
  double value[kChannels] = {}, all = 0;
  bool all_inside = true;
  for (int32_t k = 0; k < 4; ++k) {
    const int32_t tap_x = x + (k & 1), tap_y = y + (k >> 1);
    const double weight =
        (k & 1 ? px - fx : 1.0 - (px - fx)) * (k >> 1 ? py - fy : 1.0 - (py - fy));
    if (!(weight > 0.0)) continue;
    if (!warp_inside(tap_x, tap_y, warp.in_width, warp.in_height)) {
      all_inside = false;
      continue;
    }
    const Element* tap = in + (static_cast<int64_t>(tap_y) * warp.in_width + tap_x) * kChannels;
    for (int32_t c = 0; c < kChannels; ++c) value[c] += weight * static_cast<double>(tap[c]);
    all += weight;
  }
  if (!(all > 0.0)) return put_pixel<Element, kChannels>(outside, out);
  // Without taps outside the input, a large fill must not cost precision.
  const bool filled = !all_inside && warp.fill[0] == warp.fill[0];
  for (int32_t c = 0; c < kChannels; ++c) {
    const double fill = warp.fill[c];
    out[c] = stored_value<Element>(filled ? all * (value[c] - fill) + fill : value[c]);
  }
}

// Interpolates linearly. A value of weight 0 is ignored, even if it is NaN.
JAXKERN_HD float between(float a, float b, float weight) {
  if (weight == 0.f) return a;
  return weight == 1.f ? b : (1.f - weight) * a + weight * b;
}

// Bound of the error of a blend in float32: six roundings of values and differences up to 255, each
// at most half a unit of 2^-16.
constexpr float kBlendError = 0x1p-13f;

// Blends four pixels that are all inside the input. Returns false if the rounding to u8 is
// uncertain in float32.
template <typename Element, int32_t kChannels>
JAXKERN_HD bool blend_inside(const Element* upper, const Element* lower, float across, float down,
                             Element* out) {
  bool certain = true;
  for (int32_t c = 0; c < kChannels; ++c) {
    const float a = upper[c], b = upper[c + kChannels], d = lower[c], e = lower[c + kChannels];
    if constexpr (sizeof(Element) == 1) {
      const float high = a + across * (b - a), low = d + across * (e - d);
      const float value = high + down * (low - high), level = rintf(value);
      certain &= fabsf(value - level) < 0.5f - kBlendError;
      out[c] = static_cast<uint8_t>(static_cast<int32_t>(level));
    } else {
      out[c] = between(between(a, b, across), between(d, e, across), down);
    }
  }
  return certain;
}

// ---------------------------------------------------------------- blurs

// Computes weight[t] for t from 0 to the reach and returns the reach. The weights of both sides add
// up to 1.
JAXKERN_HD_NOINLINE int32_t blur_weights(int32_t kernel, float sigma, double* weight) {
  weight[0] = 1.0;
  if (!(sigma > 0.f)) return 0;
  const double twice = 2.0 * static_cast<double>(sigma) * static_cast<double>(sigma);
  double all = 1.0;
  int32_t reach = 0;
  for (int32_t t = 1; t <= kernel / 2; ++t) {
    const double value = exp(-static_cast<double>(t) * t / twice);
    if (!(value >= 0x1p-60)) break;
    weight[reach = t] = value;
    all += 2.0 * value;
  }
  for (int32_t t = 0; t <= reach; ++t) weight[t] /= all;
  return reach;
}

// Reflects any index into [0, size), without repeating the edge.
JAXKERN_HD int32_t reflected(int64_t i, int32_t size) {
  if (i >= 0 && i < size) return static_cast<int32_t>(i);
  if (size == 1) return 0;
  const int64_t period = 2 * (static_cast<int64_t>(size) - 1);
  i = (i < 0 ? -i : i) % period;
  return static_cast<int32_t>(i < size ? i : period - i);
}

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_PIXEL_H_
