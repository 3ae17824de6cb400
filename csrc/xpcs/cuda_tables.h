// The inputs of CUDA kernels for each angle: tables of order n in double, with the sines and
// cosines of X, and scalars. The first launch computes them in scratch memory, so loops of order
// n^2 need no batch axes, float32 operands or sines.
#ifndef JAXKERN_XPCS_CUDA_TABLES_H_
#define JAXKERN_XPCS_CUDA_TABLES_H_

#include <cmath>
#include <cstdint>

#include "core/batch_set.h"
#include "core/host_device.h"
#include "xpcs/arithmetic.h"
#include "xpcs/plan.h"

namespace jaxkern::xpcs {

// The operands of all ops except g2_at; null if an op does not have one. A and X are the decays and
// phases of a model of components.
enum AngleOperand : int {
  kPhaseA,
  kPhaseX,
  kTablesA,  // tangents_A, or dA as one table
  kTablesX,
  kWeights,  // of components, like the next
  kTablesWeight,
  kContrast,
  kOffset,
  kTangentContrast,
  kTangentOffset,
  kData,  // or a cotangent
  kSigma,
  kQuantization,
  kKeep,
  kFScale,
  kFirstRow,
  kInitial,
  kAngleOperands
};

// The scalars of an angle, and offsets of its large operands, in elements.
struct Angle {
  double contrast, offset, tangent_contrast, tangent_offset;
  double sigma, step, zero, f_scale;
  int64_t data, sigma_matrix, keep, initial;
  int64_t first_row;  // -1 if out of range
};

struct AngleCall {
  BatchSet<kAngleOperands> operands;
  bool single = false;  // the reals are float, not double
  int32_t power = 4;
  int32_t tables_a = 0, tables_x = 0;
  int32_t components = 0;  // if not 0, tables_a is the number of all tangent tables, tables_x is 0
  int32_t sigma_rank = 0;
  int64_t n = 0, rows = 0, samples = 0;
  Angle* angles = nullptr;   // [samples]
  double* tables = nullptr;  // [samples][model_tables + tables_a + tables_x][n]
  // Of models of components, or null: whether a tangent table is not all zeros. Then the number of
  // such tables, and these tables. [samples][1 + tables_a], initially zeros.
  int32_t* nonzero = nullptr;
};

// Indices of an angle's tables; those of the tangents follow.
enum Table : int { kTableA, kTableX, kTableSin, kTableCos, kTableTangents };

// A component has A, exp(B) cos P and exp(B) sin P. Its tangent tables are [parameters][kind][c].
JAXKERN_HD int32_t model_tables(const AngleCall& call) {
  return call.components == 0 ? kTableTangents : kComponentTables * call.components;
}

JAXKERN_HD int64_t tables_size(const AngleCall& call) {
  return (model_tables(call) + call.tables_a + call.tables_x) * call.n;
}

JAXKERN_HD const double* tables_of(const AngleCall& call, int64_t sample) {
  return call.tables + sample * tables_size(call);
}

JAXKERN_HD int64_t angle_items(const AngleCall& call) {
  return call.samples * (call.n > 0 ? call.n : 1);
}

JAXKERN_HD double operand_real(const AngleCall& call, const BatchOffsets<kAngleOperands>& at,
                               AngleOperand which, int64_t index, double absent) {
  if (call.operands.data[which] == nullptr) return absent;
  return Reals{call.operands.data[which], call.single}[at.element[which] + index];
}

// Frame i of the tables of a model of components.
JAXKERN_HD void prepare_components(const AngleCall& call, const BatchOffsets<kAngleOperands>& at,
                                   int64_t sample, int64_t i, double* tables) {
  const int64_t n = call.n;
  const int32_t count = call.components;
  for (int32_t c = 0; c < count; ++c) {
    double* const own = tables + kComponentTables * c * n + i;
    const double weight = exp(operand_real(call, at, kWeights, c * n + i, 0));
    const double phase = operand_real(call, at, kPhaseX, c * n + i, 0);
    own[0] = operand_real(call, at, kPhaseA, c * n + i, 0);
    own[n] = weight * cos(phase);
    own[2 * n] = weight * sin(phase);
  }
  for (int32_t t = 0; t < call.tables_a; ++t) {
    const int32_t kind = t / count % kComponentTables;
    const int64_t from = t / count / kComponentTables * count + t % count;
    const double value = operand_real(call, at,
                                      kind == kWeightTable  ? kTablesWeight
                                      : kind == kDecayTable ? kTablesA
                                                            : kTablesX,
                                      from * n + i, 0);
    tables[(model_tables(call) + t) * n + i] = value;
    // Threads that write the same word write the same value.
    if (call.nonzero != nullptr && value != 0) {
      call.nonzero[sample * (1 + call.tables_a) + 1 + t] = 1;
    }
  }
}

// Replaces the flags of one sample by the list.
JAXKERN_HD void list_nonzero(const AngleCall& call, int64_t sample) {
  int32_t* const list = call.nonzero + sample * (1 + call.tables_a);
  int32_t count = 0;
  for (int32_t t = 0; t < call.tables_a; ++t) {
    if (list[1 + t] != 0) list[1 + count++] = t;
  }
  list[0] = count;
}

// Frame `flat % n` of angle `flat / n`; the thread of the first frame also writes the scalars.
JAXKERN_HD void prepare_angle(const AngleCall& call, int64_t flat) {
  const int64_t n = call.n, sample = n > 0 ? flat / n : flat, i = n > 0 ? flat % n : 0;
  const BatchOffsets<kAngleOperands> at = batch_offsets(call.operands, sample);
  if (i == 0) {
    Angle angle = {};
    angle.contrast = operand_real(call, at, kContrast, 0, 0);
    angle.offset = operand_real(call, at, kOffset, 0, 0);
    angle.tangent_contrast = operand_real(call, at, kTangentContrast, 0, 0);
    angle.tangent_offset = operand_real(call, at, kTangentOffset, 0, 0);
    angle.sigma = call.sigma_rank == 0 ? operand_real(call, at, kSigma, 0, 1) : 1;
    angle.step = operand_real(call, at, kQuantization, 0, 1);
    angle.zero = operand_real(call, at, kQuantization, 1, 0);
    angle.f_scale = operand_real(call, at, kFScale, 0, 1);
    angle.data = at.element[kData];
    angle.sigma_matrix = at.element[kSigma];
    angle.keep = at.element[kKeep];
    angle.initial = at.element[kInitial];
    if (call.operands.data[kFirstRow] != nullptr) {
      const int64_t row =
          static_cast<const int32_t*>(call.operands.data[kFirstRow])[at.element[kFirstRow]];
      angle.first_row = row < 0 || row > n - call.rows ? -1 : row;
    }
    call.angles[sample] = angle;
  }
  if (n == 0) return;
  double* const tables = call.tables + sample * tables_size(call);
  if (call.components != 0) return prepare_components(call, at, sample, i, tables);
  tables[kTableA * n + i] = operand_real(call, at, kPhaseA, i, 0);
  if (call.power != 0) {
    const double x = operand_real(call, at, kPhaseX, i, 0);
    tables[kTableX * n + i] = x;
    tables[kTableSin * n + i] = sin(x);
    tables[kTableCos * n + i] = cos(x);
  }
  for (int32_t k = 0; k < call.tables_a; ++k) {
    tables[(kTableTangents + k) * n + i] = operand_real(call, at, kTablesA, k * n + i, 0);
  }
  for (int32_t k = 0; k < call.tables_x; ++k) {
    tables[(kTableTangents + call.tables_a + k) * n + i] =
        operand_real(call, at, kTablesX, k * n + i, 0);
  }
}

// The phases of one frame.
struct Frame {
  double a, x, sin_x, cos_x;
};

JAXKERN_HD Frame frame_at(const double* tables, int64_t n, int32_t power, int64_t i) {
  Frame frame = {tables[kTableA * n + i], 0, 0, 1};
  if (power != 0) {
    frame.x = tables[kTableX * n + i];
    frame.sin_x = tables[kTableSin * n + i];
    frame.cos_x = tables[kTableCos * n + i];
  }
  return frame;
}

// The shear factor of a pair and its derivative with respect to X_i - X_j.
struct Shear {
  double factor, slope;
};

template <bool kSlopes>
JAXKERN_HD Shear shear_of(int32_t power, const Frame& i, const Frame& j) {
  if (power == 0) return {1, 0};
  const double dx = i.x - j.x;
  double sinc, slope = 0;
  if (fabs(dx) < kSeriesBelow) {
    sinc = sinc_series(dx);
    if (kSlopes) slope = sinc_slope_series(dx);
  } else {
    const double inverse = 1 / dx;
    sinc = (i.sin_x * j.cos_x - i.cos_x * j.sin_x) * inverse;
    if (kSlopes) slope = ((i.cos_x * j.cos_x + i.sin_x * j.sin_x) - sinc) * inverse;
  }
  const double square = sinc * sinc, lower = power == 2 ? 1 : square;
  return {square * lower, kSlopes ? power * (sinc * slope) * lower : 0};
}

// f and its derivatives with respect to A_i - A_j and X_i - X_j, from exp(-2 |A_i - A_j|).
struct Point {
  double f, a, h;
};

template <bool kSlopes>
JAXKERN_HD Point point_of(int32_t power, const Frame& i, const Frame& j, double decay) {
  const Shear shear = shear_of<kSlopes>(power, i, j);
  Point point = {decay * shear.factor, 0, 0};
  if (kSlopes) {
    const double d = i.a - j.a;
    point.a = d > 0 ? -2 * point.f : d < 0 ? 2 * point.f : 0 * d;  // NaN remains NaN
    point.h = decay * shear.slope;
  }
  return point;
}

JAXKERN_HD double decay_of(const Frame& i, const Frame& j) { return exp(-2 * fabs(i.a - j.a)); }

}  // namespace jaxkern::xpcs

#endif  // JAXKERN_XPCS_CUDA_TABLES_H_
