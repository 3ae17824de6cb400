// The body of the CUDA g2_at: single points of the angles, as a function of a flat index.
#ifndef JAXKERN_XPCS_CUDA_POINTS_H_
#define JAXKERN_XPCS_CUDA_POINTS_H_

#include <cmath>
#include <cstdint>

#include "core/batch_set.h"
#include "xpcs/arithmetic.h"
#include "xpcs/plan.h"

namespace jaxkern::xpcs {

enum PointOperand : int {
  kPointA,         // [n]
  kPointX,         // [angles, n]
  kPointContrast,  // [angles]
  kPointOffset,    // [angles]
  kPointIndex,     // i32 [points, 3]
  kPointOperands
};

struct PointCall {
  BatchSet<kPointOperands> operands;
  bool single = false;
  int32_t power = 4;
  int64_t n = 0, angles = 0, points = 0, samples = 0;
  void* out = nullptr;  // [samples, points]
};

JAXKERN_HD int64_t point_items(const PointCall& call) { return call.samples * call.points; }

// g2 of one point; NaN where the index is outside.
JAXKERN_HD void run_point(const PointCall& call, int64_t flat) {
  const int64_t sample = flat / call.points, k = flat % call.points;
  const BatchOffsets<kPointOperands> at = batch_offsets(call.operands, sample);
  const int32_t* const index =
      static_cast<const int32_t*>(call.operands.data[kPointIndex]) + at.element[kPointIndex];
  const int64_t angle = index[3 * k], i = index[3 * k + 1], j = index[3 * k + 2];
  const auto real = [&](PointOperand which, int64_t place) {
    return Reals{call.operands.data[which], call.single}[at.element[which] + place];
  };
  double value = NAN;
  if (angle >= 0 && angle < call.angles && i >= 0 && i < call.n && j >= 0 && j < call.n) {
    double f = exp(-2 * fabs(real(kPointA, i) - real(kPointA, j)));
    if (call.power != 0) {
      const double x = real(kPointX, angle * call.n + i) - real(kPointX, angle * call.n + j);
      const double sinc = fabs(x) < kSeriesBelow ? sinc_series(x) : sin(x) / x;
      f *= call.power == 2 ? shear_factor<2>(sinc) : shear_factor<4>(sinc);
    }
    value = real(kPointOffset, angle) + real(kPointContrast, angle) * f;
  }
  if (call.single) {
    static_cast<float*>(call.out)[flat] = static_cast<float>(value);
  } else {
    static_cast<double*>(call.out)[flat] = value;
  }
}

}  // namespace jaxkern::xpcs

#endif  // JAXKERN_XPCS_CUDA_POINTS_H_
