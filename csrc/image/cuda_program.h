// The body of the CUDA image program: a group of blocks runs one image step after step, like
// program-inl.h on the CPU and with the same functions of a pixel (pixel.h). A CPU test runs it
// with a Block of its own.
//
// Images of a few hundred kilobytes stay in the device's L2 cache from step to step.
#ifndef JAXKERN_IMAGE_CUDA_PROGRAM_H_
#define JAXKERN_IMAGE_CUDA_PROGRAM_H_

#include <cmath>
#include <cstdint>

#include "core/batch_set.h"
#include "core/host_device.h"
#include "image/cuda_program_colours.h"
#include "image/pixel.h"
#include "image/program.h"
#include "image/random.h"
#include "image/warp.h"

namespace jaxkern::image {

template <typename T, int C, typename Block>
struct ProgramBody : ProgramColours<T, C, Block> {
  using Work = ProgramBlock<T, C, Block>;
  using Work::block;
  using Work::call;
  using Work::copy;
  using Work::each;
  using Work::height;
  using Work::image;
  using Work::kBytes;
  using Work::kColours;
  using Work::map;
  using Work::memory;
  using Work::other;
  using Work::pixels;
  using Work::scratch;
  using Work::shared;
  using Work::swap;
  using Work::width;
  using ProgramColours<T, C, Block>::ProgramColours;
  using ProgramColours<T, C, Block>::colour_step;

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
    bool has_mean = false;
    for (int32_t s = 0; s < call.steps; ++s) {
      // Read once for all threads, which must agree, after all threads have finished the step
      // before.
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
        mean_step(code, &has_mean);
      } else {
        colour_step(code);
      }
    }
    if (image != output) copy(image, output);
  }

 private:
  JAXKERN_HD_MEMBER void blur(const ProgramStep& step) {
    blur_image<C>(image, step.kernel_x, step.kernel_y, shared.values[0], shared.values[1], other);
    swap();
  }

  // Blurs down the columns, then along the rows. Indices beyond an edge are reflected.
  template <int N, typename From, typename To>
  JAXKERN_HD_MEMBER void blur_image(const From* from, int32_t kernel_x, int32_t kernel_y,
                                    float sigma_x, float sigma_y, To* to) {
    block.run([&](int32_t thread) {
      if (thread == 0) shared.reach_x = blur_weights(kernel_x, sigma_x, shared.weight.x);
      if (thread == block.threads - 1)
        shared.reach_y = blur_weights(kernel_y, sigma_y, shared.weight.y);
    });
    double* const columns = reinterpret_cast<double*>(scratch + memory.columns);
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
      warp.in_width = clamp_to_int(shared.values[6], 1, width);
      warp.in_height = clamp_to_int(shared.values[7], 1, height);
      // Pack the rows of the image.
      const int64_t row = static_cast<int64_t>(warp.in_width) * C;
      each(row * warp.in_height,
           [&](int64_t i) { other[i] = image[i / row * width * C + i % row]; });
      swap();
    }
    const WarpMap map = warp_map(warp, matrix);
    sample_image(warp, [&](int32_t column, int32_t row) {
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
      blur_image<1>(numbers + axis * pixels, kernel, kernel, shared.values[2], shared.values[3],
                    field + axis * pixels);
    }
    const double alpha_x = static_cast<double>(shared.values[0]) / width;
    const double alpha_y = static_cast<double>(shared.values[1]) / height;
    sample_image(warp_of(step), [&](int32_t column, int32_t row) {
      const int64_t i = static_cast<int64_t>(row) * width + column;
      return WarpPoint{elastic_point(column, width, alpha_x * field[i]),
                       elastic_point(row, height, alpha_y * field[pixels + i])};
    });
  }

  // Sets each pixel (column, row) to the value of the image at to_point(column, row).
  template <typename ToPoint>
  JAXKERN_HD_MEMBER void sample_image(const Warp& warp, const ToPoint& to_point) {
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
      // As on the CPU: in float32 if all four pixels are inside and the rounding is certain.
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

  JAXKERN_HD_MEMBER void mean_step(Code code, bool* has_mean) {
    T* const kept_image = reinterpret_cast<T*>(scratch + memory.kept_image);
    float* const sum = reinterpret_cast<float*>(scratch + memory.sum);
    const float weight = shared.values[0];
    if (code == Code::kKeep) {
      each(call.elements(), [&](int64_t i) {
        kept_image[i] = image[i];
        sum[i] = static_cast<float>(image[i]) * weight;
      });
      *has_mean = true;
    } else if (*has_mean && code == Code::kAdd) {
      each(call.elements(), [&](int64_t i) {
        sum[i] += static_cast<float>(image[i]) * weight;
        image[i] = kept_image[i];
      });
    } else if (*has_mean) {
      each(call.elements(),
           [&](int64_t i) { image[i] = static_cast<T>(kBytes ? level_of(sum[i]) : sum[i]); });
      *has_mean = false;
    }
  }
};

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_CUDA_PROGRAM_H_
