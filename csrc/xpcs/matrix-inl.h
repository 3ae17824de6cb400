// Ops that write or read a value for every point: g2, its tangent, its cotangent, the residual.
// g2 and its tangent are symmetric, so a row block computes its upper part and writes it twice. The
// others process full rows. No point is written by two blocks.
#ifndef JAXKERN_XPCS_MATRIX_INL_H_
#define JAXKERN_XPCS_MATRIX_INL_H_

#include <algorithm>

#include "core/simd-inl.h"
#include "xpcs/evaluate-inl.h"

namespace jaxkern::xpcs::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

struct alignas(64) MatrixScratch {
  ColumnFactors factors;
  RowBuffers row;
  alignas(64) double value[kPitch], data[kPitch], sigma[kPitch];
  alignas(64) double mirror[kRowBlock][kPitch];  // the mirror image of a tile of the cotangent
  alignas(64) double tile[kRowBlock][kPitch];  // the values of a tile; `columns` has its transpose
  alignas(64) double columns[kTile][kRowBlock];
};

// Stores a cache line, bypassing the caches.
#if defined(__AVX__)
inline void stream_line(float* to, const double* from) {
  for (int k = 0; k < 16; k += 4) _mm_stream_ps(to + k, _mm256_cvtpd_ps(_mm256_loadu_pd(from + k)));
}
inline void stream_line(double* to, const double* from) {
  for (int k = 0; k < 8; k += 4) _mm256_stream_pd(to + k, _mm256_loadu_pd(from + k));
}
#elif defined(__SSE2__)
inline void stream_line(float* to, const double* from) {
  for (int k = 0; k < 16; ++k) to[k] = static_cast<float>(from[k]);
}
inline void stream_line(double* to, const double* from) {
  for (int k = 0; k < 8; k += 2) _mm_stream_pd(to + k, _mm_loadu_pd(from + k));
}
#endif

// With `streaming`, full cache lines bypass the caches. The ends of a row are stored normally,
// because the neighbouring tile writes the rest of their lines.
template <typename Real>
inline void write_row(Real* to, int64_t count, const double* from, bool streaming) {
  int64_t j = 0;
#if defined(__SSE2__)
  if (streaming) {
    constexpr int64_t kLine = 64 / sizeof(Real);
    for (; j < count && reinterpret_cast<uintptr_t>(to + j) % 64 != 0; ++j) {
      to[j] = static_cast<Real>(from[j]);
    }
    for (; j + kLine <= count; j += kLine) stream_line(to + j, from + j);
  }
#else
  (void)streaming;
#endif
  for (; j < count; ++j) to[j] = static_cast<Real>(from[j]);
}

inline void write_matrix(const MatrixWork& work, int64_t at, int64_t count, const double* from) {
  if (work.single) {
    write_row(static_cast<float*>(work.out) + at, count, from, work.streaming);
  } else {
    write_row(static_cast<double*>(work.out) + at, count, from, work.streaming);
  }
}

inline void g2_row(const MatrixWork& work, const Tile& tile, const RowBuffers& row, double* out) {
  for (int64_t at = 0; at < tile.width; at += kDoubles) {
    store(out + at, work.offset + work.contrast * load(row.f + at));
  }
}

inline void tangent_row(const MatrixWork& work, const Tile& tile, int64_t row,
                        const RowBuffers* model, double* out) {
  const bool shear = work.phases.power != 0;
  const double a = -2 * work.contrast, dt = work.tangent_a[row];
  const double dx = shear ? work.tangent_x[row] : 0;
  for (int64_t at = 0; at < tile.width; at += kDoubles) {
    Doubles value = work.tangent_offset + work.tangent_contrast * load(model->f + at);
    value += a * load(model->s + at) * (dt - load(work.tangent_a + tile.start + at));
    if (shear) {
      value += work.contrast * load(model->h + at) * (dx - load(work.tangent_x + tile.start + at));
    }
    store(out + at, value);
  }
}

inline void residual_matrix_row(const MatrixWork& work, const Tile& tile, int64_t row,
                                MatrixScratch* s) {
  const int64_t from = row * work.phases.n + tile.start;
  read_reals(work.data, from, tile.width, s->data);
  const bool matrix = work.sigma_matrix.data != nullptr;
  if (matrix) read_reals(work.sigma_matrix, from, tile.width, s->sigma);
  for (int64_t at = 0; at < tile.width; at += kDoubles) {
    const Doubles sigma = matrix ? load(s->sigma + at) : splat(work.sigma);
    const Doubles r =
        (load(s->data + at) - (work.offset + work.contrast * load(s->row.f + at))) / sigma;
    store(s->value + at, sigma > kLeastSigma ? r : Doubles{});
  }
  if (row >= tile.start && row < tile.start + tile.width) s->value[row - tile.start] = 0;
}

// For row k of a cotangent G: phase_a[k] += sum_j contrast a_kj (G_kj + G_jk), and the same for X
// with h, because a and h change sign if i and j are exchanged. Also adds sum G f and sum G.
inline void cotangent_row(const MatrixWork& work, const Tile& tile, int64_t row, int64_t i,
                          double* sums, MatrixScratch* s) {
  read_reals(work.data, row * work.phases.n + tile.start, tile.width, s->data);
  const int64_t lanes = tile.vectors() * kDoubles;
  for (double* buffer : {s->data, s->mirror[i], s->row.f, s->row.s, s->row.h}) {
    std::fill(buffer + tile.width, buffer + lanes, 0.0);
  }
  Doubles a{}, x{}, f{}, one{};
  for (int64_t at = 0; at < lanes; at += kDoubles) {
    const Doubles g = load(s->data + at), both = g + load(s->mirror[i] + at);
    one += g;
    f += g * load(s->row.f + at);
    a += both * load(s->row.s + at);
    if (work.phases.power != 0) x += both * load(s->row.h + at);
  }
  sums[0] += total(f);
  sums[1] += total(one);
  work.phase_a[row] += -2 * work.contrast * total(a);
  if (work.phases.power != 0) work.phase_x[row] += work.contrast * total(x);
}

// Writes the upper part of a row block and its mirror image. begin() is called before the rows of
// each tile, and value(tile, row, out) computes a row.
template <typename Begin, typename Value>
inline void symmetric_rows(const MatrixWork& work, int64_t row0, int64_t rows, MatrixScratch* s,
                           const Begin& begin, const Value& value) {
  const int64_t n = work.phases.n;
  for (int64_t start = row0; start < n; start += kTile) {
    const Tile tile = {start, std::min(kTile, n - start)};
    begin();
    for (int64_t i = 0; i < rows; ++i) value(tile, row0 + i, s->tile[i]);
    const int64_t square = start == row0 ? rows : 0;  // size of the square on the diagonal
    for (int64_t i = 0; i < square; ++i) {
      for (int64_t j = 0; j < i; ++j) s->tile[i][j] = s->tile[j][i];
    }
    for (int64_t i = 0; i < rows; ++i) {
      write_matrix(work, (row0 + i) * n + start, tile.width, s->tile[i]);
    }
    transpose(s->tile[0], kPitch, rows, tile.width, s->columns[0], kRowBlock);
    for (int64_t j = square; j < tile.width; ++j) {
      write_matrix(work, (start + j) * n + row0, rows, s->columns[j]);
    }
  }
}

template <bool kTangent>
inline void symmetric_rows(const MatrixWork& work, int64_t row0, int64_t rows, MatrixScratch* s) {
  // With kRight, values below the diagonal are wrong; they are replaced by their mirror image.
  const Side side = kTangent || !work.phases.increasing ? Side::kMixed : Side::kRight;
  const auto value = [&](const Tile& tile, int64_t row, double* out) {
    evaluate_row<kTangent>(work.phases, tile, side, row, &s->factors, &s->row);
    if constexpr (kTangent) {
      tangent_row(work, tile, row, &s->row, out);
    } else {
      g2_row(work, tile, s->row, out);
    }
  };
  symmetric_rows(work, row0, rows, s, [&] { s->factors.filled = false; }, value);
}

// Reads the columns [row0, row0 + rows) of a tile's rows into s->mirror, transposed.
inline void read_mirror(const MatrixWork& work, const Tile& tile, int64_t row0, int64_t rows,
                        MatrixScratch* s) {
  for (int64_t j = 0; j < tile.width; ++j) {
    read_reals(work.data, (tile.start + j) * work.phases.n + row0, rows, s->columns[j]);
  }
  transpose(s->columns[0], kRowBlock, tile.width, rows, s->mirror[0], kPitch);
}

inline void full_rows(MatrixOp op, const MatrixWork& work, int64_t row0, int64_t rows, double* sums,
                      MatrixScratch* s) {
  const int64_t n = work.phases.n;
  const bool cotangent = op == MatrixOp::kCotangent;
  if (cotangent) {
    std::fill(work.phase_a + row0, work.phase_a + row0 + rows, 0.0);
    std::fill(work.phase_x + row0, work.phase_x + row0 + rows, 0.0);
    sums[0] = sums[1] = 0;
  }
  for (int64_t start = 0; start < n; start += kTile) {
    const Tile tile = {start, std::min(kTile, n - start)};
    const Side side = cotangent || !work.phases.increasing ? Side::kMixed
                      : start + tile.width <= row0         ? Side::kLeft
                      : start >= row0 + rows               ? Side::kRight
                                                           : Side::kMixed;
    s->factors.filled = false;
    if (cotangent) read_mirror(work, tile, row0, rows, s);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t row = row0 + i;
      if (cotangent) {
        evaluate_row<true>(work.phases, tile, side, row, &s->factors, &s->row);
        cotangent_row(work, tile, row, i, sums, s);
      } else {
        evaluate_row<false>(work.phases, tile, side, row, &s->factors, &s->row);
        residual_matrix_row(work, tile, row, s);
        write_matrix(work, row * n + start, tile.width, s->value);
      }
    }
  }
}

inline void matrix_rows(MatrixOp op, const MatrixWork& work, int64_t row0, int64_t rows,
                        double* sums, MatrixScratch* s) {
  switch (op) {
    case MatrixOp::kG2:
      symmetric_rows<false>(work, row0, rows, s);
      break;
    case MatrixOp::kTangent:
      symmetric_rows<true>(work, row0, rows, s);
      break;
    default:
      full_rows(op, work, row0, rows, sums, s);
  }
#if defined(__SSE2__)
  if (work.streaming) _mm_sfence();
#endif
}

}  // namespace
}  // namespace jaxkern::xpcs::JAXKERN_LEVEL

#endif  // JAXKERN_XPCS_MATRIX_INL_H_
