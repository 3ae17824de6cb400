// Stages: chains and image programs that take turns on one image while it is in cache. Each stage
// is a chain and then a program, either of which may be missing where it says so; the result is
// that of one call after the other, bit for bit.
#ifndef JAXKERN_IMAGE_STAGES_H_
#define JAXKERN_IMAGE_STAGES_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "image/check.h"
#include "image/plan.h"
#include "image/program.h"
#include "image/program_call.h"

namespace jaxkern::image {

constexpr int kMaxStages = 8;
constexpr int kMaxStageSegments = kMaxStages * kMaxSegments;

struct Stage {
  Plan chain;           // segments 0: none, which is for the first stage alone
  ProgramCall program;  // steps 0: none; its operands and output are set for each image
  // The places of its first ones among those of all stages.
  int32_t first_segment, first_erasure, first_step;
};

struct Stages {
  int32_t count = 0;
  Stage stage[kMaxStages] = {};

  Stages() = default;
  // A chain alone.
  Stages(const Plan& plan) : count(1) { stage[0].chain = plan; }  // NOLINT: a plan is one stage

  const Stage& last() const { return stage[count - 1]; }
  // Whether it is a chain and nothing else, whose calls have no operands of programs.
  bool is_chain() const { return count == 1 && stage[0].program.steps == 0; }
  // Over all stages.
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

// Stages as the ops' attributes hold them: what chains and programs have, of all stages one behind
// the other, and how much of it each stage has.
struct StagesAttributes {
  using Integers = Slice<int32_t>;
  Integers filter, size, erasures, rounding;  // [S], [S * 2], [S], [S]: plan.h's set_segments
  Integers segments, steps;                   // [K]: of each stage
  Integers dtype;                             // [K]: of the image behind each stage
  Integers codes, interpolation, kernel;      // [P], [P], [P * 2]: of steps
  Slice<float> fill;                          // [P * C]: of warps
  int32_t layout;                             // of the output
  int32_t channels, source_dtype;             // of the source
  int32_t height = 0, width = 0;              // of the source, where a program is first
};

// Sets stages from attributes. "" or what is wrong with them: then nothing may be run.
std::string set_stages(const StagesAttributes& attributes, Stages* stages);

// One image's operands: arrays over the segments, erasures and steps of all stages.
struct StagesSample {
  Sample chain;         // its pixels are the source
  const int32_t* op;    // [P]
  const float* values;  // [P, kProgramValues]
};

// As check_sample, for the chains of all stages; segments are counted over all of them.
Problem check_stages_sample(const Stages& stages, const Sample& all, int64_t index);

// Runs checked stages on one checked sample.
void run_stages(const Stages& stages, const StagesSample& sample, void* output);

// For who runs the first chain, which is there, on its own: where to, and what follows it. The
// place is the thread's until the next call.
void* first_target(const Stages& stages, void* output);
void run_rest(const Stages& stages, const StagesSample& sample, const void* image, void* output);

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_STAGES_H_
