// The entry points that levels.cc defines once per instruction-set level.
#ifndef JAXKERN_IMAGE_LEVELS_H_
#define JAXKERN_IMAGE_LEVELS_H_

#include <cstddef>

#include "image/plan.h"

namespace jaxkern::image {

// Working memory of one thread; any chain fits, since wide rows are processed in column tiles.
constexpr size_t kScratchBytes = size_t{3} << 20;

#define JAXKERN_DECLARE_LEVEL(level)                                                             \
  namespace level {                                                                              \
  /* `scratch`: kScratchBytes, aligned to 64. */                                                 \
  void run_sample(const Plan& plan, const Sample& sample, void* output, char* scratch);          \
  void mix_sample(Dtype dtype, Layout layout, int32_t height, int32_t width, int32_t channels,   \
                  const void* x, const void* partner, float lambda, EraseBox box, void* output); \
  }

JAXKERN_DECLARE_LEVEL(portable)
JAXKERN_DECLARE_LEVEL(v2)
JAXKERN_DECLARE_LEVEL(v3)
JAXKERN_DECLARE_LEVEL(v4)
#undef JAXKERN_DECLARE_LEVEL

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_LEVELS_H_
