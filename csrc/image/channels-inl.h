// The channels of interleaved pixels, laid apart as floats and together again.
//
// Bytes are moved as 32-bit words of one pixel each, its first channel lowest, a vector of them at
// a time: words of three bytes take two shuffles, one of words and one of bytes within four words.
#ifndef JAXKERN_IMAGE_CHANNELS_INL_H_
#define JAXKERN_IMAGE_CHANNELS_INL_H_

#include <type_traits>
#include <utility>

#include "core/simd-inl.h"
#include "image/wide-inl.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

constexpr int32_t kPixelBlock = 128;  // pixels whose channels lie apart while they are worked on

#if defined(__SSSE3__)
constexpr bool kHasShuffles = true;
#else
constexpr bool kHasShuffles = false;
#endif

// Four bytes that begin at every third one, of each: what a pixel of three has, and one more.
template <size_t... k, size_t... b>
inline Words32 spread_threes(Words32 x, std::index_sequence<k...>, std::index_sequence<b...>) {
  x = __builtin_shuffle(x, Words32{(k / 4 * 3 + k % 4)...});
  return (Words32)__builtin_shuffle(
      (WordBytes)x, WordBytes{static_cast<uint8_t>(b / 16 * 16 + b % 16 / 4 * 3 + b % 4 % 3)...});
}
// The reverse: the lower three bytes of each, without gaps from the first on.
template <size_t... k, size_t... b>
inline Words32 join_threes(Words32 x, std::index_sequence<k...>, std::index_sequence<b...>) {
  x = (Words32)__builtin_shuffle(
      (WordBytes)x,
      WordBytes{static_cast<uint8_t>(b / 16 * 16 + b % 16 % 12 / 3 * 4 + b % 16 % 3)...});
  return __builtin_shuffle(x, Words32{(k / 3 % 4 * 4 + k % 3)...});
}

using WordIndices = std::make_index_sequence<kSingles>;
using ByteIndices = std::make_index_sequence<4 * kSingles>;

// kSingles pixels; 4 kSingles bytes are read. The highest byte of three channels is any.
template <int C>
inline Words32 load_pixels(const uint8_t* from) {
  const Words32 x = load_words(from);
  return C == 4 ? x : spread_threes(x, WordIndices(), ByteIndices());
}
template <int C>
inline void store_pixels(uint8_t* to, Words32 x) {
  if constexpr (C == 3) x = join_threes(x, WordIndices(), ByteIndices());
  memcpy(to, &x, C * kSingles);
}

// The first three channels of kPixelBlock pixels of bytes; 4 kSingles bytes are read from each
// whole number of vectors on.
template <int C>
inline void lay_apart(const uint8_t* from, float* r, float* g, float* b) {
  for (int32_t i = 0; i < kPixelBlock; i += kSingles) {
    const Words32 x = load_pixels<C>(from + C * i);
    store_singles(r + i, to_singles(x & 255));
    store_singles(g + i, to_singles(x >> 8 & 255));
    store_singles(b + i, to_singles(x >> 16 & 255));
  }
}
template <int C>
inline void lay_together(const float* r, const float* g, const float* b, uint8_t* to) {
  const auto levels = [](const float* from) { return to_words(load_singles(from)); };
  for (int32_t i = 0; i < kPixelBlock; i += kSingles) {
    Words32 x = levels(r + i) | levels(g + i) << 8 | levels(b + i) << 16;
    if constexpr (C == 4) x |= load_words(to + C * i) & 0xff000000;
    store_pixels<C>(to + C * i, x);
  }
}

// Runs body(r, g, b, n) on arrays of n values over all pixels of an image, and stores what it makes
// of them but in an image of constants. Bytes are truncated.
template <typename T, int C, typename Body>
inline void for_colours(T* image, int64_t pixels, const Body& body) {
  static_assert(C >= 3);
  using Value = std::remove_const_t<T>;
  alignas(64) float r[kPixelBlock], g[kPixelBlock], b[kPixelBlock];
  for (int64_t start = 0; start < pixels; start += kPixelBlock) {
    T* const at = image + start * C;
    const int64_t left = pixels - start;
    const int32_t n = left < kPixelBlock ? static_cast<int32_t>(left) : kPixelBlock;
    if constexpr (sizeof(T) == 1 && kHasShuffles) {
      // The last vector is read beyond its pixels.
      uint8_t last[C * kPixelBlock + 4 * kSingles];
      const bool whole = left >= kPixelBlock + kSingles;
      T* const bytes = whole ? at : last;
      if (!whole) {
        memset(last, 0, sizeof last);
        memcpy(last, at, static_cast<size_t>(n) * C);
      }
      lay_apart<C>(bytes, r, g, b);
      body(r, g, b, n);
      if constexpr (!std::is_const_v<T>) {
        lay_together<C>(r, g, b, bytes);
        if (!whole) memcpy(at, last, static_cast<size_t>(n) * C);
      }
    } else {
      for (int32_t i = 0; i < n; ++i) {
        r[i] = static_cast<float>(at[C * i]);
        g[i] = static_cast<float>(at[C * i + 1]);
        b[i] = static_cast<float>(at[C * i + 2]);
      }
      body(r, g, b, n);
      if constexpr (!std::is_const_v<T>) {
        for (int32_t i = 0; i < n; ++i) {
          at[C * i] = static_cast<Value>(r[i]);
          at[C * i + 1] = static_cast<Value>(g[i]);
          at[C * i + 2] = static_cast<Value>(b[i]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace jaxkern::image::JAXKERN_LEVEL

#endif  // JAXKERN_IMAGE_CHANNELS_INL_H_
