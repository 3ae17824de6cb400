// A batch of two angles for the XPCS CUDA kernels, with separate or shared operands.
#ifndef JAXKERN_TESTS_XPCS_BATCH_H_
#define JAXKERN_TESTS_XPCS_BATCH_H_

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "xpcs/cuda_tables.h"
#include "xpcs_case.h"

namespace jaxkern::xpcs::testing {

using Random = std::mt19937_64;

inline double rounded(bool single, double value) {
  return single ? static_cast<float>(value) : value;
}

// Reals in a buffer of the exact size, so that sanitizers find other accesses.
class RealArray {
 public:
  RealArray() = default;
  RealArray(bool single, const std::vector<double>& values) : single_(single) {
    if (single) {
      floats_.assign(values.begin(), values.end());
    } else {
      doubles_ = values;
    }
  }
  RealArray(bool single, int64_t count)
      : RealArray(single, std::vector<double>(count, std::nan(""))) {}
  void* data() {
    return single_ ? static_cast<void*>(floats_.data()) : static_cast<void*>(doubles_.data());
  }
  double operator[](int64_t i) const {
    return single_ ? static_cast<double>(floats_[i]) : doubles_[i];
  }
  int64_t size() const { return static_cast<int64_t>(floats_.size() + doubles_.size()); }

 private:
  bool single_ = false;
  std::vector<float> floats_;
  std::vector<double> doubles_;
};

// Operands of a batch: each has values for both samples, or a shared value.
class Batch {
 public:
  Batch(Random& random, bool single) : random_(random), single_(single) {}

  bool shared() { return random_() % 3 == 0; }

  template <int kOperands>
  void set(BatchSet<kOperands>& to, int which, const std::vector<double>& first,
           const std::vector<double>& second) {
    reals_.emplace_back(new RealArray(single_, both(first, second)));
    place(to, which, reals_.back()->data(), first.size(), first == second);
  }
  template <typename T, int kOperands>
  void set_raw(BatchSet<kOperands>& to, int which, const std::vector<T>& first,
               const std::vector<T>& second) {
    const std::vector<T> values = both(first, second);
    bytes_.emplace_back(new unsigned char[values.size() * sizeof(T) + (values.empty() ? 1 : 0)]);
    if (!values.empty()) std::memcpy(bytes_.back().get(), values.data(), values.size() * sizeof(T));
    place(to, which, bytes_.back().get(), first.size(), first == second);
  }

 private:
  template <typename T>
  std::vector<T> both(const std::vector<T>& first, const std::vector<T>& second) {
    std::vector<T> values = first;
    if (first != second) values.insert(values.end(), second.begin(), second.end());
    return values;
  }
  template <int kOperands>
  void place(BatchSet<kOperands>& to, int which, const void* data, size_t size, bool same) {
    BatchMap map;
    map.rank = 1;
    map.size[0] = 2;
    map.stride[0] = same ? 0 : static_cast<int64_t>(size);
    to.set(which, data, map);
  }

  Random& random_;
  bool single_;
  std::vector<std::unique_ptr<RealArray>> reals_;
  std::vector<std::unique_ptr<unsigned char[]>> bytes_;
};

// A case whose reals are rounded to the dtype, sometimes with more tables.
inline Case base_case(uint64_t seed, Random& random, bool single) {
  Case c = random_case(seed, seed % 10 == 9 ? 700 : 300);
  if (random() % 6 == 0) {
    c.layout.tables_a = static_cast<int32_t>(random() % 14);
    c.layout.tables_x = c.power == 0 ? 0 : static_cast<int32_t>(random() % 14);
    c.tables.resize((c.layout.tables_a + c.layout.tables_x) * c.n);
    for (double& value : c.tables) value = std::uniform_real_distribution<double>(-3, 3)(random);
  }
  for (double& sigma : c.sigmas) {
    if (sigma < 0 && random() % 2) sigma = std::nan("");
  }
  for (auto* values : {&c.a, &c.x, &c.tables, &c.sigmas}) {
    for (double& value : *values) value = rounded(single, value);
  }
  for (double* value : {&c.contrast, &c.offset, &c.sigma, &c.step, &c.zero, &c.f_scale}) {
    *value = rounded(single, *value);
  }
  return c;
}

// Recomputes the matrix from the rows of the kernel.
inline void read_back(Case* c) {
  for (size_t k = 0; k < c->data64.size() + c->data32.size() + c->data16.size(); ++k) {
    double& to = c->matrix[c->first_row * c->n + k];
    switch (c->type) {
      case DataType::kF64:
        to = c->data64[k];
        break;
      case DataType::kF32:
        to = c->data32[k];
        break;
      case DataType::kF16:
        to = float16_to_float(c->data16[k]);
        break;
      case DataType::kU16:
        to = c->zero + c->step * c->data16[k];
        break;
    }
  }
}

// Another angle of the batch. Rotations keep the symmetry.
inline Case variant(const Case& first, Batch& batch, bool single) {
  Case c = first;
  const auto scale = [&](double* value, double by) {
    if (!batch.shared()) *value = rounded(single, *value * by);
  };
  const auto turn = [&](auto* values) { std::reverse(values->begin(), values->end()); };
  if (!batch.shared()) turn(&c.a);
  if (!batch.shared()) turn(&c.x);
  if (!batch.shared()) turn(&c.tables);
  if (!batch.shared()) turn(&c.keep);
  if (!batch.shared()) turn(&c.sigmas);
  if (!batch.shared()) turn(&c.data64), turn(&c.data32), turn(&c.data16);
  scale(&c.contrast, 0.75);
  scale(&c.offset, 1.25);
  scale(&c.sigma, 0.5);
  scale(&c.f_scale, 1.5);
  if (c.symmetric != Symmetric::kAuto && c.sigmas.empty() && c.first_row > 0 && !batch.shared()) {
    --c.first_row;
  }
  return c;
}

struct Made {
  std::vector<Angle> angles;
  std::vector<double> tables;
  std::vector<int32_t> nonzero;
};

inline AngleCall angle_call(const Case& first, const Case& second, bool single, Batch& batch) {
  AngleCall call;
  call.single = single;
  call.power = first.power;
  call.n = call.rows = first.n;
  call.samples = 2;
  batch.set(call.operands, kPhaseA, first.a, second.a);
  batch.set(call.operands, kPhaseX, first.x, second.x);
  batch.set(call.operands, kContrast, {first.contrast}, {second.contrast});
  batch.set(call.operands, kOffset, {first.offset}, {second.offset});
  return call;
}

// Initial garbage: NaN in tables, and invalid offsets in angles.
inline void make_room(AngleCall* call, Made* made) {
  made->angles.resize(call->samples);
  std::memset(static_cast<void*>(made->angles.data()), 0xff, call->samples * sizeof(Angle));
  made->tables.assign(call->samples * tables_size(*call), std::nan(""));
  call->angles = made->angles.data();
  call->tables = made->tables.data();
  made->nonzero.assign(call->samples * (1 + call->tables_a), -1);
  if (call->components != 0) call->nonzero = made->nonzero.data();
}

}  // namespace jaxkern::xpcs::testing

#endif  // JAXKERN_TESTS_XPCS_BATCH_H_
