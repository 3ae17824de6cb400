// The body of the CUDA g2_at: single points of the angles, as a function of a flat index.
#ifndef JAXKERN_XPCS_CUDA_POINTS_H_
#define JAXKERN_XPCS_CUDA_POINTS_H_

#include <cstdint>

#include "core/batch_set.h"
#include "xpcs/points.h"

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

#endif  // JAXKERN_XPCS_CUDA_POINTS_H_
