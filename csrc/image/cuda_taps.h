// The taps of one output row or column in a CUDA thread: a window whose weights are computed on
// use. Host and device code, so that a CPU test can run it.
#ifndef JAXKERN_IMAGE_CUDA_TAPS_H_
#define JAXKERN_IMAGE_CUDA_TAPS_H_

#include <cmath>
#include <cstdint>

#include "core/host_device.h"
#include "image/arithmetic.h"
#include "image/plan.h"

namespace jaxkern::image {

// The inputs of one output row or column, relative to the box, and a mask of the rectangles that
// contain it.
struct alignas(16) AxisTaps {
  int32_t first, last;  // both inclusive
  float weight;         // bilinear: of `last`; `first` has the rest
  uint32_t inside;      // bit k: the segment's erase box k; kValid: valid
  // Antialias: input first + t has weight max(reach - |start + t * step|, 0) * unit.
  // Bicubic: bicubic_kernel(a, |start + t * step|) * unit. The first input adds `weight` and the
  // last one `reach`, the weights of the inputs beyond the box.
  float start, step, reach, unit;
};

constexpr uint32_t kValid = uint32_t{1} << kMaxErasures;

JAXKERN_HD float tap_weight(const AxisTaps& taps, int32_t t) {
  const float height = taps.reach - fabsf(taps.start + static_cast<float>(t) * taps.step);
  return height > 0.f ? height * taps.unit : 0.f;
}

JAXKERN_HD float bicubic_tap_weight(const AxisTaps& taps, float a, int32_t t) {
  const float inside =
      bicubic_kernel(a, fabsf(taps.start + static_cast<float>(t) * taps.step)) * taps.unit;
  return inside + (t == 0 ? taps.weight : 0.f) + (t == taps.last - taps.first ? taps.reach : 0.f);
}

JAXKERN_HD AxisTaps bicubic_axis_taps(Filter filter, int32_t i, int32_t box, int32_t resampled) {
  AxisTaps taps = {};
  const BicubicWindow window = bicubic_window(filter, i, box, resampled);
  const int64_t start = (2 * static_cast<int64_t>(window.begin) + 1) * resampled - window.center;
  taps.first = window.begin;
  taps.last = window.end - 1;
  taps.start = static_cast<float>(start) / window.one;
  taps.step = static_cast<float>(2 * static_cast<int64_t>(resampled)) / window.one;
  taps.unit = 1.f;
  const int32_t count = taps.last - taps.first + 1;
  if (window.antialias) {
    float total = 0.f;
    for (int32_t t = 0; t < count; ++t) total += bicubic_tap_weight(taps, window.a, t);
    taps.unit = 1.f / total;
    return taps;
  }
  const float stop = taps.start + static_cast<float>(count);
  for (int k = 0; k < 2; ++k) {
    const float beyond = static_cast<float>(k);
    if (taps.first == 0) taps.weight += bicubic_kernel(window.a, fabsf(taps.start - 1.f - beyond));
    if (taps.last == window.last) taps.reach += bicubic_kernel(window.a, fabsf(stop + beyond));
  }
  return taps;
}

// A kernel of kBicubic serves all bicubic filters; `kind` is the actual one.
template <Filter filter>
JAXKERN_HD AxisTaps axis_taps(Filter kind, int32_t i, int32_t box, int32_t resampled) {
  if constexpr (filter == Filter::kBicubic) return bicubic_axis_taps(kind, i, box, resampled);
  AxisTaps taps = {};
  if constexpr (filter == Filter::kBilinear) {
    const BilinearTaps two = bilinear_taps(i, box, resampled);
    taps.first = two.first;
    taps.last = two.weight == 0.f ? two.first : two.second;
    taps.weight = taps.last == taps.first ? 0.f : two.weight;
  } else if constexpr (filter == Filter::kAntialias) {
    // The window is computed in integers, and the small offsets within it in floats.
    const AntialiasWindow window = antialias_window(i, box, resampled);
    taps.first = window.begin;
    taps.last = window.end - 1;
    taps.start = static_cast<float>((2 * static_cast<int64_t>(window.begin) + 1) * resampled -
                                    window.center);
    taps.step = static_cast<float>(2 * static_cast<int64_t>(resampled));
    taps.reach = static_cast<float>(window.reach);
    taps.unit = 1.f;
    float total = 0.f;
    for (int32_t t = 0; t <= taps.last - taps.first; ++t) total += tap_weight(taps, t);
    taps.unit = 1.f / total;
  } else {  // kNone is kNearest with equal sizes
    taps.first = taps.last = nearest_index(i, box, resampled);
  }
  return taps;
}

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_CUDA_TAPS_H_
