// The hot loops of the XPCS kernels, compiled once per instruction-set level into the namespace
// JAXKERN_LEVEL. Everything but the two entry points has internal linkage.
#include "xpcs/levels.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/half.h"
#include "xpcs/arithmetic.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifndef JAXKERN_LEVEL
#error "Compile with -DJAXKERN_LEVEL=<portable|v2|v3|v4>"
#endif

namespace jaxkern::xpcs::JAXKERN_LEVEL {
namespace {

// clang-format off: in order of use
#include "core/simd_doubles-inl.h"
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
