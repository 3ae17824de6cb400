// The hot loops of the image chain, compiled once per instruction-set level into the namespace
// JAXKERN_LEVEL. Everything but the functions of levels.h has internal linkage.
#include "image/levels.h"

#include "core/simd_target.h"
#include "image/arithmetic.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

// clang-format off: in order of use
#include "core/simd-inl.h"
#include "image/stream-inl.h"
#include "image/fast_columns-inl.h"
#include "image/fast_finish-inl.h"
#include "image/fast-inl.h"
#include "image/mix-inl.h"
// clang-format on

}  // namespace

void run_chain(const Plan& plan, const Sample& sample, void* output, char* scratch) {
  if (!run_fast(plan, sample, output, scratch)) run_stream(plan, sample, output, scratch);
}

void mix_sample(Dtype dtype, Layout layout, int32_t height, int32_t width, int32_t channels,
                const void* x, const void* partner, float lambda, EraseBox box, void* output) {
  const int32_t planes = layout == Layout::kNCHW ? channels : 1;
  const int32_t together = layout == Layout::kNCHW ? 1 : channels;
  switch (dtype) {
    case Dtype::kU8:
      return mix_planes<Dtype::kU8>(planes, height, width, together, x, partner, lambda, box,
                                    output);
    case Dtype::kF16:
      return mix_planes<Dtype::kF16>(planes, height, width, together, x, partner, lambda, box,
                                     output);
    case Dtype::kBF16:
      return mix_planes<Dtype::kBF16>(planes, height, width, together, x, partner, lambda, box,
                                      output);
    case Dtype::kF32:
      return mix_planes<Dtype::kF32>(planes, height, width, together, x, partner, lambda, box,
                                     output);
  }
}

}  // namespace jaxkern::image::JAXKERN_LEVEL
