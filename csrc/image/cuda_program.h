// The body of the CUDA image program: a block runs one image step after step, as program-inl.h has
// it on the CPU, through the same functions of a pixel (pixel.h), so that a CPU test runs it with a
// block of its own.
//
// A block has `threads` and run(body), which calls body(thread) for each of them with a barrier
// behind it, and add(where, value), which threads may call at once. Images of a few hundred
// kilobytes stay in the device's second-level cache from step to step.
#ifndef JAXKERN_IMAGE_CUDA_PROGRAM_H_
#define JAXKERN_IMAGE_CUDA_PROGRAM_H_

#include <cmath>
#include <cstdint>

#include "core/batch_set.h"
#include "core/host_device.h"
#include "image/cuda_program_memory.h"
#include "image/pixel.h"
#include "image/program.h"
#include "image/random.h"
#include "image/warp.h"

namespace jaxkern::image {

template <typename T, int C, typename Block>
struct ProgramBody {
  static constexpr bool kBytes = sizeof(T) == 1;
  static constexpr int kColours = C == 4 ? 3 : C;

  const ProgramCall& call;
  ProgramShared& shared;
  Block& block;
  char* scratch;
  T* image = nullptr;
  T* other = nullptr;
  int32_t height = 0, width = 0;
  int64_t pixels = 0;

  JAXKERN_HD_MEMBER void run(int64_t sample) {
    const BatchOffsets<kProgramOperands> at = batch_offsets(call.operands, sample);
    const int32_t* const ops = call.operands.template at<int32_t>(at, kProgramOps);
    const float* const values = call.operands.template at<float>(at, kProgramStepValues);
    const T* const source = call.operands.template at<T>(at, kProgramImages);
    T* const output = static_cast<T*>(call.output) + sample * call.elements();
    height = call.height;
    width = call.width;
    pixels = static_cast<int64_t>(height) * width;
    image = output;
    other = reinterpret_cast<T*>(scratch);
    if (source != output) copy(source, output);
    bool begun = false;  // a mean
    for (int32_t s = 0; s < call.steps; ++s) {
      // Taken once, for all threads, which must agree; when all have done with those before.
      block.run([](int32_t) {});
      block.run([&](int32_t thread) {
        if (thread < kProgramValues) shared.values[thread] = values[s * kProgramValues + thread];
        if (thread == 0) shared.op = ops[s];
      });
      const Code code = drawn_code(call.step[s], shared.op, shared.values);
      if (code == Code::kNone) continue;
      if (code == Code::kNoise) {
        noise();
      } else if (code == Code::kErase) {
        erase(call.step[s]);
      } else if (code == Code::kBlur) {
        blur(call.step[s]);
      } else if (code == Code::kWarp || code == Code::kPerspective || code == Code::kTurn) {
        warp(call.step[s], code);
      } else if (code == Code::kElastic) {
        elastic(call.step[s]);
      } else if (code >= Code::kKeep) {
        mean_step(code, &begun);
      } else {
        colour_step(code);
      }
    }
    if (image != output) copy(image, output);
  }

 private:
  // body(i) for i < count, with a barrier behind.
  template <typename Body>
  JAXKERN_HD_MEMBER void each(int64_t count, const Body& body) {
    block.run([&](int32_t thread) {
      for (int64_t i = thread; i < count; i += block.threads) body(i);
    });
  }
  JAXKERN_HD_MEMBER void copy(const T* from, T* to) {
    each(call.elements(), [&](int64_t i) { to[i] = from[i]; });
  }
  JAXKERN_HD_MEMBER void swap() {
    T* const before = image;
    image = other;
    other = before;
  }
  JAXKERN_HD_MEMBER Blend blend() const { return blend_of(shared.values); }

  // Each value of a colour through map(channel, value).
  template <typename Map>
  JAXKERN_HD_MEMBER void map(const Map& map) {
    each(pixels, [&](int64_t i) {
      for (int32_t c = 0; c < kColours; ++c) image[i * C + c] = map(c, image[i * C + c]);
    });
  }
  // Each pixel's three colours through body(r, g, b).
  template <typename Body>
  JAXKERN_HD_MEMBER void map_colours(const Body& body) {
    each(pixels, [&](int64_t i) {
      T* const at = image + i * C;
      float r = at[0], g = at[C > 1 ? 1 : 0], b = at[C > 1 ? 2 : 0];
      body(&r, &g, &b);
      at[0] = static_cast<T>(r);
      at[C > 1 ? 1 : 0] = static_cast<T>(g);
      at[C > 1 ? 2 : 0] = static_cast<T>(b);
    });
  }

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
    if constexpr (C >= 3) {  // one channel has no colour
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
        for (int32_t c = 0; c < 3; ++c) from[c] = whole_of(shared.values[c], 0, 2);
        each(pixels, [&](int64_t i) {
          T* const at = image + i * C;
          const T colour[3] = {at[0], at[1], at[2]};
          for (int32_t c = 0; c < 3; ++c) at[c] = colour[from[c]];
        });
      }
    }
  }

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
    take_mean();
    if constexpr (kBytes) {
      map([&](int32_t, T x) { return contrast_level(x, by, shared.mean); });
    } else {
      const float rest = shared.mean * by.rest;
      map([&](int32_t, T x) { return unit_of(x * by.factor + rest); });
    }
  }

  // The mean of luma, or of the only channel. Bytes are added exactly.
  JAXKERN_HD_MEMBER void take_mean() {
    const auto of = [&](int64_t i) {
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
          sum += static_cast<unsigned long long>(of(i));
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
        for (int64_t i = thread; i < pixels; i += block.threads) sum += of(i);
        shared.part[thread] = sum;
      });
      block.run([&](int32_t thread) {
        if (thread != 0) return;
        double sum = 0;
        for (int32_t t = 0; t < block.threads; ++t) sum += shared.part[t];
        shared.mean = static_cast<float>(sum / static_cast<double>(pixels));
      });
    }
  }

  JAXKERN_HD_MEMBER void posterize() {
    const int32_t bits = whole_of(shared.values[0], 0, 8);
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
    const float given = shared.values[0];
    if constexpr (kBytes) {
      const float threshold = shared.values[1] != 0.f ? given : given * 255.f;
      map([&](int32_t, T x) { return solarize_level(x, threshold); });
    } else {
      map([&](int32_t, T x) { return x >= given ? 1.f - x : x; });
    }
  }

  // How many pixels have each level of each colour.
  JAXKERN_HD_MEMBER void count_levels() {
    each(3 * 256, [&](int64_t k) { shared.count[k / 256][k % 256] = 0; });
    each(pixels, [&](int64_t i) {
      for (int32_t c = 0; c < kColours; ++c) {
        const T x = image[i * C + c];
        if constexpr (kBytes) {
          block.add(&shared.count[c][x], 1u);
        } else {
          block.add(&shared.count[c][unit_level(x)], 1u);
        }
      }
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
          shared.range.least[c][thread] = least;
          shared.range.most[c][thread] = most;
          shared.range.sum[c][thread] = sum;
        }
      });
      each(kColours, [&](int64_t c) {
        float least = image[c], most = image[c], sum = 0.f;
        for (int32_t t = 0; t < block.threads; ++t) {
          const float low = shared.range.least[c][t], high = shared.range.most[c][t];
          least = low < least ? low : least;
          most = high > most ? high : most;
          sum += shared.range.sum[c][t];
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
          const int32_t blurred = (2 * (around + 5 * centre) + 13) / 26;  // to the nearest: no ties
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

  JAXKERN_HD_MEMBER void blur(const ProgramStep& step) {
    blurred<C>(image, step.kernel_x, step.kernel_y, shared.values[0], shared.values[1], other);
    swap();
  }

  // Down the columns, then along the rows; beyond an edge is what is reflected.
  template <int N, typename From, typename To>
  JAXKERN_HD_MEMBER void blurred(const From* from, int32_t kernel_x, int32_t kernel_y,
                                 float sigma_x, float sigma_y, To* to) {
    block.run([&](int32_t thread) {
      if (thread == 0) shared.reach_x = blur_weights(kernel_x, sigma_x, shared.weight.x);
      if (thread == block.threads - 1)
        shared.reach_y = blur_weights(kernel_y, sigma_y, shared.weight.y);
    });
    double* const columns = reinterpret_cast<double*>(scratch + program_memory(call).columns);
    const int64_t stride = static_cast<int64_t>(width) * N;
    each(pixels * N, [&](int64_t i) {
      const int64_t y = i / stride, within = i - y * stride;
      const auto at = [&](int64_t row) {
        return static_cast<double>(from[reflected(row, height) * stride + within]);
      };
      double sum = shared.weight.y[0] * static_cast<double>(from[i]);
      for (int32_t t = 1; t <= shared.reach_y; ++t)
        sum += shared.weight.y[t] * (at(y - t) + at(y + t));
      columns[i] = sum;
    });
    each(pixels * N, [&](int64_t i) {
      const int64_t y = i / stride, within = i - y * stride, x = within / N, c = within % N;
      const auto at = [&](int64_t column) {
        return columns[y * stride + int64_t{reflected(column, width)} * N + c];
      };
      double sum = shared.weight.x[0] * columns[i];
      for (int32_t t = 1; t <= shared.reach_x; ++t)
        sum += shared.weight.x[t] * (at(x - t) + at(x + t));
      to[i] = stored_value<To>(sum);
    });
  }

  JAXKERN_HD_MEMBER void warp(const ProgramStep& step, Code code) {
    float matrix[kWarpCoefficients];
    for (int32_t k = 0; k < kWarpCoefficients; ++k) matrix[k] = shared.values[k];
    Warp warp = warp_of(step);
    warp.perspective = code == Code::kPerspective;
    if (code == Code::kTurn) {
      matrix[6] = matrix[7] = 0;
      warp.in_width = whole_of(shared.values[6], 1, width);
      warp.in_height = whole_of(shared.values[7], 1, height);
      // Its rows one behind the other.
      const int64_t row = static_cast<int64_t>(warp.in_width) * C;
      each(row * warp.in_height,
           [&](int64_t i) { other[i] = image[i / row * width * C + i % row]; });
      swap();
    }
    const WarpMap map = warp_map(warp, matrix);
    seen(warp, [&](int32_t column, int32_t row) {
      return warp.perspective ? warp_point<true>(map, column, row)
                              : warp_point<false>(map, column, row);
    });
  }

  JAXKERN_HD_MEMBER Warp warp_of(const ProgramStep& step) const {
    constexpr Dtype kDtype = kBytes ? Dtype::kU8 : Dtype::kF32;
    const Filter filter = step.interpolation == 0 ? Filter::kNearest : Filter::kBilinear;
    Warp warp = {kDtype, C, height, width, height, width, filter, false, {}};
    for (int32_t c = 0; c < C; ++c) warp.fill[c] = step.fill[c];
    return warp;
  }

  JAXKERN_HD_MEMBER void elastic(const ProgramStep& step) {
    const ProgramMemory memory = program_memory(call);
    float* const numbers = reinterpret_cast<float*>(scratch + memory.numbers);
    double* const field = reinterpret_cast<double*>(scratch + memory.field);
    const NoiseKey key = key_of(shared.values);
    each(pixels, [&](int64_t i) {
      uint32_t word[2];
      random_words(key, i, &word[0], &word[1]);
      numbers[i] = uniform_number(word[0]);
      numbers[pixels + i] = uniform_number(word[1]);
    });
    for (int32_t axis = 0; axis < 2; ++axis) {
      const int32_t kernel = axis == 0 ? step.kernel_x : step.kernel_y;
      blurred<1>(numbers + axis * pixels, kernel, kernel, shared.values[2], shared.values[3],
                 field + axis * pixels);
    }
    const double alpha_x = static_cast<double>(shared.values[0]) / width;
    const double alpha_y = static_cast<double>(shared.values[1]) / height;
    seen(warp_of(step), [&](int32_t column, int32_t row) {
      const int64_t i = static_cast<int64_t>(row) * width + column;
      return WarpPoint{elastic_point(column, width, alpha_x * field[i]),
                       elastic_point(row, height, alpha_y * field[pixels + i])};
    });
  }

  // Each pixel (column, row) shows the image, of the warp's sides, at to_point(column, row).
  template <typename ToPoint>
  JAXKERN_HD_MEMBER void seen(const Warp& warp, const ToPoint& to_point) {
    const bool nearest = warp.filter == Filter::kNearest;
    const int32_t in_height = warp.in_height, in_width = warp.in_width;
    T outside[C];
    const bool filled = warp.fill[0] == warp.fill[0];
    for (int32_t c = 0; c < C; ++c) outside[c] = stored_value<T>(filled ? warp.fill[c] : 0.0);
    each(pixels, [&](int64_t i) {
      const int32_t to_row = static_cast<int32_t>(i / width);
      const int32_t to_column = static_cast<int32_t>(i - static_cast<int64_t>(to_row) * width);
      const WarpPoint at = to_point(to_column, to_row);
      T* const to = other + i * C;
      const float px = clamped_point(at.x, in_width), py = clamped_point(at.y, in_height);
      const float fx = nearest ? rintf(px) : floorf(px), fy = nearest ? rintf(py) : floorf(py);
      const int32_t column = static_cast<int32_t>(fx), row = static_cast<int32_t>(fy);
      const T* const upper = image + (static_cast<int64_t>(row) * in_width + column) * C;
      if (nearest) {
        const bool inside = warp_inside(column, row, in_width, in_height);
        return put_pixel<T, C>(inside ? upper : outside, to);
      }
      // As the CPU's: in float32 where all four pixels are there and it tells the level.
      if (warp_inside(column, row, in_width - 1, in_height - 1) &&
          blend_inside<T, C>(upper, upper + static_cast<int64_t>(in_width) * C, px - fx, py - fy,
                             to))
        return;
      blend_pixel<T, C>(warp, image, at, outside, to);
    });
    swap();
  }

  JAXKERN_HD_MEMBER void noise() {
    const NoiseKey key = key_of(shared.values);
    const float largest = kBytes ? 255.f : 1.f;
    const double centre = shared.values[0] * largest, spread = shared.values[1] * largest;
    const bool clip = shared.values[2] != 0.f;
    const int64_t count = call.elements();
    each((count + 1) / 2, [&](int64_t pair) {
      double n[2];
      normal_numbers(key, pair, n);
      for (int64_t k = 0; k < 2; ++k) {
        const int64_t i = 2 * pair + k;
        if (i < count && i % C < kColours) image[i] = noisy(image[i], centre + n[k] * spread, clip);
      }
    });
  }

  JAXKERN_HD_MEMBER void erase(const ProgramStep& step) {
    const NoiseKey key = key_of(shared.values);
    const Box box = box_of(shared.values, height, width);
    const bool filled = step.fill[0] == step.fill[0];
    const int64_t row = static_cast<int64_t>(box.right - box.left) * C;
    if (row <= 0 || box.bottom <= box.top) return;
    each(row * (box.bottom - box.top), [&](int64_t k) {
      const int64_t i = ((box.top + k / row) * width + box.left) * C + k % row;
      double n[2] = {};
      if (!filled) normal_numbers(key, i / 2, n);
      const float value = filled ? step.fill[i % C] : static_cast<float>(n[i % 2]);
      image[i] = static_cast<T>(kBytes ? level_of(filled ? rintf(value) : value) : value);
    });
  }

  JAXKERN_HD_MEMBER static void normal_numbers(NoiseKey key, int64_t pair, double* n) {
    uint32_t a, b;
    random_words(key, pair, &a, &b);
    normal_pair(a, b, &n[0], &n[1]);
  }

  JAXKERN_HD_MEMBER void mean_step(Code code, bool* begun) {
    const ProgramMemory memory = program_memory(call);
    T* const kept = reinterpret_cast<T*>(scratch + memory.kept);
    float* const sum = reinterpret_cast<float*>(scratch + memory.sum);
    const float weight = shared.values[0];
    if (code == Code::kKeep) {
      each(call.elements(), [&](int64_t i) {
        kept[i] = image[i];
        sum[i] = static_cast<float>(image[i]) * weight;
      });
      *begun = true;
    } else if (*begun && code == Code::kAdd) {
      each(call.elements(), [&](int64_t i) {
        sum[i] += static_cast<float>(image[i]) * weight;
        image[i] = kept[i];
      });
    } else if (*begun) {
      each(call.elements(),
           [&](int64_t i) { image[i] = static_cast<T>(kBytes ? level_of(sum[i]) : sum[i]); });
      *begun = false;
    }
  }
};

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_CUDA_PROGRAM_H_
