// The image program, compiled once per instruction-set level into the namespace JAXKERN_LEVEL, with
// every product rounded before it is added: see program.h.
#include <type_traits>
#include <utility>

#include "core/simd_target.h"
#include "image/arithmetic.h"
#include "image/blur.h"
#include "image/pixel.h"
#include "image/program.h"
#include "image/random.h"
#include "image/warp.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

// clang-format off: in order of use
#include "core/simd-inl.h"
#include "image/wide-inl.h"
#include "image/channels-inl.h"
#include "image/colour-inl.h"
#include "image/mean-inl.h"
#include "image/lookup-inl.h"
#include "image/random-inl.h"
#include "image/noise-inl.h"
#include "image/tables-inl.h"
// clang-format on

}  // namespace

// clang-format off: in order of use
#include "image/warp_groups-inl.h"
#include "image/warp-inl.h"
#include "image/blur-inl.h"
#include "image/blur_bytes-inl.h"
#include "image/elastic-inl.h"
#include "image/program-inl.h"
// clang-format on

}  // namespace jaxkern::image::JAXKERN_LEVEL
