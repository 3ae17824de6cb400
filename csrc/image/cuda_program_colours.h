// The colour operations of the CUDA image program, including table operations and sharpness; see
// cuda_program.h. colour-inl.h and tables-inl.h are their CPU counterparts.
#ifndef JAXKERN_IMAGE_CUDA_PROGRAM_COLOURS_H_
#define JAXKERN_IMAGE_CUDA_PROGRAM_COLOURS_H_

#include <cmath>
#include <cstdint>

#include "core/host_device.h"
#include "image/cuda_program_block.h"
#include "image/pixel.h"
#include "image/program.h"

namespace jaxkern::image {

template <typename T, int C, typename Block>
struct ProgramColours : ProgramBlock<T, C, Block> {
  using Work = ProgramBlock<T, C, Block>;
  using Work::add_parts;
  using Work::blend;
  using Work::block;
  using Work::call;
  using Work::each;
  using Work::height;
  using Work::image;
  using Work::kBytes;
  using Work::kColours;
  using Work::lanes;
  using Work::map;
  using Work::map_colours;
  using Work::other;
  using Work::parts;
  using Work::pixels;
  using Work::shared;
  using Work::swap;
  using Work::width;
  using Work::Work;

  JAXKERN_HD_MEMBER void colour_step(Code code) {
    switch (code) {
      case Code::kBrightness:
        return brightness();
      case Code::kContrast:
        return contrast();
      case Code::kPosterize:
        return posterize();
      case Code::kSolarize:
        return solarize();
      case Code::kAutocontrast:
        return autocontrast();
      case Code::kEqualize:
        return equalize();
      case Code::kSharpness:
        return sharpness();
      case Code::kInvert:
        return map([](int32_t, T x) { return inverted(x); });
      default:
        break;
    }
    if constexpr (C >= 3) {  // a single channel has no colour
      if (code == Code::kSaturation) {
        const Blend by = blend();
        map_colours([&](float* r, float* g, float* b) {
          const float gray = luma(*r, *g, *b, T());
          *r = bounded<T>(fused(gray, by.rest, *r * by.factor));
          *g = bounded<T>(fused(gray, by.rest, *g * by.factor));
          *b = bounded<T>(fused(gray, by.rest, *b * by.factor));
        });
      } else if (code == Code::kHue) {
        const float shift = shared.values[0];
        map_colours([&](float* r, float* g, float* b) {
          if constexpr (kBytes) {
            *r *= 1.f / 255.f;
            *g *= 1.f / 255.f;
            *b *= 1.f / 255.f;
          }
          turn_hue<T>(shift, r, g, b);
          if constexpr (kBytes) {
            *r = truncf(*r * 255.999f);
            *g = truncf(*g * 255.999f);
            *b = truncf(*b * 255.999f);
          }
        });
      } else if (code == Code::kGrayscale) {
        map_colours([](float* r, float* g, float* b) { *r = *g = *b = luma(*r, *g, *b, T()); });
      } else if (code == Code::kPermute) {
        int32_t from[3];
        for (int32_t c = 0; c < 3; ++c) from[c] = clamp_to_int(shared.values[c], 0, 2);
        each(pixels, [&](int64_t i) {
          T* const at = image + i * C;
          const T colour[3] = {at[0], at[1], at[2]};
          for (int32_t c = 0; c < 3; ++c) at[c] = colour[from[c]];
        });
      }
    }
  }

 private:
  JAXKERN_HD_MEMBER void brightness() {
    const float factor = factor_of(shared.values[0]);
    if constexpr (kBytes) {
      map([&](int32_t, T x) { return brightness_level(x, factor); });
    } else {
      map([&](int32_t, T x) { return unit_of(x * factor); });
    }
  }

  JAXKERN_HD_MEMBER void contrast() {
    const Blend by = blend();
    compute_mean();
    if constexpr (kBytes) {
      map([&](int32_t, T x) { return contrast_level(x, by, shared.mean); });
    } else {
      const float rest = shared.mean * by.rest;
      map([&](int32_t, T x) { return unit_of(x * by.factor + rest); });
    }
  }

  // Computes the mean of luma, or of the only channel. Sums of bytes are exact.
  JAXKERN_HD_MEMBER void compute_mean() {
    const auto luma_at = [&](int64_t i) {
      const T* const at = image + i * C;
      if constexpr (C == 1) return static_cast<float>(at[0]);
      return luma(at[0], at[C > 1 ? 1 : 0], at[C > 1 ? 2 : 0], T());
    };
    if constexpr (kBytes) {
      block.run([&](int32_t thread) {
        if (thread == 0) shared.luma = 0;
      });
      block.run([&](int32_t thread) {
        unsigned long long sum = 0;
        for (int64_t i = thread; i < pixels; i += block.threads)
          sum += static_cast<unsigned long long>(luma_at(i));
        block.add(&shared.luma, sum);
      });
      block.run([&](int32_t thread) {
        if (thread != 0) return;
        const int64_t sum = static_cast<int64_t>(shared.luma);
        shared.mean = static_cast<float>(sum) / static_cast<float>(pixels);
      });
    } else {
      block.run([&](int32_t thread) {
        double sum = 0;
        for (int64_t i = thread; i < pixels; i += block.threads) sum += luma_at(i);
        parts()[thread].sum = sum;
      });
      add_parts([](ProgramPart& part, const ProgramPart& other) { part.sum += other.sum; });
      block.run([&](int32_t thread) {
        if (thread != 0) return;
        double sum = 0;
        for (int32_t t = 0; t < lanes(); ++t) sum += parts()[t].sum;
        shared.mean = static_cast<float>(sum / static_cast<double>(pixels));
      });
    }
  }

  JAXKERN_HD_MEMBER void posterize() {
    const int32_t bits = clamp_to_int(shared.values[0], 0, 8);
    if constexpr (kBytes) {
      map([&](int32_t, T x) { return posterize_level(x, bits); });
    } else {
      const float levels = static_cast<float>(1 << bits);
      map([&](int32_t, T x) {
        const float level = floorf(x * levels), positive = level < 0.f ? 0.f : level;
        return (positive > levels - 1.f ? levels - 1.f : positive) * (1.f / levels);
      });
    }
  }

  JAXKERN_HD_MEMBER void solarize() {
    const float unit_threshold = shared.values[0];
    if constexpr (kBytes) {
      const float threshold = shared.values[1] != 0.f ? unit_threshold : unit_threshold * 255.f;
      map([&](int32_t, T x) { return solarize_level(x, threshold); });
    } else {
      map([&](int32_t, T x) { return x >= unit_threshold ? 1.f - x : x; });
    }
  }

  // Computes the histogram of each colour. Each block counts in its own shared memory.
  JAXKERN_HD_MEMBER void count_levels() {
    constexpr int32_t kCounts = 3 * 256;
    uint32_t* const all = shared.count[0];
    block.run([&](int32_t thread) {
      for (int32_t k = thread; k < kCounts; k += block.threads) all[k] = 0;
      for (int32_t k = thread % block.width; k < kCounts; k += block.width)
        block.counts(thread)[k] = 0;
    });
    block.run([&](int32_t thread) {
      uint32_t* const own = block.counts(thread);
      for (int64_t i = thread; i < pixels; i += block.threads) {
        for (int32_t c = 0; c < kColours; ++c) {
          const T x = image[i * C + c];
          if constexpr (kBytes) {
            block.add(&own[256 * c + x], 1u);
          } else {
            block.add(&own[256 * c + unit_level(x)], 1u);
          }
        }
      }
    });
    block.run([&](int32_t thread) {
      const uint32_t* const own = block.counts(thread);
      for (int32_t k = thread % block.width; k < kCounts; k += block.width)
        if (own[k] != 0) block.add(&all[k], own[k]);
    });
  }

  JAXKERN_HD_MEMBER void equalize() {
    count_levels();
    each(kColours, [&](int64_t c) {
      if (equalized(shared.count[c], pixels, shared.level[c])) return;
      for (int32_t k = 0; k < 256; ++k) shared.level[c][k] = static_cast<uint8_t>(k);
    });
    if constexpr (kBytes) {
      map([&](int32_t c, T x) { return shared.level[c][x]; });
    } else {
      map([&](int32_t c, T x) {
        return static_cast<float>(shared.level[c][unit_level(x)]) * (1.f / 255.f);
      });
    }
  }

  JAXKERN_HD_MEMBER void autocontrast() {
    if constexpr (kBytes) {
      count_levels();
      each(kColours, [&](int64_t c) {
        const uint32_t* const count = shared.count[c];
        int32_t first = 0, last = 255;
        while (first < 255 && count[first] == 0) ++first;
        while (last > 0 && count[last] == 0) --last;
        const bool flat = first >= last;
        shared.low[c] = flat ? 0.f : static_cast<float>(first);
        shared.scale[c] = flat ? 1.f : static_cast<float>(last - first) * (1.f / 255.f);
      });
      map([&](int32_t c, T x) {
        return static_cast<T>(level_of((static_cast<float>(x) - shared.low[c]) / shared.scale[c]));
      });
    } else {
      block.run([&](int32_t thread) {
        for (int32_t c = 0; c < kColours; ++c) {
          float least = image[c], most = image[c], sum = 0.f;
          for (int64_t i = thread; i < pixels; i += block.threads) {
            const float x = image[i * C + c];
            least = x < least ? x : least;
            most = x > most ? x : most;
            sum += x == x ? 0.f : x;
          }
          auto& range = parts()[thread].range;
          range.least[c] = least;
          range.most[c] = most;
          range.sum[c] = sum;
        }
      });
      const auto add = [](ProgramPart& part, const ProgramPart& other) {
        for (int32_t c = 0; c < kColours; ++c) {
          const float low = other.range.least[c], high = other.range.most[c];
          part.range.least[c] = low < part.range.least[c] ? low : part.range.least[c];
          part.range.most[c] = high > part.range.most[c] ? high : part.range.most[c];
          part.range.sum[c] += other.range.sum[c];
        }
      };
      add_parts(add);
      each(kColours, [&](int64_t c) {
        float least = image[c], most = image[c], sum = 0.f;
        for (int32_t t = 0; t < lanes(); ++t) {
          const auto& range = parts()[t].range;
          least = range.least[c] < least ? range.least[c] : least;
          most = range.most[c] > most ? range.most[c] : most;
          sum += range.sum[c];
        }
        const bool flat = least == most && sum == 0.f;
        shared.low[c] = (flat ? 0.f : least) + sum;
        shared.scale[c] = flat ? 1.f : most - least;
      });
      map([&](int32_t c, T x) { return unit_of((x - shared.low[c]) / shared.scale[c]); });
    }
  }

  JAXKERN_HD_MEMBER void sharpness() {
    if (height <= 2 || width <= 2) return;
    const float rest = blend().rest;
    const int64_t stride = static_cast<int64_t>(width) * C;
    each(call.elements(), [&](int64_t i) {
      const int64_t y = i / stride, x = (i - y * stride) / C;
      const bool colour = i % C < kColours;
      const T centre = image[i];
      if (!colour) {
        other[i] = centre;
      } else if (y == 0 || y == height - 1 || x == 0 || x == width - 1) {
        if constexpr (kBytes) {
          other[i] = centre;
        } else {
          other[i] = unit_of(centre);
        }
      } else {
        const T *const row = image + i, *const above = row - stride, *const below = row + stride;
        const auto around =
            above[-C] + above[0] + above[C] + row[-C] + row[C] + below[-C] + below[0] + below[C];
        if constexpr (kBytes) {
          const int32_t blurred =
              (2 * (around + 5 * centre) + 13) / 26;  // rounded to nearest; there are no ties
          other[i] = static_cast<T>(level_of(
              fused(static_cast<float>(blurred - centre), rest, static_cast<float>(centre))));
        } else {
          const float blurred = (around + 5.f * centre) * (1.f / 13.f);
          other[i] = unit_of(fused(blurred - centre, rest, centre));
        }
      }
    });
    swap();
  }
};

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_CUDA_PROGRAM_COLOURS_H_
