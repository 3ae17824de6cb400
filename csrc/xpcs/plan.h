// The work of one angle, as plain pointers and sizes that a handler has checked.
#ifndef JAXKERN_XPCS_PLAN_H_
#define JAXKERN_XPCS_PLAN_H_

#include <cstdint>

#include "xpcs/arithmetic.h"

namespace jaxkern::xpcs {

// The number of columns of a tile, and the padding after each table, so that vector loops may
// read past its end.
constexpr int64_t kTile = 128;
constexpr int64_t kPadding = kTile;

// An array of reals of the caller, in float or double.
struct Reals {
  const void* data = nullptr;
  bool single = false;  // float, not double

  JAXKERN_HD_MEMBER double operator[](int64_t i) const {
    return single ? static_cast<double>(static_cast<const float*>(data)[i])
                  : static_cast<const double*>(data)[i];
  }
};

// The values from element `first` on.
JAXKERN_HD Reals reals_from(const void* data, bool single, int64_t first) {
  return {static_cast<const char*>(data) + first * (single ? 4 : 8), single};
}

JAXKERN_HD void write_real(void* to, bool single, int64_t at, double value) {
  if (single) {
    static_cast<float*>(to)[at] = static_cast<float>(value);
  } else {
    static_cast<double*>(to)[at] = value;
  }
}

// Tables of order n in double, of n + kPadding values each, with zeros after the end.
struct Phases {
  int64_t n = 0;
  int32_t power = 4;       // 0, 2 or 4
  bool increasing = true;  // A[0] < A[1] < ..., so the sign of every difference is known
  const double* a = nullptr;
  const double* x = nullptr;  // null if power is 0, like the next two
  const double* sin_x = nullptr;
  const double* cos_x = nullptr;
};

// Rows [first_row, first_row + rows) of one angle's normal equations.
struct NormalWork {
  Phases phases;
  StateLayout layout{};
  const double* tables = nullptr;  // [tables_a + tables_x][n + kPadding]
  const uint8_t* keep = nullptr;   // [n]
  const int64_t* kept = nullptr;   // [n + 1], number of used frames before each frame
  double contrast = 0, offset = 0;

  int64_t first_row = 0, rows = 0;
  const void* data = nullptr;  // [rows, n]
  DataType data_type = DataType::kF64;
  double step = 1, zero = 0;  // for u16 data

  double sigma = 1;           // if sigma_matrix is null
  Reals sigma_matrix;         // [rows, n]
  Loss loss = Loss::kLinear;  // scaled by f_scale
  double f_scale = 1;
  Symmetric symmetric = Symmetric::kNo;

  JAXKERN_HD_MEMBER int64_t stride() const { return phases.n + kPadding; }
};

// The work of a matrix op for one angle.
struct MatrixWork {
  Phases phases;
  double contrast = 0, offset = 0;
  void* out = nullptr;     // [n, n]
  bool single = false;     // `out` is float, not double
  bool streaming = false;  // all results leave the caches before they are read (core/streaming.h)
  Reals data;              // [n, n]: data, or a cotangent
  // Tangents, [n + kPadding] each, or null.
  const double* tangent_a = nullptr;
  const double* tangent_x = nullptr;
  double tangent_contrast = 0, tangent_offset = 0;
  // For the residual.
  double sigma = 1;
  Reals sigma_matrix;  // [n, n] or null
  // For the cotangent: [n] each.
  double* phase_a = nullptr;
  double* phase_x = nullptr;
};

// The largest number of components of a model, and of parameters of its normal equations.
constexpr int32_t kMaxComponents = 8, kMaxComponentParameters = 32;
constexpr int32_t kMaxBasis = 2 + kMaxComponentParameters;

// The tables of a component with the logarithm of the weight B, decay A and phase P; see
// components-inl.h.
struct Component {
  Phases decay;                       // of A / 2, with power 0
  const double* real = nullptr;       // exp(B) cos P, [n + kPadding]
  const double* imaginary = nullptr;  // exp(B) sin P
};

struct ComponentModel {
  const Component* components = nullptr;  // [count]
  int32_t count = 0;
};

// The tables of a component whose differences, or sums for B, a slope multiplies.
enum ComponentTable { kWeightTable, kDecayTable, kPhaseTable, kComponentTables };

// A derivative of a component's table with respect to a parameter, not all zeros.
struct ComponentTangent {
  int32_t parameter = 0, component = 0;
  ComponentTable kind = kWeightTable;
  const double* table = nullptr;  // [n + kPadding]
};

// Rows of the normal equations of a component model: the fields of NormalWork, where `phases` has
// only n, `layout` has the parameters as tables of X, and `tables` is null.
struct ComponentNormalWork : NormalWork {
  ComponentModel model;
  const ComponentTangent* tangents = nullptr;  // in the order of their parameters
  int32_t tangent_count = 0;
};

// The work of a matrix op of a component model: the fields of MatrixWork, where `phases` has only
// n, and the tables of the tangent and the results of the cotangent are these, [kind][component].
struct ComponentMatrixWork : MatrixWork {
  ComponentModel model;
  const double* tangent[kComponentTables][kMaxComponents] = {};  // [n + kPadding] each
  double* cotangent[kComponentTables][kMaxComponents] = {};      // [n] each
};

enum class MatrixOp { kG2, kTangent, kResidual, kCotangent };

}  // namespace jaxkern::xpcs

#endif  // JAXKERN_XPCS_PLAN_H_
