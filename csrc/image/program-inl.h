// The CPU loop of an image program (program.h): runs the drawn steps on one image after the other.
#ifndef JAXKERN_IMAGE_PROGRAM_INL_H_
#define JAXKERN_IMAGE_PROGRAM_INL_H_

#include "core/simd-inl.h"
#include "image/blur_bytes-inl.h"
#include "image/elastic-inl.h"
#include "image/noise-inl.h"
#include "image/pixel.h"
#include "image/program.h"
#include "image/tables-inl.h"
#include "image/warp-inl.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

// ---------------------------------------------------------------- means

// A weighted mean of images, as AugMix computes it. The images of a mean stay in memory, while
// steps make others of the kept one elsewhere, until one pass over all of them computes the mean.
template <typename T>
class Mean {
 public:
  // `room` has space for one image of `values` values for each step that may keep or add one.
  Mean(T* room, int64_t values) : room_(room), values_(values) {}

  bool started() const { return images_ > 0; }
  // Starts a mean with the image and its weight. If the next step would write to the image,
  // `target` moves to other memory. Returns the kept image, which nothing may write to.
  const T* keep(const T* image, float weight, T** target) {
    images_ = 0;
    return add(image, weight, target);
  }
  // Adds another image to the mean.
  const T* add(const T* image, float weight, T** target) {
    image_[images_] = image;
    weight_[images_++] = weight;
    if (image == *target) {
      *target = room_;
      room_ += padded_to_line(static_cast<size_t>(values_) * sizeof(T)) / sizeof(T);
    }
    return image_[0];
  }
  // Writes the mean, truncated for levels. `to` may be one of the images.
  void finish(T* to) {
    int64_t first = 0;
    for (; first + kBlock <= values_; first += kBlock) mean_block<kBlock>(first, to);
    for (; first < values_; ++first) mean_block<1>(first, to);
    images_ = 0;
  }

 private:
  static constexpr int64_t kBlock = 256;

  // Not inlined: compilers vectorize each of these loops, but not all of them in one function.
  template <int64_t kCount>
  JAXKERN_HD_NOINLINE void begin_sum(const T* from, float weight, float* sum) {
    for (int64_t i = 0; i < kCount; ++i) sum[i] = static_cast<float>(from[i]) * weight;
  }
  template <int64_t kCount>
  JAXKERN_HD_NOINLINE void add_to_sum(const T* from, float weight, float* sum) {
    for (int64_t i = 0; i < kCount; ++i) sum[i] += static_cast<float>(from[i]) * weight;
  }
  template <int64_t kCount>
  JAXKERN_HD_NOINLINE void end_sum(const float* sum, T* to) {
    if constexpr (sizeof(T) == 1) {
      for (int64_t i = 0; i < kCount; ++i) {
        // level_of, where the conversion truncates.
        const float positive = sum[i] > 0.f ? sum[i] : 0.f;
        to[i] = static_cast<T>(static_cast<int32_t>(positive < 255.f ? positive : 255.f));
      }
    } else {
      memcpy(to, sum, kCount * sizeof(T));
    }
  }

  template <int64_t kCount>
  void mean_block(int64_t first, T* to) const {
    float sum[kCount];
    begin_sum<kCount>(image_[0] + first, weight_[0], sum);
    for (int32_t k = 1; k < images_; ++k) add_to_sum<kCount>(image_[k] + first, weight_[k], sum);
    end_sum<kCount>(sum, to + first);
  }

  T* room_;
  int64_t values_;
  int32_t images_ = 0;  // of the mean; 0: there is no mean
  const T* image_[kMaxProgramSteps];
  float weight_[kMaxProgramSteps];
};

// ---------------------------------------------------------------- steps

// True for a step whose output is another image than its input.
inline bool is_move(Code code) {
  return code == Code::kBlur || code == Code::kWarp || code == Code::kPerspective ||
         code == Code::kElastic || code == Code::kTurn || code == Code::kSharpness;
}

// The image that the steps work on, and memory for the steps that cannot work in place.
template <typename T, int C>
struct Work {
  static constexpr bool kBytes = sizeof(T) == 1;
  const T* image;  // target(), or the source or a kept image, which are read-only
  T* memory[2];    // the output, and scratch for one image
  T* buffer[2];    // the same, or other memory while a mean uses them
  char* rows;
  char* field;  // memory of an elastic warp, if a step declares one
  int32_t height, width;
  int64_t pixels;
  int32_t moves;  // number of remaining steps that write another image than they read
  Tables<C> tables;

  // The buffer that the next step writes to. With `moves` remaining, the last one writes the
  // output.
  T* target() const { return buffer[moves % 2]; }
  // Returns the image in a buffer that can be changed in place.
  T* owned() {
    T* const to = target();
    if (image != to) memcpy(to, image, static_cast<size_t>(pixels) * C * sizeof(T));
    image = to;
    return to;
  }
  void finish_tables() {
    if constexpr (kBytes) {
      if (!tables.pending) return;
      tables.finish(image, pixels, target());
      image = target();
    }
  }
  // Called before a change of pixels that is not a lookup table.
  void change() {
    finish_tables();
    tables.counted = false;
  }
  // Replaces the image by the output of body(from, to) in another buffer.
  template <typename Body>
  void move(const Body& body) {
    --moves;
    body(image, target());
    image = target();
  }
};

// Applies a function of a single value. For bytes it becomes a table, combined with adjacent
// tables.
template <int C, typename Next>
void map_values(Work<uint8_t, C>& work, const Next& next) {
  work.tables.then([&](int, uint8_t x) { return next(x); });
}
template <int C, typename Next>
void map_values(Work<float, C>& work, const Next& next) {
  map_floats<C>(work.owned(), work.pixels, [&](int, float x) { return next(x); });
}

template <int C>
void table_step(Work<uint8_t, C>& work, Code code, const float* values) {
  Tables<C>& tables = work.tables;
  switch (code) {
    case Code::kBrightness: {
      const float factor = factor_of(values[0]);
      const auto next = [&](int, uint8_t x) { return brightness_level(x, factor); };
      return tables.then_line({factor, 0.f}, next);
    }
    case Code::kContrast: {
      work.finish_tables();
      const Blend blend = blend_of(values);
      const float mean = mean_luma<uint8_t, C>(work.image, work.pixels);
      const auto next = [&](int, uint8_t x) { return contrast_level(x, blend, mean); };
      return tables.then_line({blend.factor, mean * blend.rest}, next);
    }
    case Code::kPosterize: {
      const int32_t bits = clamp_to_int(values[0], 0, 8);
      return tables.then([&](int, uint8_t x) { return posterize_level(x, bits); });
    }
    case Code::kSolarize: {
      const float threshold = values[1] != 0.f ? values[0] : values[0] * 255.f;
      return tables.then([&](int, uint8_t x) { return solarize_level(x, threshold); });
    }
    case Code::kAutocontrast:
      work.finish_tables();
      return autocontrast_table(&tables, work.image, work.pixels);
    default:
      return equalize_table(&tables, work.image, work.pixels);
  }
}

template <int C>
void table_step(Work<float, C>& work, Code code, const float* values) {
  float* const image = work.owned();
  switch (code) {
    case Code::kBrightness: {
      const float factor = factor_of(values[0]);
      return map_floats<C>(image, work.pixels, [&](int, float x) { return unit_of(x * factor); });
    }
    case Code::kContrast: {
      const Blend blend = blend_of(values);
      const float mean = mean_luma<float, C>(image, work.pixels) * blend.rest;
      return map_floats<C>(image, work.pixels,
                           [&](int, float x) { return unit_of(x * blend.factor + mean); });
    }
    case Code::kPosterize: {
      const float levels = static_cast<float>(1 << clamp_to_int(values[0], 0, 8));
      return map_floats<C>(image, work.pixels, [&](int, float x) {
        const float level = floorf(x * levels), positive = level < 0.f ? 0.f : level;
        return (positive > levels - 1.f ? levels - 1.f : positive) * (1.f / levels);
      });
    }
    case Code::kSolarize: {
      const float threshold = values[0];
      return map_floats<C>(image, work.pixels,
                           [&](int, float x) { return x >= threshold ? 1.f - x : x; });
    }
    case Code::kAutocontrast:
      return autocontrast_floats<C>(image, work.pixels);
    default:
      return equalize_floats<C>(image, work.pixels);
  }
}

template <typename T, int C>
void colour_step(Work<T, C>& work, Code code, const float* values) {
  switch (code) {
    case Code::kBrightness:
    case Code::kContrast:
    case Code::kPosterize:
    case Code::kSolarize:
    case Code::kAutocontrast:
    case Code::kEqualize:
      return table_step<C>(work, code, values);
    case Code::kInvert:
      return map_values(work, [](auto x) { return inverted(x); });
    case Code::kSharpness:
      work.change();
      return work.move([&](const T* from, T* to) {
        sharpness<T, C>(from, work.height, work.width, blend_of(values), work.rows, to);
      });
    default:
      break;
  }
  if constexpr (C >= 3) {  // a single channel has no colour
    work.change();
    switch (code) {
      case Code::kSaturation:
        saturation<T, C>(work.image, work.pixels, blend_of(values), work.target());
        work.image = work.target();
        return;
      case Code::kHue:
        return hue<T, C>(work.owned(), work.pixels, values[0]);
      case Code::kGrayscale:
        return grayscale<T, C>(work.owned(), work.pixels);
      case Code::kPermute: {
        int32_t source[3];
        for (int c = 0; c < 3; ++c) source[c] = clamp_to_int(values[c], 0, 2);
        return permute<T, C>(work.owned(), work.pixels, source);
      }
      default:
        return;
    }
  }
}

// Adds or paints noise.
template <typename T, int C>
void noise_step(Work<T, C>& work, const ProgramStep& step, Code code, const float* values) {
  work.change();
  if (code == Code::kNoise) {
    return add_noise<T, C>(work.owned(), work.pixels, key_of(values), values[0], values[1],
                           values[2] != 0.f);
  }
  const Box box = box_of(values, work.height, work.width);
  erase_box<T, C>(work.owned(), work.width, box, key_of(values), step.fill);
}

template <typename T, int C>
void warp_step(Work<T, C>& work, const ProgramStep& step, Code code, const float* values) {
  Warp warp = {sizeof(T) == 1 ? Dtype::kU8 : Dtype::kF32,
               C,
               work.height,
               work.width,
               work.height,
               work.width,
               step.interpolation == 0 ? Filter::kNearest : Filter::kBilinear,
               code == Code::kPerspective,
               {}};
  memcpy(warp.fill, step.fill, sizeof warp.fill);
  if (code == Code::kElastic) {
    const Elastic elastic = {key_of(values), step.kernel_x, step.kernel_y, values[0],
                             values[1],      values[2],     values[3]};
    return work.move([&](const T* from, T* to) {
      elastic_image<T, C>(warp, elastic, from, work.rows, work.field, to);
    });
  }
  float map[kWarpCoefficients];
  memcpy(map, values, sizeof map);
  if (code == Code::kTurn) {
    warp.in_width = clamp_to_int(values[6], 1, work.width);
    warp.in_height = clamp_to_int(values[7], 1, work.height);
    map[6] = map[7] = 0.f;
    // Pack the rows of the image. In this order no row overwrites one that is read later.
    T* const image = work.owned();
    for (int64_t row = 1; row < warp.in_height; ++row)
      memmove(image + row * warp.in_width * C, image + row * work.width * C,
              static_cast<size_t>(warp.in_width) * C * sizeof(T));
  }
  // Output rows that cross image rows would miss the cache at each pixel of a source that has not
  // been read yet. Copying it in order first is faster.
  if (map[3] != 0.f || warp.perspective) work.owned();
  work.move([&](const T* from, T* to) { warp_image(warp, from, map, to); });
}

template <typename T, int C>
void blur_step(Work<T, C>& work, const ProgramStep& step, const float* values) {
  const Blur blur = {sizeof(T) == 1 ? Dtype::kU8 : Dtype::kF32,
                     C,
                     work.height,
                     work.width,
                     step.kernel_x,
                     step.kernel_y};
  work.move([&](const T* from, T* to) {
    gaussian_blur(blur, from, values[0], values[1], work.rows, to);
  });
}

// Steps of means. A mean has memory because a step of the program declares kKeep.
template <typename T, int C>
void mean_step(Work<T, C>& work, Mean<T>& mean, Code code, const float* values) {
  T** const target = work.buffer + work.moves % 2;
  if (code == Code::kKeep) {
    work.image = mean.keep(work.image, values[0], target);
  } else if (mean.started() && code == Code::kAdd) {
    work.image = mean.add(work.image, values[0], target);
  } else if (mean.started()) {
    memcpy(work.buffer, work.memory, sizeof work.buffer);
    mean.finish(*target);
    work.image = *target;
  }
}

template <typename T, int C>
void run_step(Work<T, C>& work, Mean<T>& mean, const ProgramStep& step, Code code,
              const float* values) {
  switch (code) {
    case Code::kNone:
      return;
    case Code::kNoise:
    case Code::kErase:
      return noise_step(work, step, code, values);
    case Code::kBlur:
      work.change();
      return blur_step(work, step, values);
    case Code::kWarp:
    case Code::kPerspective:
    case Code::kElastic:
    case Code::kTurn:
      work.change();
      return warp_step(work, step, code, values);
    case Code::kKeep:
    case Code::kAdd:
    case Code::kMean:
      work.change();
      return mean_step(work, mean, code, values);
    default:
      return colour_step(work, code, values);
  }
}

template <typename T, int C>
void run_program(const ProgramCall& call, int64_t sample, char* scratch) {
  const BatchOffsets<kProgramOperands> at = batch_offsets(call.operands, sample);
  // Copied once, because another thread can write to the memory of an operand.
  int32_t ops[kMaxProgramSteps];
  float values[kMaxProgramSteps][kProgramValues];
  if (call.steps > 0) {
    const size_t steps = static_cast<size_t>(call.steps);
    memcpy(ops, call.operands.template at<int32_t>(at, kProgramOps), steps * sizeof ops[0]);
    memcpy(values, call.operands.template at<float>(at, kProgramStepValues),
           steps * sizeof values[0]);
  }
  Code code[kMaxProgramSteps];
  Work<T, C> work;
  work.moves = 0;
  for (int32_t s = 0; s < call.steps; ++s) {
    code[s] = drawn_code(call.step[s], ops[s], values[s]);
    work.moves += is_move(code[s]) ? 1 : 0;
  }

  const T* const source = call.operands.template at<T>(at, kProgramImages);
  const size_t bytes = static_cast<size_t>(call.image_bytes());
  work.image = source;
  T* const output = static_cast<T*>(call.output) + sample * call.elements();
  work.memory[0] = work.buffer[0] = output;
  work.memory[1] = work.buffer[1] = reinterpret_cast<T*>(scratch);
  work.rows = scratch + padded_to_line(bytes);
  work.height = call.height;
  work.width = call.width;
  work.pixels = static_cast<int64_t>(call.height) * call.width;
  char* const means = scratch + program_work_bytes(call);
  work.field = means + program_mean_bytes(call);
  if (source == output) work.owned();
  Mean<T> mean(reinterpret_cast<T*>(means), call.elements());
  for (int32_t s = 0; s < call.steps; ++s) run_step(work, mean, call.step[s], code[s], values[s]);
  work.finish_tables();
  if (work.image != output) memcpy(output, work.image, bytes);
}

template <typename T>
void run_programs(const ProgramCall& call, int64_t begin, int64_t end, char* scratch) {
  for (int64_t i = begin; i < end; ++i) {
    if (call.channels == 1) run_program<T, 1>(call, i, scratch);
    if (call.channels == 3) run_program<T, 3>(call, i, scratch);
    if (call.channels == 4) run_program<T, 4>(call, i, scratch);
  }
}

}  // namespace

void program_samples(const ProgramCall& call, int64_t begin, int64_t end, char* scratch) {
  if (call.dtype == Dtype::kU8) {
    run_programs<uint8_t>(call, begin, end, scratch);
  } else {
    run_programs<float>(call, begin, end, scratch);
  }
}

}  // namespace jaxkern::image::JAXKERN_LEVEL

#endif  // JAXKERN_IMAGE_PROGRAM_INL_H_
