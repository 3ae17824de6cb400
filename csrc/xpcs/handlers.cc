// The CPU handlers of the XPCS ops: they check everything, then run all angles in one parallel
// loop.
#include <algorithm>
#include <string>
#include <vector>

#include "core/simd_dispatch.h"
#include "core/streaming.h"
#include "xpcs/cpu.h"
#include "xpcs/operands.h"
#include "xpcs/ops.h"
#include "xpcs/points.h"

namespace jaxkern::xpcs {
namespace {

double real_at(const Operand& operand, int64_t sample) { return reals_at(operand, sample)[0]; }

void write_at(const Operand& operand, int64_t sample, int64_t index, double value) {
  write_real(operand.at<char>(sample), operand.dtype == ffi::F32, index, value);
}

PhaseTables tables_of(const Executor& executor, const AngleOperands& o) {
  const int64_t samples = o.call.samples();
  std::vector<Reals> a(samples), x(samples);
  for (int64_t i = 0; i < samples; ++i) {
    a[i] = reals_at(o.a, i);
    x[i] = reals_at(o.x, i);
  }
  return PhaseTables(executor, o.n, o.power, a, x);
}

// Sets the fields of all matrix ops.
template <typename Op>
void set_matrix(const Op& o, int64_t i, MatrixWork* work) {
  const int64_t points = o.call.samples() * o.n;
  work->single = o.single();
  work->streaming = points > largest_cached_result() / (o.single() ? 4 : 8) / o.n;
  work->contrast = real_at(o.contrast, i);
}

// Runs a matrix op over all angles; set(work, i) sets the fields of angle i.
template <typename Set>
ffi::Error run_matrix(const Executor& executor, MatrixOp op, const AngleOperands& o, const Set& set,
                      double (*sums)[2] = nullptr) {
  if (o.n == 0) return ffi::Error::Success();  // without a loop over the samples
  const PhaseTables tables = tables_of(executor, o);
  std::vector<MatrixWork> work(o.call.samples());
  for (int64_t i = 0; i < o.call.samples(); ++i) {
    work[i].phases = tables[i];
    set_matrix(o, i, &work[i]);
    set(work[i], i);
  }
  matrix(executor, op, work, sums);
  return ffi::Error::Success();
}

ffi::Error run(const Executor& executor, const TwoTimeG2& o) {
  return run_matrix(executor, MatrixOp::kG2, o, [&](MatrixWork& work, int64_t i) {
    work.offset = real_at(o.offset, i);
    work.out = o.out.at<char>(i);
  });
}

ffi::Error run(const Executor& executor, const TwoTimeG2Tangent& o) {
  std::vector<std::vector<double>> tangents;
  return run_matrix(executor, MatrixOp::kTangent, o, [&](MatrixWork& work, int64_t i) {
    tangents.push_back(padded(reals_at(o.tangent_a, i), 1, o.n));
    work.tangent_a = tangents.back().data();
    tangents.push_back(padded(reals_at(o.tangent_x, i), 1, o.n));
    work.tangent_x = tangents.back().data();
    work.tangent_contrast = real_at(o.tangent_contrast, i);
    work.tangent_offset = real_at(o.tangent_offset, i);
    work.out = o.out.at<char>(i);
  });
}

// Sets the fields of a residual.
template <typename Op>
void set_residual(const Op& o, int64_t i, MatrixWork* work) {
  work->offset = real_at(o.offset, i);
  work->data = reals_at(o.data, i);
  if (o.sigma_rank == 2) {
    work->sigma_matrix = reals_at(o.sigma, i);
  } else {
    work->sigma = real_at(o.sigma, i);
  }
  work->out = o.out.template at<char>(i);
}

ffi::Error run(const Executor& executor, const TwoTimeResidual& o) {
  return run_matrix(executor, MatrixOp::kResidual, o,
                    [&](MatrixWork& work, int64_t i) { set_residual(o, i, &work); });
}

ffi::Error run(const Executor& executor, const TwoTimeG2Cotangent& o) {
  const int64_t samples = o.call.samples();
  std::vector<double> phases(2 * samples * o.n), scalars(2 * samples);
  (void)run_matrix(
      executor, MatrixOp::kCotangent, o,
      [&](MatrixWork& work, int64_t i) {
        work.data = reals_at(o.cotangent, i);
        work.phase_a = phases.data() + 2 * i * o.n;
        work.phase_x = work.phase_a + o.n;
      },
      reinterpret_cast<double (*)[2]>(scalars.data()));
  for (int64_t i = 0; i < samples; ++i) {
    const double* phase = phases.data() + 2 * i * o.n;
    for (int64_t k = 0; k < o.n; ++k) {
      write_at(o.bar_a, i, k, phase[k]);
      write_at(o.bar_x, i, k, phase[o.n + k]);
    }
    write_at(o.bar_contrast, i, 0, scalars[2 * i]);
    write_at(o.bar_offset, i, 0, scalars[2 * i + 1]);
  }
  return ffi::Error::Success();
}

ffi::Error run(const Executor& executor, const TwoTimeG2At& o) {
  if (o.points == 0) return ffi::Error::Success();  // without a loop over the samples
  for (int64_t i = 0; i < o.call.samples(); ++i) {
    const PointWork work = {o.n,
                            o.angles,
                            o.power,
                            reals_at(o.a, i),
                            reals_at(o.x, i),
                            reals_at(o.contrast, i),
                            reals_at(o.offset, i)};
    parallel_for(executor, o.points, 1024, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        // Read once: an operand can be memory of the caller that another thread writes to.
        const volatile int32_t* const index = o.index.at<int32_t>(i) + 3 * k;
        const int32_t copy[3] = {index[0], index[1], index[2]};
        write_at(o.out, i, k, g2_at(work, copy));
      }
    });
  }
  return ffi::Error::Success();
}

// Runs normal equations over all angles, with fields of the model by set(work, i). Work is
// NormalWork, or derived from it.
template <typename Work, typename Op, typename Set, typename Run>
ffi::Error run_normal(const Op& o, const Set& set, const Run& run_all) {
  const int64_t samples = o.call.samples(), n = o.n;
  std::vector<Work> work(samples);
  for (int64_t i = 0; i < samples; ++i) {
    // Read once: an operand can be memory of the caller that another thread writes to.
    const int64_t row = *static_cast<const volatile int32_t*>(o.first_row.template at<int32_t>(i));
    if (row < 0 || row > n - o.rows) {
      return o.error("operand 'first_row': expected 0 to " + std::to_string(n - o.rows) + " for " +
                     std::to_string(o.rows) + " rows of data, got " + std::to_string(row));
    }
    work[i].first_row = row;
  }
  std::vector<std::vector<double>> states(samples);
  std::vector<std::vector<int64_t>> kept(samples, std::vector<int64_t>(n + 1));
  std::vector<double*> sums(samples);
  const int32_t size = o.layout.size();
  for (int64_t i = 0; i < samples; ++i) {
    Work& w = work[i];
    w.layout = o.layout;
    w.keep = o.keep.template at<uint8_t>(i);
    for (int64_t k = 0; k < n; ++k) kept[i][k + 1] = kept[i][k] + (w.keep[k] != 0);
    w.kept = kept[i].data();
    w.contrast = real_at(o.contrast, i);
    w.offset = real_at(o.offset, i);
    w.rows = o.rows;
    w.data = o.data.template at<char>(i);
    w.data_type = o.data_type;
    w.step = reals_at(o.quantization, i)[0];
    w.zero = reals_at(o.quantization, i)[1];
    if (o.sigma_rank == 2) {
      w.sigma_matrix = reals_at(o.sigma, i);
    } else {
      w.sigma = real_at(o.sigma, i);
    }
    w.loss = o.loss;
    w.f_scale = real_at(o.f_scale, i);
    w.symmetric = o.symmetric;
    states[i].resize(size);
    for (int32_t k = 0; k < size; ++k) states[i][k] = reals_at(o.initial, i)[k];
    sums[i] = states[i].data();
  }
  set(&work);
  run_all(work, sums);
  for (int64_t i = 0; i < samples; ++i) {
    for (int32_t k = 0; k < size; ++k) write_at(o.state, i, k, states[i][k]);
  }
  return ffi::Error::Success();
}

ffi::Error run(const Executor& executor, const TwoTimeNormalEquations& o) {
  const PhaseTables phases = tables_of(executor, o);
  std::vector<std::vector<double>> tables(o.call.samples());
  const auto set = [&](std::vector<NormalWork>* work) {
    for (int64_t i = 0; i < o.call.samples(); ++i) {
      (*work)[i].phases = phases[i];
      tables[i] = padded(reals_at(o.tangents_a, i), o.layout.tables_a, o.n);
      const std::vector<double> shear = padded(reals_at(o.tangents_x, i), o.layout.tables_x, o.n);
      tables[i].insert(tables[i].end(), shear.begin(), shear.end());
      (*work)[i].tables = tables[i].data();
    }
  };
  return run_normal<NormalWork>(
      o, set, [&](const auto& work, const auto& sums) { normal_equations(executor, work, sums); });
}

ComponentModels models_of(const Executor& executor, const ComponentOperands& o) {
  std::vector<Reals> tables[kComponentTables];
  for (int k = 0; k < kComponentTables; ++k) {
    for (int64_t i = 0; i < o.call.samples(); ++i) tables[k].push_back(reals_at(o.tables[k], i));
  }
  return ComponentModels(executor, o.n, static_cast<int32_t>(o.count), tables);
}

// As run_matrix, for a model of components.
template <typename Op, typename Set>
ffi::Error run_components(const Executor& executor, MatrixOp op, const Op& o, const Set& set,
                          double (*sums)[2] = nullptr) {
  if (o.n == 0) return ffi::Error::Success();  // without a loop over the samples
  const ComponentModels models = models_of(executor, o);
  std::vector<ComponentMatrixWork> work(o.call.samples());
  for (int64_t i = 0; i < o.call.samples(); ++i) {
    work[i].phases.n = o.n;
    work[i].model = models[i];
    set_matrix(o, i, &work[i]);
    set(work[i], i);
  }
  component_matrix(executor, op, work, sums);
  return ffi::Error::Success();
}

ffi::Error run(const Executor& executor, const ComponentG2& o) {
  return run_components(executor, MatrixOp::kG2, o, [&](ComponentMatrixWork& work, int64_t i) {
    work.offset = real_at(o.offset, i);
    work.out = o.out.at<char>(i);
  });
}

ffi::Error run(const Executor& executor, const ComponentG2Tangent& o) {
  std::vector<std::vector<double>> tangents;
  return run_components(executor, MatrixOp::kTangent, o, [&](ComponentMatrixWork& work, int64_t i) {
    for (int k = 0; k < kComponentTables; ++k) {
      tangents.push_back(padded(reals_at(o.tangents[k], i), o.count, o.n));
      for (int64_t c = 0; c < o.count; ++c) {
        work.tangent[k][c] = tangents.back().data() + c * (o.n + kPadding);
      }
    }
    work.tangent_contrast = real_at(o.tangent_contrast, i);
    work.tangent_offset = real_at(o.tangent_offset, i);
    work.out = o.out.at<char>(i);
  });
}

ffi::Error run(const Executor& executor, const ComponentG2Cotangent& o) {
  const int64_t samples = o.call.samples(), size = o.count * o.n;
  std::vector<double> tables(samples * kComponentTables * size), scalars(2 * samples);
  (void)run_components(
      executor, MatrixOp::kCotangent, o,
      [&](ComponentMatrixWork& work, int64_t i) {
        work.data = reals_at(o.cotangent, i);
        for (int k = 0; k < kComponentTables; ++k) {
          for (int64_t c = 0; c < o.count; ++c) {
            work.cotangent[k][c] = tables.data() + (i * kComponentTables + k) * size + c * o.n;
          }
        }
      },
      reinterpret_cast<double (*)[2]>(scalars.data()));
  for (int64_t i = 0; i < samples; ++i) {
    for (int k = 0; k < kComponentTables; ++k) {
      const double* const from = tables.data() + (i * kComponentTables + k) * size;
      for (int64_t at = 0; at < size; ++at) write_at(o.bars[k], i, at, from[at]);
    }
    write_at(o.bar_contrast, i, 0, scalars[2 * i]);
    write_at(o.bar_offset, i, 0, scalars[2 * i + 1]);
  }
  return ffi::Error::Success();
}

ffi::Error run(const Executor& executor, const ComponentResidual& o) {
  return run_components(executor, MatrixOp::kResidual, o,
                        [&](ComponentMatrixWork& work, int64_t i) { set_residual(o, i, &work); });
}

// The tables of a sample's tangents that are not all zeros.
struct NonzeroTangents {
  std::vector<ComponentTangent> tangents;
  std::vector<double> values;
};

NonzeroTangents nonzero_tangents(const ComponentNormalEquations& o, int64_t sample) {
  const int64_t n = o.n, stride = n + kPadding;
  NonzeroTangents result;
  for (int64_t p = 0; p < o.parameters; ++p) {
    for (int k = 0; k < kComponentTables; ++k) {
      for (int64_t c = 0; c < o.count; ++c) {
        const Reals from = reals_at(o.tangents[k], sample);
        const int64_t first = (p * o.count + c) * n, at = result.values.size();
        // The values are copied before the test, since another thread may write to an operand.
        result.values.resize(at + stride);
        for (int64_t i = 0; i < n; ++i) result.values[at + i] = from[first + i];
        if (std::all_of(result.values.begin() + at, result.values.end(),
                        [](double value) { return value == 0; })) {
          result.values.resize(at);
          continue;
        }
        result.tangents.push_back({static_cast<int32_t>(p), static_cast<int32_t>(c),
                                   static_cast<ComponentTable>(k), nullptr});
      }
    }
  }
  for (size_t k = 0; k < result.tangents.size(); ++k) {
    result.tangents[k].table = result.values.data() + k * stride;
  }
  return result;
}

ffi::Error run(const Executor& executor, const ComponentNormalEquations& o) {
  const ComponentModels models = models_of(executor, o);
  std::vector<NonzeroTangents> tangents(o.call.samples());
  parallel_for(executor, o.call.samples(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) tangents[i] = nonzero_tangents(o, i);
  });
  const auto set = [&](std::vector<ComponentNormalWork>* work) {
    for (int64_t i = 0; i < o.call.samples(); ++i) {
      ComponentNormalWork& w = (*work)[i];
      w.phases.n = o.n;
      w.model = models[i];
      w.tangents = tangents[i].tangents.data();
      w.tangent_count = static_cast<int32_t>(tangents[i].tangents.size());
    }
  };
  return run_normal<ComponentNormalWork>(o, set, [&](const auto& work, const auto& sums) {
    component_normal_equations(executor, work, sums);
  });
}

template <typename Op>
ffi::Error on_cpu(const Op& operands, ffi::ThreadPool pool) {
  if (!operands.call.ok()) return operands.call.error();
  if (const char* problem = simd_problem()) return operands.error(problem);
  for (const ffi::AnyBuffer& result : operands.results) advise_results(result);
  return run(executor_of(pool), operands);
}

}  // namespace
}  // namespace jaxkern::xpcs

#define JAXKERN_XPCS_ON_CPU(name, target) \
  JAXKERN_CPU_HANDLER(name, jaxkern::xpcs::on_cpu<jaxkern::xpcs::name>)
JAXKERN_XPCS_OPS(JAXKERN_XPCS_ON_CPU)
