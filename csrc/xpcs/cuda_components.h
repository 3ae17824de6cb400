// The bodies of the CUDA ops of models of components, after those of cuda_matrix.h and
// cuda_normal.h; the formulas are in components-inl.h. kMost is the largest number of components of
// a body.
//
// The normal equations have too many columns for one thread: the threads of a block compute the
// columns of one point each in shared memory, and then a few products of all these points each,
// with their sums in registers. A kernel calls these steps, with a barrier after load, evaluate,
// add and stage:
//
//   load           loads what is common to the points; a block that is not active ends here
//   begin          a column of the matrix for each thread
//   evaluate, add  one row of these columns
//   stage, write   the sums of all threads, in a fixed order
#ifndef JAXKERN_XPCS_CUDA_COMPONENTS_H_
#define JAXKERN_XPCS_CUDA_COMPONENTS_H_

#include <cmath>
#include <cstdint>

#include "xpcs/cuda_matrix.h"
#include "xpcs/cuda_normal.h"

namespace jaxkern::xpcs {

constexpr int32_t kFewComponents = 2;

template <int kMost>
struct ComponentFrame {
  double a[kMost], real[kMost], imaginary[kMost];
};

template <int kMost>
JAXKERN_HD ComponentFrame<kMost> component_frame(const AngleCall& call, const double* tables,
                                                 int64_t i) {
  const int64_t n = call.n;
  ComponentFrame<kMost> frame = {};
  JAXKERN_UNROLL
  for (int32_t c = 0; c < kMost; ++c) {
    if (c >= call.components) break;
    const double* const own = tables + kComponentTables * c * n + i;
    frame.a[c] = own[0];
    frame.real[c] = own[n];
    frame.imaginary[c] = own[2 * n];
  }
  return frame;
}

// f, and the slopes [kind][component].
template <int kMost>
struct ComponentPoint {
  double f;
  double slope[kComponentTables][kMost];
};

template <bool kSlopes, int kMost>
JAXKERN_HD ComponentPoint<kMost> component_point(int32_t count, const ComponentFrame<kMost>& i,
                                                 const ComponentFrame<kMost>& j) {
  ComponentPoint<kMost> point = {};
  double x[kMost] = {}, y[kMost] = {}, U = 0, V = 0;
  JAXKERN_UNROLL
  for (int32_t c = 0; c < kMost; ++c) {
    if (c >= count) break;
    component_term(exp(-fabs(i.a[c] - j.a[c])), i.real[c], i.imaginary[c], j.real[c],
                   j.imaginary[c], &x[c], &y[c]);
    U += x[c];
    V += y[c];
  }
  point.f = U * U + V * V;
  JAXKERN_UNROLL
  for (int32_t c = 0; c < (kSlopes ? kMost : 0); ++c) {
    if (c >= count) break;
    const ComponentSlopes<double> slopes = component_slopes(U, V, x[c], y[c], i.a[c] - j.a[c]);
    point.slope[kWeightTable][c] = slopes.m;
    point.slope[kDecayTable][c] = slopes.a;
    point.slope[kPhaseTable][c] = slopes.h;
  }
  return point;
}

JAXKERN_HD double change_of(int32_t kind, double here, double there) {
  return kind == kWeightTable ? here + there : here - there;
}

template <MatrixOp op, typename Real, int kMost>
struct ComponentMatrixBody : MatrixOutput<op, Real> {
  using Base = MatrixOutput<op, Real>;
  using Shared = typename Base::Stage;
  static constexpr int32_t kBlocks = kMost > kFewComponents ? 1 : op == MatrixOp::kTangent ? 2 : 3;

  JAXKERN_HD void load(const MatrixCall& call, int64_t flat, int32_t thread, Shared& shared) {
    Base::begin(call, flat, thread, shared);
  }

  JAXKERN_HD void compute(const MatrixCall& call, int32_t thread, Shared& shared) {
    const MatrixTile tile = shared.tile;
    const int64_t n = call.angle.n;
    const int32_t c = thread % kMatrixSide, rows = shared.rows, count = call.angle.components;
    if (!tile.valid || c >= shared.columns) return;
    const Angle& angle = call.angle.angles[tile.sample];
    const auto matrices = Base::matrices_of(call, angle, tile.sample);
    const double* const tables = tables_of(call.angle, tile.sample);
    const double* const tangents = tables + model_tables(call.angle) * n;
    const ComponentFrame<kMost> column =
        component_frame<kMost>(call.angle, tables, tile.column + c);
    const double contrast = angle.contrast, offset = angle.offset;
    const double tangent_contrast = angle.tangent_contrast, tangent_offset = angle.tangent_offset;
    for (int32_t r = thread / kMatrixSide; r < rows; r += kMatrixStep) {
      const int64_t i = tile.row + r, j = tile.column + c;
      constexpr bool kSlopes = op == MatrixOp::kTangent;
      const auto p =
          component_point<kSlopes>(count, component_frame<kMost>(call.angle, tables, i), column);
      double value = offset + contrast * p.f;
      if (kSlopes) {
        double change = 0;
        JAXKERN_UNROLL
        for (int32_t kind = 0; kind < kComponentTables; ++kind) {
          JAXKERN_UNROLL
          for (int32_t k = 0; k < kMost; ++k) {
            if (k >= count) break;
            const double* const table = tangents + (kind * count + k) * n;
            change += p.slope[kind][k] * change_of(kind, table[i], table[j]);
          }
        }
        value = tangent_offset + tangent_contrast * p.f + contrast * change;
      }
      shared.stage[r][c] = static_cast<typename Base::Staged>(value);
      Base::write(matrices, i * n + j, i == j, value);
    }
  }
};

template <int kMost, bool kRobust>
struct ComponentNormalBody {
  static constexpr int32_t kBlocks = kMost > kFewComponents ? 2 : 3;
  // A thread adds the products of kGroup columns with kGroup others. The residual is the last.
  static constexpr int32_t kGroup = 4, kProducts = kGroup * kGroup;
  static constexpr int32_t kRows = (kMaxBasis + kGroup) / kGroup * kGroup;
  static_assert(kRows >= kProducts + kTailSums, "`column` also holds the sums of the threads");

  struct Shared {
    double column[kRows][kNormalThreads], om[kNormalThreads];  // of the points
    bool used[kRowBlock];
  };
  struct Thread : NormalUnit {
    int64_t j;          // the column of the matrix, at least n if there is none
    int32_t step_rows;  // of the block
    int32_t rows_of_j;
    int32_t p, q, lane, lanes;  // the groups; the threads of a pair of groups share the points
    Measured next;
    double sum[kProducts];
    double chi2, cost;
    int32_t count, mirrored;
  };

  JAXKERN_HD int32_t pairs(const NormalCall& call) {
    const int32_t groups = (call.layout.basis() + kGroup) / kGroup;
    return groups * (groups + 1) / 2;
  }

  JAXKERN_HD void load(const NormalCall& call, int64_t flat, int32_t thread, Shared& shared,
                       Thread& state) {
    state = {};
    static_cast<NormalUnit&>(state) = normal_unit(call, flat);
    if (!state.active) return;
    state.lanes = kNormalThreads / pairs(call);
    state.lane = thread % state.lanes;
    const GramPart::Part pair = GramPart::part_of(thread / state.lanes);
    state.p = pair.p;
    state.q = pair.q;
    if (thread < state.rows) {
      shared.used[thread] = keep(call, call.angle.angles[state.sample], state.row0 + thread);
    }
  }

  JAXKERN_HD int32_t steps(const NormalCall& call, const Thread& state) {
    const int64_t n = call.angle.n, start = state.slice * slice_columns(n);
    const int64_t columns = n - start < slice_columns(n) ? n - start : slice_columns(n);
    return static_cast<int32_t>((columns + kNormalThreads - 1) / kNormalThreads);
  }

  JAXKERN_HD void begin(const NormalCall& call, int32_t step, int32_t thread, Thread& state) {
    const int64_t n = call.angle.n;
    const Angle& angle = call.angle.angles[state.sample];
    const int64_t first = state.slice * slice_columns(n) + step * kNormalThreads;
    const int64_t last = first + kNormalThreads < n ? first + kNormalThreads - 1 : n - 1;
    state.step_rows = rows_of_column(call, state, last);
    state.j = first + thread;
    state.rows_of_j =
        state.j < n && keep(call, angle, state.j) ? rows_of_column(call, state, state.j) : 0;
    fetch(call, angle, 0, state);
  }

  // Loads the data of row i.
  JAXKERN_HD void fetch(const NormalCall& call, const Angle& angle, int32_t i, Thread& state) {
    if (i >= state.rows_of_j) return;
    const int64_t n = call.angle.n, row = state.row0 + i;
    state.next = measured_at(sources_of(call, angle), (row - angle.first_row) * n + state.j,
                             state.j * n + row);
  }

  JAXKERN_HD void evaluate(const NormalCall& call, int32_t i, Shared& shared, Thread& state,
                           int32_t thread) {
    const int64_t row = state.row0 + i, j = state.j;
    const int32_t basis = call.layout.basis(), count = call.angle.components;
    const Angle& angle = call.angle.angles[state.sample];
    const Measured current = state.next;
    fetch(call, angle, i + 1, state);
    for (int32_t k = 0; k < basis; ++k) shared.column[k][thread] = 0;
    Weight w = {};
    if (i < state.rows_of_j && shared.used[i] && row != j) {
      const double* const tables = tables_of(call.angle, state.sample);
      const auto p = component_point<true>(count, component_frame<kMost>(call.angle, tables, row),
                                           component_frame<kMost>(call.angle, tables, j));
      w = weight_of<kRobust>(call, angle, angle.offset + angle.contrast * p.f, 1 / angle.sigma,
                             current);
      if (w.count != 0) add_columns(call, p, tables, state, row, thread, shared);
    }
    shared.column[basis][thread] = w.b;
    shared.om[thread] = w.om;
    state.chi2 += w.chi2;
    state.cost += w.cost;
    state.count += w.count;
    state.mirrored += w.mirrored;
  }

  JAXKERN_HD void add_columns(const NormalCall& call, const ComponentPoint<kMost>& p,
                              const double* tables, const Thread& state, int64_t row,
                              int32_t thread, Shared& shared) {
    const int64_t n = call.angle.n;
    const int32_t count = call.angle.components;
    const int32_t* const list = call.angle.nonzero + state.sample * (1 + call.angle.tables_a);
    const double* const tangents = tables + model_tables(call.angle) * n;
    shared.column[0][thread] = 1;
    shared.column[1][thread] = p.f;
    for (int32_t e = 1; e <= list[0]; ++e) {
      const int32_t t = list[e], kind = t / count % kComponentTables;
      const double* const table = tangents + t * n;
      const double change = change_of(kind, table[row], table[state.j]);
      shared.column[2 + t / count / kComponentTables][thread] += p.slope[kind][t % count] * change;
    }
  }

  JAXKERN_HD void add(const NormalCall& call, int32_t thread, const Shared& shared, Thread& state) {
    if (thread >= pairs(call) * state.lanes) return;
    const int32_t p = kGroup * state.p, q = kGroup * state.q, basis = call.layout.basis();
    for (int32_t at = state.lane; at < kNormalThreads; at += state.lanes) {
      const double om = shared.om[at];
      double left[kGroup];
      JAXKERN_UNROLL
      for (int32_t k = 0; k < kGroup; ++k) left[k] = shared.column[p + k][at];
      JAXKERN_UNROLL
      for (int32_t l = 0; l < kGroup; ++l) {
        const double right = shared.column[q + l][at] * (q + l == basis ? 1 : om);
        JAXKERN_UNROLL
        for (int32_t k = 0; k < kGroup; ++k) state.sum[k * kGroup + l] += left[k] * right;
      }
    }
  }

  JAXKERN_HD void stage(int32_t thread, const Thread& state, Shared& shared) {
    JAXKERN_UNROLL
    for (int32_t e = 0; e < kProducts; ++e) shared.column[e][thread] = state.sum[e];
    shared.column[kProducts][thread] = state.chi2;
    shared.column[kProducts + 1][thread] = kRobust ? state.cost : state.chi2;
    shared.column[kProducts + 2][thread] = state.count;
    shared.column[kProducts + 3][thread] = state.mirrored;
  }

  JAXKERN_HD void write(const NormalCall& call, int32_t thread, const Thread& state,
                        const Shared& shared) {
    const StateLayout& layout = call.layout;
    const int32_t basis = layout.basis(), entries = pairs(call) * kProducts;
    for (int32_t e = thread; e < entries + kTailSums; e += kNormalThreads) {
      int32_t index, first = 0, threads = kNormalThreads, from = kProducts + e - entries;
      if (e >= entries) {
        index = layout.chi2() + e - entries;
      } else {
        const GramPart::Part pair = GramPart::part_of(e / kProducts);
        from = e % kProducts;
        first = e / kProducts * state.lanes;
        threads = state.lanes;
        const int32_t k = kGroup * pair.p + from / kGroup, l = kGroup * pair.q + from % kGroup;
        if (k >= basis || k > l || l > basis) continue;
        index = l == basis ? layout.rhs(k) : layout.gram(k, l);
      }
      double sum = 0;
      for (int32_t t = first; t < first + threads; ++t) sum += shared.column[from][t];
      block_sums(call, state.sample, state.block, state.slice)[index] = sum;
    }
  }
};

}  // namespace jaxkern::xpcs

#endif  // JAXKERN_XPCS_CUDA_COMPONENTS_H_
