// The colour operations of an image program on images of C interleaved channels, in place. Included
// by program_levels.cc in the level's unnamed namespace.
//
// To add one that maps pixels: a function of a pixel beside those below, its line in
// colour_step, its Code in program.h and program.py, and its twin in program_twin.py.

constexpr int32_t kPixelBlock = 128;  // pixels whose channels lie apart while they are worked on

// a * b + c, rounded once, as torchvision's fused additions are. Without the instruction in double,
// which holds the product exactly, and the sum wherever it matters to a level.
inline float fused(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return static_cast<float>(static_cast<double>(a) * static_cast<double>(b) +
                            static_cast<double>(c));
#endif
}

// Of a byte image: clamped to the levels and truncated, NaN to 0.
inline float level_of(float value) {
  const float positive = value > 0.f ? value : 0.f;
  return truncf(positive < 255.f ? positive : 255.f);
}
// Of a float image; NaN stays.
inline float unit_of(float value) {
  const float positive = value < 0.f ? 0.f : value;
  return positive > 1.f ? 1.f : positive;
}
template <typename T>
inline float bounded(float value) {
  return sizeof(T) == 1 ? level_of(value) : unit_of(value);
}

// ITU-R 601-2 luma. Of bytes floored, exactly: in units of 1 / 10,000, of which sixteenths are
// dropped first; 625 of those are a level, and a quotient is 1 / 1250 away from any whole number.
inline float luma(float r, float g, float b, uint8_t) {
  const int32_t parts = 2989 * static_cast<int32_t>(r) + 5870 * static_cast<int32_t>(g) +
                        1140 * static_cast<int32_t>(b);
  return truncf((static_cast<float>(parts >> 4) + 0.5f) * (1.f / 625.f));
}
inline float luma(float r, float g, float b, float) {
  return fused(b, 0.114f, fused(g, 0.587f, r * 0.2989f));
}

// Runs body(r, g, b, n), which changes arrays of n values, over all pixels of an image.
template <typename T, int C, typename Body>
inline void for_colours(T* image, int64_t pixels, const Body& body) {
  static_assert(C >= 3);
  alignas(64) float r[kPixelBlock], g[kPixelBlock], b[kPixelBlock];
  for (int64_t start = 0; start < pixels; start += kPixelBlock) {
    T* const at = image + start * C;
    const int64_t left = pixels - start;
    const int32_t n = left < kPixelBlock ? static_cast<int32_t>(left) : kPixelBlock;
    for (int32_t i = 0; i < n; ++i) {
      r[i] = static_cast<float>(at[C * i]);
      g[i] = static_cast<float>(at[C * i + 1]);
      b[i] = static_cast<float>(at[C * i + 2]);
    }
    body(r, g, b, n);
    for (int32_t i = 0; i < n; ++i) {
      at[C * i] = static_cast<T>(r[i]);
      at[C * i + 1] = static_cast<T>(g[i]);
      at[C * i + 2] = static_cast<T>(b[i]);
    }
  }
}

// ---------------------------------------------------------------- operations on pixels

struct Blend {
  float factor, rest;  // the image's part and the other's
};

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

// To hue, saturation and value and back. Sextants are compared as floats, so that NaN is converted
// to no integer; it ends in the value.
inline void turn_hue(float shift, float* red, float* green, float* blue) {
  const float r = *red, g = *green, b = *blue;
  const float high_rg = r > g ? r : g, low_rg = r < g ? r : g;
  const float value = high_rg > b ? high_rg : b, low = low_rg < b ? low_rg : b;
  const float range = value - low;
  const bool flat = value == low;
  const float share = flat ? 0.f : range / value;
  const float divisor = flat ? 1.f : range;
  const float rc = (value - r) / divisor, gc = (value - g) / divisor, bc = (value - b) / divisor;
  const float sixths = value == r ? bc - gc : (value == g ? (2.f + rc) - bc : (4.f + gc) - rc);
  float hue = sixths * (1.f / 6.f) + 1.f;
  hue = hue - floorf(hue);
  hue = hue + shift;
  hue = hue - floorf(hue);
  const float scaled = hue * 6.f, whole = floorf(scaled), part = scaled - whole;
  const float grown = share * part, rest = 1.f - share;
  const float p = unit_of(rest * value);
  const float q = unit_of((1.f - grown) * value);
  const float t = unit_of((grown + rest) * value);
  const bool s1 = whole == 1.f, s2 = whole == 2.f, s3 = whole == 3.f, s4 = whole == 4.f,
             s5 = whole == 5.f;
  *red = s1 ? q : (s2 | s3 ? p : (s4 ? t : value));
  *green = s1 | s2 ? value : (s3 ? q : (s4 | s5 ? p : t));
  *blue = s2 ? t : (s3 | s4 ? value : (s5 ? q : p));
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
      turn_hue(shift, &x, &y, &z);
      r[i] = kBytes ? truncf(x * 255.999f) : x;
      g[i] = kBytes ? truncf(y * 255.999f) : y;
      b[i] = kBytes ? truncf(z * 255.999f) : z;
    }
  });
}

template <typename T, int C>
void permute(T* image, int64_t pixels, const int32_t* source) {
  for (int64_t i = 0; i < pixels; ++i) {
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
    for (int64_t start = 0; start < pixels; start += 1 << 16) {
      const int64_t end = start + (1 << 16) < pixels ? start + (1 << 16) : pixels;
      int32_t part = 0;
      for (int64_t i = start; i < end; ++i) {
        const T* const at = image + i * C;
        if constexpr (C == 1) {
          part += at[0];
        } else {
          part += static_cast<int32_t>(luma(at[0], at[1], at[2], T()));
        }
      }
      sum += part;
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

// Each pixel that has all eight neighbours, of `channels` channels from the first of C on. Rows are
// read before they are written: `above` and `row` keep what the two rows before were.
template <typename T, int C>
void sharpness(T* image, int32_t height, int32_t width, Blend blend, char* scratch) {
  if (height <= 2 || width <= 2) return;
  constexpr int kColours = C == 4 ? 3 : C;
  const int64_t stride = static_cast<int64_t>(width) * C;
  T* above = reinterpret_cast<T*>(scratch);
  T* row = above + (stride + 63) / 64 * 64;
  memcpy(above, image, static_cast<size_t>(stride) * sizeof(T));
  for (int32_t y = 1; y < height - 1; ++y) {
    T* const out = image + y * stride;
    const T* const below = out + stride;
    memcpy(row, out, static_cast<size_t>(stride) * sizeof(T));
    for (int64_t i = C; i < stride - C; ++i) {
      if (kColours != C && i % C == kColours) continue;
      if constexpr (sizeof(T) == 1) {
        const int32_t around = above[i - C] + above[i] + above[i + C] + row[i - C] + row[i + C] +
                               below[i - C] + below[i] + below[i + C];
        const int32_t centre = row[i];
        const int32_t blurred = (2 * (around + 5 * centre) + 13) / 26;  // to the nearest: no ties
        out[i] = static_cast<T>(level_of(
            fused(static_cast<float>(blurred - centre), blend.rest, static_cast<float>(centre))));
      } else {
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
