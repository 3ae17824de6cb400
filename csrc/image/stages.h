// Stages: chains and image programs that run in turn on one image while it is in cache. Each stage
// is a chain followed by a program, either of which may be absent as noted below. The result is
// bit-identical to that of one call after the other.
#ifndef JAXKERN_IMAGE_STAGES_H_
#define JAXKERN_IMAGE_STAGES_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>

#include "image/check.h"
#include "image/plan.h"
#include "image/program.h"

namespace jaxkern::image {

// Sets the steps of a call whose channels are set, from the ops' attributes: codes and
// interpolation [P], kernel [P * 2], fill [P * C], with P at most kMaxProgramSteps. Returns "", or
// an error message that starts with the attribute's name.
template <typename Integers, typename Floats>
std::string set_steps(const Integers& codes, const Integers& interpolation, const Integers& kernel,
                      const Floats& fill, ProgramCall* call) {
  const size_t channels = static_cast<size_t>(call->channels);
  call->steps = static_cast<int32_t>(codes.size());
  for (size_t s = 0; s < codes.size(); ++s) {
    ProgramStep& step = call->step[s];
    step = {codes[s], interpolation[s], kernel[2 * s], kernel[2 * s + 1], {}};
    for (size_t k = 0; k < channels; ++k) step.fill[k] = fill[s * channels + k];
    if (step.interpolation != 0 && step.interpolation != 1) {
      return "'interpolation': expected 0 (nearest) or 1 (bilinear), got " +
             std::to_string(step.interpolation);
    }
    for (const int32_t size : {step.kernel_x, step.kernel_y}) {
      if (size < 1 || size % 2 == 0 || size > kMaxBlurKernel) {
        return "'kernel': expected odd sizes from 1 to " + std::to_string(kMaxBlurKernel) +
               ", got " + std::to_string(size);
      }
    }
  }
  return {};
}

// Scratch that each thread keeps between calls. Larger images allocate theirs for the call.
constexpr size_t kThreadScratchBytes = size_t{8} << 20;

// Runs samples [begin, end) of a checked call.
inline void run_program_samples(const ProgramCall& call, int64_t begin, int64_t end) {
  const size_t bytes = program_scratch_bytes(call);
  if (bytes <= kThreadScratchBytes) {
    return program_samples(call, begin, end, thread_scratch<kThreadScratchBytes>());
  }
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  const std::unique_ptr<char, Free> scratch(static_cast<char*>(std::aligned_alloc(64, bytes)));
  if (!scratch) throw std::bad_alloc();
  program_samples(call, begin, end, scratch.get());
}

constexpr int kMaxStages = 8;
constexpr int kMaxStageSegments = kMaxStages * kMaxSegments;

struct Stage {
  Plan chain;           // no segments: no chain, allowed in the first stage only
  ProgramCall program;  // no steps: no program; operands and output are set for each image
  // Offsets in the arrays over all stages.
  int32_t first_segment, first_erasure, first_step;
};

struct Stages {
  int32_t count = 0;
  Stage stage[kMaxStages] = {};

  Stages() = default;
  Stages(const Plan& plan) : count(1) { stage[0].chain = plan; }  // NOLINT: a plan is one stage

  const Stage& last() const { return stage[count - 1]; }
  // True for a single chain without a program. Its calls have no operands of programs.
  bool is_chain() const { return count == 1 && stage[0].program.steps == 0; }
  // Totals over all stages.
  int32_t segments() const { return last().first_segment + last().chain.segments; }
  int32_t steps() const { return last().first_step + last().program.steps; }
  int32_t erasures() const;
  int64_t output_bytes() const;
};

template <typename T>
struct Slice {
  const T* data;
  size_t count;

  size_t size() const { return count; }
  const T& operator[](size_t i) const { return data[i]; }
};

// The attributes of an op of stages: those of chains and programs, concatenated over all stages,
// and the counts of each stage.
struct StagesAttributes {
  using Integers = Slice<int32_t>;
  Integers filter, size, erasures, rounding;  // [S], [S * 2], [S], [S]: plan.h's set_segments
  Integers segments, steps;                   // [K]: counts of each stage
  Integers dtype;                             // [K]: of the output of each stage
  Integers codes, interpolation, kernel;      // [P], [P], [P * 2]: of steps
  Slice<float> fill;                          // [P * C]: of warps
  int32_t layout;                             // of the output
  int32_t channels, source_dtype;             // of the source
  int32_t height = 0, width = 0;              // of the source, if a program is first
};

// Sets stages from attributes. Returns "" or an error message; after an error they must not be run.
std::string set_stages(const StagesAttributes& attributes, Stages* stages);

// One image's operands: arrays over the segments, erasures and steps of all stages.
struct StagesSample {
  Sample chain;         // its pixels are the source
  const int32_t* op;    // [P]
  const float* values;  // [P, kProgramValues]
};

// check_sample for the chains of all stages. Segments are counted over all stages.
Problem check_stages_sample(const Stages& stages, const Sample& all, int64_t index);

// Runs checked stages on one checked sample.
void run_stages(const Stages& stages, const StagesSample& sample, void* output);

// For callers that run the first chain themselves: returns the memory for its output, which is the
// thread's until the next call, and runs everything after it. Stages must begin with a chain.
void* first_chain_output(const Stages& stages, void* output);
void run_after_first_chain(const Stages& stages, const StagesSample& sample, const void* image,
                           void* output);

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_STAGES_H_
