// f and its derivatives for one row of a tile.
//
// exp(-2 |A_i - A_j|) is computed as a product of a row factor exp(+-2 (A_i - reference)) and a
// column factor exp(-+2 (A_j - reference)), with a reference near A_i. The smaller of the two
// products has the right sign. If a row is further than kReach from the reference, the reference
// moves to it and the column factors are recomputed, so that row factors neither overflow nor lose
// digits.
#ifndef JAXKERN_XPCS_EVALUATE_INL_H_
#define JAXKERN_XPCS_EVALUATE_INL_H_

#include <cstring>
#include <type_traits>

#include "core/simd-inl.h"
#include "xpcs/arithmetic.h"
#include "xpcs/levels.h"

namespace jaxkern::xpcs::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

constexpr double kReach = 12;

// The pitch of buffers is a cache line more than a tile. Otherwise a load would have the same low
// address bits as a preceding store to another buffer, and CPUs would stall on the false alias.
constexpr int64_t kPitch = kTile + 8;

// Buffers of a thread for one row: f, h = df/d(X_i - X_j), and s = sign(A_i - A_j) f. Entries after
// the width of the tile are undefined.
struct alignas(64) RowBuffers {
  double f[kPitch], h[kPitch], s[kPitch];
};

// `count` values from element `at` on.
inline void read_reals(const Reals& from, int64_t at, int64_t count, double* out) {
  if (from.single) {
    const float* values = static_cast<const float*>(from.data) + at;
    for (int64_t j = 0; j < count; ++j) out[j] = values[j];
  } else {
    std::memcpy(out, static_cast<const double*>(from.data) + at, count * sizeof(double));
  }
}

struct alignas(64) ColumnFactors {
  double reference = 0;
  bool filled = false;
  double rising[kPitch], falling[kPitch];  // exp(2 (A_j - reference)) and exp(-2 (A_j - reference))
};

// The columns [start, start + width) of all rows.
struct Tile {
  int64_t start, width;
  int64_t vectors() const { return (width + kDoubles - 1) / kDoubles; }
};

// The columns of a tile relative to its rows: all before them, all after them, or mixed. If A
// increases, the sign of A_i - A_j is known for the first two; otherwise it is computed per point.
enum class Side { kLeft, kRight, kMixed };

template <Side kSide>
inline void fill_factors(const Phases& phases, const Tile& tile, double reference,
                         ColumnFactors* factors) {
  factors->reference = reference;
  factors->filled = true;
  for (int64_t v = 0, vectors = tile.vectors(); v < vectors; ++v) {
    const Doubles twice = 2.0 * (load(phases.a + tile.start + v * kDoubles) - reference);
    if constexpr (kSide != Side::kRight) {
      store(factors->rising + v * kDoubles, exponential(600.0 < twice ? splat(600.0) : twice));
    }
    if constexpr (kSide != Side::kLeft) {
      store(factors->falling + v * kDoubles, exponential(twice < -600.0 ? splat(600.0) : -twice));
    }
  }
}

template <Side kSide>
inline void ensure_factors(const Phases& phases, const Tile& tile, int64_t row,
                           ColumnFactors* factors) {
  const double distance = phases.a[row] - factors->reference;
  // The comparison is also false for NaN, which must not keep old factors.
  if (!factors->filled || !(distance <= kReach && distance >= -kReach)) {
    fill_factors<kSide>(phases, tile, phases.a[row], factors);
  }
}

template <int kPower, bool kSlopes, Side kSide>
JAXKERN_HD void evaluate(const Phases& phases, const Tile& tile, int64_t row,
                         ColumnFactors* factors, RowBuffers* out) {
  ensure_factors<kSide>(phases, tile, row, factors);
  const double a = phases.a[row];
  const Doubles twice = splat(2.0 * (a - factors->reference));
  const Doubles rising = splat(exponential(twice)[0]), falling = splat(exponential(-twice)[0]);
  double x = 0, sin_x = 0, cos_x = 0;
  if constexpr (kPower != 0)
    x = phases.x[row], sin_x = phases.sin_x[row], cos_x = phases.cos_x[row];
  for (int64_t v = 0, vectors = tile.vectors(); v < vectors; ++v) {
    const int64_t at = v * kDoubles, column = tile.start + at;
    Doubles f;
    if constexpr (kSide == Side::kRight) {
      f = rising * load(factors->falling + at);
    } else if constexpr (kSide == Side::kLeft) {
      f = falling * load(factors->rising + at);
    } else {
      f = smaller(rising * load(factors->falling + at), falling * load(factors->rising + at));
    }
    if constexpr (kPower != 0) {
      const Doubles dx = x - load(phases.x + column);
      const Doubles sin_j = load(phases.sin_x + column), cos_j = load(phases.cos_x + column);
      const Doubles sin_d = sin_x * cos_j - cos_x * sin_j;
      const Doubles inverse = 1.0 / dx;
      Doubles sinc = sin_d * inverse, slope;
      if constexpr (kSlopes) {
        const Doubles cos_d = cos_x * cos_j + sin_x * sin_j;
        slope = (cos_d - sinc) * inverse;
      }
      const Mask close = magnitude(dx) < kSeriesBelow;
      if (any(close)) {
        sinc = close ? sinc_series(dx) : sinc;
        if constexpr (kSlopes) slope = close ? sinc_slope_series(dx) : slope;
      }
      if constexpr (kSlopes) store(out->h + at, f * shear_slope<kPower>(sinc, slope));
      f *= shear_factor<kPower>(sinc);
    }
    store(out->f + at, f);
    if constexpr (kSide == Side::kMixed) {
      const Doubles d = a - load(phases.a + column);
      store(out->s + at, 0.0 < d ? f : (d < 0.0 ? -f : Doubles{} * d));
    }
  }
}

// Calls `evaluate` for the power and the side at run time.
template <bool kSlopes>
inline void evaluate_row(const Phases& phases, const Tile& tile, Side side, int64_t row,
                         ColumnFactors* factors, RowBuffers* out) {
  const auto with_power = [&](auto power) {
    constexpr int kPower = decltype(power)::value;
    switch (side) {
      case Side::kLeft:
        return evaluate<kPower, kSlopes, Side::kLeft>(phases, tile, row, factors, out);
      case Side::kRight:
        return evaluate<kPower, kSlopes, Side::kRight>(phases, tile, row, factors, out);
      case Side::kMixed:
        return evaluate<kPower, kSlopes, Side::kMixed>(phases, tile, row, factors, out);
    }
  };
  switch (phases.power) {
    case 0:
      return with_power(std::integral_constant<int, 0>());
    case 2:
      return with_power(std::integral_constant<int, 2>());
    default:
      return with_power(std::integral_constant<int, 4>());
  }
}

}  // namespace
}  // namespace jaxkern::xpcs::JAXKERN_LEVEL

#endif  // JAXKERN_XPCS_EVALUATE_INL_H_
