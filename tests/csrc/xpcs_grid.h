// Runs the bodies of the XPCS CUDA kernels over their grids on the CPU, thread by thread.
#ifndef JAXKERN_TESTS_XPCS_GRID_H_
#define JAXKERN_TESTS_XPCS_GRID_H_

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <functional>
#include <vector>

#include "xpcs/cuda_components.h"
#include "xpcs/cuda_cotangent.h"
#include "xpcs/cuda_matrix.h"
#include "xpcs/cuda_normal.h"
#include "xpcs/points.h"
#include "xpcs_batch.h"

namespace jaxkern::xpcs::testing {

using Long = long double;

struct Report {
  uint64_t seed;
  bool single;
  int failures = 0;
  // `magnitude` is the sum of the magnitudes of all terms; float results have one more rounding.
  void check(const char* what, int64_t at, double got, Long expected, Long magnitude) {
    const Long allowed = 1e-12L * magnitude + (single ? 1e-7L * std::abs(expected) : 0);
    if (std::abs(got - expected) <= allowed && !std::isnan(got)) return;
    if (failures++ < 3) {
      std::printf("seed %" PRIu64 " (%s): %s at %" PRId64 " is %.17g, expected %.17Lg\n", seed,
                  single ? "float" : "double", what, at, got, expected);
    }
  }
};

inline std::vector<double> random_reals(Random& random, int64_t count, bool single) {
  std::vector<double> values(count);
  for (double& v : values) {
    v = rounded(single, std::uniform_real_distribution<double>(-2, 2)(random));
  }
  return values;
}

// As on the device, shared memory and registers are initially garbage.
template <typename T>
struct Garbage {
  explicit Garbage(int64_t count) : memory(count * sizeof(T), 0xff) {}
  T& operator[](int64_t i) { return reinterpret_cast<T*>(memory.data())[i]; }
  std::vector<unsigned char> memory;
};

inline void run_items(int64_t items, const std::function<void(int64_t)>& body) {
  for (int64_t flat = items - 1; flat >= 0; --flat) body(flat);
}

// One step of a block: between two barriers, threads run in any order.
template <typename Step>
inline void step(int32_t threads, bool backwards, Step body) {
  for (int32_t t = 0; t < threads; ++t) body(backwards ? threads - 1 - t : t);
}

inline void run_prepare(const AngleCall& call) {
  if (call.nonzero != nullptr) {
    std::fill(call.nonzero, call.nonzero + call.samples * (1 + call.tables_a), 0);
  }
  run_items(angle_items(call), [&](int64_t flat) { prepare_angle(call, flat); });
  if (call.nonzero != nullptr) {
    run_items(call.samples, [&](int64_t sample) { list_nonzero(call, sample); });
  }
}

template <typename Body>
inline void run_matrix(const MatrixCall& call) {
  run_prepare(call.angle);
  for (int64_t flat = 0; flat < matrix_tiles(call); ++flat) {
    Garbage<typename Body::Shared> shared(1);
    step(kMatrixThreads, true, [&](int32_t t) { Body::load(call, flat, t, shared[0]); });
    step(kMatrixThreads, false, [&](int32_t t) { Body::compute(call, t, shared[0]); });
    step(kMatrixThreads, true, [&](int32_t t) { Body::mirror(call, t, shared[0]); });
  }
}

template <typename Real, typename Slopes>
inline void run_cotangent(const CotangentCall& call) {
  using Body = CotangentBody<Real, Slopes>;
  run_prepare(call.angle);
  for (int64_t flat = 0; flat < cotangent_units(call); ++flat) {
    Garbage<typename Body::Shared> shared(1);
    Garbage<typename Body::Thread> state(kCotangentThreads);
    step(kCotangentThreads, false, [&](int32_t t) { Body::begin(call, flat, t, state[t]); });
    for (int32_t s = 0; s < Body::steps(call, state[0]); ++s) {
      step(kCotangentThreads, true,
           [&](int32_t t) { Body::load(call, s, t, state[t], shared[0]); });
      step(kCotangentThreads, false,
           [&](int32_t t) { Body::compute(call, s, t, shared[0], state[t]); });
    }
    step(kCotangentThreads, true, [&](int32_t t) { Body::end(call, state[t]); });
  }
  run_items(cotangent_frames(call), [&](int64_t flat) { add_cotangent(call, flat); });
  for (int64_t sample = 0; sample < call.angle.samples; ++sample) {
    Garbage<CotangentTotal> shared(1);
    step(kCotangentThreads, true, [&](int32_t t) { gather_total(call, sample, t, shared[0]); });
    step(kCotangentThreads, true, [&](int32_t t) { fold_total(call, sample, t, shared[0]); });
  }
}

template <typename Columns, bool kRobust>
inline void run_normal(const NormalCall& call) {
  using Body = NormalBody<Columns, kRobust>;
  for (int64_t flat = 0; flat < normal_units(call, Columns::parts(call.layout)); ++flat) {
    Garbage<typename Body::Shared> shared(1);
    Garbage<typename Body::Thread> state(kNormalThreads);
    step(kNormalThreads, true, [&](int32_t t) { Body::load(call, flat, t, shared[0], state[t]); });
    if (!state[0].active) continue;
    step(kNormalThreads, false, [&](int32_t t) { Body::accumulate(call, t, shared[0], state[t]); });
    for (int32_t fold = 0; fold < Body::kFolds; ++fold) {
      step(kNormalThreads, true, [&](int32_t t) { Body::stage(fold, t, state[t], shared[0]); });
      step(kNormalThreads, false, [&](int32_t t) { Body::fold(t, shared[0]); });
      step(kNormalThreads, true,
           [&](int32_t t) { Body::write(call, fold, t, state[t], shared[0]); });
    }
  }
}

template <int kMost, bool kRobust>
inline void run_component_normal(const NormalCall& call) {
  using Body = ComponentNormalBody<kMost, kRobust>;
  for (int64_t flat = 0; flat < normal_units(call, 1); ++flat) {
    Garbage<typename Body::Shared> shared(1);
    Garbage<typename Body::Thread> state(kNormalThreads);
    const auto all = [&](bool backwards, const auto& body) {
      step(kNormalThreads, backwards, [&](int32_t t) { body(t, state[t]); });
    };
    all(true, [&](int32_t t, auto& own) { Body::load(call, flat, t, shared[0], own); });
    if (!state[0].active) continue;
    for (int32_t s = 0; s < Body::steps(call, state[0]); ++s) {
      all(false, [&](int32_t t, auto& own) { Body::begin(call, s, t, own); });
      for (int32_t i = 0; i < state[0].step_rows; ++i) {
        all(true, [&](int32_t t, auto& own) { Body::evaluate(call, i, shared[0], own, t); });
        all(false, [&](int32_t t, auto& own) { Body::add(call, t, shared[0], own); });
      }
    }
    all(false, [&](int32_t t, auto& own) { Body::stage(t, own, shared[0]); });
    all(true, [&](int32_t t, auto& own) { Body::write(call, t, own, shared[0]); });
  }
}

// The sums that a thread keeps, and the number of components that a body takes.
enum class Kept { kStatic, kLaminar, kParts, kFew, kMost };

inline void run_normal(NormalCall call, Kept kept, int64_t chunk) {
  run_prepare(call.angle);
  for (call.first = 0; call.first < call.angle.samples; call.first += chunk) {
    call.count = std::min(chunk, call.angle.samples - call.first);
    const bool robust = call.loss != Loss::kLinear;
    if (kept == Kept::kStatic) {
      robust ? run_normal<WholeGram<3, 0>, true>(call) : run_normal<WholeGram<3, 0>, false>(call);
    } else if (kept == Kept::kLaminar) {
      robust ? run_normal<WholeGram<3, 4>, true>(call) : run_normal<WholeGram<3, 4>, false>(call);
    } else if (kept == Kept::kFew) {
      robust ? run_component_normal<kFewComponents, true>(call)
             : run_component_normal<kFewComponents, false>(call);
    } else if (kept == Kept::kMost) {
      robust ? run_component_normal<kMaxComponents, true>(call)
             : run_component_normal<kMaxComponents, false>(call);
    } else {
      robust ? run_normal<GramPart, true>(call) : run_normal<GramPart, false>(call);
    }
    run_items(state_items(call), [&](int64_t flat) { add_blocks(call, flat); });
  }
}

template <typename T>
void set_data(AngleCall* call, Batch& batch, const std::vector<T>& first,
              const std::vector<T>& second) {
  batch.set_raw(call->operands, kData, first, second);
}

inline NormalCall normal_call(const Case (&cases)[2], bool single, Batch& batch) {
  const Case &c = cases[0], &d = cases[1];
  NormalCall call = {};
  AngleCall& angle = call.angle;
  angle = angle_call(c, d, single, batch);
  angle.rows = c.rows;
  angle.tables_a = c.layout.tables_a;
  angle.tables_x = c.layout.tables_x;
  const auto half = [&](const Case& of, bool shear) {
    const auto middle = of.tables.begin() + c.layout.tables_a * c.n;
    return shear ? std::vector<double>(middle, of.tables.end())
                 : std::vector<double>(of.tables.begin(), middle);
  };
  batch.set(angle.operands, kTablesA, half(c, false), half(d, false));
  batch.set(angle.operands, kTablesX, half(c, true), half(d, true));
  if (c.type == DataType::kF64) set_data(&angle, batch, c.data64, d.data64);
  if (c.type == DataType::kF32) set_data(&angle, batch, c.data32, d.data32);
  if (c.type == DataType::kF16 || c.type == DataType::kU16) {
    set_data(&angle, batch, c.data16, d.data16);
  }
  batch.set(angle.operands, kQuantization, {c.step, c.zero}, {d.step, d.zero});
  angle.sigma_rank = c.sigmas.empty() ? 0 : 2;
  if (c.sigmas.empty()) {
    batch.set(angle.operands, kSigma, {c.sigma}, {d.sigma});
  } else {
    batch.set(angle.operands, kSigma, c.sigmas, d.sigmas);
  }
  batch.set_raw(angle.operands, kKeep, c.keep, d.keep);
  batch.set(angle.operands, kFScale, {c.f_scale}, {d.f_scale});
  batch.set_raw<int32_t>(angle.operands, kFirstRow, {static_cast<int32_t>(c.first_row)},
                         {static_cast<int32_t>(d.first_row)});
  call.layout = c.layout;
  call.data_type = c.type;
  call.loss = c.loss;
  call.symmetric = c.symmetric;
  return call;
}

inline RealArray states(NormalCall call, bool single, Kept kept, int64_t chunk) {
  Made made;
  make_room(&call.angle, &made);
  std::vector<double> blocks(
      chunk * row_blocks(call) * slices_of(call.angle.n) * call.layout.size(), std::nan(""));
  RealArray out(single, int64_t{2} * call.layout.size());
  call.blocks = blocks.data();
  call.state = out.data();
  run_normal(call, kept, chunk);
  return out;
}

}  // namespace jaxkern::xpcs::testing

#endif  // JAXKERN_TESTS_XPCS_GRID_H_
