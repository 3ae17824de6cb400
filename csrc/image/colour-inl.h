// The colour operations of an image program on images of C interleaved channels, in place. Included
// by program_levels.cc in the level's unnamed namespace.
//
// To add one that maps pixels: a function of a pixel beside those below, its line in
// colour_step, its Code in program.h and program.py, and its twin in program_twin.py.

// ---------------------------------------------------------------- operations on pixels

template <typename T, int C>
void saturation(T* image, int64_t pixels, Blend blend) {
  for_colours<T, C>(image, pixels, [&](float* r, float* g, float* b, int32_t n) {
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

template <typename T, int C>
void hue(T* image, int64_t pixels, float shift) {
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

// The mean of luma, or of the only channel. Bytes are added exactly.
template <typename T, int C>
float mean_luma(const T* image, int64_t pixels) {
  if constexpr (sizeof(T) == 1) {
    int64_t sum = 0;
    if constexpr (C == 1) {
      for (int64_t i = 0; i < pixels; ++i) sum += image[i];
    } else {
      for_colours<const T, C>(image, pixels, [&](float* r, float* g, float* b, int32_t n) {
        int32_t part = 0;
        for (int32_t i = 0; i < n; ++i) part += static_cast<int32_t>(luma(r[i], g[i], b[i], T()));
        sum += part;
      });
    }
    return static_cast<float>(sum) / static_cast<float>(pixels);
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

// out[i] of a row of bytes, first <= i < end: its neighbours are C bytes away, and in the rows
// above and below; `columns` holds sums of three.
template <int C>
inline void sharpen_bytes(const uint8_t* __restrict above, const uint8_t* __restrict row,
                          const uint8_t* __restrict below, int64_t first, int64_t end, float rest,
                          uint16_t* __restrict columns, uint8_t* __restrict out) {
  for (int64_t i = first - C; i < end + C; ++i)
    columns[i] = static_cast<uint16_t>(above[i] + row[i] + below[i]);
  for (int64_t i = first; i < end; ++i) {
    const uint16_t sum =
        static_cast<uint16_t>(columns[i - C] + columns[i] + columns[i + C] + 4 * row[i]);
    // The whole number next to sum / 13: there are no ties, and 5042 is 2^16 / 13 closely enough.
    const int32_t blurred = static_cast<uint16_t>(sum + 6) * uint32_t{5042} >> 16;
    // Truncated first: an int32 holds it, since factors are bounded, and is quicker to clamp.
    const int32_t level = static_cast<int32_t>(
        fused(static_cast<float>(blurred - row[i]), rest, static_cast<float>(row[i])));
    const int32_t positive = level > 0 ? level : 0;
    out[i] = static_cast<uint8_t>(positive < 255 ? positive : 255);
  }
}

// Each pixel that has all eight neighbours. Rows are read before they are written: `above` and
// `row` keep what the two rows before were. `scratch` has four rows of floats.
template <typename T, int C>
void sharpness(T* image, int32_t height, int32_t width, Blend blend, char* scratch) {
  if (height <= 2 || width <= 2) return;
  constexpr int kColours = C == 4 ? 3 : C;
  const int64_t stride = static_cast<int64_t>(width) * C;
  const int64_t padded = (stride + 63) / 64 * 64;
  T* above = reinterpret_cast<T*>(scratch);
  T* row = above + padded;
  memcpy(above, image, static_cast<size_t>(stride) * sizeof(T));
  for (int32_t y = 1; y < height - 1; ++y) {
    T* const out = image + y * stride;
    const T* const below = out + stride;
    memcpy(row, out, static_cast<size_t>(stride) * sizeof(T));
    if constexpr (sizeof(T) == 1) {
      uint16_t* const columns = reinterpret_cast<uint16_t*>(scratch + 2 * padded);
      sharpen_bytes<C>(above, row, below, C, stride - C, blend.rest, columns, out);
      for (int64_t i = kColours; kColours != C && i < stride; i += C) out[i] = row[i];
    } else {
      for (int64_t i = C; i < stride - C; ++i) {
        if (kColours != C && i % C == kColours) continue;
        const float around = above[i - C] + above[i] + above[i + C] + row[i - C] + row[i + C] +
                             below[i - C] + below[i] + below[i + C];
        const float blurred = (around + 5.f * row[i]) * (1.f / 13.f);
        out[i] = fused(blurred - row[i], blend.rest, row[i]);
      }
    }
    T* const done = above;
    above = row;
    row = done;
  }
  if constexpr (sizeof(T) == 4) {  // the border too
    const int64_t pixels = static_cast<int64_t>(height) * width;
    for (int64_t i = 0; i < pixels; ++i) {
      for (int32_t c = 0; c < kColours; ++c) image[i * C + c] = unit_of(image[i * C + c]);
    }
  }
}
