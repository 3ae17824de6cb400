// Operations on bytes that are a table of 256 levels per channel. Tables of adjacent operations are
// composed into one, rounded after each operation, and the histograms that later operations need
// follow from one count. The second half of the file has the same operations on floats.
#ifndef JAXKERN_IMAGE_TABLES_INL_H_
#define JAXKERN_IMAGE_TABLES_INL_H_

#include "core/simd-inl.h"
#include "image/colour-inl.h"
#include "image/lookup-inl.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

// The pending tables of an image, and its histograms before these are applied.
template <int C>
struct Tables {
  static constexpr int kColours = C == 4 ? 3 : C;

  uint8_t level[kColours][256];
  uint32_t count[kColours][256];
  bool pending = false, counted = false;
  bool is_line = false;  // the pending tables are all of this line
  Line line;

  // Appends an operation.
  template <typename Next>
  void then(const Next& next) {
    for (int c = 0; c < kColours; ++c) {
      if (!pending) {
        for (int32_t k = 0; k < 256; ++k) level[c][k] = static_cast<uint8_t>(k);
      }
      for (int32_t k = 0; k < 256; ++k) level[c][k] = next(c, level[c][k]);
    }
    pending = true;
    is_line = false;
  }
  template <typename Next>
  void then_line(Line next_line, const Next& next) {
    const bool alone = !pending;
    then(next);
    is_line = alone;
    line = next_line;
  }

  // Computes the histograms of the image with the pending tables applied.
  void counts(const uint8_t* image, int64_t pixels, uint32_t now[kColours][256]) {
    if (!counted) count_levels<C, kColours>(image, pixels, count);
    counted = true;
    if (!pending) {
      memcpy(now, count, sizeof count);
      return;
    }
    memset(now, 0, sizeof count);
    for (int c = 0; c < kColours; ++c) {
      for (int32_t k = 0; k < 256; ++k) now[c][level[c][k]] += count[c][k];
    }
  }

  // Applies the pending tables. `to` may be the image itself.
  void finish(const uint8_t* image, int64_t pixels, uint8_t* to) {
    if (counted) {
      uint32_t now[kColours][256];
      counts(image, pixels, now);
      memcpy(count, now, sizeof count);
    }
    int64_t first = 0;
    if (C == kColours && is_line) first = map_line(image, pixels / 32 * 32 * C, line, to) / C;
    look_up<C, kColours>(image + first * C, pixels - first, level, to + first * C);
    pending = is_line = false;
  }
};

template <int C>
void autocontrast_table(Tables<C>* tables, const uint8_t* image, int64_t pixels) {
  constexpr int kColours = Tables<C>::kColours;
  int32_t least[C], most[C];
  find_extremes<C>(image, pixels, least, most);
  float low[kColours], scale[kColours];
  for (int c = 0; c < kColours; ++c) {
    const bool flat = least[c] >= most[c];
    low[c] = flat ? 0.f : static_cast<float>(least[c]);
    scale[c] = flat ? 1.f : static_cast<float>(most[c] - least[c]) * (1.f / 255.f);
  }
  tables->then([&](int c, uint8_t x) {
    return static_cast<uint8_t>(level_of((static_cast<float>(x) - low[c]) / scale[c]));
  });
}

template <int C>
void equalize_table(Tables<C>* tables, const uint8_t* image, int64_t pixels) {
  constexpr int kColours = Tables<C>::kColours;
  uint32_t now[kColours][256];
  tables->counts(image, pixels, now);
  uint8_t to[kColours][256];
  for (int c = 0; c < kColours; ++c) {
    if (equalized(now[c], pixels, to[c])) continue;
    for (int32_t k = 0; k < 256; ++k) to[c][k] = static_cast<uint8_t>(k);
  }
  tables->then([&](int c, uint8_t x) { return to[c][x]; });
}

// ---------------------------------------------------------------- floats

template <int C, typename Next>
void map_floats(float* image, int64_t pixels, const Next& next) {
  constexpr int kColours = C == 4 ? 3 : C;
  for (int64_t i = 0; i < pixels; ++i) {
    for (int c = 0; c < kColours; ++c) image[i * C + c] = next(c, image[i * C + c]);
  }
}

// A NaN makes its whole channel NaN.
template <int C>
void autocontrast_floats(float* image, int64_t pixels) {
  constexpr int kColours = C == 4 ? 3 : C;
  float low[kColours], scale[kColours];
  for (int c = 0; c < kColours; ++c) {
    float least = image[c], most = image[c], sum = 0.f;
    for (int64_t i = 0; i < pixels; ++i) {
      const float x = image[i * C + c];
      least = x < least ? x : least;
      most = x > most ? x : most;
      sum += x == x ? 0.f : x;
    }
    const bool flat = least == most && sum == 0.f;
    low[c] = (flat ? 0.f : least) + sum;
    scale[c] = flat ? 1.f : most - least;
  }
  map_floats<C>(image, pixels, [&](int c, float x) { return unit_of((x - low[c]) / scale[c]); });
}

template <int C>
void equalize_floats(float* image, int64_t pixels) {
  constexpr int kColours = C == 4 ? 3 : C;
  uint32_t count[kColours][256] = {};
  uint8_t to[kColours][256];
  map_floats<C>(image, pixels, [&](int c, float x) {
    ++count[c][unit_level(x)];
    return x;
  });
  for (int c = 0; c < kColours; ++c) {
    if (equalized(count[c], pixels, to[c])) continue;
    for (int32_t k = 0; k < 256; ++k) to[c][k] = static_cast<uint8_t>(k);
  }
  map_floats<C>(image, pixels, [&](int c, float x) {
    return static_cast<float>(to[c][unit_level(x)]) * (1.f / 255.f);
  });
}

}  // namespace
}  // namespace jaxkern::image::JAXKERN_LEVEL

#endif  // JAXKERN_IMAGE_TABLES_INL_H_
