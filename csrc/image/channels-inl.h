// Vectors of the channels of interleaved pixels, and the widest integer vectors of a level.
//
// Pixels of bytes are moved as 32-bit words of one pixel each, with the first channel in the low
// byte, a vector of them at a time. Words of three-byte pixels take two shuffles: one of words, and
// one of bytes within 16-byte lanes.
#ifndef JAXKERN_IMAGE_CHANNELS_INL_H_
#define JAXKERN_IMAGE_CHANNELS_INL_H_

#include <type_traits>
#include <utility>

#include "core/simd-inl.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

constexpr int32_t kPixelBlock = 128;  // pixels that are deinterleaved at a time

#if defined(__SSSE3__) || defined(JAXKERN_NEON)
constexpr bool kHasShuffles = true;
#else
constexpr bool kHasShuffles = false;
#endif

// Expands packed 3-byte pixels to one word each. The fourth byte of a word is arbitrary.
template <size_t... k, size_t... b>
inline Words32 unpack_rgb(Words32 x, std::index_sequence<k...>, std::index_sequence<b...>) {
  x = __builtin_shufflevector(x, x, (k / 4 * 3 + k % 4)...);
  return (Words32)__builtin_shufflevector((WordBytes)x, (WordBytes)x,
                                          (b / 16 * 16 + b % 16 / 4 * 3 + b % 4 % 3)...);
}
// Packs the low three bytes of each word without gaps.
template <size_t... k, size_t... b>
inline Words32 pack_rgb(Words32 x, std::index_sequence<k...>, std::index_sequence<b...>) {
  x = (Words32)__builtin_shufflevector((WordBytes)x, (WordBytes)x,
                                       (b / 16 * 16 + b % 16 % 12 / 3 * 4 + b % 16 % 3)...);
  return __builtin_shufflevector(x, x, (k / 3 % 4 * 4 + k % 3)...);
}

// Transposes the 4 x 4 bytes of each lane.
template <size_t... b>
inline Words32 turned_lanes(Words32 x, std::index_sequence<b...>) {
  return (Words32)__builtin_shufflevector((WordBytes)x, (WordBytes)x,
                                          (b / 16 * 16 + b % 4 * 4 + b % 16 / 4)...);
}

using WordIndices = std::make_index_sequence<kSingles>;
using ByteIndices = std::make_index_sequence<4 * kSingles>;

// Loads kSingles pixels from 4 kSingles readable bytes. The highest byte is arbitrary for C = 3.
template <int C>
inline Words32 load_pixels(const uint8_t* from) {
  const Words32 x = load_words(from);
  return C == 4 ? x : unpack_rgb(x, WordIndices(), ByteIndices());
}
template <int C>
inline void store_pixels(uint8_t* to, Words32 x) {
  if constexpr (C == 3) x = pack_rgb(x, WordIndices(), ByteIndices());
#if defined(__AVX2__) && !defined(__AVX512F__)
  if constexpr (C == 3) {  // compilers copy the three 8-byte parts through memory
    const __m128i high = _mm256_extracti128_si256((__m256i)x, 1);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to + 16), high);
  }
  memcpy(to, &x, C == 3 ? 16 : 32);
#else
  memcpy(to, &x, C * kSingles);
#endif
}

// Converts the first three channels of kPixelBlock pixels to floats. Each load reads 4 kSingles
// bytes.
template <int C>
inline void deinterleave(const uint8_t* from, float* r, float* g, float* b) {
  for (int32_t i = 0; i < kPixelBlock; i += kSingles) {
    const Words32 x = load_pixels<C>(from + C * i);
    store_singles(r + i, to_singles(x & 255));
    store_singles(g + i, to_singles(x >> 8 & 255));
    store_singles(b + i, to_singles(x >> 16 & 255));
  }
}
template <int C>
inline void interleave(const float* r, const float* g, const float* b, uint8_t* to) {
  const auto levels = [](const float* from) { return to_words(load_singles(from)); };
  for (int32_t i = 0; i < kPixelBlock; i += kSingles) {
    Words32 x = levels(r + i) | levels(g + i) << 8 | levels(b + i) << 16;
    if constexpr (C == 4) x |= load_words(to + C * i) & 0xff000000;
    store_pixels<C>(to + C * i, x);
  }
}

// Runs body(r, g, b, n) on blocks of n pixels of an image, one array per channel. If T is not
// const, stores the arrays back; bytes are truncated.
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
      // The last vector would load beyond the image, so the last block is copied.
      uint8_t last[C * kPixelBlock + 4 * kSingles];
      const bool complete = left >= kPixelBlock + kSingles;
      T* const bytes = complete ? at : last;
      if (!complete) {
        memset(last, 0, sizeof last);
        memcpy(last, at, static_cast<size_t>(n) * C);
      }
      deinterleave<C>(bytes, r, g, b);
      body(r, g, b, n);
      if constexpr (!std::is_const_v<T>) {
        interleave<C>(r, g, b, bytes);
        if (!complete) memcpy(at, last, static_cast<size_t>(n) * C);
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

// ---------------------------------------------------------------- integers of the widest vectors

// JAXKERN_WIDE(add_ps) is _mm512_add_ps or _mm256_add_ps. Packs act within 16-byte lanes.
#if defined(__AVX512BW__)
#define JAXKERN_WIDE(name) _mm512_##name
using Wide = __m512i;
using HalfWide = __m256i;
using WideFloats = __m512;
#elif defined(__AVX2__) && defined(__FMA__)
#define JAXKERN_WIDE(name) _mm256_##name
using Wide = __m256i;
using HalfWide = __m128i;
using WideFloats = __m256;
#endif

#if defined(JAXKERN_WIDE)
constexpr int32_t kWideBytes = sizeof(Wide);
constexpr int32_t kWidePixels = kWideBytes / 4;

inline Wide load_wide(const void* from) {
  Wide x;
  memcpy(&x, from, sizeof x);
  return x;
}
inline void store_wide(void* to, Wide x) { memcpy(to, &x, sizeof x); }

// Compiler vectors, because some compilers warn about the undefined registers inside the
// intrinsics.
typedef int32_t WideInts __attribute__((vector_size(kWideBytes)));
inline Wide permute_wide(Wide x, Wide indices) {
#if defined(__AVX512BW__)
  return _mm512_maskz_permutexvar_epi32(0xffff, indices, x);
#else
  return _mm256_permutevar8x32_epi32(x, indices);
#endif
}
inline WideFloats floats_of(Wide ints) {
  return (WideFloats) __builtin_convertvector((WideInts)ints, WideFloats);
}
inline Wide truncated(WideFloats x) { return (Wide) __builtin_convertvector(x, WideInts); }
#endif

}  // namespace
}  // namespace jaxkern::image::JAXKERN_LEVEL

#endif  // JAXKERN_IMAGE_CHANNELS_INL_H_
