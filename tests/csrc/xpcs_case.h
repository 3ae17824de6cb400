// Data of a random angle, and its normal equations point by point in long double.
#ifndef JAXKERN_TESTS_XPCS_CASE_H_
#define JAXKERN_TESTS_XPCS_CASE_H_

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "core/half.h"
#include "xpcs/cpu.h"

namespace jaxkern::xpcs::testing {

struct Case {
  int64_t n = 0, first_row = 0, rows = 0;
  int32_t power = 4;
  StateLayout layout{};
  std::vector<double> a, x, tables, tables_padded;  // tables: A's, then X's, [n] each
  std::vector<uint8_t> keep;
  std::vector<int64_t> kept;
  double contrast = 0.3, offset = 1;
  std::vector<double> matrix, sigmas;  // [n, n], all rows; sigmas may be empty
  std::vector<double> data64;          // the rows of the kernel
  std::vector<float> data32;
  std::vector<uint16_t> data16;
  DataType type = DataType::kF64;
  double sigma = 0.1, step = 1, zero = 0, f_scale = 1;
  Loss loss = Loss::kLinear;
  Symmetric symmetric = Symmetric::kNo;
};

inline Case random_case(uint64_t seed, int64_t n_most = 300) {
  std::mt19937_64 random(seed);
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  const auto pick = [&](int64_t count) { return static_cast<int64_t>(random() % count); };
  Case c;
  c.n = 1 + pick(n_most);
  c.power = static_cast<int32_t>(2 * pick(3));
  c.layout.tables_a = static_cast<int32_t>(pick(6));
  c.layout.tables_x = c.power == 0 ? 0 : static_cast<int32_t>(pick(6));
  c.contrast = uniform(0.05, 0.6);
  c.offset = uniform(0.5, 1.5);
  c.symmetric = static_cast<Symmetric>(pick(3));
  c.loss = pick(2) ? Loss::kLinear : static_cast<Loss>(pick(kLosses));
  c.f_scale = uniform(0.3, 3);
  c.type = static_cast<DataType>(pick(4));
  c.sigma = pick(20) == 0 ? 1e-11 : uniform(0.02, 2);
  c.rows = c.n;
  if (c.symmetric != Symmetric::kAuto && pick(2)) {
    c.first_row = pick(c.n);
    c.rows = 1 + pick(c.n - c.first_row);
  }
  // Phases: increasing like those of models, not monotonic, far apart, or constant.
  const int64_t kind = pick(4);
  const double a_step = std::pow(10., uniform(-5, 1)), x_step = std::pow(10., uniform(-5, 1));
  double a = uniform(-3, 3), x = uniform(-1000, 1000);
  for (int64_t i = 0; i < c.n; ++i) {
    c.a.push_back(a);
    c.x.push_back(x);
    a += kind == 1 ? uniform(-a_step, a_step) : kind == 2 && pick(3) ? 0 : uniform(0, a_step);
    x += kind == 1 ? uniform(-x_step, x_step) : kind == 3 ? 0 : uniform(0, x_step);
    c.keep.push_back(pick(12) != 0 || seed % 3 == 0);
  }
  c.kept.push_back(0);
  for (uint8_t k : c.keep) c.kept.push_back(c.kept.back() + (k != 0));
  for (int32_t k = 0; k < c.layout.tables_a + c.layout.tables_x; ++k) {
    double value = uniform(-10, 10);
    const double slope = uniform(-1, 1);
    for (int64_t i = 0; i < c.n; ++i) {
      c.tables.push_back(value);
      value += slope * uniform(0, 1);
    }
  }
  const bool mirrored = pick(3) != 0, own_sigma = pick(3) == 0;
  c.matrix.resize(c.n * c.n);
  if (own_sigma) c.sigmas.resize(c.n * c.n);
  for (int64_t i = 0; i < c.n; ++i) {
    for (int64_t j = 0; j < c.n; ++j) {
      const bool copy = mirrored && j < i && !(i == c.n / 2 && j == 0 && seed % 2);
      c.matrix[i * c.n + j] = copy ? c.matrix[j * c.n + i] : uniform(0.5, 2);
      if (own_sigma) {
        c.sigmas[i * c.n + j] = copy ? c.sigmas[j * c.n + i] : pick(9) ? uniform(.05, 1) : -1.;
      }
    }
  }
  if (c.type == DataType::kU16) c.step = 1. / 40000, c.zero = 0.4;
  for (double& value : c.matrix) {  // round to the type of the data
    switch (c.type) {
      case DataType::kF64:
        break;
      case DataType::kF32:
        value = static_cast<float>(value);
        break;
      case DataType::kF16:
        value = float16_to_float(float_to_float16(static_cast<float>(value)));
        break;
      case DataType::kU16:
        value = c.zero + c.step * std::round((value - c.zero) / c.step);
        break;
    }
  }
  // The kernel gets only its rows, so that sanitizers find other accesses.
  for (int64_t at = c.first_row * c.n; at < (c.first_row + c.rows) * c.n; ++at) {
    const double value = c.matrix[at];
    if (c.type == DataType::kF64) c.data64.push_back(value);
    if (c.type == DataType::kF32) c.data32.push_back(static_cast<float>(value));
    if (c.type == DataType::kF16) c.data16.push_back(float_to_float16(static_cast<float>(value)));
    if (c.type == DataType::kU16) {
      c.data16.push_back(static_cast<uint16_t>(std::lround((value - c.zero) / c.step)));
    }
  }
  if (own_sigma) {
    c.sigmas = std::vector<double>(c.sigmas.begin() + c.first_row * c.n,
                                   c.sigmas.begin() + (c.first_row + c.rows) * c.n);
  }
  return c;
}

inline NormalWork work_of(Case* c, const Phases& phases) {
  NormalWork work;
  work.phases = phases;
  work.layout = c->layout;
  c->tables_padded =
      padded({c->tables.data(), false}, c->layout.tables_a + c->layout.tables_x, c->n);
  work.tables = c->tables_padded.data();
  work.keep = c->keep.data();
  work.kept = c->kept.data();
  work.contrast = c->contrast;
  work.offset = c->offset;
  work.first_row = c->first_row;
  work.rows = c->rows;
  work.data = c->type == DataType::kF64   ? static_cast<const void*>(c->data64.data())
              : c->type == DataType::kF32 ? static_cast<const void*>(c->data32.data())
                                          : static_cast<const void*>(c->data16.data());
  work.data_type = c->type;
  work.step = c->step;
  work.zero = c->zero;
  work.sigma = c->sigma;
  if (!c->sigmas.empty()) work.sigma_matrix = {c->sigmas.data(), false};
  work.loss = c->loss;
  work.f_scale = c->f_scale;
  work.symmetric = c->symmetric;
  return work;
}

// f, and its derivatives by A_i - A_j and X_i - X_j.
struct Model {
  long double f, a, h;
};

inline Model model_of(const Case& c, int64_t i, int64_t j) {
  using Long = long double;
  const Long da = static_cast<Long>(c.a[i]) - c.a[j], dx = static_cast<Long>(c.x[i]) - c.x[j];
  const Long decay = std::exp(-2 * std::abs(da));
  Long sinc = 1, slope = 0;
  if (c.power != 0) {
    // The Taylor series about 0, where the quotients would lose digits.
    if (std::abs(dx) < 0.3L) {
      Long term = 1;
      sinc = 1;
      for (int k = 1; k < 15; ++k) {
        slope += 2 * k * (term * -dx / (2 * k * (2 * k + 1)));
        term *= -dx * dx / (2 * k * (2 * k + 1));
        sinc += term;
      }
    } else {
      sinc = std::sin(dx) / dx;
      slope = (std::cos(dx) - sinc) / dx;
    }
  }
  const Long factor = c.power == 0 ? 1 : std::pow(sinc, static_cast<Long>(c.power));
  const Long f = decay * factor;
  const Long h =
      c.power == 0 ? 0 : decay * c.power * std::pow(sinc, static_cast<Long>(c.power - 1)) * slope;
  return {f, -2 * f * (da > 0 ? 1 : da < 0 ? -1 : 0), h};
}

// The state, and for each entry the sum of the magnitudes of its terms. columns(i, j, column) sets
// f and the derivatives, column[1] to column[basis - 1].
template <typename Columns>
void reference_state(const Case& c, const Columns& columns, std::vector<long double>* state,
                     std::vector<long double>* scale) {
  using Long = long double;
  const StateLayout& layout = c.layout;
  const int32_t basis = layout.basis();
  state->assign(layout.size(), 0);
  scale->assign(layout.size(), 0);
  const auto add = [&](int32_t at, Long value) {
    (*state)[at] += value;
    (*scale)[at] += std::abs(value);
  };
  std::vector<Long> column(basis);
  const auto sigma_at = [&](int64_t i, int64_t j) {
    return c.sigmas.empty() ? c.sigma : c.sigmas[(i - c.first_row) * c.n + j];
  };
  const auto same = [&](int64_t i, int64_t j) {  // as the kernel compares, by tile
    return c.matrix[i * c.n + j] == c.matrix[j * c.n + i] && sigma_at(i, j) == sigma_at(j, i);
  };
  for (int64_t i = c.first_row; i < c.first_row + c.rows; ++i) {
    for (int64_t j = 0; j < c.n; ++j) {
      if (i == j || !c.keep[i] || !c.keep[j]) continue;
      if (c.symmetric == Symmetric::kYes && j < i) continue;
      const Long sigma = sigma_at(i, j);
      if (!(sigma > kLeastSigma)) continue;
      const Long multiplicity = c.symmetric == Symmetric::kYes ? 2 : 1;
      column[0] = 1;
      columns(i, j, column.data());
      const Long r = (c.matrix[i * c.n + j] - (c.offset + c.contrast * column[1])) / sigma;
      const Long z = (r / c.f_scale) * (r / c.f_scale);
      const LossValue loss = loss_value(c.loss, static_cast<double>(z));
      const Long weight = multiplicity * loss.slope / (sigma * sigma);
      for (int32_t k = 0; k < basis; ++k) {
        for (int32_t l = k; l < basis; ++l) {
          add(layout.gram(k, l), weight * column[k] * column[l]);
        }
        add(layout.rhs(k), weight * column[k] * r * sigma);
      }
      add(layout.chi2(), multiplicity * r * r);
      add(layout.cost(), multiplicity * c.f_scale * c.f_scale * static_cast<Long>(loss.rho));
      add(layout.count(), multiplicity);
      const bool pair = c.symmetric == Symmetric::kAuto && same(std::min(i, j), std::max(i, j));
      if (c.symmetric == Symmetric::kYes || pair) add(layout.mirrored(), multiplicity);
    }
  }
}

inline void reference_state(const Case& c, std::vector<long double>* state,
                            std::vector<long double>* scale) {
  const auto columns = [&](int64_t i, int64_t j, long double* column) {
    const Model m = model_of(c, i, j);
    column[1] = m.f;
    for (int32_t k = 0; k < c.layout.basis() - 2; ++k) {
      const double* const table = c.tables.data() + k * c.n;
      const long double difference = static_cast<long double>(table[i]) - table[j];
      column[2 + k] = (k < c.layout.tables_a ? m.a : m.h) * difference;
    }
  };
  reference_state(c, columns, state, scale);
}

}  // namespace jaxkern::xpcs::testing

#endif  // JAXKERN_TESTS_XPCS_CASE_H_
