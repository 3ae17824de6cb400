// The per-element arithmetic of the image chain (see plan.h), shared by the CPU and CUDA loops.
//
// Positions are ratios of integers. They are computed in 64-bit integers until one final division,
// so large images lose no precision. Every size is at most kMaxSize, so products are below 2^52.
#ifndef JAXKERN_IMAGE_ARITHMETIC_H_
#define JAXKERN_IMAGE_ARITHMETIC_H_

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "core/half.h"
#include "core/host_device.h"
#include "image/plan.h"

namespace jaxkern::image {

// Largest height or width of a source, a box, a resampled box or an output.
constexpr int32_t kMaxSize = 1 << 24;

// A half-open range of indices; empty when end <= begin.
struct Range {
  int32_t begin, end;
};

JAXKERN_HD int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
JAXKERN_HD int64_t larger(int64_t a, int64_t b) { return a < b ? b : a; }

// ---------------------------------------------------------------- resampling, one axis at a time

JAXKERN_HD int32_t nearest_index(int32_t i, int32_t box, int32_t resampled) {
  return static_cast<int32_t>((2 * static_cast<int64_t>(i) + 1) * box /
                              (2 * static_cast<int64_t>(resampled)));
}

// value = (1 - weight) * input[first] + weight * input[second]
struct BilinearTaps {
  int32_t first, second;
  float weight;
};

JAXKERN_HD BilinearTaps bilinear_taps(int32_t i, int32_t box, int32_t resampled) {
  const int64_t denominator = 2 * static_cast<int64_t>(resampled);
  const int64_t numerator = larger((2 * static_cast<int64_t>(i) + 1) * box - resampled, 0);
  const int64_t first = numerator / denominator;
  BilinearTaps taps;
  taps.first = static_cast<int32_t>(first);
  taps.second = static_cast<int32_t>(smaller(first + 1, box - 1));
  taps.weight =
      static_cast<float>(numerator - first * denominator) / static_cast<float>(denominator);
  return taps;
}

// The taps of output i under the antialias filter: inputs j in [begin, end), where the weight of j
// is the integer antialias_height, divided by the window's total. All of them are positive, so NaN
// and infinities spread only to outputs that depend on them.
struct AntialiasWindow {
  int32_t begin, end;
  int64_t center;  // (2 i + 1) * box; input j is centred at (2 j + 1) * resampled
  int64_t reach;   // half-width of the triangle on that scale
  int64_t resampled;
};

JAXKERN_HD AntialiasWindow antialias_window(int32_t i, int32_t box, int32_t resampled) {
  AntialiasWindow window;
  window.center = (2 * static_cast<int64_t>(i) + 1) * box;
  window.reach = 2 * larger(box, resampled);
  window.resampled = resampled;
  const int64_t denominator = 2 * static_cast<int64_t>(resampled);
  const int64_t low = larger(window.center - window.reach + resampled, 0);
  const int64_t high = window.center + window.reach + resampled - 1;
  window.begin = static_cast<int32_t>(low / denominator);
  window.end = static_cast<int32_t>(smaller(high / denominator, box));
  return window;
}

JAXKERN_HD int64_t antialias_height(const AntialiasWindow& window, int32_t j) {
  const int64_t offset = (2 * static_cast<int64_t>(j) + 1) * window.resampled - window.center;
  return larger(window.reach - (offset < 0 ? -offset : offset), 0);
}

JAXKERN_HD int64_t antialias_total(const AntialiasWindow& window) {
  int64_t total = 0;
  for (int32_t j = window.begin; j < window.end; ++j) total += antialias_height(window, j);
  return total;
}

JAXKERN_HD bool is_bicubic(Filter filter) { return filter >= Filter::kBicubic; }
JAXKERN_HD bool keeps_levels(Filter filter) { return filter >= Filter::kBicubicLevels; }
JAXKERN_HD bool has_antialias(Filter filter) {
  return filter == Filter::kAntialias || filter == Filter::kBicubicAntialias ||
         filter == Filter::kBicubicAntialiasLevels;
}

// Keys' cubic convolution kernel at x >= 0, in a form that is exactly 0 at 1 and for x >= 2 (Keys,
// Cubic convolution interpolation for digital image processing, 1981).
JAXKERN_HD float bicubic_kernel(float a, float x) {
  const float inner = 1.f - x * x * (a + 3.f - (a + 2.f) * x);
  const float outer = a * (x - 1.f) * (x - 2.f) * (x - 2.f);
  return x < 1.f ? inner : x < 2.f ? outer : 0.f;
}

// The taps of output i under a bicubic filter: inputs j in [begin, end) with bicubic_weight.
// Without antialias the weights add up to 1. Some of them may be 0.
struct BicubicWindow {
  int32_t begin, end;
  int32_t last;    // last index of the box
  int64_t center;  // as in AntialiasWindow
  int64_t resampled;
  float one;  // the kernel's argument 1 on that scale
  float a;
  bool antialias;
};

JAXKERN_HD BicubicWindow bicubic_window(Filter filter, int32_t i, int32_t box, int32_t resampled) {
  BicubicWindow window;
  window.antialias = has_antialias(filter);
  window.a = window.antialias ? -.5f : -.75f;
  window.last = box - 1;
  window.center = (2 * static_cast<int64_t>(i) + 1) * box;
  window.resampled = resampled;
  const int64_t denominator = 2 * static_cast<int64_t>(resampled);
  const int64_t one = window.antialias ? 2 * larger(box, resampled) : denominator;
  window.one = static_cast<float>(one);
  const int64_t low = window.center - 2 * one + resampled;
  const int64_t high = window.center + 2 * one + resampled - 1;
  window.begin = static_cast<int32_t>(larger(low, 0) / denominator);
  window.end = static_cast<int32_t>(smaller(high / denominator, box));
  return window;
}

JAXKERN_HD float bicubic_weight(const BicubicWindow& window, int32_t j) {
  const int64_t offset = (2 * static_cast<int64_t>(j) + 1) * window.resampled - window.center;
  const float x = static_cast<float>(offset) / window.one;
  float weight = bicubic_kernel(window.a, fabsf(x));
  if (!window.antialias && (j == 0 || j == window.last)) {
    // Add the weights of the taps beyond the box.
    for (int k = 1; k <= 2; ++k) {
      if (j == 0) weight += bicubic_kernel(window.a, fabsf(x - static_cast<float>(k)));
      if (j == window.last) weight += bicubic_kernel(window.a, fabsf(x + static_cast<float>(k)));
    }
  }
  return weight;
}

JAXKERN_HD float bicubic_total(const BicubicWindow& window) {
  if (!window.antialias) return 1.f;
  float total = 0.f;
  for (int32_t j = window.begin; j < window.end; ++j) total += bicubic_weight(window, j);
  return total;
}

JAXKERN_HD float clamp_level(float value) {
  const float positive = value > 0.f ? value : 0.f;
  return positive < 255.f ? positive : 255.f;
}

// Returns the inputs of output i under any filter.
JAXKERN_HD Range tap_range(Filter filter, int32_t i, int32_t box, int32_t resampled) {
  if (filter == Filter::kNone) return {i, i + 1};
  if (filter == Filter::kBilinear) {
    const BilinearTaps taps = bilinear_taps(i, box, resampled);
    return {taps.first, taps.second + 1};
  }
  if (filter == Filter::kAntialias) {
    const AntialiasWindow window = antialias_window(i, box, resampled);
    return {window.begin, window.end};
  }
  if (is_bicubic(filter)) {
    const BicubicWindow window = bicubic_window(filter, i, box, resampled);
    return {window.begin, window.end};
  }
  const int32_t index = nearest_index(i, box, resampled);
  return {index, index + 1};
}

// ---------------------------------------------------------------- map

// Returns the resampled index that output index y shows. It may be outside [0, resampled).
JAXKERN_HD int64_t mapped_index(int32_t offset, int32_t step, int32_t y) {
  return static_cast<int64_t>(offset) + static_cast<int64_t>(step) * y;
}

// Maps index i to an index in [0, resampled) under a padding.
JAXKERN_HD int32_t folded_index(Padding padding, int64_t i, int32_t resampled) {
  if (i >= 0 && i < resampled) return static_cast<int32_t>(i);
  if (padding == Padding::kEdge || resampled == 1) return i < 0 ? 0 : resampled - 1;
  const int32_t twice = padding == Padding::kSymmetric ? 1 : 0;  // edges are repeated
  const int64_t period = 2 * (static_cast<int64_t>(resampled) - 1 + twice);
  const int64_t within = (i % period + period) % period;
  return static_cast<int32_t>(within < resampled ? within : period - twice - within);
}

// Returns the resampled index in [0, resampled) that a valid output index y shows.
JAXKERN_HD int32_t shown_index(Padding padding, int32_t offset, int32_t step, int32_t resampled,
                               int32_t y) {
  return folded_index(padding, mapped_index(offset, step, y), resampled);
}

// Returns the valid outputs in [0, size) along one axis. They are a range, because the step is 1 or
// -1.
JAXKERN_HD Range valid_range(Padding padding, int32_t offset, int32_t step, int32_t resampled,
                             int32_t valid_begin, int32_t valid_end, int32_t size) {
  const int64_t wide = offset;
  const bool fill = padding == Padding::kFill;
  const int64_t begin = !fill ? 0 : step > 0 ? -wide : wide - resampled + 1;
  const int64_t end = !fill ? size : step > 0 ? resampled - wide : wide + 1;
  Range range;
  range.begin = static_cast<int32_t>(smaller(larger(larger(begin, valid_begin), 0), size));
  range.end = static_cast<int32_t>(larger(smaller(smaller(end, valid_end), size), range.begin));
  return range;
}

JAXKERN_HD Range valid_rows(const Geometry& g, const Segment& segment) {
  return valid_range(segment.padding, g.row_offset, g.row_step, g.resampled_height, g.valid_top,
                     g.valid_bottom, segment.height);
}

JAXKERN_HD Range valid_columns(const Geometry& g, const Segment& segment) {
  return valid_range(segment.padding, g.column_offset, g.column_step, g.resampled_width,
                     g.valid_left, g.valid_right, segment.width);
}

JAXKERN_HD int32_t shown_row(const Segment& segment, const Geometry& g, int32_t y) {
  return shown_index(segment.padding, g.row_offset, g.row_step, g.resampled_height, y);
}

JAXKERN_HD int32_t shown_column(const Segment& segment, const Geometry& g, int32_t x) {
  return shown_index(segment.padding, g.column_offset, g.column_step, g.resampled_width, x);
}

// True if outputs [range.begin, range.end) show indices outside [0, resampled).
JAXKERN_HD bool shows_outside(int32_t offset, int32_t step, int32_t resampled, Range range) {
  const int64_t first = mapped_index(offset, step, range.begin);
  const int64_t last = mapped_index(offset, step, range.end - 1);
  return smaller(first, last) < 0 || larger(first, last) >= resampled;
}

// Returns the part of [0, size) that a side of an erase box covers.
JAXKERN_HD Range erased_range(int32_t start, int32_t length, int32_t size) {
  const int64_t end = static_cast<int64_t>(start) + larger(length, 0);
  Range range;
  range.begin = static_cast<int32_t>(smaller(larger(start, 0), size));
  range.end = static_cast<int32_t>(larger(smaller(end, size), range.begin));
  return range;
}

JAXKERN_HD bool inside(Range range, int32_t index) {
  return index >= range.begin && index < range.end;
}

// ---------------------------------------------------------------- values

JAXKERN_HD float apply_affine(float value, float scale, float bias) { return scale * value + bias; }

// NaN becomes 0 under either rounding.
JAXKERN_HD float round_value(Rounding rounding, float value) {
  if (rounding == Rounding::kKeep) return value;
  const float positive = value > 0.f ? value : 0.f;
  if (rounding == Rounding::kNearest) return rintf(positive < 255.f ? positive : 255.f);
  return truncf(positive < 255.999f ? positive : 255.999f);
}

// An operand of weight 0 is ignored, even if it is NaN.
JAXKERN_HD float mix_value(float x, float partner, float lambda) {
  if (lambda == 0.f) return partner;
  return lambda == 1.f ? x : lambda * x + (1.f - lambda) * partner;
}

// ---------------------------------------------------------------- storage

// Calls run(std::integral_constant<Dtype, dtype>()) for a checked dtype, on the host.
template <typename Run>
static inline auto with_dtype(Dtype dtype, const Run& run) {
  switch (dtype) {
    case Dtype::kU8:
      return run(std::integral_constant<Dtype, Dtype::kU8>());
    case Dtype::kF16:
      return run(std::integral_constant<Dtype, Dtype::kF16>());
    case Dtype::kBF16:
      return run(std::integral_constant<Dtype, Dtype::kBF16>());
    default:
      return run(std::integral_constant<Dtype, Dtype::kF32>());
  }
}

template <Dtype dtype>
struct Stored {
  using Type = uint16_t;
};
template <>
struct Stored<Dtype::kU8> {
  using Type = uint8_t;
};
template <>
struct Stored<Dtype::kF32> {
  using Type = float;
};

JAXKERN_HD int32_t dtype_bytes(Dtype dtype) {
  return dtype == Dtype::kU8 ? 1 : dtype == Dtype::kF32 ? 4 : 2;
}

template <Dtype dtype>
JAXKERN_HD float load_value(const void* values, int64_t index) {
  if constexpr (dtype == Dtype::kU8) return static_cast<const uint8_t*>(values)[index];
  if constexpr (dtype == Dtype::kF16)
    return float16_to_float(static_cast<const uint16_t*>(values)[index]);
  if constexpr (dtype == Dtype::kBF16)
    return bfloat16_to_float(static_cast<const uint16_t*>(values)[index]);
  if constexpr (dtype == Dtype::kF32) return static_cast<const float*>(values)[index];
}

// A u8 value must already be an integer in [0, 255].
template <Dtype dtype>
JAXKERN_HD void store_value(void* values, int64_t index, float value) {
  if constexpr (dtype == Dtype::kU8)
    static_cast<uint8_t*>(values)[index] = static_cast<uint8_t>(static_cast<int32_t>(value));
  if constexpr (dtype == Dtype::kF16)
    static_cast<uint16_t*>(values)[index] = float_to_float16(value);
  if constexpr (dtype == Dtype::kBF16)
    static_cast<uint16_t*>(values)[index] = float_to_bfloat16(value);
  if constexpr (dtype == Dtype::kF32) static_cast<float*>(values)[index] = value;
}

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_ARITHMETIC_H_
