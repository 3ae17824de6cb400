// Spreads the XPCS kernels over angles and row blocks, and each block over the instruction sets.
#include "xpcs/cpu.h"

#include <algorithm>
#include <cmath>

#include "xpcs/levels.h"

namespace jaxkern::xpcs {
namespace {

int64_t blocks_of(int64_t rows) { return (rows + kRowBlock - 1) / kRowBlock; }

// A row block of an angle.
struct Unit {
  int64_t angle, block;
};

}  // namespace

PhaseTables::PhaseTables(const Executor& executor, int64_t n, int32_t power,
                         const std::vector<Reals>& a, const std::vector<Reals>& x)
    : phases_(a.size()) {
  const int64_t stride = n + kPadding, arrays = power == 0 ? 1 : 4;
  values_.resize(a.size() * arrays * stride);
  parallel_for(executor, static_cast<int64_t>(a.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      double* own = values_.data() + k * arrays * stride;
      Phases& phases = phases_[k];
      phases = {n, power, true, own, nullptr, nullptr, nullptr};
      for (int64_t i = 0; i < n; ++i) {
        own[i] = a[k][i];
        phases.increasing = phases.increasing && (i == 0 || own[i - 1] < own[i]);
      }
      if (power == 0) continue;
      double *x_k = own + stride, *sin_k = x_k + stride, *cos_k = sin_k + stride;
      for (int64_t i = 0; i < n; ++i) {
        x_k[i] = x[k][i];
        sin_k[i] = std::sin(x_k[i]);
        cos_k[i] = std::cos(x_k[i]);
      }
      phases.x = x_k;
      phases.sin_x = sin_k;
      phases.cos_x = cos_k;
    }
  });
}

std::vector<double> padded(const Reals& tables, int64_t count, int64_t n) {
  std::vector<double> result(count * (n + kPadding));
  for (int64_t k = 0; k < count; ++k) {
    for (int64_t i = 0; i < n; ++i) result[k * (n + kPadding) + i] = tables[k * n + i];
  }
  return result;
}

void normal_equations(const Executor& executor, const std::vector<NormalWork>& work,
                      const std::vector<double*>& states) {
  // The longest rows of the upper triangle first, so that the threads end together.
  std::vector<Unit> units;
  std::vector<int64_t> first(work.size());
  int64_t size = 0, most = 0;
  for (const NormalWork& w : work) most = std::max(most, blocks_of(w.rows));
  for (int64_t block = 0; block < most; ++block) {
    for (size_t k = 0; k < work.size(); ++k) {
      if (block < blocks_of(work[k].rows)) units.push_back({static_cast<int64_t>(k), block});
    }
  }
  for (size_t k = 0; k < work.size(); ++k) {
    first[k] = size;
    size += blocks_of(work[k].rows) * work[k].layout.size();
  }
  std::vector<double> sums(size);
  parallel_for(executor, static_cast<int64_t>(units.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      const NormalWork& w = work[units[u].angle];
      const int64_t row = units[u].block * kRowBlock;
      normal_block(w, w.first_row + row, std::min(kRowBlock, w.rows - row),
                   sums.data() + first[units[u].angle] + units[u].block * w.layout.size(),
                   thread_scratch<kScratchBytes>());
    }
  });
  for (size_t k = 0; k < work.size(); ++k) {
    const double* block = sums.data() + first[k];
    const int32_t length = work[k].layout.size();
    for (int64_t b = 0; b < blocks_of(work[k].rows); ++b, block += length) {
      for (int32_t i = 0; i < length; ++i) states[k][i] += block[i];
    }
  }
}

void matrix(const Executor& executor, MatrixOp op, const std::vector<MatrixWork>& work,
            double (*sums)[2]) {
  std::vector<Unit> units;
  for (size_t k = 0; k < work.size(); ++k) {
    for (int64_t block = 0; block < blocks_of(work[k].phases.n); ++block) {
      units.push_back({static_cast<int64_t>(k), block});
    }
  }
  std::vector<double> shares(2 * units.size());
  parallel_for(executor, static_cast<int64_t>(units.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      const MatrixWork& w = work[units[u].angle];
      const int64_t row = units[u].block * kRowBlock;
      matrix_block(op, w, row, std::min(kRowBlock, w.phases.n - row), shares.data() + 2 * u,
                   thread_scratch<kScratchBytes>());
    }
  });
  if (op != MatrixOp::kCotangent) return;
  for (size_t k = 0; k < work.size(); ++k) sums[k][0] = sums[k][1] = 0;
  for (size_t u = 0; u < units.size(); ++u) {
    for (int c = 0; c < 2; ++c) sums[units[u].angle][c] += shares[2 * u + c];
  }
}

}  // namespace jaxkern::xpcs
