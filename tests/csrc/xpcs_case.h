// A random angle's data, and its normal equations point by point in long double.
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
  std::vector<double> data64;          // the rows, as the kernel gets them
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
  // Phases: rising as the models', wandering as a user's may, far apart, or standing still.
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
  for (double& value : c.matrix) {  // what the data's type can hold
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
  // The kernel gets its rows alone, so that reading elsewhere is caught.
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

// Both in xpcs_reference.cc.
Model model_of(const Case& c, int64_t i, int64_t j);

// The state, and for each entry the sum of the magnitudes that went into it.
void reference_state(const Case& c, std::vector<long double>* state,
                     std::vector<long double>* scale);

}  // namespace jaxkern::xpcs::testing

#endif  // JAXKERN_TESTS_XPCS_CASE_H_
