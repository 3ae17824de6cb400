// The loops that levels.cc defines once per SIMD level.
#ifndef JAXKERN_XPCS_LEVELS_H_
#define JAXKERN_XPCS_LEVELS_H_

#include <cstddef>

#include "core/simd_dispatch.h"
#include "xpcs/plan.h"

namespace jaxkern::xpcs {

// Working memory of one thread, aligned to 64.
constexpr size_t kScratchBytes = size_t{576} << 10;

// Writes the sums of rows [row0, row0 + rows) of the matrix, at most kRowBlock, to `state`.
JAXKERN_LEVEL_FUNCTION(void, normal_block, const NormalWork& work, int64_t row0, int64_t rows,
                       double* state, char* scratch)

// Runs these rows of a matrix op; sums[2] are the contributions to the scalars of the cotangent.
JAXKERN_LEVEL_FUNCTION(void, matrix_block, MatrixOp op, const MatrixWork& work, int64_t row0,
                       int64_t rows, double* sums, char* scratch)

// The same for models of components.
JAXKERN_LEVEL_FUNCTION(void, component_normal_block, const ComponentNormalWork& work, int64_t row0,
                       int64_t rows, double* state, char* scratch)
JAXKERN_LEVEL_FUNCTION(void, component_matrix_block, MatrixOp op, const ComponentMatrixWork& work,
                       int64_t row0, int64_t rows, double* sums, char* scratch)

}  // namespace jaxkern::xpcs

#endif  // JAXKERN_XPCS_LEVELS_H_
