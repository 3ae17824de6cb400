// Stages from attributes, and their execution on one image.
#include "image/stages.h"

#include <cstring>
#include <string>

#include "image/arithmetic.h"
#include "image/files.h"
#include "image/levels.h"

namespace jaxkern::image {
namespace {

// Largest buffer that a thread keeps from one image to the next.
constexpr size_t kThreadBufferBytes = size_t{4} << 20;

// The images between chains. One is read while the other is written.
struct IntermediateImages {
  Buffer image[2];

  void shrink() {
    for (Buffer& buffer : image) {
      if (buffer.size() > kThreadBufferBytes) buffer.release();
    }
  }
};

IntermediateImages& thread_images() {
  thread_local IntermediateImages images;
  return images;
}

int64_t image_bytes(const Stage& stage) {
  return stage.chain.segments > 0 ? static_cast<int64_t>(output_bytes(stage.chain))
                                  : stage.program.image_bytes();
}

int32_t erasures_of(const Plan& plan) {
  int32_t erasures = 0;
  for (int32_t s = 0; s < plan.segments; ++s) erasures += plan.segment[s].erasures;
  return erasures;
}

// Returns the operands of one stage's chain.
Sample chain_sample(const Stages& stages, const Sample& all, int32_t k) {
  if (k == 0) return all;
  const Stage& stage = stages.stage[k];
  const int64_t s = stage.first_segment, e = stage.first_erasure, c = stage.chain.channels;
  Sample sample = all;
  const Stage& before = stages.stage[k - 1];
  const bool chained = before.chain.segments > 0;
  const Segment& last = before.chain.segment[chained ? before.chain.segments - 1 : 0];
  sample.pixels = nullptr;
  sample.height = chained ? last.height : before.program.height;
  sample.width = chained ? last.width : before.program.width;
  sample.geometry += s;
  sample.affine += s * 2 * c;
  sample.fill += s * c;
  sample.erase_box += e;
  sample.erase_value += e * c;
  return sample;
}

void run_program(const Stage& stage, const StagesSample& sample, const void* image, void* output) {
  ProgramCall program = stage.program;
  program.operands.data[kProgramImages] = image;
  program.operands.data[kProgramOps] = sample.op + stage.first_step;
  program.operands.data[kProgramStepValues] =
      sample.values + int64_t{stage.first_step} * kProgramValues;
  program.output = output;
  run_program_samples(program, 0, 1);
}

bool is_program_dtype(Dtype dtype) { return dtype == Dtype::kU8 || dtype == Dtype::kF32; }

std::string counts_text(const StagesAttributes& in) {
  return "attributes 'segments', 'steps' and 'dtype' describe " +
         std::to_string(in.segments.size()) + ", " + std::to_string(in.steps.size()) + " and " +
         std::to_string(in.dtype.size()) + " stages, with " + std::to_string(in.filter.size()) +
         " filters, " + std::to_string(in.size.size()) + " sizes, " +
         std::to_string(in.erasures.size()) + " erasure counts, " +
         std::to_string(in.rounding.size()) + " roundings, " + std::to_string(in.codes.size()) +
         " codes, " + std::to_string(in.interpolation.size()) + " interpolations, " +
         std::to_string(in.kernel.size()) + " kernel sizes and " + std::to_string(in.fill.size()) +
         " fill values; expected 1 to " + std::to_string(kMaxStages) + " stages of at most " +
         std::to_string(kMaxSegments) + " segments and " + std::to_string(kMaxProgramSteps) +
         " steps, and per segment or step the lengths that 'segments' and 'steps' imply";
}

// True if every list has the length that the stages imply.
bool counts_match(const StagesAttributes& in) {
  const size_t stages = in.segments.size();
  if (stages < 1 || stages > kMaxStages || in.steps.size() != stages || in.dtype.size() != stages) {
    return false;
  }
  size_t segments = 0, steps = 0;
  for (size_t k = 0; k < stages; ++k) {
    const int32_t s = in.segments[k], p = in.steps[k];
    if (s < (k == 0 ? 0 : 1) || s > kMaxSegments || p < 0 || p > kMaxProgramSteps) return false;
    segments += static_cast<size_t>(s);
    steps += static_cast<size_t>(p);
  }
  return in.filter.size() == segments && in.size.size() == 2 * segments &&
         in.erasures.size() == segments && in.rounding.size() == segments &&
         in.codes.size() == steps && in.interpolation.size() == steps &&
         in.kernel.size() == 2 * steps &&
         in.fill.size() == steps * static_cast<size_t>(in.channels);
}

template <typename T>
Slice<T> part(const Slice<T>& all, int32_t first, int32_t count, int32_t each = 1) {
  return {all.data + static_cast<int64_t>(first) * each, static_cast<size_t>(count * each)};
}

}  // namespace

int32_t Stages::erasures() const { return last().first_erasure + erasures_of(last().chain); }

int64_t Stages::output_bytes() const { return image_bytes(last()); }

std::string set_stages(const StagesAttributes& in, Stages* stages) {
  const int32_t channels = in.channels;
  if (channels != 1 && channels != 3 && channels != 4) {
    return "attribute 'channels': expected 1, 3 or 4, got " + std::to_string(channels);
  }
  if (!counts_match(in)) return counts_text(in);
  stages->count = static_cast<int32_t>(in.segments.size());
  int32_t segment = 0, erasure = 0, step = 0, height = in.height, width = in.width;
  Dtype dtype = static_cast<Dtype>(in.source_dtype);
  for (int32_t k = 0; k < stages->count; ++k) {
    const size_t at = static_cast<size_t>(k);
    const int32_t segments = in.segments[at], steps = in.steps[at];
    const bool last = k + 1 == stages->count;
    Stage& stage = stages->stage[k];
    stage = {};
    stage.first_segment = segment;
    stage.first_erasure = erasure;
    stage.first_step = step;
    Plan& plan = stage.chain;
    plan.channels = channels;
    plan.source_dtype = dtype;
    plan.output_dtype = static_cast<Dtype>(in.dtype[at]);
    plan.layout = last ? static_cast<Layout>(in.layout) : Layout::kNHWC;
    plan.stays_in_cache = !last || steps > 0;
    if (segments > 0) {
      set_segments(part(in.filter, segment, segments), part(in.size, segment, segments, 2),
                   part(in.erasures, segment, segments), part(in.rounding, segment, segments),
                   &plan);
      if (const Problem problem = check_plan(plan); problem.argument != nullptr) {
        return std::string("attribute '") + problem.argument + "' of segment " +
               std::to_string(segment + problem.segment) + ": " + problem.text();
      }
      height = plan.segment[segments - 1].height;
      width = plan.segment[segments - 1].width;
    } else if (steps == 0 || plan.output_dtype != dtype || !is_size(height) || !is_size(width)) {
      return "attribute 'segments' of stage 0: expected 1 or more, or a program that keeps the "
             "source's dtype and images of one size, 1 to 2^24 on a side; got 0, with " +
             std::to_string(steps) + " steps, source dtype " + std::to_string(in.source_dtype) +
             ", output dtype " + std::to_string(in.dtype[at]) + " and images of " +
             std::to_string(height) + " x " + std::to_string(width) + " (0 x 0: of several sizes)";
    }
    dtype = plan.output_dtype;
    if (plan.stays_in_cache && (!is_program_dtype(dtype) || plan.layout != Layout::kNHWC)) {
      return "attributes 'dtype' and 'layout' of stage " + std::to_string(k) +
             ": expected 0 (uint8) or 3 (float32), and 0 (NHWC), before a program or chain, got " +
             std::to_string(in.dtype[at]) + " and " + std::to_string(in.layout);
    }
    ProgramCall& program = stage.program;
    program.dtype = dtype;
    program.height = height;
    program.width = width;
    program.channels = channels;
    program.samples = 1;
    if (const std::string problem = set_steps(
            part(in.codes, step, steps), part(in.interpolation, step, steps),
            part(in.kernel, step, steps, 2), part(in.fill, step, steps, channels), &program);
        !problem.empty()) {
      return "attribute " + problem;
    }
    segment += segments;
    erasure += erasures_of(plan);
    step += steps;
  }
  return {};
}

Problem check_stages_sample(const Stages& stages, const Sample& all, int64_t index) {
  for (int32_t k = 0; k < stages.count; ++k) {
    const Stage& stage = stages.stage[k];
    if (stage.chain.segments == 0) continue;
    Problem problem = check_sample(stage.chain, chain_sample(stages, all, k), index);
    if (problem.argument == nullptr) continue;
    problem.segment += stage.first_segment;
    return problem;
  }
  return {};
}

void* first_chain_output(const Stages& stages, void* output) {
  const Stage& first = stages.stage[0];
  if (stages.count == 1 && first.program.steps == 0) return output;
  return thread_images().image[0].reserve(static_cast<size_t>(image_bytes(first)));
}

void run_after_first_chain(const Stages& stages, const StagesSample& sample, const void* image,
                           void* output) {
  IntermediateImages& images = thread_images();
  int32_t index = 0;  // the buffer that may hold the image
  for (int32_t k = 0; k < stages.count; ++k) {
    const Stage& stage = stages.stage[k];
    const bool last = k + 1 == stages.count, programs = stage.program.steps > 0;
    const auto next = [&](bool is_output) {
      if (is_output) return output;
      return static_cast<void*>(
          images.image[index ^= 1].reserve(static_cast<size_t>(image_bytes(stage))));
    };
    if (k > 0) {
      Sample from = chain_sample(stages, sample.chain, k);
      from.pixels = image;
      void* const chained = next(last && !programs);
      run_sample(stage.chain, from, chained, thread_scratch<kScratchBytes>());
      image = chained;
    }
    if (programs) {
      void* const changed = next(last);
      run_program(stage, sample, image, changed);
      image = changed;
    }
  }
  images.shrink();
}

void run_stages(const Stages& stages, const StagesSample& sample, void* output) {
  const Stage& first = stages.stage[0];
  if (first.chain.segments == 0)
    return run_after_first_chain(stages, sample, sample.chain.pixels, output);
  void* const image = first_chain_output(stages, output);
  run_sample(first.chain, sample.chain, image, thread_scratch<kScratchBytes>());
  run_after_first_chain(stages, sample, image, output);
}

}  // namespace jaxkern::image
