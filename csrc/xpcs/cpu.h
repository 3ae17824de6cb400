// The CPU entries of the XPCS kernels: many angles in one parallel loop.
#ifndef JAXKERN_XPCS_CPU_H_
#define JAXKERN_XPCS_CPU_H_

#include <cstdint>
#include <vector>

#include "core/parallel.h"
#include "xpcs/plan.h"

namespace jaxkern::xpcs {

// The tables of order n of some angles, in double and padded.
class PhaseTables {
 public:
  // a[k] and x[k] are n values of angle k. x is not read if power is 0.
  PhaseTables(const Executor& executor, int64_t n, int32_t power, const std::vector<Reals>& a,
              const std::vector<Reals>& x);
  const Phases& operator[](int64_t angle) const { return phases_[angle]; }

 private:
  std::vector<double> values_;
  std::vector<Phases> phases_;
};

// Copies `count` tables of n values into doubles with kPadding zeros after each.
std::vector<double> padded(const Reals& tables, int64_t count, int64_t n);

// Adds the sums of the row blocks of work[k] to states[k] [layout.size()], in order.
void normal_equations(const Executor& executor, const std::vector<NormalWork>& work,
                      const std::vector<double*>& states);

// The tables of the components of some samples, in double and padded.
class ComponentModels {
 public:
  // tables[kind][k] are the values [count, n] of sample k.
  ComponentModels(const Executor& executor, int64_t n, int32_t count,
                  const std::vector<Reals> (&tables)[kComponentTables]);
  ComponentModel operator[](int64_t sample) const {
    return {components_.data() + sample * count_, count_};
  }

 private:
  int32_t count_;
  std::vector<double> values_;
  std::vector<Component> components_;
};

// As normal_equations and matrix, for models of components.
void component_normal_equations(const Executor& executor,
                                const std::vector<ComponentNormalWork>& work,
                                const std::vector<double*>& states);
void component_matrix(const Executor& executor, MatrixOp op,
                      const std::vector<ComponentMatrixWork>& work, double (*sums)[2] = nullptr);

// Runs a matrix op over every angle. The cotangent also adds those of contrast and offset to
// sums[k].
void matrix(const Executor& executor, MatrixOp op, const std::vector<MatrixWork>& work,
            double (*sums)[2] = nullptr);

}  // namespace jaxkern::xpcs

#endif  // JAXKERN_XPCS_CPU_H_
