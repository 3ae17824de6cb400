// The CPU entry of the fused image chain.
#ifndef JAXKERN_IMAGE_CPU_H_
#define JAXKERN_IMAGE_CPU_H_

#include <cstddef>
#include <cstdint>

#include "core/parallel.h"
#include "image/levels.h"

namespace jaxkern::image {

// Where the first problem of a plan's operands is; `argument` is null when there is none.
struct Problem {
  const char* argument = nullptr;  // "geometry", "height", ...
  int64_t sample = 0;
  int32_t segment = 0;
  const char* wanted = nullptr;  // e.g. "a box inside the 256x256 image"; static text
};

// Checks everything that the arithmetic trusts: the plan's ranges, and one sample's boxes, sizes
// and steps. Reads nothing but the plan and the sample's small arrays.
Problem check_plan(const Plan& plan);
Problem check_sample(const Plan& plan, const Sample& sample, int64_t index);

// How many bytes one sample's output takes.
size_t output_bytes(const Plan& plan);

// Runs a checked plan on one checked sample; `output` is [height, width, C] or [C, height, width].
// Memory beyond input and output stays below 4 MiB a thread, whatever the sizes.
inline void run_sample(const Plan& plan, const Sample& sample, void* output) {
  run_chain(plan, sample, output, thread_scratch<kScratchBytes>());
}

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_CPU_H_
