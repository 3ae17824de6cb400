// The CPU entry point of a chain, which levels.cc defines once per SIMD level.
#ifndef JAXKERN_IMAGE_LEVELS_H_
#define JAXKERN_IMAGE_LEVELS_H_

#include <cstddef>

#include "core/simd_dispatch.h"
#include "image/plan.h"

namespace jaxkern::image {

// Working memory of a thread. Every chain fits, because wide rows are processed in tiles of
// columns.
constexpr size_t kScratchBytes = size_t{3} << 20;

// Runs a checked plan on one checked sample; `output` is [height, width, C] or [C, height, width].
// `scratch`: thread_scratch<kScratchBytes>().
JAXKERN_LEVEL_FUNCTION(void, run_sample, const Plan& plan, const Sample& sample, void* output,
                       char* scratch)

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_LEVELS_H_
