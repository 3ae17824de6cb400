// Runs the XPCS kernels over angles and row blocks in parallel, at the selected SIMD level.
#include "xpcs/cpu.h"

#include <algorithm>
#include <cmath>

#include "xpcs/levels.h"

namespace jaxkern::xpcs {
namespace {

// The rows of one angle, and the number of sums of each row block.
struct AngleRows {
  int64_t rows;
  int32_t size;
  double* total;  // [size], to which the sums of blocks are added in order; or null
};

struct RowBlock {
  size_t angle;
  int64_t row, rows;
  double* sums;
};

// run(block) for the row blocks of every angle, in parallel.
template <typename Run>
void for_row_blocks(const Executor& executor, const std::vector<AngleRows>& angles,
                    const Run& run) {
  std::vector<std::vector<double>> sums;
  int64_t max_rows = 0;
  for (const AngleRows& angle : angles) {
    sums.emplace_back((angle.rows + kRowBlock - 1) / kRowBlock * angle.size);
    max_rows = std::max(max_rows, angle.rows);
  }
  // Blocks with the longest rows of the upper triangle come first, to balance the threads.
  std::vector<RowBlock> blocks;
  for (int64_t row = 0; row < max_rows; row += kRowBlock) {
    for (size_t k = 0; k < angles.size(); ++k) {
      const auto [rows, size, total] = angles[k];
      if (row >= rows) continue;
      blocks.push_back(
          {k, row, std::min(kRowBlock, rows - row), sums[k].data() + row / kRowBlock * size});
    }
  }
  parallel_for(executor, static_cast<int64_t>(blocks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) run(blocks[b]);
  });
  for (size_t k = 0; k < angles.size(); ++k) {
    for (size_t i = 0; angles[k].total != nullptr && i < sums[k].size(); ++i) {
      angles[k].total[i % angles[k].size] += sums[k][i];
    }
  }
}

}  // namespace

PhaseTables::PhaseTables(const Executor& executor, int64_t n, int32_t power,
                         const std::vector<Reals>& a, const std::vector<Reals>& x)
    : phases_(a.size()) {
  const int64_t stride = n + kPadding, arrays = power == 0 ? 1 : 4;
  values_.resize(a.size() * arrays * stride);
  parallel_for(executor, static_cast<int64_t>(a.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      double* a_k = values_.data() + k * arrays * stride;
      Phases& phases = phases_[k];
      phases = {n, power, true, a_k, nullptr, nullptr, nullptr};
      for (int64_t i = 0; i < n; ++i) {
        a_k[i] = a[k][i];
        phases.increasing = phases.increasing && (i == 0 || a_k[i - 1] < a_k[i]);
      }
      if (power == 0) continue;
      double *x_k = a_k + stride, *sin_k = x_k + stride, *cos_k = sin_k + stride;
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

ComponentModels::ComponentModels(const Executor& executor, int64_t n, int32_t count,
                                 const std::vector<Reals> (&tables)[kComponentTables])
    : count_(count) {
  const int64_t samples = static_cast<int64_t>(tables[0].size()), stride = n + kPadding;
  values_.resize(samples * count * kComponentTables * stride);
  components_.resize(samples * count);
  parallel_for(executor, samples * count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      double* const a = values_.data() + k * kComponentTables * stride;
      double *const real = a + stride, *const imaginary = real + stride;
      const int64_t sample = k / count, first = k % count * n;
      for (int64_t i = 0; i < n; ++i) {
        const double weight = std::exp(tables[kWeightTable][sample][first + i]);
        const double phase = tables[kPhaseTable][sample][first + i];
        a[i] = 0.5 * tables[kDecayTable][sample][first + i];
        real[i] = weight * std::cos(phase);
        imaginary[i] = weight * std::sin(phase);
      }
      components_[k] = {{n, 0, false, a, nullptr, nullptr, nullptr}, real, imaginary};
    }
  });
}

namespace {

template <typename Work, typename Block>
void sum_blocks(const Executor& executor, const std::vector<Work>& work,
                const std::vector<double*>& states, const Block& run) {
  std::vector<AngleRows> angles;
  for (size_t k = 0; k < work.size(); ++k) {
    angles.push_back({work[k].rows, work[k].layout.size(), states[k]});
  }
  for_row_blocks(executor, angles, [&](const RowBlock& block) {
    const Work& w = work[block.angle];
    run(w, w.first_row + block.row, block.rows, block.sums, thread_scratch<kScratchBytes>());
  });
}

template <typename Work, typename Block>
void run_blocks(const Executor& executor, MatrixOp op, const std::vector<Work>& work,
                double (*sums)[2], const Block& run) {
  std::vector<AngleRows> angles;
  for (size_t k = 0; k < work.size(); ++k) {
    angles.push_back({work[k].phases.n, 2, sums == nullptr ? nullptr : sums[k]});
  }
  for_row_blocks(executor, angles, [&](const RowBlock& block) {
    run(op, work[block.angle], block.row, block.rows, block.sums, thread_scratch<kScratchBytes>());
  });
}

}  // namespace

void normal_equations(const Executor& executor, const std::vector<NormalWork>& work,
                      const std::vector<double*>& states) {
  sum_blocks(executor, work, states, normal_block);
}

void component_normal_equations(const Executor& executor,
                                const std::vector<ComponentNormalWork>& work,
                                const std::vector<double*>& states) {
  sum_blocks(executor, work, states, component_normal_block);
}

void matrix(const Executor& executor, MatrixOp op, const std::vector<MatrixWork>& work,
            double (*sums)[2]) {
  run_blocks(executor, op, work, sums, matrix_block);
}

void component_matrix(const Executor& executor, MatrixOp op,
                      const std::vector<ComponentMatrixWork>& work, double (*sums)[2]) {
  run_blocks(executor, op, work, sums, component_matrix_block);
}

}  // namespace jaxkern::xpcs
