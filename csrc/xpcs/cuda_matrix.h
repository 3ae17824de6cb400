// The body of the CUDA ops that write a value for every point (g2, its tangent and the residual),
// as host and device functions of a tile's flat index and a thread's number.
//
// g2 and its tangent are symmetric in i and j, so only tiles of the upper triangle are computed,
// and their mirror images are written through shared memory. A kernel calls these steps for each
// tile, with a barrier between them:
//
//   load     loads the frames of the tile and computes the factors of exp(-2 |A_i - A_j|):
//            exp(+-2 (A - reference)) of rows and columns, with the A of the first row as reference
//   compute  computes some points of one column a thread, stages the values and writes the tile
//   mirror   writes the mirror image
#ifndef JAXKERN_XPCS_CUDA_MATRIX_H_
#define JAXKERN_XPCS_CUDA_MATRIX_H_

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "xpcs/cuda_tables.h"

namespace jaxkern::xpcs {

constexpr int32_t kMatrixSide = 64;  // of a tile
constexpr int32_t kMatrixThreads = 256;
constexpr int32_t kMatrixStep = kMatrixThreads / kMatrixSide;  // rows between a thread's points

// Rows further than this from the reference compute each exponential, because their factor could
// overflow or lose digits.
constexpr double kReachOfReference = 12;

struct MatrixCall {
  AngleCall angle;
  void* out = nullptr;  // [samples, n, n]
};

JAXKERN_HD int64_t matrix_tile_rows(const MatrixCall& call) {
  return (call.angle.n + kMatrixSide - 1) / kMatrixSide;
}

// Row r of the triangle has `rows - r` tiles, so rows r and rows - 1 - r together have rows + 1:
// the triangle is folded to a rectangle. With an odd number of rows, half of the last is invalid.
JAXKERN_HD int64_t matrix_tiles_each(const MatrixCall& call) {
  const int64_t rows = matrix_tile_rows(call);
  return (rows + 1) / 2 * (rows + 1);
}

JAXKERN_HD int64_t matrix_tiles(const MatrixCall& call) {
  return call.angle.samples * matrix_tiles_each(call);
}

struct MatrixTile {
  int64_t sample, row, column;  // the first of the tile
  bool valid;
};

JAXKERN_HD MatrixTile matrix_tile(const MatrixCall& call, int64_t flat) {
  const int64_t rows = matrix_tile_rows(call), each = matrix_tiles_each(call);
  const int64_t sample = flat / each, rest = flat % each;
  const int64_t u = rest / (rows + 1), v = rest % (rows + 1);
  const bool first = v < rows - u;
  const int64_t row = first ? u : rows - 1 - u;
  const int64_t column = first ? u + v : row + (v - (rows - u));
  return {sample, row * kMatrixSide, column * kMatrixSide, first || row != u};
}

// The parts of a body that do not depend on the model.
template <MatrixOp op, typename Real>
struct MatrixOutput {
  static_assert(op != MatrixOp::kCotangent);
  // The residual subtracts the staged g2 in double.
  using Staged = std::conditional_t<op == MatrixOp::kResidual, double, Real>;

  struct Stage {
    Staged stage[kMatrixSide][kMatrixSide + 1];  // padded: columns are read without bank conflicts
    MatrixTile tile;
    int32_t rows, columns;  // of the tile
  };

  JAXKERN_HD MatrixTile begin(const MatrixCall& call, int64_t flat, int32_t thread, Stage& shared) {
    const MatrixTile tile = matrix_tile(call, flat);
    const int64_t n = call.angle.n;
    if (thread == 0) {
      shared.tile = tile;
      shared.rows = static_cast<int32_t>(n - tile.row < kMatrixSide ? n - tile.row : kMatrixSide);
      shared.columns =
          static_cast<int32_t>(n - tile.column < kMatrixSide ? n - tile.column : kMatrixSide);
    }
    return tile;
  }

  JAXKERN_HD void mirror(const MatrixCall& call, int32_t thread, const Stage& shared) {
    const MatrixTile tile = shared.tile;
    const int32_t c = thread % kMatrixSide, rows = shared.columns;
    if (!tile.valid || tile.row == tile.column || c >= shared.rows) return;
    const Matrices matrices = matrices_of(call, call.angle.angles[tile.sample], tile.sample);
    const int32_t first = thread / kMatrixSide;
    int64_t at = (tile.column + first) * call.angle.n + tile.row + c;
    for (int32_t r = first; r < rows; r += kMatrixStep, at += kMatrixStep * call.angle.n) {
      write(matrices, at, false, static_cast<double>(shared.stage[c][r]));
    }
  }

  // Matrices of one angle.
  struct Matrices {
    Real* out;
    const Real* data;
    const Real* sigma;  // null if all points have one sigma
    double common_sigma;
  };

  JAXKERN_HD Matrices matrices_of(const MatrixCall& call, const Angle& angle, int64_t sample) {
    Matrices m = {static_cast<Real*>(call.out) + sample * call.angle.n * call.angle.n, nullptr,
                  nullptr, 0};
    if (op == MatrixOp::kResidual) {
      m.data = static_cast<const Real*>(call.angle.operands.data[kData]) + angle.data;
      m.common_sigma = angle.sigma;
      if (call.angle.sigma_rank == 2) {
        m.sigma = static_cast<const Real*>(call.angle.operands.data[kSigma]) + angle.sigma_matrix;
      }
    }
    return m;
  }

  JAXKERN_HD void write(const Matrices& m, int64_t at, bool diagonal, double value) {
    if (op == MatrixOp::kResidual) {
      const double sigma = m.sigma != nullptr ? static_cast<double>(m.sigma[at]) : m.common_sigma;
      value = !diagonal && sigma > kLeastSigma ? (m.data[at] - value) / sigma : 0;
    }
    m.out[at] = static_cast<Real>(value);
  }
};

struct MatrixFrame {
  Frame frame;
  double rising, falling;  // exp(2 (A - reference)) and exp(-2 (A - reference))
  double tangent_a, tangent_x;
  bool near;  // A is near the reference, so the factors are valid
};

template <MatrixOp op, typename Real>
struct MatrixBody : MatrixOutput<op, Real> {
  using Base = MatrixOutput<op, Real>;
  static constexpr int32_t kBlocks = 4;  // at once, so that a thread has 64 registers

  struct Shared : Base::Stage {
    MatrixFrame row[kMatrixSide], column[kMatrixSide];
  };

  JAXKERN_HD void load(const MatrixCall& call, int64_t flat, int32_t thread, Shared& shared) {
    const MatrixTile tile = Base::begin(call, flat, thread, shared);
    const int64_t n = call.angle.n;
    if (!tile.valid || thread >= 2 * kMatrixSide) return;
    const bool row = thread < kMatrixSide;
    MatrixFrame& mine = row ? shared.row[thread] : shared.column[thread - kMatrixSide];
    const int64_t i = row ? tile.row + thread : tile.column + thread - kMatrixSide;
    if (i >= n) return;
    const double* const tables = tables_of(call.angle, tile.sample);
    mine.frame = frame_at(tables, n, call.angle.power, i);
    const double distance = mine.frame.a - tables[kTableA * n + tile.row];
    mine.near = distance <= kReachOfReference && distance >= -kReachOfReference;
    const double twice = 2 * distance;
    mine.rising = exp(600 < twice ? 600. : twice);
    mine.falling = exp(twice < -600 ? 600. : -twice);
    if (op == MatrixOp::kTangent) {
      mine.tangent_a = tables[kTableTangents * n + i];
      mine.tangent_x = tables[(kTableTangents + 1) * n + i];
    }
  }

  JAXKERN_HD void compute(const MatrixCall& call, int32_t thread, Shared& shared) {
    // Copies, because values in shared memory are loaded again after each store.
    const MatrixTile tile = shared.tile;
    const int32_t c = thread % kMatrixSide, rows = shared.rows, power = call.angle.power;
    if (!tile.valid || c >= shared.columns) return;
    const Angle& angle = call.angle.angles[tile.sample];
    const double contrast = angle.contrast, offset = angle.offset;
    const double tangent_contrast = angle.tangent_contrast, tangent_offset = angle.tangent_offset;
    const auto matrices = Base::matrices_of(call, angle, tile.sample);
    const MatrixFrame column = shared.column[c];
    const int32_t first = thread / kMatrixSide;
    int64_t at = (tile.row + first) * call.angle.n + tile.column + c;
    for (int32_t r = first; r < rows; r += kMatrixStep, at += kMatrixStep * call.angle.n) {
      const MatrixFrame& row = shared.row[r];
      double decay;
      if (row.near) {
        const double rising = row.rising * column.falling, falling = row.falling * column.rising;
        decay = rising < falling ? rising : falling;
      } else {
        decay = decay_of(row.frame, column.frame);
      }
      constexpr bool kSlopes = op == MatrixOp::kTangent;
      const Point p = point_of<kSlopes>(power, row.frame, column.frame, decay);
      double value;
      if (kSlopes) {
        value = tangent_offset + tangent_contrast * p.f +
                contrast * (p.a * (row.tangent_a - column.tangent_a));
        if (power != 0) value += contrast * (p.h * (row.tangent_x - column.tangent_x));
      } else {
        value = offset + contrast * p.f;
      }
      shared.stage[r][c] = static_cast<typename Base::Staged>(value);
      Base::write(matrices, at, tile.row + r == tile.column + c, value);
    }
  }
};

}  // namespace jaxkern::xpcs

#endif  // JAXKERN_XPCS_CUDA_MATRIX_H_
