// The loops that levels.cc defines once per instruction-set level.
#ifndef JAXKERN_IMAGE_LEVELS_H_
#define JAXKERN_IMAGE_LEVELS_H_

#include <cstddef>

#include "core/simd_dispatch.h"
#include "image/plan.h"

namespace jaxkern::image {

// Working memory of one thread; any chain fits, since wide rows are processed in column tiles.
constexpr size_t kScratchBytes = size_t{3} << 20;

// Runs a checked plan on one checked sample; see run_sample in cpu.h. `scratch`: kScratchBytes,
// aligned to 64.
JAXKERN_LEVEL_FUNCTION(void, run_chain, const Plan& plan, const Sample& sample, void* output,
                       char* scratch)

// out = lambda * x + (1 - lambda) * partner outside the box, and partner inside it; all three are
// [height, width, C] (or [C, height, width]) of `dtype`; `output` may be `x` itself.
// MixUp passes an empty box, CutMix lambda = 1 and its box.
JAXKERN_LEVEL_FUNCTION(void, mix_sample, Dtype dtype, Layout layout, int32_t height, int32_t width,
                       int32_t channels, const void* x, const void* partner, float lambda,
                       EraseBox box, void* output)

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_LEVELS_H_
