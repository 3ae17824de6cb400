// Stages from attributes, and one image through them.
#include "image/stages.h"

#include <cstring>
#include <string>

#include "image/arithmetic.h"
#include "image/file.h"
#include "image/levels.h"

namespace jaxkern::image {
namespace {

// What a thread keeps of an image between two chains, from one image to the next.
constexpr size_t kKeptBytes = size_t{4} << 20;

// The images between chains: one is read while the other is written.
struct Between {
  Buffer image[2];

  void shrink() {
    for (Buffer& kept : image) {
      if (kept.size() > kKeptBytes) kept.drop();
    }
  }
};

Between& thread_between() {
  thread_local Between between;
  return between;
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

// The operands of one stage's chain.
Sample chain_sample(const Stages& stages, const Sample& all, int32_t k) {
  if (k == 0) return all;
  const Stage& stage = stages.stage[k];
  const int64_t s = stage.first_segment, e = stage.first_erasure, c = stage.chain.channels;
  Sample sample = all;
  const Stage& before = stages.stage[k - 1];
  const bool chained = before.chain.segments > 0;
  const Segment& made = before.chain.segment[chained ? before.chain.segments - 1 : 0];
  sample.pixels = nullptr;
  sample.height = chained ? made.height : before.program.height;
  sample.width = chained ? made.width : before.program.width;
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

std::string counts_text(const StagesAttributes& given) {
  return "attributes describe " + std::to_string(given.segments.size()) + " stages with " +
         std::to_string(given.filter.size()) + " segments, " + std::to_string(given.size.size()) +
         " sizes, " + std::to_string(given.erasures.size()) + " erasure counts, " +
         std::to_string(given.rounding.size()) + " roundings, " +
         std::to_string(given.codes.size()) + " steps, " +
         std::to_string(given.interpolation.size()) + " interpolations, " +
         std::to_string(given.kernel.size()) + " kernel sizes, " +
         std::to_string(given.fill.size()) + " fill values, steps of " +
         std::to_string(given.steps.size()) + " stages and dtypes of " +
         std::to_string(given.dtype.size()) +
         "; wanted as many as attributes 'segments' and 'steps' say, in 1 to " +
         std::to_string(kMaxStages) + " stages of at most " + std::to_string(kMaxSegments) +
         " segments and " + std::to_string(kMaxProgramSteps) + " steps";
}

// Whether every list is as long as the stages say.
bool counts_fit(const StagesAttributes& given) {
  const size_t stages = given.segments.size();
  if (stages < 1 || stages > kMaxStages || given.steps.size() != stages ||
      given.dtype.size() != stages) {
    return false;
  }
  size_t segments = 0, steps = 0;
  for (size_t k = 0; k < stages; ++k) {
    const int32_t s = given.segments[k], p = given.steps[k];
    if (s < (k == 0 ? 0 : 1) || s > kMaxSegments || p < 0 || p > kMaxProgramSteps) return false;
    segments += static_cast<size_t>(s);
    steps += static_cast<size_t>(p);
  }
  return given.filter.size() == segments && given.size.size() == 2 * segments &&
         given.erasures.size() == segments && given.rounding.size() == segments &&
         given.codes.size() == steps && given.interpolation.size() == steps &&
         given.kernel.size() == 2 * steps &&
         given.fill.size() == steps * static_cast<size_t>(given.channels);
}

template <typename T>
Slice<T> part(const Slice<T>& all, int32_t first, int32_t count, int32_t each = 1) {
  return {all.data + static_cast<int64_t>(first) * each, static_cast<size_t>(count * each)};
}

}  // namespace

int32_t Stages::erasures() const { return last().first_erasure + erasures_of(last().chain); }

int64_t Stages::output_bytes() const { return image_bytes(last()); }

std::string set_stages(const StagesAttributes& given, Stages* stages) {
  const int32_t channels = given.channels;
  if (channels != 1 && channels != 3 && channels != 4) {
    return "attribute 'channels' is " + std::to_string(channels) + "; wanted 1, 3 or 4";
  }
  if (!counts_fit(given)) return counts_text(given);
  stages->count = static_cast<int32_t>(given.segments.size());
  int32_t segment = 0, erasure = 0, step = 0, height = given.height, width = given.width;
  Dtype dtype = static_cast<Dtype>(given.source_dtype);
  for (int32_t k = 0; k < stages->count; ++k) {
    const size_t at = static_cast<size_t>(k);
    const int32_t segments = given.segments[at], steps = given.steps[at];
    const bool last = k + 1 == stages->count;
    Stage& stage = stages->stage[k];
    stage = {};
    stage.first_segment = segment;
    stage.first_erasure = erasure;
    stage.first_step = step;
    Plan& plan = stage.chain;
    plan.channels = channels;
    plan.source_dtype = dtype;
    plan.output_dtype = static_cast<Dtype>(given.dtype[at]);
    plan.layout = last ? static_cast<Layout>(given.layout) : Layout::kNHWC;
    plan.kept = !last || steps > 0;
    if (segments > 0) {
      set_segments(part(given.filter, segment, segments), part(given.size, segment, segments, 2),
                   part(given.erasures, segment, segments), part(given.rounding, segment, segments),
                   &plan);
      if (const Problem found = check_plan(plan); found.argument != nullptr) {
        return std::string("attribute '") + found.argument + "' of segment " +
               std::to_string(segment + found.segment) + found.text();
      }
      height = plan.segment[segments - 1].height;
      width = plan.segment[segments - 1].width;
    } else if (steps == 0 || plan.output_dtype != dtype || !is_size(height) || !is_size(width)) {
      return "attribute 'segments' of stage 0 is 0, with " + std::to_string(steps) +
             " steps, dtype " + std::to_string(given.dtype[at]) + " behind dtype " +
             std::to_string(given.source_dtype) + ", and images of " + std::to_string(height) +
             " x " + std::to_string(width) +
             " (0: they differ); wanted a program there, the source's dtype behind it, and images "
             "of one size, 1 to 2^24 on a side";
    }
    dtype = plan.output_dtype;
    if (plan.kept && (!is_program_dtype(dtype) || plan.layout != Layout::kNHWC)) {
      return "attributes 'dtype' and 'layout' of stage " + std::to_string(k) + " are " +
             std::to_string(given.dtype[at]) + " and " + std::to_string(given.layout) +
             "; wanted 0 (uint8) or 3 (float32), and 0 (NHWC), where a program or chain follows";
    }
    ProgramCall& program = stage.program;
    program.dtype = dtype;
    program.height = height;
    program.width = width;
    program.channels = channels;
    program.samples = 1;
    if (const std::string wrong = set_steps(
            part(given.codes, step, steps), part(given.interpolation, step, steps),
            part(given.kernel, step, steps, 2), part(given.fill, step, steps, channels), &program);
        !wrong.empty()) {
      return "attribute " + wrong;
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

void* first_target(const Stages& stages, void* output) {
  const Stage& first = stages.stage[0];
  if (stages.count == 1 && first.program.steps == 0) return output;
  return thread_between().image[0].room(static_cast<size_t>(image_bytes(first)));
}

void run_rest(const Stages& stages, const StagesSample& sample, const void* image, void* output) {
  Between& between = thread_between();
  int32_t place = 0;  // the image may be there
  for (int32_t k = 0; k < stages.count; ++k) {
    const Stage& stage = stages.stage[k];
    const bool last = k + 1 == stages.count, programs = stage.program.steps > 0;
    const auto next = [&](bool made) {
      if (made) return output;
      return static_cast<void*>(
          between.image[place ^= 1].room(static_cast<size_t>(image_bytes(stage))));
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
  between.shrink();
}

void run_stages(const Stages& stages, const StagesSample& sample, void* output) {
  const Stage& first = stages.stage[0];
  if (first.chain.segments == 0) return run_rest(stages, sample, sample.chain.pixels, output);
  void* const image = first_target(stages, output);
  run_sample(first.chain, sample.chain, image, thread_scratch<kScratchBytes>());
  run_rest(stages, sample, image, output);
}

}  // namespace jaxkern::image
