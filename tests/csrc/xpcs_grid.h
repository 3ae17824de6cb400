// Runs the bodies of the XPCS CUDA kernels over their grids on the CPU, thread by thread.
#ifndef JAXKERN_TESTS_XPCS_GRID_H_
#define JAXKERN_TESTS_XPCS_GRID_H_

#include <algorithm>
#include <functional>
#include <vector>

#include "xpcs/cuda_cotangent.h"
#include "xpcs/cuda_matrix.h"
#include "xpcs/cuda_normal.h"
#include "xpcs/points.h"

namespace jaxkern::xpcs::testing {

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
  run_items(angle_items(call), [&](int64_t flat) { prepare_angle(call, flat); });
}

template <MatrixOp op, typename Real>
inline void run_matrix(const MatrixCall& call) {
  using Body = MatrixBody<op, Real>;
  run_prepare(call.angle);
  for (int64_t flat = 0; flat < matrix_tiles(call); ++flat) {
    Garbage<typename Body::Shared> shared(1);
    step(kMatrixThreads, true, [&](int32_t t) { Body::load(call, flat, t, shared[0]); });
    step(kMatrixThreads, false, [&](int32_t t) { Body::compute(call, t, shared[0]); });
    step(kMatrixThreads, true, [&](int32_t t) { Body::mirror(call, t, shared[0]); });
  }
}

template <typename Real>
inline void run_cotangent(const CotangentCall& call) {
  using Body = CotangentBody<Real>;
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
  for (int64_t flat = 0; flat < normal_units<Columns>(call); ++flat) {
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

enum class Kept { kStatic, kLaminar, kParts };  // the sums that a thread keeps

inline void run_normal(NormalCall call, Kept kept, int64_t chunk) {
  run_prepare(call.angle);
  for (call.first = 0; call.first < call.angle.samples; call.first += chunk) {
    call.count = std::min(chunk, call.angle.samples - call.first);
    const bool robust = call.loss != Loss::kLinear;
    if (kept == Kept::kStatic) {
      robust ? run_normal<WholeGram<3, 0>, true>(call) : run_normal<WholeGram<3, 0>, false>(call);
    } else if (kept == Kept::kLaminar) {
      robust ? run_normal<WholeGram<3, 4>, true>(call) : run_normal<WholeGram<3, 4>, false>(call);
    } else {
      robust ? run_normal<GramPart, true>(call) : run_normal<GramPart, false>(call);
    }
    run_items(state_items(call), [&](int64_t flat) { add_blocks(call, flat); });
  }
}

}  // namespace jaxkern::xpcs::testing

#endif  // JAXKERN_TESTS_XPCS_GRID_H_
