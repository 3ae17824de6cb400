// Groups of kGroup neighbouring output pixels of a warp, one lane of a register each: the input
// pixels that their points show, and copies and blends of those pixels. warp-inl.h describes the
// algorithm.
//
// A bilinear blend of bytes loads the two upper pixels of a lane as one 8-byte word and the two
// lower ones as another. load_pairs splits the words of all lanes into two registers, so that one
// shift per register gives a channel of all lanes. In a lane of an RGB image, 0 being the left
// pixel and 1 the right one:
//
//    first = R0 G0 B0 R1      second = G1 B1 -- --
//    channel 0:   left = first & 255 (byte_of<0>)         right = first >> 24 (byte_of<3>)
//    channel 1:   left = first >> 8 & 255 (byte_of<1>)    right = second & 255 (byte_of<4>)
//
// store_levels removes the unused fourth byte of each lane. Loads of 8 bytes may read beyond the
// two pixels; fill_tile excludes pixels too close to the end of the input.
#ifndef JAXKERN_IMAGE_WARP_GROUPS_INL_H_
#define JAXKERN_IMAGE_WARP_GROUPS_INL_H_

#include <type_traits>

#include "core/simd-inl.h"
#include "image/channels-inl.h"
#include "image/pixel.h"
#include "image/warp.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

constexpr int32_t kGroup = kSingles;
constexpr uint32_t kAllLanes = (1u << kGroup) - 1;  // bit mask of all lanes
using GroupFloat = Singles;
using GroupInt = Int32s;
using GroupBits = Words32;

// AVX-512 intrinsics are the masked ones, with a mask of all lanes, because some compilers warn
// about the undefined registers inside the others.

inline GroupInt lane_numbers() {
  GroupInt numbers = {};
  for (int32_t k = 0; k < kGroup; ++k) numbers[k] = k;
  return numbers;
}

// Rounds down, or to the nearest integer with ties to even.
template <bool kNearest>
inline GroupFloat round_group(GroupFloat x) {
#if defined(__SSE4_1__)
  constexpr int kMode =
      (kNearest ? _MM_FROUND_TO_NEAREST_INT : _MM_FROUND_TO_NEG_INF) | _MM_FROUND_NO_EXC;
#endif
#if defined(__AVX512BW__)
  return _mm512_mask_roundscale_ps(x, kAllLanes, x, kMode);
#elif defined(__AVX2__) && defined(__FMA__)
  return _mm256_round_ps(x, kMode);
#elif defined(__SSE4_1__)
  return _mm_round_ps(x, kMode);
#elif defined(JAXKERN_NEON)
  return kNearest ? vrndnq_f32(x) : vrndmq_f32(x);
#else
  for (int32_t k = 0; k < kGroup; ++k) x[k] = kNearest ? rintf(x[k]) : floorf(x[k]);
  return x;
#endif
}

// Returns a mask: bit k is set if lane k is in [0, end).
inline uint32_t lanes_below(GroupInt x, int32_t end) {
#if defined(__AVX512BW__)
  return _mm512_cmplt_epu32_mask((__m512i)x, _mm512_set1_epi32(end));
#else
  return signs((GroupBits)((x >= 0) & (x < end)));
#endif
}

// Returns the nearest pixels along one axis, or the first of two pixels and the weight of the
// second.
template <bool kNearest>
inline GroupInt shown_pixels(GroupFloat point, int32_t side, GroupFloat* weight) {
  // The same as clamped_point.
  const GroupFloat before = -2.f - GroupFloat{};
  const GroupFloat beyond = static_cast<float>(side) + 1.f - GroupFloat{};
  point = point > before ? point : before;
  point = point < beyond ? point : beyond;
  const GroupFloat rounded = round_group<kNearest>(point);
  *weight = point - rounded;
  return __builtin_convertvector(rounded, GroupInt);
}

#if (defined(__AVX2__) && defined(__FMA__)) || defined(JAXKERN_NEON)
#define JAXKERN_BLENDS_BYTES
// Loads eight bytes of the input (two for one channel) at each offset, as two words per lane.
template <int32_t kChannels>
inline void load_pairs(const uint8_t* in, const volatile uint32_t* offset, GroupBits* first,
                       GroupBits* second) {
  const auto pair = [&](int32_t k) {
    long long bytes = 0;
    memcpy(&bytes, in + offset[k], kChannels == 1 ? 2 : 8);
    return bytes;
  };
  // Shuffles act within 128-bit lanes. In this order, they leave neighbouring pixels adjacent.
#if defined(__AVX512BW__)
  const __m512 even = (__m512)_mm512_setr_epi64(pair(0), pair(1), pair(4), pair(5), pair(8),
                                                pair(9), pair(12), pair(13));
  const __m512 odd = (__m512)_mm512_setr_epi64(pair(2), pair(3), pair(6), pair(7), pair(10),
                                               pair(11), pair(14), pair(15));
  *first = (GroupBits)_mm512_maskz_shuffle_ps(kAllLanes, even, odd, 0x88);
  *second = (GroupBits)_mm512_maskz_shuffle_ps(kAllLanes, even, odd, 0xdd);
#elif defined(JAXKERN_NEON)
  const auto two = [&](int32_t k) {
    return (GroupBits)uint64x2_t{static_cast<uint64_t>(pair(k)),
                                 static_cast<uint64_t>(pair(k + 1))};
  };
  const GroupBits even = two(0), odd = two(2);
  *first = __builtin_shufflevector(even, odd, 0, 2, 4, 6);
  *second = __builtin_shufflevector(even, odd, 1, 3, 5, 7);
#else
  const __m256 even = (__m256)_mm256_setr_epi64x(pair(0), pair(1), pair(4), pair(5));
  const __m256 odd = (__m256)_mm256_setr_epi64x(pair(2), pair(3), pair(6), pair(7));
  *first = (GroupBits)_mm256_shuffle_ps(even, odd, 0x88);
  *second = (GroupBits)_mm256_shuffle_ps(even, odd, 0xdd);
#endif
}

// Byte kByte of each eight.
template <int32_t kByte>
inline GroupFloat byte_of(GroupBits first, GroupBits second) {
  constexpr int32_t kShift = 8 * (kByte % 4);
  const GroupBits word = (kByte < 4 ? first : second) >> kShift;
  return __builtin_convertvector((GroupInt)(kByte % 4 == 3 ? word : word & 255), GroupFloat);
}

inline GroupFloat blend(GroupFloat a, GroupFloat b, GroupFloat weight) {
  return multiply_add_singles(weight, b - a, a);
}

// Stores the low one, three or four bytes of each lane without gaps.
template <int32_t kChannels>
inline void store_levels(GroupBits levels, uint8_t* out) {
  if constexpr (kChannels == 4) {
    memcpy(out, &levels, sizeof levels);
  } else if constexpr (kChannels == 1) {
    for (int32_t k = 0; k < kGroup; ++k) out[k] = static_cast<uint8_t>(levels[k]);
  } else {
#if defined(JAXKERN_NEON)
    store_pixels<kChannels>(out, levels);
#else
    const __m128i three = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
#if defined(__AVX512BW__)
    const __m512i order = _mm512_setr_epi32(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 15, 15, 15, 15);
    const __m512i apart =
        _mm512_shuffle_epi8((__m512i)levels, _mm512_maskz_broadcast_i32x4(kAllLanes, three));
    const __m512i packed = _mm512_maskz_permutexvar_epi32(kAllLanes, order, apart);
    _mm512_mask_storeu_epi32(out, 0xfff, packed);
#else
    const __m256i order = _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 7, 7);
    const __m256i apart = _mm256_shuffle_epi8((__m256i)levels, _mm256_broadcastsi128_si256(three));
    const __m256i packed = _mm256_permutevar8x32_epi32(apart, order);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(packed));
    _mm_storeu_si64(out + 16, _mm256_extracti128_si256(packed, 1));
#endif
#endif
  }
}

// Blends the group whose upper left pixels are at these offsets. Returns a mask of the lanes whose
// rounding is uncertain.
template <int32_t kChannels>
inline uint32_t blend_bytes(const uint8_t* in, int64_t in_row, const uint32_t* offset,
                            const float* weight_across, const float* weight_down, uint8_t* out) {
  GroupFloat across, down;
  memcpy(&across, weight_across, sizeof across);
  memcpy(&down, weight_down, sizeof down);
  GroupBits upper[2], lower[2];
  load_pairs<kChannels>(in, offset, &upper[0], &upper[1]);
  load_pairs<kChannels>(in + in_row, offset, &lower[0], &lower[1]);
  GroupBits levels = {};
  uint32_t certain = kAllLanes;
  // Four operations are rounded, by at most 2^-17 each: the blends along the two rows, whose errors
  // are averaged, their difference and its blend. 2^-15 bounds the sum.
  const float certain_bound = 0.5f - 0x1p-15f;
  int32_t certain_bound_bits;
  memcpy(&certain_bound_bits, &certain_bound, sizeof certain_bound_bits);
  const auto channel = [&](auto which) {
    constexpr int32_t kAt = decltype(which)::value, kNext = kAt + kChannels;
    const GroupFloat high =
        blend(byte_of<kAt>(upper[0], upper[1]), byte_of<kNext>(upper[0], upper[1]), across);
    const GroupFloat low =
        blend(byte_of<kAt>(lower[0], lower[1]), byte_of<kNext>(lower[0], lower[1]), across);
    const GroupFloat value = blend(high, low, down);
    // Floats of 2^23 or more are integers, whose lowest bits are the level. The bits of
    // non-negative floats are in the order of their values.
    const GroupFloat shifted = value + 0x1p23f;
    const GroupInt off = (GroupInt)(value - (shifted - 0x1p23f)) & 0x7fffffff;
    certain &= lanes_below(off, certain_bound_bits);
    levels |= ((GroupBits)shifted & 255) << (8 * kAt);
  };
  channel(std::integral_constant<int32_t, 0>());
  if constexpr (kChannels >= 3) {
    channel(std::integral_constant<int32_t, 1>());
    channel(std::integral_constant<int32_t, 2>());
  }
  if constexpr (kChannels == 4) channel(std::integral_constant<int32_t, 3>());
  store_levels<kChannels>(levels, out);
  return ~certain & kAllLanes;
}
#endif

template <typename Element, int32_t kChannels>
struct WarpKind {
  static constexpr bool kThreeBytes = kChannels * sizeof(Element) == 3;
#if defined(JAXKERN_BLENDS_BYTES)
  static constexpr bool kBlendsBytes = sizeof(Element) == 1;
#else
  static constexpr bool kBlendsBytes = false;
#endif
  // How many values a copy reads from its pixel's address on, and a blend in either row.
  static constexpr int32_t kCopied = kThreeBytes ? 4 : kChannels;
  static constexpr int32_t kBlended = kBlendsBytes && kChannels > 1 ? 8 : 2 * kChannels;
};

// Copies the pixels at these offsets, with a single copy if they are consecutive. Otherwise 3-byte
// pixels are copied as four bytes each, the last of which the next pixel overwrites.
template <typename Element, int32_t kChannels>
inline void copy_group(const Element* in, const uint32_t* offset, Element* out) {
  GroupInt from;
  memcpy(&from, offset, sizeof from);
  if (lanes_below(from - from[0] - lane_numbers() * kChannels, 1) == kAllLanes) {
    memcpy(out, in + offset[0], kGroup * kChannels * sizeof(Element));
    return;
  }
  constexpr bool kThreeBytes = WarpKind<Element, kChannels>::kThreeBytes;
  constexpr size_t kBytes = kThreeBytes ? 4 : kChannels * sizeof(Element);
  for (int32_t k = 0; k < kGroup - kThreeBytes; ++k)
    memcpy(out + k * kChannels, in + offset[k], kBytes);
  if constexpr (kThreeBytes)
    put_pixel<Element, kChannels>(in + offset[kGroup - 1], out + (kGroup - 1) * kChannels);
}

// Blends in float64 where all four pixels are inside. The result is exact if the weights have few
// enough bits for a tie to occur.
template <int32_t kChannels>
inline void blend_in_double(const uint8_t* upper, const uint8_t* lower, double across, double down,
                            uint8_t* out) {
  for (int32_t c = 0; c < kChannels; ++c) {
    const double a = upper[c], b = upper[c + kChannels], d = lower[c], e = lower[c + kChannels];
    const double high = a + across * (b - a), low = d + across * (e - d);
    out[c] = stored_value<uint8_t>(high + down * (low - high));
  }
}

// Blends the lanes that are ready. The output of the others is unspecified.
template <typename Element, int32_t kChannels>
inline void blend_group(const Element* in, int64_t in_row, const uint32_t* offset,
                        const float* across, const float* down, uint32_t ready, Element* out) {
  uint32_t uncertain = 0;
  if constexpr (WarpKind<Element, kChannels>::kBlendsBytes) {
#if defined(JAXKERN_BLENDS_BYTES)
    uncertain = ready & blend_bytes<kChannels>(in, in_row, offset, across, down, out);
#endif
  } else {
    for (; ready != 0; ready &= ready - 1) {
      const int32_t k = __builtin_ctz(ready);
      const Element* const upper = in + offset[k];
      if (!blend_inside<Element, kChannels>(upper, upper + in_row, across[k], down[k],
                                            out + k * kChannels))
        uncertain |= 1u << k;
    }
  }
  if constexpr (sizeof(Element) == 1) {
    for (; uncertain != 0; uncertain &= uncertain - 1) {
      const int32_t k = __builtin_ctz(uncertain);
      const uint8_t* const upper = in + offset[k];
      blend_in_double<kChannels>(upper, upper + in_row, across[k], down[k], out + k * kChannels);
    }
  }
}

}  // namespace

}  // namespace jaxkern::image::JAXKERN_LEVEL

#endif  // JAXKERN_IMAGE_WARP_GROUPS_INL_H_
