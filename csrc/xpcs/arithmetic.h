// The arithmetic of a point of a two-time correlation, which CPU and CUDA share.
//
// g2(i, j) = offset + contrast f, f = exp(-2 |A_i - A_j|) sinc(X_i - X_j)^power, sinc x = sin(x)/x.
// `Real` is a double or a vector of doubles.
#ifndef JAXKERN_XPCS_ARITHMETIC_H_
#define JAXKERN_XPCS_ARITHMETIC_H_

#include <cmath>
#include <cstdint>

#include "core/host_device.h"

namespace jaxkern::xpcs {

// Below this |x| the series are used: sin(x)/x from the addition theorem has an absolute error of
// one rounding, so its relative error grows as 1/x, and as 1/x^2 in the derivative.
constexpr double kSeriesBelow = 0.5;

// A point with sigma <= kLeastSigma has no weight. The float nearest to 1e-10 exceeds it slightly,
// so sigma = 1e-10 has a weight of 0 in both precisions.
constexpr double kLeastSigma = 1e-10f;

// sinc and its derivative for |x| < kSeriesBelow; omitted terms are below 5e-17 of the values.
template <typename Real>
JAXKERN_HD Real sinc_series(Real x) {
  const Real y = x * x;
  return 1.0 + y * (-1.0 / 6 +
                    y * (1.0 / 120 +
                         y * (-1.0 / 5040 + y * (1.0 / 362880 +
                                                 y * (-1.0 / 39916800 + y * (1.0 / 6227020800))))));
}

template <typename Real>
JAXKERN_HD Real sinc_slope_series(Real x) {
  const Real y = x * x;
  return x *
         (-1.0 / 3 +
          y * (1.0 / 30 +
               y * (-1.0 / 840 +
                    y * (1.0 / 45360 + y * (-1.0 / 3991680 +
                                            y * (1.0 / 518918400 + y * (-1.0 / 93405312000.0)))))));
}

// The shear factor sinc^power and its derivative, from sinc and sinc'.
template <int kPower, typename Real>
JAXKERN_HD Real shear_factor(Real sinc) {
  static_assert(kPower == 2 || kPower == 4);
  const Real square = sinc * sinc;
  return kPower == 2 ? square : square * square;
}

template <int kPower, typename Real>
JAXKERN_HD Real shear_slope(Real sinc, Real slope) {
  const Real linear = kPower * (sinc * slope);
  return kPower == 2 ? linear : linear * (sinc * sinc);
}

// The term of a component from its decay and exp(B + i P) of both frames; see components-inl.h.
template <typename Real>
JAXKERN_HD void component_term(Real decay, double real_i, double imaginary_i, Real real_j,
                               Real imaginary_j, Real* x, Real* y) {
  *x = decay * (real_i * real_j + imaginary_i * imaginary_j);
  *y = decay * (imaginary_i * real_j - real_i * imaginary_j);
}

// The slopes of a component with the term x + i y, where d = A_i - A_j.
template <typename Real>
struct ComponentSlopes {
  Real m, a, h;
};

template <typename Real>
JAXKERN_HD ComponentSlopes<Real> component_slopes(Real U, Real V, Real x, Real y, Real d) {
  const Real m = 2.0 * (U * x + V * y);
  // NaN remains NaN.
  return {m, 0.0 < d ? -m : (d < 0.0 ? m : Real{} * d), 2.0 * (V * x - U * y)};
}

// Losses of scipy.optimize.least_squares: rho and its derivative at z = (r / f_scale)^2.
enum class Loss : int32_t { kLinear = 0, kSoftL1 = 1, kHuber = 2, kCauchy = 3, kArctan = 4 };
constexpr int32_t kLosses = 5;

struct LossValue {
  double rho, slope;
};

JAXKERN_HD LossValue loss_value(Loss loss, double z) {
  switch (loss) {
    case Loss::kSoftL1: {
      const double root = sqrt(1 + z);
      return {2 * z / (root + 1), 1 / root};
    }
    case Loss::kHuber: {
      if (!(z > 1)) return {z, 1};
      const double root = sqrt(z);
      return {2 * root - 1, 1 / root};
    }
    case Loss::kCauchy:
      return {log1p(z), 1 / (1 + z)};
    case Loss::kArctan:
      return {atan(z), 1 / (1 + z * z)};
    case Loss::kLinear:
      break;
  }
  return {z, 1};
}

// The layout of the sums of the normal equations, an array of doubles. The basis columns are, in
// this order: 1 (offset), f (contrast), then for each table of A: df/d(A_i - A_j) times its
// difference, then the same for X. `gram` is the upper triangle, row by row.
struct StateLayout {
  int32_t tables_a, tables_x;

  JAXKERN_HD_MEMBER int32_t basis() const { return 2 + tables_a + tables_x; }
  JAXKERN_HD_MEMBER int32_t gram(int32_t row, int32_t column) const {  // row <= column
    return row * basis() - row * (row - 1) / 2 + (column - row);
  }
  JAXKERN_HD_MEMBER int32_t rhs(int32_t row) const { return basis() * (basis() + 1) / 2 + row; }
  JAXKERN_HD_MEMBER int32_t chi2() const { return rhs(basis()); }
  JAXKERN_HD_MEMBER int32_t cost() const { return chi2() + 1; }
  JAXKERN_HD_MEMBER int32_t count() const { return chi2() + 2; }
  JAXKERN_HD_MEMBER int32_t mirrored() const { return chi2() + 3; }
  JAXKERN_HD_MEMBER int32_t size() const { return chi2() + 4; }
};

// The largest number of tables.
constexpr int32_t kMaxTables = 64;

// The number of rows whose sums are added at once. The results of chunks that split at multiples of
// it are bit-identical if the state between them is in double.
constexpr int64_t kRowBlock = 32;

// The points that are summed: all; those of the upper triangle with weight 2; or, after comparing
// mirrored tiles, the upper triangle of equal tiles with weight 2 and both halves of others.
enum class Symmetric : int32_t { kNo = 0, kYes = 1, kAuto = 2 };

enum class DataType : int32_t { kF64, kF32, kF16, kU16 };

}  // namespace jaxkern::xpcs

#endif  // JAXKERN_XPCS_ARITHMETIC_H_
