// Kernels of models of components: the values of a row, the matrix ops, and the normal equations.
//
//   T_c(i, j) = exp(B_i + B_j - |A_i - A_j| + i (P_i - P_j)),  U + i V = sum_c T_c,  f = U^2 + V^2
//
// T_c is the decay of evaluate-inl.h times the product of exp(B + i P) of both frames. The slopes
//
//   m_c = 2 (U Re T_c + V Im T_c),  a_c = -sign(A_i - A_j) m_c,  h_c = 2 (V Re T_c - U Im T_c)
//
// multiply dB_i + dB_j, dA_i - dA_j and dP_i - dP_j, tables of order n. The columns of the Jacobian
// of a row of a tile stay in the first cache, and J^T J is the sum of their products: for two
// components these are fewer operations than the row and column sums of each pair of slopes.
#ifndef JAXKERN_XPCS_COMPONENTS_INL_H_
#define JAXKERN_XPCS_COMPONENTS_INL_H_

#include <algorithm>
#include <type_traits>

#include "core/simd-inl.h"
#include "xpcs/matrix-inl.h"
#include "xpcs/normal_rows-inl.h"

namespace jaxkern::xpcs::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

// f of a row is in `f`; slope[k][c] are m, a and h. Before them, slope[kWeightTable] and
// slope[kPhaseTable] hold the real and the imaginary parts of T.
struct alignas(64) ComponentRow {
  ColumnFactors factors[kMaxComponents];
  alignas(64) double u[kPitch], v[kPitch];
  alignas(64) double slope[kComponentTables][kMaxComponents][kPitch];
};

struct alignas(64) ComponentMatrixScratch {
  MatrixScratch matrix;
  ComponentRow row;
};

struct alignas(64) ComponentNormalScratch {
  NormalScratch normal;
  ComponentRow row;
  // 1 (0 for points without weight), f, and the columns of the parameters.
  alignas(64) double columns[kMaxBasis + 1][kPitch];
  // Sums of products of two columns k, k + 1 with column l, and of columns with the residual.
  alignas(64) double gram[kMaxBasis / 2][kMaxBasis][2][kDoubles];
  alignas(64) double rhs[kMaxBasis][kDoubles];
};

inline void clear_factors(const ComponentModel& model, ComponentRow* s) {
  for (int32_t c = 0; c < model.count; ++c) s->factors[c].filled = false;
}

// Computes f, and the slopes of all components.
template <bool kSlopes>
inline void evaluate_components(const ComponentModel& model, const Tile& tile, int64_t row,
                                ComponentRow* s, double* f) {
  const int64_t vectors = tile.vectors();
  for (int32_t c = 0; c < model.count; ++c) {
    const Component& component = model.components[c];
    const Phases& phases = component.decay;
    ensure_factors<Side::kMixed>(phases, tile, row, &s->factors[c]);
    const double* const rising_j = s->factors[c].rising;
    const double* const falling_j = s->factors[c].falling;
    const Doubles twice = splat(2.0 * (phases.a[row] - s->factors[c].reference));
    const Doubles rising = splat(exponential(twice)[0]), falling = splat(exponential(-twice)[0]);
    const double real_i = component.real[row], imaginary_i = component.imaginary[row];
    double* const real = s->slope[kWeightTable][c];
    double* const imaginary = s->slope[kPhaseTable][c];
    const auto terms = [&](auto first) {
      for (int64_t v = 0; v < vectors; ++v) {
        const int64_t at = v * kDoubles, column = tile.start + at;
        const Doubles decay = smaller(rising * load(falling_j + at), falling * load(rising_j + at));
        Doubles x, y;
        component_term(decay, real_i, imaginary_i, load(component.real + column),
                       load(component.imaginary + column), &x, &y);
        store(s->u + at, first.value ? x : load(s->u + at) + x);
        store(s->v + at, first.value ? y : load(s->v + at) + y);
        if constexpr (kSlopes) {
          store(real + at, x);
          store(imaginary + at, y);
        }
      }
    };
    c == 0 ? terms(std::true_type()) : terms(std::false_type());
  }
  for (int64_t v = 0; v < vectors; ++v) {
    const Doubles U = load(s->u + v * kDoubles), V = load(s->v + v * kDoubles);
    store(f + v * kDoubles, U * U + V * V);
  }
  for (int32_t c = 0; kSlopes && c < model.count; ++c) {
    const double* const a = model.components[c].decay.a;
    const double a_i = a[row];
    for (int64_t v = 0; v < vectors; ++v) {
      const int64_t at = v * kDoubles;
      const Doubles U = load(s->u + at), V = load(s->v + at);
      const Doubles x = load(s->slope[kWeightTable][c] + at);
      const Doubles y = load(s->slope[kPhaseTable][c] + at);
      const auto slopes = component_slopes(U, V, x, y, a_i - load(a + tile.start + at));
      store(s->slope[kWeightTable][c] + at, slopes.m);
      store(s->slope[kDecayTable][c] + at, slopes.a);
      store(s->slope[kPhaseTable][c] + at, slopes.h);
    }
  }
}

// ---------------------------------------------------------------- Matrix ops

inline void component_tangent(const ComponentMatrixWork& work, const Tile& tile, int64_t row,
                              const ComponentRow& s, const double* f, double* out) {
  for (int64_t at = 0; at < tile.width; at += kDoubles) {
    Doubles change{};
    for (int32_t c = 0; c < work.model.count; ++c) {
      for (int k = 0; k < kComponentTables; ++k) {
        const double* const table = work.tangent[k][c];
        const Doubles here = splat(table[row]), there = load(table + tile.start + at);
        change += load(s.slope[k][c] + at) * (k == kWeightTable ? here + there : here - there);
      }
    }
    store(out + at,
          work.tangent_offset + work.tangent_contrast * load(f + at) + work.contrast * change);
  }
}

// For row k of a cotangent G: cotangent[k] += sum_j contrast slope_kj (G_kj +- G_jk): m is
// symmetric in the frames, a and h change sign.
inline void component_cotangent(const ComponentMatrixWork& work, const Tile& tile, int64_t row,
                                int64_t i, double* sums, ComponentMatrixScratch* s) {
  MatrixScratch& matrix = s->matrix;
  const int64_t lanes = tile.vectors() * kDoubles;
  const auto clear = [&](double* buffer) { std::fill(buffer + tile.width, buffer + lanes, 0.0); };
  read_reals(work.data, row * work.phases.n + tile.start, tile.width, matrix.data);
  for (double* buffer : {matrix.data, matrix.mirror[i], matrix.row.f}) clear(buffer);
  Doubles f{}, one{};
  for (int64_t at = 0; at < lanes; at += kDoubles) {
    const Doubles g = load(matrix.data + at);
    one += g;
    f += g * load(matrix.row.f + at);
  }
  sums[0] += total(f);
  sums[1] += total(one);
  for (int32_t c = 0; c < work.model.count; ++c) {
    for (int k = 0; k < kComponentTables; ++k) {
      double* const slope = s->row.slope[k][c];
      clear(slope);
      Doubles sum{};
      // Both signs of an antisymmetric slope agree: a_kj G_kj - a_jk G_jk = a_kj (G_kj + G_jk).
      for (int64_t at = 0; at < lanes; at += kDoubles) {
        sum += (load(matrix.data + at) + load(matrix.mirror[i] + at)) * load(slope + at);
      }
      work.cotangent[k][c][row] += work.contrast * total(sum);
    }
  }
}

inline void component_matrix(MatrixOp op, const ComponentMatrixWork& work, int64_t row0,
                             int64_t rows, double* sums, ComponentMatrixScratch* s) {
  const int64_t n = work.phases.n;
  MatrixScratch& matrix = s->matrix;
  double* const f = matrix.row.f;
  const auto begin = [&] { clear_factors(work.model, &s->row); };
  if (op == MatrixOp::kG2) {
    symmetric_rows(work, row0, rows, &matrix, begin,
                   [&](const Tile& tile, int64_t row, double* out) {
                     evaluate_components<false>(work.model, tile, row, &s->row, f);
                     g2_row(work, tile, matrix.row, out);
                   });
  } else if (op == MatrixOp::kTangent) {
    symmetric_rows(work, row0, rows, &matrix, begin,
                   [&](const Tile& tile, int64_t row, double* out) {
                     evaluate_components<true>(work.model, tile, row, &s->row, f);
                     component_tangent(work, tile, row, s->row, f, out);
                   });
  } else {
    const bool cotangent = op == MatrixOp::kCotangent;
    for (int32_t c = 0; cotangent && c < work.model.count; ++c) {
      for (int k = 0; k < kComponentTables; ++k) {
        std::fill(work.cotangent[k][c] + row0, work.cotangent[k][c] + row0 + rows, 0.0);
      }
    }
    for (int64_t start = 0; start < n; start += kTile) {
      const Tile tile = {start, std::min(kTile, n - start)};
      begin();
      if (cotangent) read_mirror(work, tile, row0, rows, &matrix);
      for (int64_t i = 0; i < rows; ++i) {
        if (cotangent) {
          evaluate_components<true>(work.model, tile, row0 + i, &s->row, f);
          component_cotangent(work, tile, row0 + i, i, sums, s);
        } else {
          evaluate_components<false>(work.model, tile, row0 + i, &s->row, f);
          residual_matrix_row(work, tile, row0 + i, &matrix);
          write_matrix(work, (row0 + i) * n + start, tile.width, matrix.value);
        }
      }
    }
  }
#if defined(__SSE2__)
  if (work.streaming) _mm_sfence();
#endif
}

// ---------------------------------------------------------------- Normal equations

// Computes the columns of the parameters for a row.
inline void jacobian_columns(const ComponentNormalWork& work, const Tile& tile, int64_t row,
                             ComponentNormalScratch* s) {
  int32_t previous = -1;
  const int64_t vectors = tile.vectors();
  for (int32_t k = 0; k < work.tangent_count; ++k) {
    const ComponentTangent& tangent = work.tangents[k];
    const double* const slope = s->row.slope[tangent.kind][tangent.component];
    const double* const table = tangent.table + tile.start;
    double* const column = s->columns[2 + tangent.parameter];
    const auto add = [&](auto first, auto plus) {
      const Doubles here = splat(tangent.table[row]);
      for (int64_t v = 0; v < vectors; ++v) {
        const int64_t at = v * kDoubles;
        const Doubles there = load(table + at);
        const Doubles change = load(slope + at) * (plus.value ? here + there : here - there);
        store(column + at, first.value ? change : load(column + at) + change);
      }
    };
    const bool first = tangent.parameter != previous;
    previous = tangent.parameter;
    if (tangent.kind == kWeightTable) {
      first ? add(std::true_type(), std::true_type()) : add(std::false_type(), std::true_type());
    } else {
      first ? add(std::true_type(), std::false_type()) : add(std::false_type(), std::false_type());
    }
  }
}

// Adds the products of two columns and kRights others to their sums, [kRights][2][kDoubles]. It is
// not inlined, so that the loop has enough registers.
template <bool kWeighted, int kRights>
__attribute__((noinline)) void add_products(int64_t vectors, const double (*left)[kPitch],
                                            const double (*right)[kPitch], const double* om,
                                            double (*sums)[2][kDoubles]) {
  Doubles sum[2][kRights];
  for (int r = 0; r < kRights; ++r) {
    for (int k = 0; k < 2; ++k) sum[k][r] = load(sums[r][k]);
  }
  for (int64_t v = 0; v < vectors; ++v) {
    const int64_t at = v * kDoubles;
    Doubles first = load(left[0] + at), second = load(left[1] + at);
    if constexpr (kWeighted) {
      const Doubles weight = load(om + at);
      first *= weight;
      second *= weight;
    }
    for (int r = 0; r < kRights; ++r) {
      const Doubles other = load(right[r] + at);
      sum[0][r] += first * other;
      sum[1][r] += second * other;
    }
  }
  for (int r = 0; r < kRights; ++r) {
    for (int k = 0; k < 2; ++k) store(sums[r][k], sum[k][r]);
  }
}

template <int kColumns>
__attribute__((noinline)) void add_residual(int64_t vectors, const double (*column)[kPitch],
                                            const double* b, double (*sums)[kDoubles]) {
  Doubles sum[kColumns];
  for (int k = 0; k < kColumns; ++k) sum[k] = load(sums[k]);
  for (int64_t v = 0; v < vectors; ++v) {
    const Doubles residual = load(b + v * kDoubles);
    for (int k = 0; k < kColumns; ++k) sum[k] += load(column[k] + v * kDoubles) * residual;
  }
  for (int k = 0; k < kColumns; ++k) store(sums[k], sum[k]);
}

// Adds the sums of a row. s->normal.row.h is 1, and 0 for points without weight.
template <bool kWeighted>
inline void add_columns(const ComponentNormalWork& work, const TileWork& t,
                        ComponentNormalScratch* s) {
  NormalScratch& normal = s->normal;
  const int64_t vectors = t.tile.vectors();
  const int32_t basis = work.layout.basis();
  Doubles chi{};
  for (int64_t v = 0; v < vectors; ++v) {
    const int64_t at = v * kDoubles;
    store(s->columns[0] + at, load(normal.row.h + at));
    store(s->columns[1] + at, load(normal.row.f + at));
    chi += load(normal.chi + at);
  }
  normal.sum_chi += total(chi);
  for (int32_t k = 0; k < basis; k += 2) {
    const double (*left)[kPitch] = s->columns + k;
    double (*sums)[2][kDoubles] = s->gram[k / 2];
    int32_t l = k;
    for (; l + 4 <= basis; l += 4) {
      add_products<kWeighted, 4>(vectors, left, s->columns + l, normal.om, sums + l);
    }
    for (; l < basis; l += 2) {  // an odd number of columns has a partner of zeros
      add_products<kWeighted, 2>(vectors, left, s->columns + l, normal.om, sums + l);
    }
  }
  int32_t k = 0;
  for (; k + 4 <= basis; k += 4) {
    add_residual<4>(vectors, s->columns + k, normal.b, s->rhs + k);
  }
  for (; k < basis; ++k) add_residual<1>(vectors, s->columns + k, normal.b, s->rhs + k);
}

// Writes the sums of rows [row0, row0 + rows) of the matrix to `state`.
inline void component_normal(const ComponentNormalWork& work, int64_t row0, int64_t rows,
                             double* state, ComponentNormalScratch* s) {
  NormalScratch& normal = s->normal;
  const int32_t basis = work.layout.basis();
  std::fill(state, state + work.layout.size(), 0.0);
  if (work.sigma_matrix.data == nullptr && !(work.sigma > kLeastSigma)) return;
  std::memset(s->gram, 0, sizeof s->gram);
  std::memset(s->rhs, 0, sizeof s->rhs);
  std::memset(s->columns, 0, sizeof s->columns);  // parameters without tangents
  TileWork t;
  const auto evaluate = [&](int64_t row) {
    evaluate_components<true>(work.model, t.tile, row, &s->row, normal.row.f);
    std::fill(normal.row.h, normal.row.h + t.tile.vectors() * kDoubles, 1.0);
    jacobian_columns(work, t.tile, row, s);
  };
  const auto add = [&] {
    t.weighted ? add_columns<true>(work, t, s) : add_columns<false>(work, t, s);
  };
  double* columns[kMaxComponentParameters];
  for (int32_t k = 2; k < basis; ++k) columns[k - 2] = s->columns[k];
  const auto row = [&](int64_t i) {
    process_row(work, t, row0, rows, i, &normal, evaluate, add, columns, basis - 2);
  };
  for_tiles(work, row0, rows, &t, &normal, [&] { clear_factors(work.model, &s->row); }, row, [] {});
  const auto sum = [&](int32_t k, int32_t l) { return total(load(s->gram[k / 2][l][k % 2])); };
  normal.sum_om = sum(0, 0);
  normal.sum_f = sum(0, 1);
  normal.sum_ff = sum(1, 1);
  normal.sum_b = total(load(s->rhs[0]));
  normal.sum_fb = total(load(s->rhs[1]));
  for (int32_t k = 2; k < basis; ++k) {
    double* const gram = normal.gram + k * basis;
    for (int32_t l = 0; l < 2; ++l) gram[l] = sum(l, k);
    for (int32_t l = k; l < basis; ++l) gram[l] = sum(k, l);
    normal.rhs[k] = total(load(s->rhs[k]));
  }
  write_state(work, t.weighted, state, &normal);
}

}  // namespace
}  // namespace jaxkern::xpcs::JAXKERN_LEVEL

#endif  // JAXKERN_XPCS_COMPONENTS_INL_H_
