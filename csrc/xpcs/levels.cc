// The hot loops of the XPCS kernels, compiled once per instruction-set level into the namespace
// JAXKERN_LEVEL. Everything but the two entry points has internal linkage.
#include "xpcs/levels.h"

#include <algorithm>
#include <type_traits>

#include "core/simd_target.h"
#include "xpcs/arithmetic.h"

namespace jaxkern::xpcs::JAXKERN_LEVEL {
namespace {

// clang-format off: in order of use
#include "core/simd-inl.h"
#include "xpcs/evaluate-inl.h"
#include "xpcs/normal-inl.h"
#include "xpcs/normal_rows-inl.h"
#include "xpcs/matrix-inl.h"
// clang-format on

static_assert(sizeof(NormalScratch) <= kScratchBytes && sizeof(MatrixScratch) <= kScratchBytes);

}  // namespace

void normal_block(const NormalWork& work, int64_t row0, int64_t rows, double* state,
                  char* scratch) {
  normal_block(work, row0, rows, state, reinterpret_cast<NormalScratch*>(scratch));
}

void matrix_block(MatrixOp op, const MatrixWork& work, int64_t row0, int64_t rows, double* sums,
                  char* scratch) {
  matrix_rows(op, work, row0, rows, sums, reinterpret_cast<MatrixScratch*>(scratch));
}

}  // namespace jaxkern::xpcs::JAXKERN_LEVEL
