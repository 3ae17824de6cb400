// Loops over the random numbers of an image (random.h), and normal noise, added or painted.
#ifndef JAXKERN_IMAGE_NOISE_INL_H_
#define JAXKERN_IMAGE_NOISE_INL_H_

#include "core/simd-inl.h"
#include "image/pixel.h"
#include "image/random.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

constexpr int32_t kCounterBlock = 64;

// Computes the words of counters [first, first + kCounterBlock).
inline void random_block(NoiseKey key, int64_t first, uint32_t* a, uint32_t* b) {
  for (int32_t k = 0; k < kCounterBlock; ++k) random_words(key, first + k, &a[k], &b[k]);
}

// Runs body(begin, count, numbers) on blocks of the normal numbers [begin, end) of a key.
template <typename Body>
inline void for_normals(NoiseKey key, int64_t begin, int64_t end, const Body& body) {
  uint32_t a[kCounterBlock], b[kCounterBlock];
  double first[kCounterBlock], second[kCounterBlock], numbers[2 * kCounterBlock];
  for (int64_t start = begin / 2; 2 * start < end; start += kCounterBlock) {
    random_block(key, start, a, b);
    for (int32_t k = 0; k < kCounterBlock; ++k) normal_pair(a[k], b[k], &first[k], &second[k]);
    for (int32_t k = 0; k < kCounterBlock; ++k) {
      numbers[2 * k] = first[k];
      numbers[2 * k + 1] = second[k];
    }
    const int64_t from = 2 * start < begin ? begin : 2 * start;
    const int64_t to = 2 * (start + kCounterBlock) < end ? 2 * (start + kCounterBlock) : end;
    body(from, to - from, numbers + (from - 2 * start));
  }
}

// Adds mean + sigma n to each value, in units of the largest value. Alpha is unchanged.
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

// Paints a box of an image with `fill`. If fill[0] is NaN, each value becomes the normal number of
// its index, truncated for levels.
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
