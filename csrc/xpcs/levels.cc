// The hot loops of the XPCS kernels, compiled once per SIMD level into the namespace JAXKERN_LEVEL.
// Everything except the two entry points has internal linkage.
#include "xpcs/levels.h"

#include "xpcs/matrix-inl.h"
#include "xpcs/normal_rows-inl.h"

namespace jaxkern::xpcs::JAXKERN_LEVEL {

static_assert(sizeof(NormalScratch) <= kScratchBytes && sizeof(MatrixScratch) <= kScratchBytes);

void normal_block(const NormalWork& work, int64_t row0, int64_t rows, double* state,
                  char* scratch) {
  normal_block(work, row0, rows, state, reinterpret_cast<NormalScratch*>(scratch));
}

void matrix_block(MatrixOp op, const MatrixWork& work, int64_t row0, int64_t rows, double* sums,
                  char* scratch) {
  matrix_rows(op, work, row0, rows, sums, reinterpret_cast<MatrixScratch*>(scratch));
}

}  // namespace jaxkern::xpcs::JAXKERN_LEVEL
