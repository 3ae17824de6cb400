// Sends each sample to the instruction-set level in use, with its thread's working memory.
#include "image/cpu.h"

#include "core/call_level.h"
#include "image/levels.h"

namespace jaxkern::image {

void run_sample(const Plan& plan, const Sample& sample, void* output) {
  JAXKERN_CALL_LEVEL(run_sample, plan, sample, output, thread_scratch<kScratchBytes>());
}

void mix_sample(Dtype dtype, Layout layout, int32_t height, int32_t width, int32_t channels,
                const void* x, const void* partner, float lambda, EraseBox box, void* output) {
  JAXKERN_CALL_LEVEL(mix_sample, dtype, layout, height, width, channels, x, partner, lambda, box,
                     output);
}

}  // namespace jaxkern::image
