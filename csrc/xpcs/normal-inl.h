// The sums of the normal equations of one row block, without storing rows of the Jacobian.
//
// The derivative with respect to a physics parameter is s (T_i - T_j) or h (T_i - T_j) with a table
// T of order n. Hence, for each product Q of two of 1, f, s, h and the residual,
//   sum Q_ij (T_i - T_j)              = sum_i T_i Q_i. - sum_j T_j Q_.j
//   sum Q_ij (T_i - T_j) (U_i - U_j)  = sum_i T_i U_i Q_i. + sum_j T_j U_j Q_.j
//                                       - sum_i (T_i (Q U)_i + U_i (Q T)_i)
// where Q_i. and Q_.j are row and column sums. A point adds Q to one row sum and one column sum,
// and Q T to (Q T)_i of its row. The rest is of order rows + columns. Tables are relative to their
// value at the first row of the block: near the diagonal, where differences are small, the terms
// are of the size of the differences, so cancellation is harmless.
//
// Weighted points have Q multiplied by om = 1 / sigma^2 times rho'. Otherwise 1 / sigma^2 is a
// factor of the block. The Jacobian is symmetric in i and j, so a mirrored pair of different data
// is one point with the sum of the residuals.
#ifndef JAXKERN_XPCS_NORMAL_INL_H_
#define JAXKERN_XPCS_NORMAL_INL_H_

#include <initializer_list>
#include <type_traits>

#include "core/simd-inl.h"
#include "xpcs/evaluate-inl.h"

namespace jaxkern::xpcs::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

enum Sum { kS, kSF, kSB, kSS, kSH, kH, kHF, kHB, kHH, kSums };  // Q, as products

struct alignas(64) NormalScratch {
  ColumnFactors factors;
  RowBuffers row;
  // Points of the row: weight om, weighted residual b, its square chi, cost, and multiplicity.
  alignas(64) double om[kPitch], b[kPitch], chi[kPitch], cost[kPitch], points[kPitch];
  alignas(64) double data[kPitch], sigma[kPitch];
  alignas(64) double column[kSums][kPitch];
  alignas(64) double table[kMaxTables][kPitch];
  alignas(64) double row_table[kMaxTables][kRowBlock];
  double row_sum[kSums][kRowBlock];
  double row_ss[kMaxTables][kRowBlock], row_sh[kMaxTables][kRowBlock],
      row_hh[kMaxTables][kRowBlock];
  double sum_om, sum_f, sum_ff, sum_b, sum_fb, sum_chi, sum_cost, sum_count, sum_mirrored;
  double gram[(2 + kMaxTables) * (2 + kMaxTables)], rhs[2 + kMaxTables];  // of tables only
  // The tile and its transposed mirror image, if they are compared.
  alignas(64) double here[kRowBlock][kPitch], there[kRowBlock][kPitch];
  alignas(64) double columns[kTile][kRowBlock];
  alignas(64) double sigma_here[kRowBlock][kPitch], sigma_there[kRowBlock][kPitch];
};

// The options of a tile.
struct TileWork {
  Tile tile;
  Side side = Side::kMixed;
  bool weighted = false, slopes = false, pairs = false, masked = false;
  double multiplicity = 1;
  double sign() const { return side == Side::kRight ? -1 : 1; }
};

template <bool kWeighted, bool kSlopes, bool kMixed>
inline void reduce_row(const TileWork& work, int64_t i, NormalScratch* s) {
  Doubles rows[kSums] = {}, f_sum{}, ff_sum{}, fb_sum{}, b_sum{}, chi_sum{}, om_sum{};
  const auto add = [&](Sum sum, int64_t at, Doubles q) {
    rows[sum] += q;
    store(s->column[sum] + at, load(s->column[sum] + at) + q);
  };
  for (int64_t v = 0, vectors = work.tile.vectors(); v < vectors; ++v) {
    const int64_t at = v * kDoubles;
    const Doubles f = load(s->row.f + at), b = load(s->b + at);
    const Doubles sign_f = kMixed ? load(s->row.s + at) : f;
    const Doubles om = kWeighted ? load(s->om + at) : Doubles{};
    const Doubles q = kWeighted ? om * sign_f : sign_f;
    add(kS, at, q);
    add(kSF, at, q * f);
    add(kSB, at, sign_f * b);
    if constexpr (kMixed) {
      add(kSS, at, q * sign_f);
      const Doubles of = kWeighted ? om * f : f;
      f_sum += of;
      ff_sum += of * f;
      fb_sum += f * b;
    }
    b_sum += b;
    chi_sum += load(s->chi + at);
    if constexpr (kWeighted) om_sum += om;
    if constexpr (kSlopes) {
      const Doubles h = load(s->row.h + at);
      const Doubles oh = kWeighted ? om * h : h;
      add(kSH, at, q * h);
      add(kH, at, oh);
      add(kHF, at, oh * f);
      add(kHB, at, h * b);
      add(kHH, at, oh * h);
    }
  }
  if constexpr (!kMixed) f_sum = rows[kS], ff_sum = rows[kSF], fb_sum = rows[kSB];
  s->sum_f += total(f_sum);
  s->sum_ff += total(ff_sum);
  s->sum_fb += total(fb_sum);
  s->sum_b += total(b_sum);
  s->sum_chi += total(chi_sum);
  s->sum_om += total(om_sum);
  const double sign = work.sign();
  for (const Sum sum : {kS, kSF, kSB, kSH}) s->row_sum[sum][i] += sign * total(rows[sum]);
  for (const Sum sum : {kH, kHF, kHB, kHH}) s->row_sum[sum][i] += total(rows[sum]);
  s->row_sum[kSS][i] += total(rows[kMixed ? kSS : kSF]);
}

// Adds (Q T)_i of kTables tables from `first` on, for Q = s s (or h h) and Q = s h.
template <bool kWeighted, bool kSlopes, bool kMixed, bool kShear, int kTables>
inline void cross_tables(const TileWork& work, int64_t i, int32_t first, NormalScratch* s) {
  Doubles same[kTables], mixed[kTables];
  for (int k = 0; k < kTables; ++k) same[k] = mixed[k] = Doubles{};  // an initializer calls memset
  for (int64_t v = 0, vectors = work.tile.vectors(); v < vectors; ++v) {
    const int64_t at = v * kDoubles;
    const Doubles sign_f = load((kMixed ? s->row.s : s->row.f) + at);
    const Doubles om = kWeighted ? load(s->om + at) : Doubles{};
    const Doubles q = kWeighted ? om * sign_f : sign_f;
    const Doubles h = kSlopes ? load(s->row.h + at) : Doubles{};
    const Doubles square = kShear ? (kWeighted ? om * h : h) * h : q * sign_f;
    const Doubles product = kSlopes ? q * h : Doubles{};
    for (int k = 0; k < kTables; ++k) {
      const Doubles table = load(s->table[first + k] + at);
      same[k] += square * table;
      if constexpr (kSlopes) mixed[k] += product * table;
    }
  }
  for (int k = 0; k < kTables; ++k) {
    (kShear ? s->row_hh : s->row_ss)[first + k][i] += total(same[k]);
    if constexpr (kSlopes) s->row_sh[first + k][i] += work.sign() * total(mixed[k]);
  }
}

template <bool kWeighted, bool kSlopes, bool kMixed>
inline void add_row(const TileWork& work, const StateLayout& layout, int64_t i, NormalScratch* s) {
  reduce_row<kWeighted, kSlopes, kMixed>(work, i, s);
  const auto cross = [&](auto shear, int32_t first, int32_t count) {
    constexpr bool kShear = decltype(shear)::value;
    for (; count >= 4; first += 4, count -= 4) {
      cross_tables<kWeighted, kSlopes, kMixed, kShear, 4>(work, i, first, s);
    }
    switch (count) {
      case 3:
        return cross_tables<kWeighted, kSlopes, kMixed, kShear, 3>(work, i, first, s);
      case 2:
        return cross_tables<kWeighted, kSlopes, kMixed, kShear, 2>(work, i, first, s);
      case 1:
        return cross_tables<kWeighted, kSlopes, kMixed, kShear, 1>(work, i, first, s);
    }
  };
  cross(std::false_type(), 0, layout.tables_a);
  if constexpr (kSlopes) cross(std::true_type(), layout.tables_a, layout.tables_x);
}

inline void add_row(const TileWork& work, const StateLayout& layout, int64_t i, NormalScratch* s) {
  const auto dispatch = [&](auto weighted, auto slopes) {
    constexpr bool kWeighted = decltype(weighted)::value, kSlopes = decltype(slopes)::value;
    return work.side == Side::kMixed ? add_row<kWeighted, kSlopes, true>(work, layout, i, s)
                                     : add_row<kWeighted, kSlopes, false>(work, layout, i, s);
  };
  if (work.weighted) {
    return work.slopes ? dispatch(std::true_type(), std::true_type())
                       : dispatch(std::true_type(), std::false_type());
  }
  return work.slopes ? dispatch(std::false_type(), std::true_type())
                     : dispatch(std::false_type(), std::false_type());
}

// Adds the contributions of the column sums of a tile.
inline void contract_columns(const TileWork& work, const StateLayout& layout, NormalScratch* s) {
  const int32_t a = layout.tables_a, x = layout.tables_x, basis = layout.basis();
  const double sign = work.sign();
  const double* ss = s->column[work.side == Side::kMixed ? kSS : kSF];
  const int64_t vectors = work.tile.vectors();
  const auto once = [&](const double* q, const double* t) {
    Doubles sum{};
    for (int64_t v = 0; v < vectors; ++v) sum += load(q + v * kDoubles) * load(t + v * kDoubles);
    return total(sum);
  };
  alignas(64) double weighted[kPitch];
  const auto weigh = [&](const double* q, const double* t) {
    for (int64_t v = 0; v < vectors; ++v) {
      store(weighted + v * kDoubles, load(q + v * kDoubles) * load(t + v * kDoubles));
    }
  };
  for (int32_t k = 0; k < a; ++k) {
    const double* t = s->table[k];
    double* gram = s->gram + (2 + k) * basis;
    gram[0] -= sign * once(s->column[kS], t);
    gram[1] -= sign * once(s->column[kSF], t);
    s->rhs[2 + k] -= sign * once(s->column[kSB], t);
    weigh(ss, t);
    for (int32_t l = k; l < a; ++l) gram[2 + l] += once(weighted, s->table[l]);
    if (x == 0) continue;
    weigh(s->column[kSH], t);
    for (int32_t l = 0; l < x; ++l) gram[2 + a + l] += sign * once(weighted, s->table[a + l]);
  }
  for (int32_t k = 0; k < x; ++k) {
    const double* t = s->table[a + k];
    double* gram = s->gram + (2 + a + k) * basis;
    gram[0] -= once(s->column[kH], t);
    gram[1] -= once(s->column[kHF], t);
    s->rhs[2 + a + k] -= once(s->column[kHB], t);
    weigh(s->column[kHH], t);
    for (int32_t l = k; l < x; ++l) gram[2 + a + l] += once(weighted, s->table[a + l]);
  }
}

// Adds the contributions of the row sums of the block.
inline void contract_rows(const StateLayout& layout, int64_t rows, NormalScratch* s) {
  const int32_t a = layout.tables_a, x = layout.tables_x, basis = layout.basis();
  for (int64_t i = 0; i < rows; ++i) {
    const auto sum = [&](Sum which) { return s->row_sum[which][i]; };
    const auto table = [&](int32_t k) { return s->row_table[k][i]; };
    for (int32_t k = 0; k < a; ++k) {
      const double t = table(k);
      double* gram = s->gram + (2 + k) * basis;
      gram[0] += t * sum(kS);
      gram[1] += t * sum(kSF);
      s->rhs[2 + k] += t * sum(kSB);
      for (int32_t l = k; l < a; ++l) {
        gram[2 + l] += t * (table(l) * sum(kSS) - s->row_ss[l][i]) - table(l) * s->row_ss[k][i];
      }
      for (int32_t l = a; l < a + x; ++l) {
        gram[2 + l] += t * (table(l) * sum(kSH) - s->row_sh[l][i]) - table(l) * s->row_sh[k][i];
      }
    }
    for (int32_t k = a; k < a + x; ++k) {
      const double t = table(k);
      double* gram = s->gram + (2 + k) * basis;
      gram[0] += t * sum(kH);
      gram[1] += t * sum(kHF);
      s->rhs[2 + k] += t * sum(kHB);
      for (int32_t l = k; l < a + x; ++l) {
        gram[2 + l] += t * (table(l) * sum(kHH) - s->row_hh[l][i]) - table(l) * s->row_hh[k][i];
      }
    }
  }
}

}  // namespace
}  // namespace jaxkern::xpcs::JAXKERN_LEVEL

#endif  // JAXKERN_XPCS_NORMAL_INL_H_
