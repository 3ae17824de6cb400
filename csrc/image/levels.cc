// The hot loops of the image ops, compiled once per instruction-set level into the namespace
// JAXKERN_LEVEL. Everything but the entries of levels.h and mix.h has internal linkage.
#include "image/levels.h"

#include "core/simd_target.h"
#include "image/arithmetic.h"
#include "image/mix.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

// clang-format off: in order of use
#include "core/simd-inl.h"
#include "image/taps-inl.h"
#include "image/stream-inl.h"
#include "image/fast_columns-inl.h"
#include "image/fast_finish-inl.h"
#include "image/fast-inl.h"
// clang-format on

}  // namespace

void run_sample(const Plan& plan, const Sample& sample, void* output, char* scratch) {
  if (!run_fast(plan, sample, output, scratch)) run_stream(plan, sample, output, scratch);
}

#include "image/mix-inl.h"

}  // namespace jaxkern::image::JAXKERN_LEVEL
