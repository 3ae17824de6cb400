// Single points of some angles' g2, from the caller's arrays; for the CPU and for CUDA.
#ifndef JAXKERN_XPCS_POINTS_H_
#define JAXKERN_XPCS_POINTS_H_

#include <cmath>
#include <cstdint>

#include "xpcs/plan.h"

namespace jaxkern::xpcs {

struct PointWork {
  int64_t n = 0, angles = 0;
  int32_t power = 4;
  Reals a, x, contrast, offset;  // [n], [angles, n], [angles], [angles]
};

// Of the point index = (angle, i, j); NaN where it is outside.
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

}  // namespace jaxkern::xpcs

#endif  // JAXKERN_XPCS_POINTS_H_
