// The sums of the normal equations that a CUDA thread keeps in registers: all sums of a small
// model, or the products of two groups of columns of a large model.
//
// Each type defines the tables that a block needs, the columns of a point, and the index of each
// sum in the state.
#ifndef JAXKERN_XPCS_CUDA_COLUMNS_H_
#define JAXKERN_XPCS_CUDA_COLUMNS_H_

#include <cstdint>

#include "xpcs/cuda_tables.h"

namespace jaxkern::xpcs {

// Contributions of a point other than its columns: weight, weighted residual, and counts.
struct Weight {
  double om, b, chi2, cost;
  int32_t count, mirrored;
};

constexpr int32_t kTailSums = 4;  // chi2, cost, count, mirrored: the state's last entries

// The columns of up to kA tables of A and kX of X, in the order of the state.
template <int kA, int kX>
struct WholeGram {
  static constexpr int32_t kTables = kA + kX, kBasis = 2 + kA + kX;
  static constexpr int32_t kProducts = kBasis * (kBasis + 1) / 2;
  static constexpr int32_t kEntries = kProducts + kBasis;
  static constexpr bool kSlopes = kTables > 0;

  struct Part {};
  JAXKERN_HD int32_t parts(const StateLayout&) { return 1; }
  JAXKERN_HD Part part_of(int32_t) { return {}; }

  // The index of the k-th table in the model, or -1.
  JAXKERN_HD int32_t table(const StateLayout& layout, Part, int32_t k) {
    if (k < kA) return k < layout.tables_a ? k : -1;
    return k - kA < layout.tables_x ? layout.tables_a + k - kA : -1;
  }

  struct Sums {
    double entry[kEntries];
  };

  template <typename Row, typename Column>
  JAXKERN_HD void add(const StateLayout&, Part, const Point& p, const Weight& w, const Row& row,
                      const Column& column, Sums& sums) {
    double value[kBasis];
    value[0] = 1;
    value[1] = p.f;
    JAXKERN_UNROLL
    for (int32_t k = 0; k < kTables; ++k) {
      value[2 + k] = (k < kA ? p.a : p.h) * (row(k) - column(k));
    }
    int32_t at = 0;
    JAXKERN_UNROLL
    for (int32_t k = 0; k < kBasis; ++k) {
      const double weighted = w.om * value[k];
      JAXKERN_UNROLL
      for (int32_t l = k; l < kBasis; ++l) sums.entry[at++] += weighted * value[l];
    }
    JAXKERN_UNROLL
    for (int32_t k = 0; k < kBasis; ++k) sums.entry[at++] += value[k] * w.b;
  }

  // The index of sum e in the state, or -1.
  JAXKERN_HD int32_t state_index(const StateLayout& layout, Part, int32_t e) {
    const auto column = [&](int32_t k) {
      if (k < 2) return k;
      const int32_t t = table(layout, {}, k - 2);
      return t < 0 ? -1 : 2 + t;
    };
    if (e >= kProducts) {
      const int32_t k = column(e - kProducts);
      return k < 0 ? -1 : layout.rhs(k);
    }
    int32_t k = 0;
    for (int32_t length = kBasis; e >= length; --length) {
      e -= length;
      ++k;
    }
    const int32_t first = column(k), second = column(k + e);
    return first < 0 || second < 0 ? -1 : layout.gram(first, second);
  }
};

// Products of groups p <= q of kGroup columns each, as many as remain in registers; the part number
// is q (q + 1) / 2 + p. Pairs of the same group also have the right-hand sides.
struct GramPart {
  static constexpr int32_t kGroup = 6, kTables = 2 * kGroup;
  static constexpr int32_t kProducts = kGroup * kGroup, kEntries = kProducts + kGroup;
  static constexpr bool kSlopes = true;

  JAXKERN_HD int32_t groups(const StateLayout& layout) {
    return (layout.basis() + kGroup - 1) / kGroup;
  }
  JAXKERN_HD int32_t parts(const StateLayout& layout) {
    return groups(layout) * (groups(layout) + 1) / 2;
  }

  struct Part {
    int32_t p, q;
  };
  JAXKERN_HD Part part_of(int32_t number) {
    int32_t q = 0;
    while ((q + 1) * (q + 2) / 2 <= number) ++q;
    return {number - q * (q + 1) / 2, q};
  }

  // The index of the k-th table in the model, those of p first, then those of q; or -1.
  JAXKERN_HD int32_t table(const StateLayout& layout, Part part, int32_t k) {
    const int32_t column = k < kGroup ? part.p * kGroup + k : part.q * kGroup + k - kGroup;
    return column < 2 || column >= layout.basis() ? -1 : column - 2;
  }

  struct Sums {
    double entry[kEntries];
  };

  template <typename Row, typename Column>
  JAXKERN_HD void add(const StateLayout& layout, Part part, const Point& p, const Weight& w,
                      const Row& row, const Column& column, Sums& sums) {
    const auto value = [&](int32_t c, int32_t k) {
      if (c == 0) return 1.;
      if (c == 1) return p.f;
      if (c >= layout.basis()) return 0.;
      return (c < 2 + layout.tables_a ? p.a : p.h) * (row(k) - column(k));
    };
    double second[kGroup];
    JAXKERN_UNROLL
    for (int32_t l = 0; l < kGroup; ++l) {
      second[l] = value(part.q * kGroup + l, kGroup + l);
      sums.entry[kProducts + l] += second[l] * w.b;
    }
    JAXKERN_UNROLL
    for (int32_t k = 0; k < kGroup; ++k) {
      const double weighted = w.om * value(part.p * kGroup + k, k);
      JAXKERN_UNROLL
      for (int32_t l = 0; l < kGroup; ++l) sums.entry[k * kGroup + l] += weighted * second[l];
    }
  }

  JAXKERN_HD int32_t state_index(const StateLayout& layout, Part part, int32_t e) {
    const int32_t l = part.q * kGroup + e % kGroup;
    if (l >= layout.basis()) return -1;
    if (e >= kProducts) return part.p == part.q ? layout.rhs(l) : -1;
    const int32_t k = part.p * kGroup + e / kGroup;
    return k <= l ? layout.gram(k, l) : -1;
  }
};

}  // namespace jaxkern::xpcs

#endif  // JAXKERN_XPCS_CUDA_COLUMNS_H_
