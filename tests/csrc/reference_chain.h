// The image chain in double precision, pixel by pixel, written from the text of plan.h alone. It
// shares no arithmetic with the kernels.
#ifndef JAXKERN_TESTS_REFERENCE_CHAIN_H_
#define JAXKERN_TESTS_REFERENCE_CHAIN_H_

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "random_chain.h"

namespace jaxkern::image::testing {

inline double half_value(Dtype dtype, uint16_t bits) {
  const int mantissa_bits = dtype == Dtype::kF16 ? 10 : 7;
  const int bias = dtype == Dtype::kF16 ? 15 : 127;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const double sign = bits & 0x8000 ? -1. : 1.;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

inline double element(Dtype dtype, const unsigned char* values, size_t index) {
  if (dtype == Dtype::kU8) return values[index];
  if (dtype == Dtype::kF32) {
    float value;
    std::memcpy(&value, values + 4 * index, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, values + 2 * index, 2);
  return half_value(dtype, bits);
}

struct Image {
  int32_t height, width, channels;
  std::vector<double> values;  // [height, width, channels]
  double& at(int32_t y, int32_t x, int32_t c) {
    return values[(static_cast<size_t>(y) * width + x) * channels + c];
  }
  double at(int32_t y, int32_t x, int32_t c) const {
    return values[(static_cast<size_t>(y) * width + x) * channels + c];
  }
};

struct Weighted {
  int32_t index;
  double weight;
};

inline double reference_cubic(double a, double x) {
  x = std::abs(x);
  if (x < 1) return (a + 2) * x * x * x - (a + 3) * x * x + 1;
  return x < 2 ? a * (x * x * x - 5 * x * x + 8 * x - 4) : 0;
}

// Maps an index outside to one inside, step by step.
inline int64_t reference_index(Padding padding, int64_t i, int32_t count) {
  if (padding == Padding::kFill) return i;
  if (padding == Padding::kEdge || count == 1) return std::clamp<int64_t>(i, 0, count - 1);
  const int64_t twice = padding == Padding::kSymmetric ? 1 : 0;
  while (i < 0 || i >= count) i = i < 0 ? -i - twice : 2 * (count - 1) + twice - i;
  return i;
}

inline std::vector<Weighted> reference_taps(Filter filter, int32_t i, int32_t box,
                                            int32_t resampled) {
  const double scale = static_cast<double>(box) / resampled;
  if (filter == Filter::kNone) return {{i, 1.}};
  if (filter == Filter::kNearest) {
    const int64_t twice = (2 * static_cast<int64_t>(i) + 1) * box;
    return {{static_cast<int32_t>(twice / (2 * resampled)), 1.}};
  }
  if (filter == Filter::kBilinear) {
    const double position = std::max((i + .5) * scale - .5, 0.);
    const int32_t first = std::min(static_cast<int32_t>(std::floor(position)), box - 1);
    const double weight = position - first;
    return {{first, 1. - weight}, {std::min(first + 1, box - 1), weight}};
  }
  std::vector<Weighted> taps;
  if (filter == Filter::kBicubic || filter == Filter::kBicubicLevels) {
    const double position = (i + .5) * scale - .5;
    const int32_t first = static_cast<int32_t>(std::floor(position));
    for (int32_t j = first - 1; j <= first + 2; ++j)
      taps.push_back({std::clamp(j, 0, box - 1), reference_cubic(-.75, j - position)});
    return taps;
  }
  const double half_width = std::max(scale, 1.), center = (i + .5) * scale;
  const bool cubic = filter != Filter::kAntialias;
  double total = 0;
  for (int32_t j = 0; j < box; ++j) {
    const double away = (j + .5 - center) / half_width;
    const double weight = cubic ? reference_cubic(-.5, away) : 1. - std::abs(away);
    if (cubic ? weight == 0 : weight <= 0) continue;
    taps.push_back({j, weight});
    total += weight;
  }
  for (Weighted& tap : taps) tap.weight /= total;
  return taps;
}

inline double reference_round(Rounding rounding, double value) {
  if (rounding == Rounding::kNearest) return std::nearbyint(std::clamp(value, 0., 255.));
  if (rounding == Rounding::kTruncate) return std::trunc(std::clamp(value, 0., 255.999));
  return value;
}

// Runs a segment. `erase_box` and `erase_value` start at those of the segment.
inline Image reference_segment(const Image& input, const Segment& segment, const Geometry& g,
                               const float* affine, const float* fill, const EraseBox* erase_box,
                               const float* erase_value) {
  const int32_t channels = input.channels;
  Image output = {segment.height, segment.width, channels, {}};
  output.values.resize(static_cast<size_t>(segment.height) * segment.width * channels);
  std::vector<std::vector<Weighted>> across(segment.width);
  for (int32_t x = 0; x < segment.width; ++x) {
    const int64_t column =
        reference_index(segment.padding, g.column_offset + static_cast<int64_t>(g.column_step) * x,
                        g.resampled_width);
    if (column >= 0 && column < g.resampled_width && x >= g.valid_left && x < g.valid_right)
      across[x] = reference_taps(segment.filter, static_cast<int32_t>(column), g.box_width,
                                 g.resampled_width);
  }
  for (int32_t y = 0; y < segment.height; ++y) {
    const int64_t row = reference_index(
        segment.padding, g.row_offset + static_cast<int64_t>(g.row_step) * y, g.resampled_height);
    std::vector<Weighted> down;
    if (row >= 0 && row < g.resampled_height && y >= g.valid_top && y < g.valid_bottom)
      down = reference_taps(segment.filter, static_cast<int32_t>(row), g.box_height,
                            g.resampled_height);
    for (int32_t x = 0; x < segment.width; ++x)
      for (int32_t c = 0; c < channels; ++c) {
        const bool levels = segment.filter == Filter::kBicubicLevels ||
                            segment.filter == Filter::kBicubicAntialiasLevels;
        double value = 0;
        for (const Weighted& v : down) {
          double line = 0;
          for (const Weighted& h : across[x])
            line += h.weight * input.at(g.top + v.index, g.left + h.index, c);
          value += v.weight * (levels ? std::clamp(line, 0., 255.) : line);
        }
        if (levels) value = std::clamp(value, 0., 255.);
        const bool valid = !down.empty() && !across[x].empty();
        value = valid ? static_cast<double>(affine[c]) * value + affine[channels + c] : fill[c];
        for (int32_t k = 0; k < segment.erasures; ++k) {
          const EraseBox& box = erase_box[k];
          if (y >= box.top && y - box.top < box.height && x >= box.left && x - box.left < box.width)
            value = erase_value[k * channels + c];
        }
        output.at(y, x, c) = value;
      }
  }
  return output;
}

}  // namespace jaxkern::image::testing

#endif  // JAXKERN_TESTS_REFERENCE_CHAIN_H_
