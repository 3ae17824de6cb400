// Normal noise of an image program, added or painted: see random.h.
#ifndef JAXKERN_IMAGE_NOISE_INL_H_
#define JAXKERN_IMAGE_NOISE_INL_H_

#include "core/simd-inl.h"
#include "image/pixel.h"
#include "image/random-inl.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

// x + mean + sigma n, in units of the largest value; alpha is left alone.
template <typename T, int C>
void add_noise(T* image, int64_t pixels, NoiseKey key, float mean, float sigma, bool clip) {
  const float largest = sizeof(T) == 1 ? 255.f : 1.f;
  const double centre = mean * largest, width = sigma * largest;
  for_normals(key, 0, pixels * C, [&](int64_t begin, int64_t count, const double* n) {
    for (int64_t i = 0; i < count; ++i) {
      T& x = image[begin + i];
      if (C == 4 && (begin + i) % 4 == 3) continue;
      x = noisy(x, centre + n[i] * width, clip);
    }
  });
}

// Paints a box of an image with `fill`; where its first is NaN, each value with the normal number
// of its place, which levels truncate.
template <typename T, int C>
void erase_box(T* image, int32_t width, Box box, NoiseKey key, const float* fill) {
  T paint[C];
  for (int32_t c = 0; c < C; ++c)
    paint[c] = static_cast<T>(sizeof(T) == 1 ? level_of(rintf(fill[c])) : fill[c]);
  for (int32_t row = box.top; row < box.bottom; ++row) {
    const int64_t line = static_cast<int64_t>(row) * width;
    const int64_t begin = (line + box.left) * C, end = (line + box.right) * C;
    if (fill[0] == fill[0]) {
      for (int64_t i = begin; i < end; i += C) {
        for (int32_t c = 0; c < C; ++c) image[i + c] = paint[c];
      }
      continue;
    }
    for_normals(key, begin, end, [&](int64_t from, int64_t count, const double* n) {
      for (int64_t i = 0; i < count; ++i) {
        const float value = static_cast<float>(n[i]);
        image[from + i] = static_cast<T>(sizeof(T) == 1 ? level_of(value) : value);
      }
    });
  }
}

}  // namespace
}  // namespace jaxkern::image::JAXKERN_LEVEL

#endif  // JAXKERN_IMAGE_NOISE_INL_H_
