// Runs random models of components at every available SIMD level and with the bodies of the CUDA
// kernels, and compares the ops with their formulas in long double: usage: check_components
// [iterations] [first seed]
#include <cinttypes>
#include <complex>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/simd_dispatch.h"
#include "xpcs_grid.h"

namespace jaxkern::xpcs::testing {
namespace {

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

Components random_components(int64_t n, uint64_t seed, int32_t count, int32_t parameters) {
  std::mt19937_64 random(seed ^ 0x9e3779b97f4a7c15u);
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  Components m = {n, count, parameters, {}, {}, {}, {}};
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
struct Exact {
  Long f, slope[kComponentTables][kMaxComponents];
};

Exact exact_point(const Components& m, int64_t i, int64_t j) {
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
  Exact point = {std::norm(sum), {}};
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

Long exact_change(ComponentTable kind, const double* table, int64_t i, int64_t j) {
  return kind == kWeightTable ? static_cast<Long>(table[i]) + table[j]
                              : static_cast<Long>(table[i]) - table[j];
}

void exact_state(const Case& c, const Components& m, std::vector<Long>* state,
                 std::vector<Long>* scale) {
  const auto columns = [&](int64_t i, int64_t j, Long* column) {
    const Exact point = exact_point(m, i, j);
    column[1] = point.f;
    std::fill(column + 2, column + c.layout.basis(), 0);
    for (const ComponentTangent& t : m.tangents) {
      const Long change = exact_change(t.kind, t.table, i, j);
      column[2 + t.parameter] += point.slope[t.kind][t.component] * change;
    }
  };
  reference_state(c, columns, state, scale);
}

bool check(uint64_t seed, const char* level) {
  Case c = random_case(seed, 200);
  std::mt19937_64 random(seed);
  const Components m = random_components(c.n, seed, static_cast<int32_t>(1 + random() % 4),
                                         static_cast<int32_t>(random() % 8));
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
  exact_state(c, m, &expected, &scale);
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
    const Long want = c.offset + c.contrast * exact_point(m, at / c.n, at % c.n).f;
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
    const Exact point = exact_point(m, i, j);
    Long want = -0.2L + 0.3L * point.f;
    for (int k = 0; k < kComponentTables; ++k) {
      for (int32_t l = 0; l < m.count; ++l) {
        const Long change =
            exact_change(static_cast<ComponentTable>(k), matrix.tangent[k][l], i, j);
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

using Tables = std::vector<double>[kComponentTables];

void set_tables(AngleCall& call, Batch& batch, const int (&which)[kComponentTables],
                const Tables& first, const Tables& second) {
  for (int k = 0; k < kComponentTables; ++k) {
    batch.set(call.operands, which[k], first[k], second[k]);
  }
}

// The tangents of all parameters, tables and components, [parameters, components, n] each.
void all_tangents(const Components& m, Tables* tables) {
  for (std::vector<double>& table : *tables) table.assign(m.parameters * m.count * m.n, 0);
  for (const ComponentTangent& t : m.tangents) {
    std::copy(t.table, t.table + m.n,
              (*tables)[t.kind].begin() + (t.parameter * m.count + t.component) * m.n);
  }
}

// The bodies of the CUDA kernels on a batch of two angles.
template <typename Real, int kMost>
bool check_cuda(uint64_t seed, int32_t count) {
  constexpr bool kSingle = std::is_same_v<Real, float>;
  constexpr int kModel[] = {kWeights, kPhaseA, kPhaseX};
  constexpr int kTangents[] = {kTablesWeight, kTablesA, kTablesX};
  Random random(seed);
  Batch batch(random, kSingle);
  Report report{seed, kSingle};
  Case cases[2] = {base_case(seed, random, kSingle), {}};
  const int64_t n = cases[0].n;
  constexpr int32_t kParameters[] = {0, 1, 6, 14, kMaxComponentParameters};
  const int32_t parameters = kParameters[random() % (n > 300 ? 4 : 5)];
  cases[0].layout = {0, parameters};
  cases[0].tables.clear();
  cases[1] = variant(cases[0], batch, kSingle);
  Components m[2];
  Tables tangents[2], directions[2];
  for (int s = 0; s < 2; ++s) {
    read_back(&cases[s]);
    m[s] = random_components(n, seed + 1000 * s, count, parameters);
    const auto round = [](std::vector<double>& values) {
      for (double& value : values) value = rounded(kSingle, value);
    };
    for (auto& table : m[s].tables) round(table);
    for (auto& table : m[s].values) round(table);
    all_tangents(m[s], &tangents[s]);
    for (auto& direction : directions[s]) direction = random_reals(random, count * n, kSingle);
  }

  NormalCall normal = normal_call(cases, kSingle, batch);
  const auto set_model = [&](AngleCall& call) {
    set_tables(call, batch, kModel, m[0].tables, m[1].tables);
    call.power = 0;
    call.components = count;
  };
  set_model(normal.angle);
  set_tables(normal.angle, batch, kTangents, tangents[0], tangents[1]);
  normal.angle.tables_a = kComponentTables * count * parameters;
  normal.angle.tables_x = 0;
  const int64_t size = normal.layout.size();
  const std::vector<double> initial = random_reals(random, size, kSingle);
  batch.set(normal.angle.operands, kInitial, initial, initial);
  const Kept kept = kMost == kFewComponents ? Kept::kFew : Kept::kMost;
  const RealArray got = states(normal, kSingle, kept, 1 + random() % 2);
  for (int s = 0; s < 2; ++s) {
    std::vector<Long> expected, scale;
    exact_state(cases[s], m[s], &expected, &scale);
    for (int64_t e = 0; e < size; ++e) {
      // The terms of a derivative may cancel.
      const Long some = e < normal.layout.chi2() ? 1e-3L * count * count * scale[0] : 0;
      report.check("state", s * size + e, got[s * size + e], expected[e] + initial[e],
                   2 * (scale[e] + some + std::abs(initial[e])));
    }
  }
  batch.set_raw<int32_t>(normal.angle.operands, kFirstRow,
                         {static_cast<int32_t>(cases[0].first_row)}, {-1});
  const RealArray spoiled = states(normal, kSingle, kept, 2);
  for (int64_t k = 0; k < 2 * size; ++k) {
    if (k < size ? spoiled[k] != got[k] : !std::isnan(spoiled[k])) {
      report.check("a state with a first_row outside", k, spoiled[k], std::nan(""), 0);
    }
  }
  if (n > 300) return report.failures == 0;

  AngleCall angle = angle_call(cases[0], cases[1], kSingle, batch);
  set_model(angle);
  set_tables(angle, batch, kTangents, directions[0], directions[1]);
  angle.tables_a = kComponentTables * count;
  batch.set(angle.operands, kTangentContrast, {0.25}, {0.5});
  batch.set(angle.operands, kTangentOffset, {-0.125}, {2});
  batch.set(angle.operands, kSigma, {0.5}, {0.25});
  const std::vector<double> data[2] = {random_reals(random, n * n, kSingle),
                                       random_reals(random, n * n, kSingle)};
  batch.set(angle.operands, kData, data[0], data[1]);
  Made made;
  make_room(&angle, &made);
  MatrixCall call;
  call.angle = angle;
  RealArray out[] = {{kSingle, 2 * n * n}, {kSingle, 2 * n * n}, {kSingle, 2 * n * n}};
  call.out = out[0].data();
  run_matrix<ComponentMatrixBody<MatrixOp::kG2, Real, kMost>>(call);
  call.out = out[1].data();
  run_matrix<ComponentMatrixBody<MatrixOp::kTangent, Real, kMost>>(call);
  call.out = out[2].data();
  run_matrix<ComponentMatrixBody<MatrixOp::kResidual, Real, kMost>>(call);
  CotangentCall back;
  back.angle = angle;
  back.slopes = kComponentTables * count;
  std::vector<double> sums(2 * cotangent_pieces(back) * (back.slopes + 2) * n, std::nan(""));
  RealArray bars[] = {{kSingle, 2 * count * n}, {kSingle, 2 * count * n}, {kSingle, 2 * count * n}};
  RealArray scalars[] = {{kSingle, int64_t{2}}, {kSingle, int64_t{2}}};
  back.sums = sums.data();
  for (int k = 0; k < kComponentTables; ++k) back.bars[k] = bars[k].data();
  back.contrast = scalars[0].data();
  back.offset = scalars[1].data();
  run_cotangent<Real, SlopesOfComponents<kMost>>(back);

  const Long size_of_f = 4 * count * count;
  for (int s = 0; s < 2; ++s) {
    const Case& c = cases[s];
    std::vector<Long> bar[kComponentTables];
    for (auto& of_kind : bar) of_kind.resize(count * n);
    Long f_sum = 0, one_sum = 0;
    for (int64_t at = 0; at < n * n; ++at) {
      const int64_t i = at / n, j = at % n, place = s * n * n + at;
      const Exact point = exact_point(m[s], i, j);
      const Long value = c.offset + static_cast<Long>(c.contrast) * point.f;
      const Long g = data[s][at];
      Long tangent = (s == 0 ? -0.125L : 2) + (s == 0 ? 0.25L : 0.5L) * point.f;
      for (int k = 0; k < kComponentTables; ++k) {
        const auto kind = static_cast<ComponentTable>(k);
        for (int32_t l = 0; l < count; ++l) {
          const Long slope = c.contrast * point.slope[k][l];
          tangent += slope * exact_change(kind, directions[s][k].data() + l * n, i, j);
          bar[k][l * n + i] += slope * g;
          bar[k][l * n + j] += (k == kWeightTable ? 1 : -1) * slope * g;
        }
      }
      f_sum += g * point.f;
      one_sum += g;
      report.check("g2", place, out[0][place], value, size_of_f);
      report.check("tangent", place, out[1][place], tangent, 10 * size_of_f);
      const Long r = i == j ? 0 : (g - value) / (s == 0 ? 0.5L : 0.25L);
      report.check("residual", place, out[2][place], r, 4 * size_of_f);
    }
    for (int k = 0; k < kComponentTables; ++k) {
      for (int64_t at = 0; at < count * n; ++at) {
        report.check("a table's bar", at, bars[k][s * count * n + at], bar[k][at], n * size_of_f);
      }
    }
    report.check("contrast_bar", s, scalars[0][s], f_sum, n * n * size_of_f);
    report.check("offset_bar", s, scalars[1][s], one_sum, n * n);
  }
  return report.failures == 0;
}

}  // namespace
}  // namespace jaxkern::xpcs::testing

int main(int argc, char** argv) {
  const uint64_t iterations = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 12;
  const uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
  int failures = 0;
  using namespace jaxkern::xpcs;
  for (uint64_t seed = first; seed < first + iterations && failures < 10; ++seed) {
    failures +=
        !(seed % 2   ? testing::check_cuda<double, kFewComponents>(seed, 1 + seed / 2 % 2)
          : seed % 4 ? testing::check_cuda<double, kMaxComponents>(seed, seed % 8 == 2 ? 3 : 8)
                     : testing::check_cuda<float, kFewComponents>(seed, 2));
  }
  for (const char* const* level = jaxkern::available_simd_levels(); *level; ++level) {
    jaxkern::set_simd_level(*level);
    for (uint64_t seed = first; seed < first + iterations && failures < 10; ++seed) {
      failures += !jaxkern::xpcs::testing::check(seed, *level);
    }
  }
  std::printf("%" PRIu64 " cases at every level, %d failures\n", iterations, failures);
  return failures != 0;
}
