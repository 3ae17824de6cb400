// The image program, compiled once per instruction-set level into the namespace JAXKERN_LEVEL, with
// every product rounded before it is added: see program.h.
#include "core/simd_target.h"
#include "image/arithmetic.h"
#include "image/program.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

// clang-format off: in order of use
#include "image/colour-inl.h"
#include "image/tables-inl.h"
// clang-format on

}  // namespace

#include "image/program-inl.h"

}  // namespace jaxkern::image::JAXKERN_LEVEL
