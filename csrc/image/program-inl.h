// An image program, step after step.
#ifndef JAXKERN_IMAGE_PROGRAM_INL_H_
#define JAXKERN_IMAGE_PROGRAM_INL_H_

#include "core/simd-inl.h"
#include "image/blur_bytes-inl.h"
#include "image/elastic-inl.h"
#include "image/mean-inl.h"
#include "image/noise-inl.h"
#include "image/program.h"
#include "image/tables-inl.h"
#include "image/warp-inl.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

// Steps that write another image than they read.
inline bool is_move(Code code) {
  return code == Code::kBlur || code == Code::kWarp || code == Code::kPerspective ||
         code == Code::kElastic || code == Code::kTurn || code == Code::kSharpness;
}

// An image in work, and memory for what cannot be done in place.
template <typename T, int C>
struct Work {
  static constexpr bool kBytes = sizeof(T) == 1;
  const T* image;  // where it is: target(), the source or a kept image, which nothing writes to
  T* memory[2];    // the output, and an image beside it
  T* place[2];     // the same, or other memory while a mean needs them
  char* rows;
  char* field;  // of an elastic warp, where a step declares one
  int32_t height, width;
  int64_t pixels;
  int32_t moves;  // steps to come that write another image than they read
  Tables<C> tables;

  // Where the next step writes: chosen such that the last one writes the output.
  T* target() const { return place[moves % 2]; }
  // The image, to be changed in place.
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
  // Before a change of pixels that no table says.
  void change() {
    finish_tables();
    tables.counted = false;
  }
  // What body(from, to) makes of it in another place.
  template <typename Body>
  void move(const Body& body) {
    --moves;
    body(image, target());
    image = target();
  }
};

// What is a function of a value alone: of bytes a table, which joins its neighbours'.
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
      return tables.then([&](int, uint8_t x) { return brightness_level(x, factor); });
    }
    case Code::kContrast: {
      work.finish_tables();
      const Blend blend = blend_of(values);
      const float mean = mean_luma<uint8_t, C>(work.image, work.pixels);
      return tables.then([&](int, uint8_t x) { return contrast_level(x, blend, mean); });
    }
    case Code::kPosterize: {
      const int32_t bits = whole_of(values[0], 0, 8);
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
      const float levels = static_cast<float>(1 << whole_of(values[0], 0, 8));
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
  if constexpr (C >= 3) {  // one channel has no colour
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
        for (int c = 0; c < 3; ++c) source[c] = whole_of(values[c], 0, 2);
        return permute<T, C>(work.owned(), work.pixels, source);
      }
      default:
        return;
    }
  }
}

// Noise, added or painted.
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
    warp.in_width = whole_of(values[6], 1, work.width);
    warp.in_height = whole_of(values[7], 1, work.height);
    map[6] = map[7] = 0.f;
    // Its rows one behind the other: none moves beyond what is read later.
    T* const image = work.owned();
    for (int64_t row = 1; row < warp.in_height; ++row)
      memmove(image + row * warp.in_width * C, image + row * work.width * C,
              static_cast<size_t>(warp.in_width) * C * sizeof(T));
  }
  // Rows that cross those of the image would wait for a source that no cache has yet, one by one:
  // to copy it in order takes less.
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

// Declared by a step of the program, without which a mean has no memory.
template <typename T, int C>
void mean_step(Work<T, C>& work, Mean<T>& mean, Code code, const float* values) {
  T** const place = work.place + work.moves % 2;
  if (code == Code::kKeep) {
    work.image = mean.keep(work.image, values[0], place);
  } else if (mean.begun() && code == Code::kAdd) {
    work.image = mean.add(work.image, values[0], place);
  } else if (mean.begun()) {
    memcpy(work.place, work.memory, sizeof work.place);
    mean.take(*place);
    work.image = *place;
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
  // Taken once: an operand can be memory that another thread writes to.
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
  work.memory[0] = work.place[0] = output;
  work.memory[1] = work.place[1] = reinterpret_cast<T*>(scratch);
  work.rows = scratch + padded_to_line(bytes);
  work.height = call.height;
  work.width = call.width;
  work.pixels = static_cast<int64_t>(call.height) * call.width;
  char* const behind = scratch + program_work_bytes(call);
  work.field = behind + program_mean_bytes(call);
  if (source == output) work.owned();
  Mean<T> mean(reinterpret_cast<T*>(behind), call.elements());
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
