// The body of the CUDA cotangent of g2, as host and device functions of a flat index and a thread's
// number. A thread computes frame k, from a piece of the other frames i:
//
//   A_bar[k] = contrast sum_i a_ki (G_ki + G_ik), X_bar[k] the same with h (both change sign
//   if i and k are exchanged); contrast_bar = sum G f, offset_bar = sum G.
//
// G_ik is read along its rows; G_ki, a column of the block, through shared memory. The sums of the
// pieces are written to scratch and added in order, so the result is reproducible.
#ifndef JAXKERN_XPCS_CUDA_COTANGENT_H_
#define JAXKERN_XPCS_CUDA_COTANGENT_H_

#include <cstdint>

#include "xpcs/cuda_tables.h"

namespace jaxkern::xpcs {

constexpr int32_t kCotangentThreads = 128;  // frames of a block
constexpr int32_t kCotangentStep = 16;      // frames i between two barriers
constexpr int32_t kCotangentPiece = 256;    // frames i of a block
constexpr int32_t kCotangentSums = 4;       // of a, h, G f and G

struct CotangentCall {
  AngleCall angle;           // `data` is the cotangent
  double* sums = nullptr;    // [samples][pieces][kCotangentSums][n]
  void* phase_a = nullptr;   // [samples, n]
  void* phase_x = nullptr;   // [samples, n]
  void* contrast = nullptr;  // [samples]
  void* offset = nullptr;    // [samples]
};

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
  return call.sums + (sample * cotangent_pieces(call) + piece) * kCotangentSums * call.angle.n;
}

template <typename Real>
struct CotangentBody {
  struct Shared {
    Real transposed[kCotangentThreads]
                   [kCotangentStep + 1];  // G_ki of the block's k and the step's i
  };
  struct Thread {
    int64_t sample, piece, k0, k;
    Frame frame;
    double sum[kCotangentSums];
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
      state.frame = frame_at(tables_of(call.angle, state.sample), n, call.angle.power, state.k);
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
      const Frame other = frame_at(tables, n, call.angle.power, i0 + s);
      const Point p =
          point_of<true>(call.angle.power, state.frame, other, decay_of(state.frame, other));
      state.sum[0] += p.a * both;
      state.sum[1] += p.h * both;
      state.sum[2] += p.f * g;
      state.sum[3] += g;
    }
  }

  JAXKERN_HD void end(const CotangentCall& call, const Thread& state) {
    if (state.k >= call.angle.n) return;
    double* const to = cotangent_sums(call, state.sample, state.piece);
    JAXKERN_UNROLL
    for (int32_t k = 0; k < kCotangentSums; ++k) to[k * call.angle.n + state.k] = state.sum[k];
  }
};

JAXKERN_HD int64_t cotangent_frames(const CotangentCall& call) {
  return call.angle.samples * call.angle.n;
}

// Adds the pieces of one frame. Its contributions to the scalars replace the first piece.
JAXKERN_HD void add_cotangent(const CotangentCall& call, int64_t flat) {
  const int64_t n = call.angle.n, sample = flat / n, k = flat % n;
  double sum[kCotangentSums] = {};
  for (int64_t piece = 0; piece < cotangent_pieces(call); ++piece) {
    const double* const from = cotangent_sums(call, sample, piece);
    JAXKERN_UNROLL
    for (int32_t s = 0; s < kCotangentSums; ++s) sum[s] += from[s * n + k];
  }
  const double contrast = call.angle.angles[sample].contrast;
  write_real(call.phase_a, call.angle.single, flat, contrast * sum[0]);
  write_real(call.phase_x, call.angle.single, flat, call.angle.power == 0 ? 0 : contrast * sum[1]);
  double* const first = cotangent_sums(call, sample, 0);
  first[2 * n + k] = sum[2];
  first[3 * n + k] = sum[3];
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
    f += from[2 * n + k];
    one += from[3 * n + k];
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
