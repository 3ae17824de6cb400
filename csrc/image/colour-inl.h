// The colour operations of an image program on images of C interleaved channels, in place.
//
// A new operation on pixels needs a function next to those below, a case in colour_step
// (program-inl.h), a Code in program.h and program.py, and its reference in program_twin.py.
#ifndef JAXKERN_IMAGE_COLOUR_INL_H_
#define JAXKERN_IMAGE_COLOUR_INL_H_

#include "core/simd-inl.h"
#include "image/channels-inl.h"
#include "image/pixel.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

// ---------------------------------------------------------------- operations on pixels

// Returns pixels of four channels, words that hold int32 values, clamped to [0, 255].
inline Words32 clamped_pixels(Words32 r, Words32 g, Words32 b, Words32 a) {
#if defined(JAXKERN_WIDE)
  // Packs act within lanes of 16 bytes, which then hold four bytes of each channel.
  const Wide low = JAXKERN_WIDE(packs_epi32)((Wide)r, (Wide)g);
  const Wide high = JAXKERN_WIDE(packs_epi32)((Wide)b, (Wide)a);
  return turned_lanes((Words32)JAXKERN_WIDE(packus_epi16)(low, high), ByteIndices());
#else
  return clamped_bytes(r) | clamped_bytes(g) << 8 | clamped_bytes(b) << 16 | a << 24;
#endif
}

// The luma() of bytes. Its sums are exact.
inline Singles luma_of(Words32 pixels) {
  const auto term = [&](int32_t c, float weight, Singles sum) {
    return multiply_add_singles(to_singles(pixels >> (8 * c) & 255), weight - Singles{}, sum);
  };
  const Singles scaled = term(0, 2989.f, term(1, 5870.f, term(2, 1140.f, 0.5f - Singles{})));
  return to_singles(to_words(scaled * (1.f / 10000.f)));
}

// The same as integers.
inline Words32 floored_luma(Words32 pixels) {
#if defined(JAXKERN_WIDE)
  const Words32 weights = 2989 + (1140 << 16) - Words32{}, green = 5870 - Words32{};
  const Words32 outer = pixels & 0x00ff00ff, middle = pixels >> 8 & 255;
  const Words32 parts = (Words32)JAXKERN_WIDE(madd_epi16)((Wide)outer, (Wide)weights) +
                        (Words32)JAXKERN_WIDE(madd_epi16)((Wide)middle, (Wide)green);
  constexpr float kUnit = 1.f / 10000.f;
  return to_words(
      multiply_add_singles(to_singles(parts), kUnit - Singles{}, .5f * kUnit - Singles{}));
#else
  return to_words(luma_of(pixels));
#endif
}

// Processes the first pixels of a byte image in vectors if the level has fused multiply-add.
// Returns the number of processed pixels.
template <int C>
int64_t saturate_vectors(const uint8_t* from, int64_t pixels, Blend blend, uint8_t* to) {
  int64_t i = 0;
  if constexpr (kHasShuffles && kFusedSingles) {
    for (; i + 2 * kSingles <= pixels; i += kSingles) {
      const Words32 x = load_pixels<C>(from + i * C);
      const Singles gray = luma_of(x), rest = blend.rest - Singles{};
      Words32 y[3];
      for (int c = 0; c < 3; ++c) {
        const Singles colour = to_singles(x >> (8 * c) & 255) * blend.factor;
        // Truncating before clamping is faster, and bounded factors keep the value within int32.
        y[c] = to_words(multiply_add_singles(gray, rest, colour));
      }
      store_pixels<C>(to + i * C, clamped_pixels(y[0], y[1], y[2], C == 4 ? x >> 24 : Words32{}));
    }
  }
  return i;
}

// `to` may be the image itself.
template <typename T, int C>
void saturation(const T* image, int64_t pixels, Blend blend, T* to) {
  int64_t first = 0;
  if constexpr (sizeof(T) == 1) first = saturate_vectors<C>(image, pixels, blend, to);
  image += first * C;
  to += first * C;
  if (image != to) memcpy(to, image, static_cast<size_t>(pixels - first) * C * sizeof(T));
  for_colours<T, C>(to, pixels - first, [&](float* r, float* g, float* b, int32_t n) {
    for (int32_t i = 0; i < n; ++i) {
      const float gray = luma(r[i], g[i], b[i], T());
      r[i] = bounded<T>(fused(gray, blend.rest, r[i] * blend.factor));
      g[i] = bounded<T>(fused(gray, blend.rest, g[i] * blend.factor));
      b[i] = bounded<T>(fused(gray, blend.rest, b[i] * blend.factor));
    }
  });
}

template <typename T, int C>
void grayscale(T* image, int64_t pixels) {
  for_colours<T, C>(image, pixels, [&](float* r, float* g, float* b, int32_t n) {
    for (int32_t i = 0; i < n; ++i) r[i] = g[i] = b[i] = luma(r[i], g[i], b[i], T());
  });
}

template <int C>
int64_t hue_vectors(uint8_t* image, int64_t pixels, float shift) {
  int64_t i = 0;
  if constexpr (kHasShuffles) {
    for (; i + 2 * kSingles <= pixels; i += kSingles) {
      const Words32 x = load_pixels<C>(image + i * C);
      Singles colour[3];
      for (int c = 0; c < 3; ++c) colour[c] = to_singles(x >> (8 * c) & 255) * (1.f / 255.f);
      turn_hue<uint8_t>(shift, &colour[0], &colour[1], &colour[2],
                        [](Singles value) { return floored(value); });
      Words32 y = C == 4 ? x & 0xff000000 : Words32{};
      for (int c = 0; c < 3; ++c) y |= to_words(colour[c] * 255.999f) << (8 * c);
      store_pixels<C>(image + i * C, y);
    }
  }
  return i;
}

template <typename T, int C>
void hue(T* image, int64_t pixels, float shift) {
  if constexpr (sizeof(T) == 1) {
    const int64_t first = hue_vectors<C>(image, pixels, shift);
    image += first * C;
    pixels -= first;
  }
  for_colours<T, C>(image, pixels, [&](float* r, float* g, float* b, int32_t n) {
    constexpr bool kBytes = sizeof(T) == 1;
    constexpr float kUnit = 1.f / 255.f;
    for (int32_t i = 0; i < n; ++i) {
      float x = kBytes ? r[i] * kUnit : r[i];
      float y = kBytes ? g[i] * kUnit : g[i];
      float z = kBytes ? b[i] * kUnit : b[i];
      turn_hue<T>(shift, &x, &y, &z);
      r[i] = kBytes ? x * 255.999f : x;
      g[i] = kBytes ? y * 255.999f : y;
      b[i] = kBytes ? z * 255.999f : z;
    }
  });
}

template <typename T, int C>
void permute(T* image, int64_t pixels, const int32_t* source) {
  int64_t i = 0;
  if constexpr (sizeof(T) == 1 && kHasShuffles) {
    for (; i + 2 * kSingles <= pixels; i += kSingles) {
      const Words32 x = load_pixels<C>(image + i * C);
      Words32 y = C == 4 ? x & 0xff000000 : Words32{};
      for (int32_t c = 0; c < 3; ++c) y |= (x >> (8 * source[c]) & 255) << (8 * c);
      store_pixels<C>(image + i * C, y);
    }
  }
  for (; i < pixels; ++i) {
    T* const at = image + i * C;
    const T colour[3] = {at[0], at[1], at[2]};
    for (int32_t c = 0; c < 3; ++c) at[c] = colour[source[c]];
  }
}

// Returns the sum of floored luma, or of the only channel.
template <int C>
int64_t sum_luma(const uint8_t* image, int64_t pixels) {
  constexpr int64_t kBlock = 1 << 16;  // pixels whose sum fits an int32
  int64_t sum = 0;
  for (int64_t start = 0; start < pixels; start += kBlock) {
    const int64_t end = start + kBlock < pixels ? start + kBlock : pixels;
    int64_t i = start;
    int32_t part = 0;
    if constexpr (C >= 3 && kHasShuffles) {
      Words32 parts = {};
      for (; i + 2 * kSingles <= end; i += kSingles)
        parts += floored_luma(load_pixels<C>(image + i * C));
      for (int32_t k = 0; k < kSingles; ++k) part += static_cast<int32_t>(parts[k]);
    }
    for (; i < end; ++i) {
      const uint8_t* const at = image + i * C;
      if constexpr (C == 1) {
        part += at[0];
      } else {
        part += static_cast<int32_t>(luma(at[0], at[1], at[2], uint8_t()));
      }
    }
    sum += part;
  }
  return sum;
}

// Returns the mean of luma, or of the only channel. Sums of bytes are exact.
template <typename T, int C>
float mean_luma(const T* image, int64_t pixels) {
  if constexpr (sizeof(T) == 1) {
    return static_cast<float>(sum_luma<C>(image, pixels)) / static_cast<float>(pixels);
  } else {
    double sum = 0;
    for (int64_t i = 0; i < pixels; ++i) {
      const T* const at = image + i * C;
      sum += C == 1 ? at[0] : luma(at[0], at[C > 1 ? 1 : 0], at[C > 1 ? 2 : 0], T());
    }
    return static_cast<float>(sum / static_cast<double>(pixels));
  }
}

// ---------------------------------------------------------------- sharpness

// Sums each byte of a row with the bytes above and below it.
inline void sum_columns(const uint8_t* __restrict row, int64_t stride,
                        uint16_t* __restrict columns) {
  const uint8_t *const above = row - stride, *const below = row + stride;
  for (int64_t i = 0; i < stride; ++i)
    columns[i] = static_cast<uint16_t>(above[i] + row[i] + below[i]);
}

// Computes out[i] of a row of bytes for first <= i < end. Neighbouring pixels are C bytes apart.
template <int C>
inline void sharpen_bytes(const uint8_t* __restrict row, const uint16_t* __restrict columns,
                          int64_t first, int64_t end, float rest, uint8_t* __restrict out) {
  int64_t i = first;
#if defined(JAXKERN_WIDE)
  // Half a vector of levels, computed as in the scalar loop below, in 16-bit words.
  const auto half = [&](int64_t at) {
    HalfWide bytes;
    memcpy(&bytes, row + at, sizeof bytes);
    const Wide zero = {}, x = JAXKERN_WIDE(cvtepu8_epi16)(bytes);
    const auto add = [](Wide a, Wide b) { return JAXKERN_WIDE(add_epi16)(a, b); };
    const Wide sides = add(load_wide(columns + at - C), load_wide(columns + at + C));
    const Wide sum = add(add(sides, load_wide(columns + at)),
                         add(JAXKERN_WIDE(slli_epi16)(x, 2), JAXKERN_WIDE(set1_epi16)(6)));
    const Wide blurred = JAXKERN_WIDE(mulhi_epu16)(sum, JAXKERN_WIDE(set1_epi16)(5042));
    const Wide more = JAXKERN_WIDE(sub_epi16)(blurred, x);
    // A difference in the upper half of a 32-bit word is scaled by 2^16, which `factor` undoes
    // exactly.
    const WideFloats factor = JAXKERN_WIDE(set1_ps)(rest * 0x1p-16f);
    const auto level = [&](Wide large, Wide value) {
      return truncated(JAXKERN_WIDE(fmadd_ps)(floats_of(large), factor, floats_of(value)));
    };
    return JAXKERN_WIDE(packs_epi32)(
        level(JAXKERN_WIDE(unpacklo_epi16)(zero, more), JAXKERN_WIDE(unpacklo_epi16)(x, zero)),
        level(JAXKERN_WIDE(unpackhi_epi16)(zero, more), JAXKERN_WIDE(unpackhi_epi16)(x, zero)));
  };
  int32_t
      pairs[kWidePixels];  // order of 4-byte groups: packs interleave the lanes of their operands
  for (int32_t k = 0; k < kWidePixels; ++k)
    pairs[k] = k < kWidePixels / 2 ? k / 2 * 4 + k % 2 : (k / 2 * 4 + k % 2) - kWidePixels + 2;
  const Wide order = load_wide(pairs);
  while (i < end && end - first >= kWideBytes) {
    // The last vector overlaps the one before, so that it ends with the row.
    i = i + kWideBytes <= end ? i : end - kWideBytes;
    const Wide levels = JAXKERN_WIDE(packus_epi16)(half(i), half(i + kWideBytes / 2));
    store_wide(out + i, permute_wide(levels, order));
    i += kWideBytes;
  }
#endif
  for (; i < end; ++i) {
    const uint16_t sum =
        static_cast<uint16_t>(columns[i - C] + columns[i] + columns[i + C] + 4 * row[i]);
    // sum / 13 rounded to the nearest integer. There are no ties, and 5042 is close enough to 2^16
    // / 13.
    const int32_t blurred = static_cast<uint16_t>(sum + 6) * uint32_t{5042} >> 16;
    // Truncating before clamping is faster, and bounded factors keep the value within int32.
    const int32_t level = static_cast<int32_t>(
        fused(static_cast<float>(blurred - row[i]), rest, static_cast<float>(row[i])));
    const int32_t positive = level > 0 ? level : 0;
    out[i] = static_cast<uint8_t>(positive < 255 ? positive : 255);
  }
}

// Sharpens each pixel with eight neighbours. The border and alpha are copied. Floats of images
// larger than 2 x 2 are clamped to [0, 1]. `scratch` holds two rows of 16-bit words.
template <typename T, int C>
void sharpness(const T* image, int32_t height, int32_t width, Blend blend, char* scratch, T* out) {
  constexpr int kColours = C == 4 ? 3 : C;
  const int64_t stride = static_cast<int64_t>(width) * C;
  const int64_t values = stride * height;
  if (height <= 2 || width <= 2) {
    memcpy(out, image, static_cast<size_t>(values) * sizeof(T));
    return;
  }
  memcpy(out, image, static_cast<size_t>(stride) * sizeof(T));
  memcpy(out + values - stride, image + values - stride, static_cast<size_t>(stride) * sizeof(T));
  // The columns of the next row are summed before a row is sharpened, because loads that overlap
  // very recent stores stall.
  uint16_t* columns = reinterpret_cast<uint16_t*>(scratch);
  uint16_t* next = columns + stride;
  if constexpr (sizeof(T) == 1) sum_columns(image + stride, stride, next);
  for (int32_t y = 1; y < height - 1; ++y) {
    const T* const row = image + y * stride;
    T* const to = out + y * stride;
    memcpy(to, row, C * sizeof(T));
    memcpy(to + stride - C, row + stride - C, C * sizeof(T));
    if constexpr (sizeof(T) == 1) {
      uint16_t* const before = columns;
      columns = next;
      next = before;
      if (y + 2 < height) sum_columns(row + stride, stride, next);
      sharpen_bytes<C>(row, columns, C, stride - C, blend.rest, to);
    } else {
      const T *const above = row - stride, *const below = row + stride;
      for (int64_t i = C; i < stride - C; ++i) {
        const float around = above[i - C] + above[i] + above[i + C] + row[i - C] + row[i + C] +
                             below[i - C] + below[i] + below[i + C];
        const float blurred = (around + 5.f * row[i]) * (1.f / 13.f);
        to[i] = fused(blurred - row[i], blend.rest, row[i]);
      }
    }
    for (int64_t i = kColours; kColours != C && i < stride; i += C) to[i] = row[i];
  }
  if constexpr (sizeof(T) == 4) {  // including the border
    for (int64_t i = 0; i < values; i += C) {
      for (int32_t c = 0; c < kColours; ++c) out[i + c] = unit_of(out[i + c]);
    }
  }
}

}  // namespace
}  // namespace jaxkern::image::JAXKERN_LEVEL

#endif  // JAXKERN_IMAGE_COLOUR_INL_H_
