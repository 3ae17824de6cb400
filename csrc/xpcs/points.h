// g2 at single points, and the body of its CUDA kernel.
#ifndef JAXKERN_XPCS_POINTS_H_
#define JAXKERN_XPCS_POINTS_H_

#include <cmath>
#include <cstdint>

#include "core/batch_set.h"
#include "xpcs/plan.h"

namespace jaxkern::xpcs {

struct PointWork {
  int64_t n = 0, angles = 0;
  int32_t power = 4;
  Reals a, x, contrast, offset;  // [n], [angles, n], [angles], [angles]
};

// g2 at the index (angle, i, j); NaN if it is out of range.
JAXKERN_HD double g2_at(const PointWork& work, const int32_t* index) {
  const int64_t angle = index[0], i = index[1], j = index[2];
  if (angle < 0 || angle >= work.angles || i < 0 || i >= work.n || j < 0 || j >= work.n) return NAN;
  double f = exp(-2 * fabs(work.a[i] - work.a[j]));
  if (work.power != 0) {
    const double x = work.x[angle * work.n + i] - work.x[angle * work.n + j];
    const double sinc = fabs(x) < kSeriesBelow ? sinc_series(x) : sin(x) / x;
    f *= work.power == 2 ? shear_factor<2>(sinc) : shear_factor<4>(sinc);
  }
  return work.offset[angle] + work.contrast[angle] * f;
}

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

JAXKERN_HD void run_point(const PointCall& call, int64_t flat) {
  const int64_t sample = flat / call.points, k = flat % call.points;
  const BatchOffsets<kPointOperands> at = batch_offsets(call.operands, sample);
  const auto reals = [&](PointOperand which) {
    return reals_from(call.operands.data[which], call.single, at.element[which]);
  };
  const PointWork work = {call.n,         call.angles,           call.power,         reals(kPointA),
                          reals(kPointX), reals(kPointContrast), reals(kPointOffset)};
  const int32_t* const index =
      static_cast<const int32_t*>(call.operands.data[kPointIndex]) + at.element[kPointIndex];
  write_real(call.out, call.single, flat, g2_at(work, index + 3 * k));
}

}  // namespace jaxkern::xpcs

#endif  // JAXKERN_XPCS_POINTS_H_
