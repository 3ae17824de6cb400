// The body of the CUDA cotangent of g2, as host and device functions of a flat index and a thread's
// number. A thread computes frame k, from a piece of the other frames i:
//
//   A_bar[k] = contrast sum_i a_ki (G_ki + G_ik), X_bar[k] the same with h (both change sign
//   if i and k are exchanged); contrast_bar = sum G f, offset_bar = sum G.
//
// A model of components has three such slopes for each component, m for its weight.
// G_ik is read along its rows; G_ki, a column of the block, through shared memory. The sums of the
// pieces are written to scratch and added in order, so the result is reproducible.
#ifndef JAXKERN_XPCS_CUDA_COTANGENT_H_
#define JAXKERN_XPCS_CUDA_COTANGENT_H_

#include <cstdint>

#include "xpcs/cuda_components.h"
#include "xpcs/cuda_tables.h"

namespace jaxkern::xpcs {

constexpr int32_t kCotangentThreads = 128;  // frames of a block
constexpr int32_t kCotangentStep = 16;      // frames i between two barriers
constexpr int32_t kCotangentPiece = 256;    // frames i of a block

// The slopes of models.
struct LaminarSlopes {
  static constexpr int32_t kKinds = 2, kSlopes = 2;
  using Frame = xpcs::Frame;

  JAXKERN_HD Frame frame(const AngleCall& call, const double* tables, int64_t i) {
    return frame_at(tables, call.n, call.power, i);
  }

  // Calls add(index, slope) for each slope, and returns f.
  template <typename Add>
  JAXKERN_HD double point(const AngleCall& call, const Frame& i, const Frame& j, const Add& add) {
    const Point p = point_of<true>(call.power, i, j, decay_of(i, j));
    add(0, p.a);
    if (call.power != 0) add(1, p.h);
    return p.f;
  }
};

template <int kMost>
struct SlopesOfComponents {
  static constexpr int32_t kKinds = kComponentTables, kSlopes = kComponentTables * kMost;
  using Frame = ComponentFrame<kMost>;

  JAXKERN_HD Frame frame(const AngleCall& call, const double* tables, int64_t i) {
    return component_frame<kMost>(call, tables, i);
  }

  template <typename Add>
  JAXKERN_HD double point(const AngleCall& call, const Frame& i, const Frame& j, const Add& add) {
    const auto p = component_point<true>(call.components, i, j);
    JAXKERN_UNROLL
    for (int32_t s = 0; s < kSlopes; ++s) add(s, p.slope[s / kMost][s % kMost]);
    return p.f;
  }
};

struct CotangentCall {
  AngleCall angle;                    // `data` is the cotangent
  int32_t slopes = 2;                 // 3 for each component
  double* sums = nullptr;             // [samples][pieces][slopes + 2][n]: of slopes, G f and G
  void* bars[kComponentTables] = {};  // [samples, slopes of the kind, n]
  void* contrast = nullptr;           // [samples]
  void* offset = nullptr;             // [samples]
};

JAXKERN_HD int32_t slopes_of_kind(const CotangentCall& call) {
  return call.angle.components == 0 ? 1 : call.angle.components;
}

JAXKERN_HD int64_t cotangent_pieces(const CotangentCall& call) {
  return (call.angle.n + kCotangentPiece - 1) / kCotangentPiece;
}

JAXKERN_HD int64_t cotangent_strips(const CotangentCall& call) {
  return (call.angle.n + kCotangentThreads - 1) / kCotangentThreads;
}

JAXKERN_HD int64_t cotangent_units(const CotangentCall& call) {
  return call.angle.samples * cotangent_pieces(call) * cotangent_strips(call);
}

JAXKERN_HD double* cotangent_sums(const CotangentCall& call, int64_t sample, int64_t piece) {
  return call.sums + (sample * cotangent_pieces(call) + piece) * (call.slopes + 2) * call.angle.n;
}

template <typename Real, typename Slopes>
struct CotangentBody {
  struct Shared {
    Real transposed[kCotangentThreads]
                   [kCotangentStep + 1];  // G_ki of the block's k and the step's i
  };
  struct Thread {
    int64_t sample, piece, k0, k;
    typename Slopes::Frame frame;
    double slope[Slopes::kSlopes], f, one;
  };

  JAXKERN_HD void begin(const CotangentCall& call, int64_t flat, int32_t thread, Thread& state) {
    const int64_t strips = cotangent_strips(call), pieces = cotangent_pieces(call);
    const int64_t n = call.angle.n;
    state = {};
    state.k0 = flat % strips * kCotangentThreads;
    state.k = state.k0 + thread;
    state.piece = flat / strips % pieces;
    state.sample = flat / strips / pieces;
    if (state.k < n) {
      state.frame = Slopes::frame(call.angle, tables_of(call.angle, state.sample), state.k);
    }
  }

  JAXKERN_HD int32_t steps(const CotangentCall& call, const Thread& state) {
    const int64_t remaining = call.angle.n - state.piece * kCotangentPiece;
    const int64_t frames = remaining < kCotangentPiece ? remaining : kCotangentPiece;
    return static_cast<int32_t>((frames + kCotangentStep - 1) / kCotangentStep);
  }

  JAXKERN_HD const Real* matrix(const CotangentCall& call, const Thread& state) {
    return static_cast<const Real*>(call.angle.operands.data[kData]) +
           call.angle.angles[state.sample].data;
  }

  JAXKERN_HD void load(const CotangentCall& call, int32_t step, int32_t thread, const Thread& state,
                       Shared& shared) {
    const int64_t n = call.angle.n;
    const int64_t i0 = state.piece * kCotangentPiece + step * kCotangentStep;
    const Real* const from = matrix(call, state);
    constexpr int32_t kRows = kCotangentThreads / kCotangentStep;  // read by the block at once
    const int32_t i = thread % kCotangentStep;
    for (int32_t r = thread / kCotangentStep; r < kCotangentThreads; r += kRows) {
      if (state.k0 + r < n && i0 + i < n) {
        shared.transposed[r][i] = from[(state.k0 + r) * n + i0 + i];
      }
    }
  }

  JAXKERN_HD void compute(const CotangentCall& call, int32_t step, int32_t thread,
                          const Shared& shared, Thread& state) {
    const int64_t n = call.angle.n;
    if (state.k >= n) return;
    const int64_t i0 = state.piece * kCotangentPiece + step * kCotangentStep;
    const double* const tables = tables_of(call.angle, state.sample);
    const Real* const from = matrix(call, state) + i0 * n + state.k;
    for (int32_t s = 0; s < kCotangentStep && i0 + s < n; ++s) {
      const double g = from[s * n], both = g + static_cast<double>(shared.transposed[thread][s]);
      const double f =
          Slopes::point(call.angle, state.frame, Slopes::frame(call.angle, tables, i0 + s),
                        [&](int32_t k, double slope) { state.slope[k] += slope * both; });
      state.f += f * g;
      state.one += g;
    }
  }

  JAXKERN_HD void end(const CotangentCall& call, const Thread& state) {
    if (state.k >= call.angle.n) return;
    const int64_t n = call.angle.n;
    double* const to = cotangent_sums(call, state.sample, state.piece) + state.k;
    constexpr int32_t kEach = Slopes::kSlopes / Slopes::kKinds;
    const int32_t each = slopes_of_kind(call);  // at most kEach
    JAXKERN_UNROLL
    for (int32_t s = 0; s < Slopes::kSlopes; ++s) {
      if (s % kEach < each) to[(s / kEach * each + s % kEach) * n] = state.slope[s];
    }
    to[call.slopes * n] = state.f;
    to[(call.slopes + 1) * n] = state.one;
  }
};

JAXKERN_HD int64_t cotangent_frames(const CotangentCall& call) {
  return call.angle.samples * call.angle.n;
}

// Adds the pieces of one frame. Its contributions to the scalars replace the first piece.
JAXKERN_HD void add_cotangent(const CotangentCall& call, int64_t flat) {
  const int64_t n = call.angle.n, sample = flat / n, k = flat % n;
  const double contrast = call.angle.angles[sample].contrast;
  const int32_t each = slopes_of_kind(call);
  for (int32_t s = 0; s < call.slopes + 2; ++s) {
    double sum = 0;
    for (int64_t piece = 0; piece < cotangent_pieces(call); ++piece) {
      sum += cotangent_sums(call, sample, piece)[s * n + k];
    }
    if (s < call.slopes) {
      write_real(call.bars[s / each], call.angle.single, (sample * each + s % each) * n + k,
                 contrast * sum);
    } else {
      cotangent_sums(call, sample, 0)[s * n + k] = sum;
    }
  }
}

// The scalars of one angle: one block an angle, with a barrier before `fold_total`.
struct CotangentTotal {
  double f[kCotangentThreads], one[kCotangentThreads];
};

JAXKERN_HD void gather_total(const CotangentCall& call, int64_t sample, int32_t thread,
                             CotangentTotal& shared) {
  const int64_t n = call.angle.n;
  double f = 0, one = 0;
  const double* const from = cotangent_sums(call, sample, 0);
  for (int64_t k = thread; k < n; k += kCotangentThreads) {
    f += from[call.slopes * n + k];
    one += from[(call.slopes + 1) * n + k];
  }
  shared.f[thread] = f;
  shared.one[thread] = one;
}

JAXKERN_HD void fold_total(const CotangentCall& call, int64_t sample, int32_t thread,
                           const CotangentTotal& shared) {
  if (thread >= 2) return;
  double sum = 0;
  for (int32_t t = 0; t < kCotangentThreads; ++t) sum += thread == 0 ? shared.f[t] : shared.one[t];
  write_real(thread == 0 ? call.contrast : call.offset, call.angle.single, sample, sum);
}

}  // namespace jaxkern::xpcs

#endif  // JAXKERN_XPCS_CUDA_COTANGENT_H_
