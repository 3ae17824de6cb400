// The normal equations of a row block: a pass over its tiles that reads the data, computes
// residuals and weights, and removes points without weight. normal-inl.h has the sums.
//
// A matrix of n x n points is processed in blocks of kRowBlock rows, in parallel, and a block in
// tiles of kTile columns. In the upper triangle the first tile starts at the first row:
//
//       0        row0                 n     for each tile of a block:
//       +---------+---+-----+-----+---+       compare_mirrored   both triangles, if kAuto
//       |         | D |     |     |   |       for each row i:
//  row0 |  (not   |   | t1  | t2  | t3|         evaluate_row     f, s, h from tables of order n
//       |  read)  |   |     |     |   |         weigh_row        residuals, weights, loss
//       +---------+---+-----+-----+---+         drop_points      zero points without weight
//                                               add_row          row sums, column sums, (Q T)_i
//  D: the square on the diagonal, of          contract_columns   column sums to gram and rhs
//     which the points j > i are used       contract_rows, write_state
//
// Invariants:
// - Sums of a block do not depend on other blocks, and blocks are added in order. Hence results do
//   not depend on threads, nor on splits at multiples of kRowBlock.
// - A point without weight is zero in all buffers (f, s, h, b, chi, om), so that it adds exactly 0.
//   It is never skipped in a vector loop. NaN in points with weight reaches the sums.
// - The scratch of a thread has a fixed size (kScratchBytes); no memory of order n^2 exists.
//
// Source: the model is that of He et al., PNAS 121 (2024) e2401162121. The factorization of sums
// over differences of tables is a direct consequence of the Jacobian's form (see normal-inl.h).
#ifndef JAXKERN_XPCS_NORMAL_ROWS_INL_H_
#define JAXKERN_XPCS_NORMAL_ROWS_INL_H_

#include <algorithm>
#include <cstring>

#include "core/simd-inl.h"
#include "xpcs/normal-inl.h"

namespace jaxkern::xpcs::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

inline size_t item_size(DataType type) {
  return type == DataType::kF64 ? 8 : type == DataType::kF32 ? 4 : 2;
}

// Prefetches the data of a later row of this tile, or of the next tile. Hardware prefetchers
// restart at each row, because rows are far apart in memory.
inline void prefetch_rows(const NormalWork& work, const Tile& tile, int64_t row0, int64_t rows,
                          int64_t i) {
  constexpr int64_t kAhead = 6;
  int64_t row = i + kAhead, start = tile.start;
  if (row >= rows) row -= rows, start += kTile;
  if (row >= rows || start >= work.phases.n) return;
  const size_t item = item_size(work.data_type);
  const int64_t width = std::min(kTile, work.phases.n - start);
  const char* from = static_cast<const char*>(work.data) +
                     ((row0 + row - work.first_row) * work.phases.n + start) * item;
  for (size_t at = 0; at < width * item; at += 64) __builtin_prefetch(from + at);
}

// `count` values from element `at` of the data, as doubles.
inline void read_data(const NormalWork& work, int64_t at, int64_t count, double* out) {
  switch (work.data_type) {
    case DataType::kF64: {
      std::memcpy(out, static_cast<const double*>(work.data) + at, count * sizeof(double));
      return;
    }
    case DataType::kF32: {
      const float* from = static_cast<const float*>(work.data) + at;
      for (int64_t j = 0; j < count; ++j) out[j] = from[j];
      return;
    }
    case DataType::kF16: {
      const uint16_t* from = static_cast<const uint16_t*>(work.data) + at;
      int64_t j = 0;
#if defined(__F16C__)
      for (; j + 4 <= count; j += 4) {
        const __m128i halves = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + j));
        _mm256_storeu_pd(out + j, _mm256_cvtps_pd(_mm_cvtph_ps(halves)));
      }
#elif defined(JAXKERN_NEON)
      for (; j + 4 <= count; j += 4) {
        const float32x4_t four = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from + j)));
        vst1q_f64(out + j, vcvt_f64_f32(vget_low_f32(four)));
        vst1q_f64(out + j + 2, vcvt_high_f64_f32(four));
      }
#endif
      for (; j < count; ++j) out[j] = float16_to_float(from[j]);
      return;
    }
    case DataType::kU16: {
      const uint16_t* from = static_cast<const uint16_t*>(work.data) + at;
      for (int64_t j = 0; j < count; ++j) out[j] = work.zero + work.step * from[j];
      return;
    }
  }
}

// Loads a tile and its mirror image into `here` and `there`, and returns true if they are equal.
// NaN is unequal to everything: both halves are summed then, and the sums become NaN. Masked frames
// are not compared, because their values are arbitrary.
inline bool compare_mirrored(const NormalWork& work, const Tile& tile, int64_t row0, int64_t rows,
                             bool with_sigma, NormalScratch* s) {
  const int64_t n = work.phases.n;
  const auto is_kept = [&](int64_t k) { return work.kept[k + 1] != work.kept[k]; };
  const auto fill = [&](auto read, double (*here)[kPitch], double (*there)[kPitch]) {
    for (int64_t i = 0; i < rows; ++i) read((row0 + i) * n + tile.start, tile.width, here[i]);
    for (int64_t j = 0; j < tile.width; ++j) {
      read((tile.start + j) * n + row0, rows, s->columns[j]);
    }
    transpose(s->columns[0], kRowBlock, tile.width, rows, there[0], kPitch);
    bool equal = true;
    for (int64_t i = 0; i < rows; ++i) {
      int64_t differing = 0;
      const int64_t first = std::max<int64_t>(0, row0 + i + 1 - tile.start);
      for (int64_t j = first; j < tile.width; ++j) differing += here[i][j] != there[i][j];
      if (equal && differing != 0) {
        differing = 0;
        for (int64_t j = first; j < tile.width && is_kept(row0 + i); ++j) {
          differing += here[i][j] != there[i][j] && is_kept(tile.start + j);
        }
      }
      equal = equal && differing == 0;
    }
    return equal;
  };
  bool equal =
      fill([&](int64_t at, int64_t count, double* out) { read_data(work, at, count, out); },
           s->here, s->there);
  if (with_sigma) {
    equal = fill([&](int64_t at, int64_t count,
                     double* out) { read_reals(work.sigma_matrix, at, count, out); },
                 s->sigma_here, s->sigma_there) &&
            equal;
  }
  return equal;
}

// Computes b and chi of unweighted points; `second` is the mirrored data if it differs.
inline void residual_row(const NormalWork& work, const TileWork& t, const double* data,
                         const double* second, NormalScratch* s) {
  for (int64_t v = 0, vectors = t.tile.vectors(); v < vectors; ++v) {
    const int64_t at = v * kDoubles;
    const Doubles model = work.offset + work.contrast * load(s->row.f + at);
    const Doubles r = load(data + at) - model;
    if (second != nullptr) {
      const Doubles other = load(second + at) - model;
      store(s->b + at, r + other);
      store(s->chi + at, r * r + other * other);
    } else {
      const Doubles b = t.multiplicity * r;
      store(s->b + at, b);
      store(s->chi + at, b * r);
    }
  }
}

// Adds om, b, chi and multiplicity of weighted points to the buffers.
inline void weigh_row(const NormalWork& work, const TileWork& t, double multiplicity,
                      const double* data, const double* sigma, NormalScratch* s) {
  for (int64_t v = 0, vectors = t.tile.vectors(); v < vectors; ++v) {
    const int64_t at = v * kDoubles;
    const Doubles deviation = sigma != nullptr ? load(sigma + at) : splat(work.sigma);
    const Mask out = ~(deviation > kLeastSigma);  // NaN too
    const Doubles w = out ? Doubles{} : 1.0 / deviation;
    const Doubles r =
        out ? Doubles{} : load(data + at) - (work.offset + work.contrast * load(s->row.f + at));
    Doubles om = multiplicity * (w * w), chi = om * (r * r);
    if (work.loss != Loss::kLinear) {
      for (int lane = 0; lane < kDoubles; ++lane) {
        const double z = w[lane] * r[lane] / work.f_scale;
        const LossValue loss = loss_value(work.loss, z * z);
        om[lane] *= loss.slope;
        s->cost[at + lane] += multiplicity * work.f_scale * work.f_scale * loss.rho;
      }
    }
    store(s->om + at, load(s->om + at) + om);
    store(s->b + at, load(s->b + at) + om * r);
    store(s->chi + at, load(s->chi + at) + chi);
    store(s->points + at, load(s->points + at) + (out ? Doubles{} : splat(multiplicity)));
  }
}

// Zeroes the points without weight in some buffers: columns outside of [first, end), the diagonal,
// and masked frames.
inline void drop_points(const NormalWork& work, const TileWork& t, int64_t row, int64_t first,
                        int64_t end, double* const* buffers, int used) {
  const int64_t start = t.tile.start, lanes = t.tile.vectors() * kDoubles;
  for (int k = 0; k < used; ++k) {
    std::fill(buffers[k], buffers[k] + (first - start), 0.0);
    std::fill(buffers[k] + (end - start), buffers[k] + lanes, 0.0);
    if (row >= first && row < end) buffers[k][row - start] = 0;
  }
  if (!t.masked) return;
  for (int64_t j = first; j < end; ++j) {
    if (work.keep[j]) continue;
    for (int k = 0; k < used; ++k) buffers[k][j - start] = 0;
  }
}

// Processes one row of a tile: evaluate(row) computes s->row, and add() adds to the sums. Buffers
// of the model with values of the points are `buffers`.
template <typename Evaluate, typename Add>
inline void process_row(const NormalWork& work, const TileWork& t, int64_t row0, int64_t rows,
                        int64_t i, NormalScratch* s, const Evaluate& evaluate, const Add& add,
                        double* const* buffers = nullptr, int count_of_buffers = 0) {
  const int64_t row = row0 + i, n = work.phases.n, start = t.tile.start;
  const int64_t end = start + t.tile.width;
  const bool upper = work.symmetric != Symmetric::kNo;
  const int64_t first = upper ? std::clamp(row + 1, start, end) : start;
  if (first == end || !work.keep[row]) return;
  evaluate(row);
  const bool compared = work.symmetric == Symmetric::kAuto;
  const int64_t at = (row - work.first_row) * n + start;
  const double* data = compared ? s->here[i] : s->data;
  if (!compared) prefetch_rows(work, t.tile, row0, rows, i);
  const double* second = t.pairs ? s->there[i] : nullptr;
  if (!compared) {
    if (work.data_type == DataType::kF64 && t.tile.width % kDoubles == 0) {
      data = static_cast<const double*>(work.data) + at;  // full vectors need no copy
    } else {
      read_data(work, at, t.tile.width, s->data);
    }
  }
  if (t.weighted) {
    for (double* sums : {s->om, s->b, s->chi, s->cost, s->points})
      std::fill(sums, sums + kTile, 0.0);
    const bool matrix = work.sigma_matrix.data != nullptr;
    const double* sigma = !matrix ? nullptr : compared ? s->sigma_here[i] : s->sigma;
    if (matrix && !compared) read_reals(work.sigma_matrix, at, t.tile.width, s->sigma);
    weigh_row(work, t, second != nullptr ? 1 : t.multiplicity, data, sigma, s);
    if (second != nullptr) weigh_row(work, t, 1, second, matrix ? s->sigma_there[i] : nullptr, s);
  } else {
    residual_row(work, t, data, second, s);
  }
  const int64_t width = t.tile.vectors() * kDoubles;
  const bool drop =
      first != start || end != start + width || (row >= start && row < end) || t.masked;
  if (drop) {
    double* const points[] = {s->row.f, s->row.h, s->row.s, s->b,
                              s->chi,   s->om,    s->cost,  s->points};
    drop_points(work, t, row, first, end, points, t.weighted ? 8 : 5);
    drop_points(work, t, row, first, end, buffers, count_of_buffers);
  }
  double count = 0;
  if (t.weighted) {
    double cost = 0;
    for (int64_t j = 0; j < width; ++j) count += s->points[j], cost += s->cost[j];
    s->sum_cost += cost;
  } else {
    const int64_t diagonal = row >= first && row < end ? 1 : 0;
    count = t.multiplicity * static_cast<double>(work.kept[end] - work.kept[first] - diagonal);
  }
  s->sum_count += count;
  if (upper && !t.pairs) s->sum_mirrored += count;
  add();
}

// Calls begin() before the rows of each tile, row(i) for each of them, and end() after them, with
// the options of the tile in `t`.
template <typename Begin, typename Row, typename End>
inline void for_tiles(const NormalWork& work, int64_t row0, int64_t rows, TileWork* t,
                      NormalScratch* s, const Begin& begin, const Row& row, const End& end) {
  const int64_t n = work.phases.n;
  const bool upper = work.symmetric != Symmetric::kNo;
  t->weighted = work.sigma_matrix.data != nullptr || work.loss != Loss::kLinear;
  t->multiplicity = upper ? 2 : 1;
  s->sum_om = s->sum_f = s->sum_ff = s->sum_b = s->sum_fb = 0;
  s->sum_chi = s->sum_cost = s->sum_count = s->sum_mirrored = 0;
  for (int64_t start = upper ? row0 : 0; start < n; start += kTile) {
    t->tile = {start, std::min(kTile, n - start)};
    // In the upper triangle all used columns are after the row, also in the tile of the diagonal.
    t->side = !work.phases.increasing         ? Side::kMixed
              : upper || start >= row0 + rows ? Side::kRight
              : start + t->tile.width <= row0 ? Side::kLeft
                                              : Side::kMixed;
    t->masked = work.kept[start + t->tile.width] - work.kept[start] != t->tile.width;
    t->pairs = work.symmetric == Symmetric::kAuto &&
               !compare_mirrored(work, t->tile, row0, rows, work.sigma_matrix.data != nullptr, s);
    begin();
    for (int64_t i = 0; i < rows; ++i) row(i);
    end();
  }
}

// Packs the sums of the block, with the signs and factors of the columns and the common weight.
inline void write_state(const NormalWork& work, bool weighted, double* state, NormalScratch* s) {
  const StateLayout& layout = work.layout;
  const int32_t basis = layout.basis();
  const bool linear = work.loss == Loss::kLinear;
  double common = 1, pairs = 1;  // weight of every point, multiplicity of a point
  if (!weighted) {
    common = 1 / (work.sigma * work.sigma);
    pairs = work.symmetric == Symmetric::kNo ? 1 : 2;
  }
  const auto factor = [&](int32_t k) { return k >= 2 && k < 2 + layout.tables_a ? -2.0 : 1.0; };
  const double fixed[2][2] = {{weighted ? s->sum_om : s->sum_count / pairs, s->sum_f},
                              {0, s->sum_ff}};
  for (int32_t k = 0; k < basis; ++k) {
    for (int32_t l = k; l < basis; ++l) {
      const double sum = l < 2   ? fixed[k][l]
                         : k < 2 ? s->gram[l * basis + k]
                                 : s->gram[k * basis + l];
      state[layout.gram(k, l)] = common * pairs * factor(k) * factor(l) * sum;
    }
    const double rhs = k == 0 ? s->sum_b : k == 1 ? s->sum_fb : s->rhs[k];
    state[layout.rhs(k)] = common * factor(k) * rhs;
  }
  state[layout.chi2()] = common * s->sum_chi;
  state[layout.cost()] = linear ? state[layout.chi2()] : s->sum_cost;
  state[layout.count()] = s->sum_count;
  state[layout.mirrored()] = s->sum_mirrored;
}

// Writes the sums of rows [row0, row0 + rows) of the matrix to `state`.
inline void normal_block(const NormalWork& work, int64_t row0, int64_t rows, double* state,
                         NormalScratch* s) {
  const StateLayout& layout = work.layout;
  const int32_t tables = layout.tables_a + layout.tables_x, basis = layout.basis();
  std::fill(state, state + layout.size(), 0.0);
  TileWork t;
  if (work.sigma_matrix.data == nullptr && !(work.sigma > kLeastSigma)) return;
  t.slopes = layout.tables_x > 0;
  std::memset(s->row_sum, 0, sizeof s->row_sum);
  for (int32_t k = 0; k < tables; ++k) {
    const double* table = work.tables + k * work.stride();
    for (int64_t i = 0; i < rows; ++i) s->row_table[k][i] = table[row0 + i] - table[row0];
    std::fill(s->row_ss[k], s->row_ss[k] + kRowBlock, 0.0);
    std::fill(s->row_sh[k], s->row_sh[k] + kRowBlock, 0.0);
    std::fill(s->row_hh[k], s->row_hh[k] + kRowBlock, 0.0);
  }
  std::fill(s->gram, s->gram + basis * basis, 0.0);
  std::fill(s->rhs, s->rhs + basis, 0.0);
  const auto begin = [&] {
    s->factors.filled = false;
    for (int32_t k = 0; k < tables; ++k) {
      const double* table = work.tables + k * work.stride();
      for (int64_t v = 0, vectors = t.tile.vectors(); v < vectors; ++v) {
        const int64_t at = v * kDoubles;
        store(s->table[k] + at, load(table + t.tile.start + at) - table[row0]);
      }
    }
    std::memset(s->column, 0, sizeof s->column);
  };
  const auto evaluate = [&](int64_t row) {
    if (layout.tables_x > 0) {
      evaluate_row<true>(work.phases, t.tile, t.side, row, &s->factors, &s->row);
    } else {
      evaluate_row<false>(work.phases, t.tile, t.side, row, &s->factors, &s->row);
    }
  };
  const auto row = [&](int64_t i) {
    process_row(work, t, row0, rows, i, s, evaluate, [&] { add_row(t, layout, i, s); });
  };
  for_tiles(work, row0, rows, &t, s, begin, row, [&] { contract_columns(t, layout, s); });
  contract_rows(layout, rows, s);
  write_state(work, t.weighted, state, s);
}

}  // namespace
}  // namespace jaxkern::xpcs::JAXKERN_LEVEL

#endif  // JAXKERN_XPCS_NORMAL_ROWS_INL_H_
