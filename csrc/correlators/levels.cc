// The hot loops of the correlators, compiled once per instruction-set level into the namespace
// JAXKERN_LEVEL. Everything but the entry points has internal linkage.
#include <algorithm>
#include <type_traits>

#include "core/simd_target.h"
#include "correlators/frame_sums.h"
#include "correlators/multitau.h"

namespace jaxkern::correlators::JAXKERN_LEVEL {
namespace {

// clang-format off: in order of use
#include "core/simd_doubles-inl.h"
#include "correlators/multitau-inl.h"
#include "correlators/frame_sums-inl.h"
// clang-format on

}  // namespace

void frame_sums_tile(const FrameSumsTile& tile, char* scratch) { sum_any_tile(tile, scratch); }
void multitau_strip(const MultiTauStrip& strip, char* scratch) { run_strip(strip, scratch); }

}  // namespace jaxkern::correlators::JAXKERN_LEVEL
