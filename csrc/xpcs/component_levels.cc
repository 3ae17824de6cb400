// The hot loops of models of components, compiled once per SIMD level into the namespace
// JAXKERN_LEVEL. They are a file of their own, since the compiler's limits on inlining are per
// file.
#include "xpcs/components-inl.h"
#include "xpcs/levels.h"

namespace jaxkern::xpcs::JAXKERN_LEVEL {

static_assert(sizeof(ComponentNormalScratch) <= kScratchBytes &&
              sizeof(ComponentMatrixScratch) <= kScratchBytes);

void component_normal_block(const ComponentNormalWork& work, int64_t row0, int64_t rows,
                            double* state, char* scratch) {
  component_normal(work, row0, rows, state, reinterpret_cast<ComponentNormalScratch*>(scratch));
}

void component_matrix_block(MatrixOp op, const ComponentMatrixWork& work, int64_t row0,
                            int64_t rows, double* sums, char* scratch) {
  component_matrix(op, work, row0, rows, sums, reinterpret_cast<ComponentMatrixScratch*>(scratch));
}

}  // namespace jaxkern::xpcs::JAXKERN_LEVEL
