// The hot loops of the image ops, compiled once per SIMD level into the namespace JAXKERN_LEVEL.
// Everything except the entry points of levels.h and mix.h has internal linkage.
#include "image/levels.h"

#include "image/fast-inl.h"
#include "image/mix-inl.h"
#include "image/stream-inl.h"

namespace jaxkern::image::JAXKERN_LEVEL {

void run_sample(const Plan& plan, const Sample& sample, void* output, char* scratch) {
  if (!run_fast(plan, sample, output, scratch)) run_stream(plan, sample, output, scratch);
}

}  // namespace jaxkern::image::JAXKERN_LEVEL
