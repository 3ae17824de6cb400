// Loops over the random numbers of an image: see random.h.
#ifndef JAXKERN_IMAGE_RANDOM_INL_H_
#define JAXKERN_IMAGE_RANDOM_INL_H_

#include "core/simd-inl.h"
#include "image/random.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

constexpr int32_t kCounterBlock = 64;

// The words of counters [first, first + kCounterBlock).
inline void random_block(NoiseKey key, int64_t first, uint32_t* a, uint32_t* b) {
  for (int32_t k = 0; k < kCounterBlock; ++k) random_words(key, first + k, &a[k], &b[k]);
}

// Runs body(begin, count, numbers) over the normal numbers [begin, end) of a key, some at a time.
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

}  // namespace
}  // namespace jaxkern::image::JAXKERN_LEVEL

#endif  // JAXKERN_IMAGE_RANDOM_INL_H_
