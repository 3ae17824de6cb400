// Runs random models of components at every available SIMD level, and compares the ops with their
// formulas in long double: usage: check_components [iterations] [first seed]
#include <cinttypes>
#include <complex>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/simd_dispatch.h"
#include "xpcs_case.h"

namespace jaxkern::xpcs::testing {
namespace {

using Long = long double;
using Complex = std::complex<Long>;

// A model with `count` components and `parameters` parameters, and a direction.
struct Components {
  int64_t n;
  int32_t count, parameters;
  std::vector<double> tables[kComponentTables];     // [count, n] each
  std::vector<double> direction[kComponentTables];  // [count, n + kPadding] each
  std::vector<ComponentTangent> tangents;           // of some parameters and tables
  std::vector<std::vector<double>> values;          // [n + kPadding], of the tangents
};

Components random_components(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed ^ 0x9e3779b97f4a7c15u);
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  Components m = {
      n, static_cast<int32_t>(1 + random() % 4), static_cast<int32_t>(random() % 8), {}, {}, {},
      {}};
  for (int32_t c = 0; c < m.count; ++c) {
    double decay = uniform(-3, 3), phase = uniform(-50, 50);
    const double step = std::pow(10., uniform(-4, 1)), turn = uniform(0, 2);
    const bool increasing = random() % 2;
    for (int64_t i = 0; i < n; ++i) {
      m.tables[kWeightTable].push_back(random() % 50 == 0 ? -70 : uniform(-2, 0));
      m.tables[kDecayTable].push_back(decay);
      m.tables[kPhaseTable].push_back(phase);
      decay += increasing ? uniform(0, step) : uniform(-step, step);
      phase += uniform(-turn, turn);
    }
    for (std::vector<double>& direction : m.direction) {
      for (int64_t i = 0; i < n; ++i) direction.push_back(uniform(-1, 1));
      direction.resize(direction.size() + kPadding);
    }
  }
  for (int32_t p = 0; p < m.parameters; ++p) {
    for (int32_t c = 0; c < m.count; ++c) {
      for (int k = 0; k < kComponentTables; ++k) {
        if (random() % 2) continue;
        m.values.emplace_back();
        for (int64_t i = 0; i < n; ++i) m.values.back().push_back(uniform(-1, 1));
        m.values.back().resize(n + kPadding);
        m.tangents.push_back({p, c, static_cast<ComponentTable>(k), nullptr});
      }
    }
  }
  for (size_t k = 0; k < m.values.size(); ++k) m.tangents[k].table = m.values[k].data();
  return m;
}

// f, and the slopes [kind][component].
struct Point {
  Long f, slope[kComponentTables][kMaxComponents];
};

Point point_of(const Components& m, int64_t i, int64_t j) {
  Complex term[kMaxComponents], sum = 0;
  Long decay[kMaxComponents];
  for (int32_t c = 0; c < m.count; ++c) {
    const auto table = [&](ComponentTable k, int64_t at) -> Long {
      return m.tables[k][c * m.n + at];
    };
    decay[c] = table(kDecayTable, i) - table(kDecayTable, j);
    const Long size = table(kWeightTable, i) + table(kWeightTable, j) - std::abs(decay[c]);
    term[c] = std::polar(std::exp(size), table(kPhaseTable, i) - table(kPhaseTable, j));
    sum += term[c];
  }
  Point point = {std::norm(sum), {}};
  for (int32_t c = 0; c < m.count; ++c) {
    const Complex product = 2.L * std::conj(sum) * term[c];
    point.slope[kWeightTable][c] = product.real();
    point.slope[kDecayTable][c] = decay[c] == 0  ? 0
                                  : decay[c] > 0 ? -product.real()
                                                 : product.real();
    point.slope[kPhaseTable][c] = -product.imag();
  }
  return point;
}

Long change_of(ComponentTable kind, const double* table, int64_t i, int64_t j) {
  return kind == kWeightTable ? static_cast<Long>(table[i]) + table[j]
                              : static_cast<Long>(table[i]) - table[j];
}

bool check(uint64_t seed, const char* level) {
  Case c = random_case(seed, 200);
  const Components m = random_components(c.n, seed);
  c.layout = {0, m.parameters};
  std::vector<Reals> tables[kComponentTables];
  for (int k = 0; k < kComponentTables; ++k) tables[k] = {{m.tables[k].data(), false}};
  const ComponentModels models({}, c.n, m.count, tables);
  const auto fail = [&](const char* what, int64_t at, double got, Long want) {
    std::printf("seed %" PRIu64 ", %s: %s %ld is %.17g, expected %.17Lg\n", seed, level, what, at,
                got, want);
    return false;
  };

  ComponentNormalWork work;
  c.tables.clear();
  const StateLayout layout = c.layout;
  c.layout = {0, 0};  // for the fields without tables
  static_cast<NormalWork&>(work) = work_of(&c, {});
  c.layout = work.layout = layout;
  work.phases.n = c.n;
  work.model = models[0];
  work.tangents = m.tangents.data();
  work.tangent_count = static_cast<int32_t>(m.tangents.size());
  std::vector<double> state(layout.size());
  component_normal_equations({}, {work}, {state.data()});
  std::vector<Long> expected, scale;
  const auto columns = [&](int64_t i, int64_t j, Long* column) {
    const Point point = point_of(m, i, j);
    column[1] = point.f;
    std::fill(column + 2, column + layout.basis(), 0);
    for (const ComponentTangent& t : m.tangents) {
      const Long change = change_of(t.kind, t.table, i, j);
      column[2 + t.parameter] += point.slope[t.kind][t.component] * change;
    }
  };
  reference_state(c, columns, &expected, &scale);
  for (int32_t at = 0; at < layout.size(); ++at) {
    if (at == layout.mirrored() && c.symmetric == Symmetric::kAuto) continue;  // depends on tiles
    // The terms of a derivative may cancel, and the weights are up to 1.
    const Long largest =
        at < layout.chi2() ? scale[at] + 1e-3L * scale[layout.gram(0, 0)] : scale[at];
    if (!(std::abs(state[at] - expected[at]) <= 2e-12L * largest)) {
      return fail("normal equations, entry", at, state[at], expected[at]);
    }
  }

  const int64_t points = c.n * c.n;
  std::vector<double> out(points), bars[kComponentTables], G(points);
  ComponentMatrixWork matrix;
  matrix.phases.n = c.n;
  matrix.model = models[0];
  matrix.contrast = c.contrast;
  matrix.offset = c.offset;
  matrix.out = out.data();
  component_matrix({}, MatrixOp::kG2, {matrix});
  for (int64_t at = 0; at < points; ++at) {
    const Long want = c.offset + c.contrast * point_of(m, at / c.n, at % c.n).f;
    if (!(std::abs(out[at] - want) <= 1e-12L * (1 + std::abs(want)))) {
      return fail("g2, point", at, out[at], want);
    }
  }
  for (int k = 0; k < kComponentTables; ++k) {
    bars[k].resize(m.count * c.n);
    for (int32_t i = 0; i < m.count; ++i) {
      matrix.tangent[k][i] = m.direction[k].data() + i * (c.n + kPadding);
      matrix.cotangent[k][i] = bars[k].data() + i * c.n;
    }
  }
  matrix.tangent_contrast = 0.3;
  matrix.tangent_offset = -0.2;
  component_matrix({}, MatrixOp::kTangent, {matrix});
  Long product = 0, magnitude = 1;  // of the tangent and a cotangent G
  for (int64_t at = 0; at < points; ++at) {
    const int64_t i = at / c.n, j = at % c.n;
    const Point point = point_of(m, i, j);
    Long want = -0.2L + 0.3L * point.f;
    for (int k = 0; k < kComponentTables; ++k) {
      for (int32_t l = 0; l < m.count; ++l) {
        const Long change = change_of(static_cast<ComponentTable>(k), matrix.tangent[k][l], i, j);
        want += c.contrast * point.slope[k][l] * change;
      }
    }
    if (!(std::abs(out[at] - want) <= 1e-11L)) return fail("tangent, point", at, out[at], want);
    G[at] = c.matrix[at];
    product += G[at] * out[at];
    magnitude += std::abs(G[at] * out[at]);
  }
  matrix.data = {G.data(), false};
  double sums[1][2] = {};
  component_matrix({}, MatrixOp::kCotangent, {matrix}, sums);
  Long by_cotangent = 0.3L * sums[0][0] - 0.2L * sums[0][1];
  for (int k = 0; k < kComponentTables; ++k) {
    for (int32_t l = 0; l < m.count; ++l) {
      for (int64_t i = 0; i < c.n; ++i)
        by_cotangent += bars[k][l * c.n + i] * matrix.tangent[k][l][i];
    }
  }
  if (!(std::abs(by_cotangent - product) <= 1e-10L * magnitude)) {
    return fail("cotangent, product", 0, static_cast<double>(by_cotangent), product);
  }
  return true;
}

}  // namespace
}  // namespace jaxkern::xpcs::testing

int main(int argc, char** argv) {
  const uint64_t iterations = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 12;
  const uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
  int failures = 0;
  for (const char* const* level = jaxkern::available_simd_levels(); *level; ++level) {
    jaxkern::set_simd_level(*level);
    for (uint64_t seed = first; seed < first + iterations && failures < 10; ++seed) {
      failures += !jaxkern::xpcs::testing::check(seed, *level);
    }
  }
  std::printf("%" PRIu64 " cases at every level, %d failures\n", iterations, failures);
  return failures != 0;
}
