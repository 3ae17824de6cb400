// Lookups of image bytes in tables of 256 levels, one table per channel, and histograms and
// extremes.
#ifndef JAXKERN_IMAGE_LOOKUP_INL_H_
#define JAXKERN_IMAGE_LOOKUP_INL_H_

#include "core/simd-inl.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

#if defined(__AVX512BW__)
// A table of 256 levels as 128 words of two levels. A register holds 32 words, so a two-register
// shuffle looks up 64 words.
typedef uint16_t Words __attribute__((vector_size(64)));

struct WideTable {
  Words part[4];

  explicit WideTable(const uint8_t* level) { memcpy(part, level, sizeof part); }
  WideTable() = default;

  static Words look_up_pair(Words a, Words b, Words at) {
    return (Words)_mm512_permutex2var_epi16((__m512i)a, (__m512i)at, (__m512i)b);
  }
  // Looks up words below 256.
  Words operator()(Words at) const {
    const Words pair = at >> 1;  // a shuffle ignores the high bits of its indices
    const Words low = look_up_pair(part[0], part[1], pair);
    const Words high = look_up_pair(part[2], part[3], pair);
    return ((at >= 128 ? high : low) >> ((at & 1) << 3)) & 255;
  }
};

// Looks up blocks of 64 bytes, the first of which begins with channel 0.
template <int C>
void look_up_words(const uint8_t* from, int64_t count, const WideTable* tables, uint8_t* to) {
  // The channels of the even and of the odd bytes of a block, for each phase of the blocks.
  constexpr int kPhases = C == 3 ? 3 : 1;
  Words channel[kPhases][2];
  for (int p = 0; p < kPhases; ++p) {
    for (int j = 0; j < 64; ++j)
      channel[p][j & 1][j >> 1] = static_cast<uint16_t>((64 * p + j) % C);
  }
  const auto of_channel = [&](Words at, Words which) {
    Words value = tables[0](at);
    for (int c = 1; c < C; ++c) value = which == static_cast<uint16_t>(c) ? tables[c](at) : value;
    return value;
  };
  int64_t i = 0;
  for (int p = 0; i + 64 <= count; i += 64) {
    Words both;
    memcpy(&both, from + i, 64);
    both = of_channel(both & 255, channel[p][0]) | (of_channel(both >> 8, channel[p][1]) << 8);
    memcpy(to + i, &both, 64);
    p = p + 1 == kPhases ? 0 : p + 1;
  }
}

// The same with byte shuffles of 128 bytes (AVX-512 VBMI, which the level does not imply). `count`
// is a multiple of 64 * C.
template <int C, int kColours>
__attribute__((target("avx512vbmi"))) void look_up_bytes(const uint8_t* from, int64_t count,
                                                         const uint8_t (*level)[256], uint8_t* to) {
  __m512i part[kColours][4];
  memcpy(part, level, sizeof part);
  constexpr int kPhases = C == 3 ? 3 : 1;
  __mmask64 channel[kPhases][C] = {};
  for (int p = 0; p < kPhases; ++p) {
    for (int j = 0; j < 64; ++j) channel[p][(64 * p + j) % C] |= uint64_t{1} << j;
  }
  for (int64_t i = 0; i < count; i += 64 * kPhases) {
    for (int p = 0; p < kPhases; ++p) {
      const __m512i x = _mm512_loadu_si512(from + i + 64 * p);
      const __mmask64 high = _mm512_movepi8_mask(x);
      __m512i value = x;
      for (int c = 0; c < kColours; ++c) {
        const __m512i levels =
            _mm512_mask_blend_epi8(high, _mm512_permutex2var_epi8(part[c][0], x, part[c][1]),
                                   _mm512_permutex2var_epi8(part[c][2], x, part[c][3]));
        value = C == 1 ? levels : _mm512_mask_blend_epi8(channel[p][c], value, levels);
      }
      _mm512_storeu_si512(to + i + 64 * p, value);
    }
  }
}

// Processes the first pixels, in blocks that begin with channel 0. Returns their number.
template <int C, int kColours>
int64_t look_up_vectors(const uint8_t* image, int64_t pixels, const uint8_t level[kColours][256],
                        uint8_t* to) {
  const int64_t bytes = pixels * C, blocks = bytes - bytes % (64 * C);
  bool same_table = C == kColours;
  for (int c = 1; c < kColours; ++c) same_table &= memcmp(level[c], level[0], 256) == 0;
  static const bool has_vbmi = __builtin_cpu_supports("avx512vbmi");
  if (has_vbmi) {
    same_table ? look_up_bytes<1, 1>(image, blocks, level, to)
               : look_up_bytes<C, kColours>(image, blocks, level, to);
  } else {
    WideTable tables[C];
    for (int c = 0; c < kColours; ++c) tables[c] = WideTable(level[c]);
    if constexpr (C > kColours) {
      uint8_t same[256];
      for (int k = 0; k < 256; ++k) same[k] = static_cast<uint8_t>(k);
      tables[kColours] = WideTable(same);
    }
    same_table ? look_up_words<1>(image, blocks, tables, to)
               : look_up_words<C>(image, blocks, tables, to);
  }
  return blocks / C;
}
#elif defined(JAXKERN_NEON)
// A table of 256 levels in four groups of registers. Each instruction looks up the indices of its
// group, and the others are out of its range.
struct ByteTable {
  uint8x16x4_t part[4];

  explicit ByteTable(const uint8_t* level) {
    for (int k = 0; k < 4; ++k) part[k] = vld1q_u8_x4(level + 64 * k);
  }
  uint8x16_t operator()(uint8x16_t at) const {
    uint8x16_t value = vqtbl4q_u8(part[0], at);
    for (int k = 1; k < 4; ++k) {
      value = vqtbx4q_u8(value, part[k], vsubq_u8(at, vdupq_n_u8(static_cast<uint8_t>(64 * k))));
    }
    return value;
  }
};

// Processes the first pixels, 16 at a time. Returns their number.
template <int C, int kColours>
int64_t look_up_vectors(const uint8_t* image, int64_t pixels, const uint8_t level[kColours][256],
                        uint8_t* to) {
  bool same_table = C == kColours;
  for (int c = 1; c < kColours; ++c) same_table &= memcmp(level[c], level[0], 256) == 0;
  const int64_t whole = pixels / 16 * 16;
  if (same_table) {
    const ByteTable table(level[0]);
    for (int64_t i = 0; i < whole * C; i += 16) vst1q_u8(to + i, table(vld1q_u8(image + i)));
    return whole;
  }
  for (int64_t i = 0; i < whole * C; i += 16 * C) {
    if constexpr (C == 3) {
      uint8x16x3_t x = vld3q_u8(image + i);
      for (int c = 0; c < kColours; ++c) x.val[c] = ByteTable(level[c])(x.val[c]);
      vst3q_u8(to + i, x);
    } else if constexpr (C == 4) {
      uint8x16x4_t x = vld4q_u8(image + i);
      for (int c = 0; c < kColours; ++c) x.val[c] = ByteTable(level[c])(x.val[c]);
      vst4q_u8(to + i, x);
    }
  }
  return whole;
}
#elif defined(__AVX2__)
// Looks up `count` bytes, a multiple of 128, in one table. A byte shuffle picks one of 16 levels,
// or 0 if the highest bit of its index is set. The 16 levels of a group are stored as differences,
// by exclusive or, from those of the group before. An index picks from its own group and from those
// before it, and the differences add up to its level. Both halves of the table are looked up.
inline void look_up_bytes(const uint8_t* from, int64_t count, const uint8_t* level, uint8_t* to) {
  constexpr int kVectors = 4;
  __m256i group[8][2];
  for (int k = 0; k < 16; ++k) {
    __m128i own, before = {};
    memcpy(&own, level + 16 * k, 16);
    if (k % 8 != 0) memcpy(&before, level + 16 * (k - 1), 16);
    group[k % 8][k / 8] = _mm256_broadcastsi128_si256(_mm_xor_si128(own, before));
  }
  const __m256i size = _mm256_set1_epi8(16), seven_bits = _mm256_set1_epi8(127);
  for (int64_t i = 0; i < count; i += 32 * kVectors) {
    __m256i x[kVectors], at[kVectors], low[kVectors] = {}, high[kVectors] = {};
    memcpy(x, from + i, sizeof x);
    for (int v = 0; v < kVectors; ++v) at[v] = _mm256_and_si256(x[v], seven_bits);
#pragma GCC unroll 4  // with more, the vectors do not stay in registers
    for (int k = 0; k < 8; ++k) {
      for (int v = 0; v < kVectors; ++v) {
        low[v] = _mm256_xor_si256(low[v], _mm256_shuffle_epi8(group[k][0], at[v]));
        high[v] = _mm256_xor_si256(high[v], _mm256_shuffle_epi8(group[k][1], at[v]));
        at[v] = _mm256_subs_epi8(at[v], size);
      }
    }
    for (int v = 0; v < kVectors; ++v) x[v] = _mm256_blendv_epi8(low[v], high[v], x[v]);
    memcpy(to + i, x, sizeof x);
  }
}

// Processes the first pixels if all channels have the same table. Returns their number.
template <int C, int kColours>
int64_t look_up_vectors(const uint8_t* image, int64_t pixels, const uint8_t level[kColours][256],
                        uint8_t* to) {
  if (C != kColours) return 0;
  for (int c = 1; c < kColours; ++c) {
    if (memcmp(level[c], level[0], 256) != 0) return 0;
  }
  const int64_t whole = pixels / 128 * 128;
  look_up_bytes(image, whole * C, level[0], to);
  return whole;
}
#endif

// A table whose levels are those of x * factor + offset.
struct Line {
  float factor, offset;
};

// Replaces the first bytes x by the levels of x * factor + offset, rounded after each operation.
// Returns their number: 0 where a lookup is as fast. The sums fit into int32.
inline int64_t map_line([[maybe_unused]] const uint8_t* from, [[maybe_unused]] int64_t count,
                        [[maybe_unused]] Line line, [[maybe_unused]] uint8_t* to) {
  int64_t i = 0;
#if defined(__AVX2__) && !defined(__AVX512BW__)
  const __m256 factor = _mm256_set1_ps(line.factor), offset = _mm256_set1_ps(line.offset);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packs act within lanes
  const auto ints = [&](const uint8_t* eight) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(eight));
    const __m256 x = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
    return _mm256_cvttps_epi32(_mm256_add_ps(_mm256_mul_ps(x, factor), offset));
  };
  for (; i + 32 <= count; i += 32) {
    const uint8_t* const at = from + i;
    const __m256i words = _mm256_packs_epi32(ints(at), ints(at + 8));
    const __m256i more = _mm256_packs_epi32(ints(at + 16), ints(at + 24));
    const __m256i levels = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(words, more), order);
    memcpy(to + i, &levels, sizeof levels);
  }
#endif
  return i;
}

// Replaces each byte of channel c < kColours by level[c][byte]. A fourth channel is copied. `to`
// may be the image itself.
template <int C, int kColours>
void look_up(const uint8_t* image, int64_t pixels, const uint8_t level[kColours][256],
             uint8_t* to) {
  int64_t i = 0;
#if defined(__AVX2__) || defined(JAXKERN_NEON)
  i = look_up_vectors<C, kColours>(image, pixels, level, to);
#endif
  for (; i < pixels; ++i) {
    for (int c = 0; c < kColours; ++c) to[i * C + c] = level[c][image[i * C + c]];
    if (C > kColours) to[i * C + kColours] = image[i * C + kColours];
  }
}

// Computes the histogram of each channel, except a fourth one. Neighbouring pixels use separate
// counters, so that equal levels in a row do not serialize the additions.
template <int C, int kColours>
void count_levels(const uint8_t* image, int64_t pixels, uint32_t count[kColours][256]) {
  constexpr int kCounters = 2;
  uint32_t counts[kCounters][kColours][256] = {};
  int64_t i = 0;
  for (; i + kCounters <= pixels; i += kCounters) {
    const uint8_t* const at = image + i * C;
    for (int counter = 0; counter < kCounters; ++counter) {
      for (int c = 0; c < kColours; ++c) ++counts[counter][c][at[counter * C + c]];
    }
  }
  for (; i < pixels; ++i) {
    for (int c = 0; c < kColours; ++c) ++counts[0][c][image[i * C + c]];
  }
  for (int c = 0; c < kColours; ++c) {
    for (int k = 0; k < 256; ++k) {
      count[c][k] = 0;
      for (int counter = 0; counter < kCounters; ++counter) count[c][k] += counts[counter][c][k];
    }
  }
}

// Computes the minimum and the maximum level of each channel.
template <int C>
void find_extremes(const uint8_t* image, int64_t pixels, int32_t* least, int32_t* most) {
  constexpr int64_t kBlock = 192;  // bytes: whole pixels of 1, 3 or 4 channels
  uint8_t low[kBlock], high[kBlock];
  memset(low, 255, sizeof low);
  memset(high, 0, sizeof high);
  const int64_t bytes = pixels * C;
  for (int64_t start = 0; start < bytes; start += kBlock) {
    const int64_t left = bytes - start;
    const uint8_t* const from = image + start;
    if (left >= kBlock) {
      for (int64_t j = 0; j < kBlock; ++j) {
        low[j] = from[j] < low[j] ? from[j] : low[j];
        high[j] = from[j] > high[j] ? from[j] : high[j];
      }
    } else {
      for (int64_t j = 0; j < left; ++j) {
        low[j] = from[j] < low[j] ? from[j] : low[j];
        high[j] = from[j] > high[j] ? from[j] : high[j];
      }
    }
  }
  for (int c = 0; c < C; ++c) {
    least[c] = 255;
    most[c] = 0;
    for (int64_t j = c; j < kBlock; j += C) {
      least[c] = low[j] < least[c] ? low[j] : least[c];
      most[c] = high[j] > most[c] ? high[j] : most[c];
    }
  }
}

}  // namespace
}  // namespace jaxkern::image::JAXKERN_LEVEL

#endif  // JAXKERN_IMAGE_LOOKUP_INL_H_
