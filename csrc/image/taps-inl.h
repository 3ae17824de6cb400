// The weights of the taps of one output index under every filter of plan.h.
#ifndef JAXKERN_IMAGE_TAPS_INL_H_
#define JAXKERN_IMAGE_TAPS_INL_H_

#include "core/simd-inl.h"
#include "image/arithmetic.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

// The weights of an index's taps one by one, under the two kinds of filter with windows. kZeros:
// some are 0, and what they weigh may be NaN.
struct TriangleWeights {
  static constexpr bool kZeros = false;
  AntialiasWindow window = {};
  double unit = 0;

  void set(Filter, int32_t i, int32_t box, int32_t resampled) {
    window = antialias_window(i, box, resampled);
    unit = 1. / static_cast<double>(antialias_total(window));
  }
  float at(int32_t j) const {
    return static_cast<float>(static_cast<double>(antialias_height(window, j)) * unit);
  }
};

struct BicubicWeights {
  static constexpr bool kZeros = true;
  BicubicWindow window = {};
  float unit = 0;

  void set(Filter filter, int32_t i, int32_t box, int32_t resampled) {
    window = bicubic_window(filter, i, box, resampled);
    unit = 1.f / bicubic_total(window);
  }
  float at(int32_t j) const { return bicubic_weight(window, j) * unit; }
};

// Weights of the taps of resampled index i; `out` has room for the whole tap_range. Returns that
// range without a second tap of weight zero.
Range tap_weights(Filter filter, int32_t i, int32_t box, int32_t resampled, float* out) {
  Range range = tap_range(filter, i, box, resampled);
  if (filter == Filter::kBilinear) {
    const BilinearTaps taps = bilinear_taps(i, box, resampled);
    if (taps.weight == 0.f || taps.second == taps.first) {
      range.end = range.begin + 1;
      out[0] = 1.f;
    } else {
      out[0] = 1.f - taps.weight;
      out[1] = taps.weight;
    }
  } else if (filter == Filter::kAntialias) {
    const AntialiasWindow window = antialias_window(i, box, resampled);
    const double total = static_cast<double>(antialias_total(window));
    for (int32_t j = window.begin; j < window.end; ++j)
      out[j - window.begin] =
          static_cast<float>(static_cast<double>(antialias_height(window, j)) / total);
  } else if (is_bicubic(filter)) {
    BicubicWeights weights;
    weights.set(filter, i, box, resampled);
    for (int32_t j = range.begin; j < range.end; ++j) out[j - range.begin] = weights.at(j);
  } else {
    out[0] = 1.f;
  }
  return range;
}

}  // namespace
}  // namespace jaxkern::image::JAXKERN_LEVEL

#endif  // JAXKERN_IMAGE_TAPS_INL_H_
