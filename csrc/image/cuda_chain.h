// The body of the CUDA image chain: one segment of a plan over a batch, as host and device
// functions of a tile's flat index and a thread's number, so that a CPU test runs them over the
// whole grid.
//
// For each tile (see cuda_tile.h), a kernel calls, with a barrier between the steps,
//
//    prepare   finds the tile's sample, checks it, and computes the taps of the thread's column;
//              the threads of a block share the taps of the tile's rows
//    compute   computes a pass of rows of the thread's column and stages it in shared memory
//    store     writes the staged pass to the output, in 16-byte pieces
//
// Boxes and ragged sizes are in device memory, which the host cannot read without waiting for the
// device. Therefore the body checks its sample itself. An invalid sample reads no pixels and
// becomes NaN (0 in a u8 output), where the CPU handlers return an error.
#ifndef JAXKERN_IMAGE_CUDA_CHAIN_H_
#define JAXKERN_IMAGE_CUDA_CHAIN_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/batch_set.h"
#include "core/host_device.h"
#include "image/arithmetic.h"
#include "image/check.h"
#include "image/cuda_storage.h"
#include "image/cuda_taps.h"
#include "image/cuda_tile.h"
#include "image/plan.h"

namespace jaxkern::image {

enum ChainOperand : int {
  kPixels,
  kGeometry,
  kAffine,
  kFill,
  kEraseBox,
  kEraseValue,
  kOffset,  // the last three of ragged sources only
  kHeight,
  kWidth,
  kChainOperands
};

// One launch: segment `segment` of samples [first, first + count).
struct ChainCall {
  Plan plan;
  int32_t segment, erasures_before;
  BatchSet<kChainOperands> operands;
  int32_t height, width;  // of a dense source
  bool ragged, wide_offset;
  int64_t buffer_size;  // of a ragged source, in bytes

  const float* input;  // after the first segment: [count, height, width, C]
  void* output;        // starts at sample `first`
  Dtype output_dtype;
  Layout layout;
  int64_t first, count;
  Tiling tiling;
};

JAXKERN_HD int64_t tiles_of(const ChainCall& call) { return call.count * call.tiling.each; }

// The data of a tile that the threads of a block share, without the staged pass.
struct ChainTile {
  AxisTaps row[kTileRows];
  alignas(16) float scale[kMaxChannels], bias[kMaxChannels];
  Staging pass[kTileRows / kPassRows];
  Tile tile;
  bool valid_sample;         // the sample passed its checks
  int32_t row_stride;        // values between rows of the input
  int32_t row_step;          // of the geometry
  Range valid;               // rows of the output
  bool folds;                // padding maps some rows of the tile to others
  const float* fill;         // [C]
  const float* erase_value;  // [erasures of the segment, C]
};

// The state of a thread during a tile.
template <Dtype source>
struct ChainThread {
  bool active;  // it owns a column
  AxisTaps column;
  const typename Stored<source>::Type* pixels;  // row 0 of the box at the column's first tap
};

template <int C, Dtype source, Filter filter>
struct ChainBody {
  using Thread = ChainThread<source>;
  using Value = typename Stored<source>::Type;
  // Rows whose loads are issued together.
  static constexpr int32_t kTogether = filter == Filter::kBilinear && C > 1 ? 2 : 4;
  static_assert(kPassRows % kTogether == 0);

  JAXKERN_HD void prepare(const ChainCall& call, int64_t flat, int32_t thread, int32_t threads,
                          ChainTile& shared, Thread& state) {
    const Segment& segment = call.plan.segment[call.segment];
    const Tile tile = tile_at(call.tiling, segment.height, segment.width, flat);
    const int64_t sample = call.first + tile.image;
    const BatchOffsets<kChainOperands> at = batch_offsets(call.operands, sample);
    state.active = thread < tile.columns;

    int32_t height = call.height, width = call.width;
    int64_t offset = 0;
    bool valid_sample = true;
    if (call.ragged) {
      offset = call.wide_offset ? *call.operands.at<int64_t>(at, kOffset)
                                : *call.operands.at<int32_t>(at, kOffset);
      height = *call.operands.at<int32_t>(at, kHeight);
      width = *call.operands.at<int32_t>(at, kWidth);
      valid_sample = is_in_buffer(offset, height, width, C, call.buffer_size);
    }
    const Geometry* geometry =
        reinterpret_cast<const Geometry*>(call.operands.at<int32_t>(at, kGeometry));
    valid_sample =
        valid_sample && first_fault(call.plan, geometry, height, width).fault == Fault::kNone;
    if (thread < kTileRows / kPassRows)
      shared.pass[thread] = staging_of(tile, thread, segment.height, segment.width, C, call.layout,
                                       call.output_dtype, image_at(call, tile));
    if (thread == 0) {
      shared.tile = tile;
      shared.valid_sample = valid_sample;
    }
    if (!valid_sample) return;

    const Geometry& g = geometry[call.segment];
    const EraseBox* erase =
        reinterpret_cast<const EraseBox*>(call.operands.at<int32_t>(at, kEraseBox)) +
        call.erasures_before;
    const Range valid_row = valid_rows(g, segment);
    for (int32_t k = thread; k < kTileRows; k += threads) {
      const int32_t y = tile.row + k;
      const bool valid = inside(valid_row, y);
      // Invalid rows use index 0, whose loads are safe and whose values are ignored.
      const int32_t i = valid ? shown_row(segment, g, y) : 0;
      AxisTaps taps = axis_taps<filter>(segment.filter, i, g.box_height, g.resampled_height);
      taps.inside = valid ? kValid : 0;
      for (int32_t e = 0; e < segment.erasures; ++e)
        if (inside(erased_range(erase[e].top, erase[e].height, segment.height), y))
          taps.inside |= uint32_t{1} << e;
      shared.row[k] = taps;
    }

    const int32_t x = tile.column + thread;
    const bool valid = state.active && inside(valid_columns(g, segment), x);
    const int32_t i = valid ? shown_column(segment, g, x) : 0;
    state.column = axis_taps<filter>(segment.filter, i, g.box_width, g.resampled_width);
    state.column.inside = valid ? kValid : 0;
    for (int32_t e = 0; e < segment.erasures; ++e)
      if (inside(erased_range(erase[e].left, erase[e].width, segment.width), x))
        state.column.inside |= uint32_t{1} << e;

    const Value* image;
    if (call.segment > 0) {
      const Segment& before = call.plan.segment[call.segment - 1];
      width = before.width;
      image = reinterpret_cast<const Value*>(call.input) + tile.image * before.height * width * C;
    } else {
      image = call.operands.at<Value>(at, kPixels) + offset;
    }
    state.pixels = image + (static_cast<int64_t>(g.top) * width + g.left + state.column.first) * C;
    if (thread == 0) {
      const float* affine = call.operands.at<float>(at, kAffine) + 2 * call.segment * C;
      for (int c = 0; c < C; ++c) {
        shared.scale[c] = affine[c];
        shared.bias[c] = affine[C + c];
      }
      shared.row_stride = width * C;
      shared.row_step = g.row_step;
      shared.valid = valid_row;
      shared.folds = segment.padding != Padding::kFill &&
                     shows_outside(g.row_offset, g.row_step, g.resampled_height,
                                   {tile.row, tile.row + tile.rows});
      shared.fill = call.operands.at<float>(at, kFill) + call.segment * C;
      shared.erase_value = call.operands.at<float>(at, kEraseValue) + call.erasures_before * C;
    }
  }

  // Writes the column's pixels of a pass to `stage`.
  JAXKERN_HD void compute(const ChainCall& call, const ChainTile& shared, const Thread& state,
                          int32_t pass, int32_t thread, float* stage) {
    if (!state.active) return;
    const Staging staging = shared.pass[pass];
    float* const column = stage + staging.lead + thread * staging.column_pitch;
    if (!shared.valid_sample) {
      const float value = call.output_dtype == Dtype::kU8 ? 0.f : NAN;
      for (int32_t r = 0; r < staging.rows; ++r)
        for (int c = 0; c < C; ++c)
          column[r * staging.row_pitch + c * staging.channel_pitch] = value;
    } else if constexpr (filter == Filter::kAntialias || filter == Filter::kBicubic) {
      compute_windows(call, shared, state, pass, column);
    } else {
      const AxisTaps* const row = shared.row + pass * kPassRows;
      for (int32_t r = 0; r < staging.rows; r += kTogether) {
        float value[kTogether][C];
        gather(state, shared.row_stride, row + r, value);
        JAXKERN_UNROLL
        for (int32_t k = 0; k < kTogether; ++k)
          if (r + k < staging.rows)
            finish(call, shared, state, row[r + k].inside, value[k],
                   column + (r + k) * staging.row_pitch, staging.channel_pitch);
      }
    }
  }

  // Writes a staged pass to the output.
  JAXKERN_HD void store(const ChainCall& call, const ChainTile& shared, int32_t pass,
                        int32_t thread, int32_t threads, const float* stage) {
    switch (call.output_dtype) {
      case Dtype::kU8:
        return store_pass<Dtype::kU8>(call, shared, pass, thread, threads, stage);
      case Dtype::kF16:
        return store_pass<Dtype::kF16>(call, shared, pass, thread, threads, stage);
      case Dtype::kBF16:
        return store_pass<Dtype::kBF16>(call, shared, pass, thread, threads, stage);
      case Dtype::kF32:
        return store_pass<Dtype::kF32>(call, shared, pass, thread, threads, stage);
    }
  }

 private:
  JAXKERN_HD void* image_at(const ChainCall& call, const Tile& tile) {
    const Segment& segment = call.plan.segment[call.segment];
    return static_cast<char*>(call.output) +
           tile.image * segment.height * segment.width * C * dtype_bytes(call.output_dtype);
  }

  // Interpolates; `weight` is that of `second`. An input of weight 0 must not spread NaN or
  // infinity.
  JAXKERN_HD float between(float first, float second, float weight) {
    if constexpr (source != Dtype::kU8) second = weight == 0.f ? 0.f : second;
    return (1.f - weight) * first + weight * second;
  }

  // Resamples kTogether rows. Every load is issued before the first use.
  JAXKERN_HD void gather(const Thread& state, int32_t row_stride, const AxisTaps* row,
                         float (&value)[kTogether][C]) {
    if constexpr (filter == Filter::kBilinear) {
      const int32_t across = (state.column.last - state.column.first) * C;
      float tap[kTogether][4][C];
      JAXKERN_UNROLL
      for (int32_t k = 0; k < kTogether; ++k) {
        const Value* const top = state.pixels + static_cast<int64_t>(row[k].first) * row_stride;
        const Value* const bottom = state.pixels + static_cast<int64_t>(row[k].last) * row_stride;
        JAXKERN_UNROLL
        for (int c = 0; c < C; ++c) {
          tap[k][0][c] = read_only<source>(top + c);
          tap[k][1][c] = read_only<source>(top + across + c);
          tap[k][2][c] = read_only<source>(bottom + c);
          tap[k][3][c] = read_only<source>(bottom + across + c);
        }
      }
      JAXKERN_UNROLL
      for (int32_t k = 0; k < kTogether; ++k) JAXKERN_UNROLL
      for (int c = 0; c < C; ++c)
        value[k][c] =
            between(between(tap[k][0][c], tap[k][1][c], state.column.weight),
                    between(tap[k][2][c], tap[k][3][c], state.column.weight), row[k].weight);
    } else {
      JAXKERN_UNROLL
      for (int32_t k = 0; k < kTogether; ++k) {
        const Value* const at = state.pixels + static_cast<int64_t>(row[k].first) * row_stride;
        JAXKERN_UNROLL
        for (int c = 0; c < C; ++c) value[k][c] = read_only<source>(at + c);
      }
    }
  }

  JAXKERN_HD float weight_of(const AxisTaps& taps, float a, int32_t t) {
    if constexpr (filter == Filter::kBicubic) return bicubic_tap_weight(taps, a, t);
    return tap_weight(taps, t);
  }

  // Resamples each input row of rows [begin, end) of the pass along its columns once, and adds it
  // to the output rows that it reaches, a window that moves in one direction.
  JAXKERN_HD void add_windows(const ChainTile& shared, const Thread& state, Filter kind,
                              const AxisTaps* row, const Staging& staging, int32_t begin,
                              int32_t end, float* column) {
    const int32_t pitch = staging.row_pitch, channel_pitch = staging.channel_pitch;
    const int32_t row_stride = shared.row_stride;
    const float a = has_antialias(kind) ? -.5f : -.75f;
    // Inputs are in ascending order. Input j reaches rows [done, started) of the pass.
    const int32_t step = shared.row_step, from = step > 0 ? begin : end - 1;
    const int32_t count = end - begin, taps = state.column.last - state.column.first + 1;
    const int32_t last = row[step > 0 ? end - 1 : begin].last;
    int32_t started = 0, done = 0;
    for (int32_t j = row[from].first; j <= last; ++j) {
      while (started < count && row[from + step * started].first <= j) ++started;
      while (done < started && row[from + step * done].last < j) ++done;
      float sum[C] = {};
      const Value* const at = state.pixels + static_cast<int64_t>(j) * row_stride;
      for (int32_t t = 0; t < taps; ++t) {
        const float weight = weight_of(state.column, a, t);
        if constexpr (filter == Filter::kBicubic) {
          if (weight == 0.f) continue;  // the input may be NaN
        }
        JAXKERN_UNROLL
        for (int c = 0; c < C; ++c) sum[c] += weight * read_only<source>(at + t * C + c);
      }
      if constexpr (filter == Filter::kBicubic) {
        JAXKERN_UNROLL
        for (int c = 0; c < C; ++c) sum[c] = keeps_levels(kind) ? clamp_level(sum[c]) : sum[c];
      }
      for (int32_t k = done; k < started; ++k) {
        const AxisTaps& reached = row[from + step * k];
        const float weight = weight_of(reached, a, j - reached.first);
        if constexpr (filter == Filter::kBicubic) {
          if (weight == 0.f) continue;
        }
        float* const to = column + (from + step * k) * pitch;
        JAXKERN_UNROLL
        for (int c = 0; c < C; ++c) to[c * channel_pitch] += weight * sum[c];
      }
    }
  }

  JAXKERN_HD void compute_windows(const ChainCall& call, const ChainTile& shared,
                                  const Thread& state, int32_t pass, float* column) {
    const Staging& staging = shared.pass[pass];
    const AxisTaps* const row = shared.row + pass * kPassRows;
    const Filter kind = call.plan.segment[call.segment].filter;
    const int32_t pitch = staging.row_pitch, channel_pitch = staging.channel_pitch;
    const int32_t rows = staging.rows;
    const int32_t top = shared.tile.row + pass * kPassRows;
    const int32_t begin = static_cast<int32_t>(larger(shared.valid.begin - top, 0));
    const int32_t end = static_cast<int32_t>(smaller(shared.valid.end - top, rows));
    for (int32_t r = 0; r < rows; ++r)
      for (int c = 0; c < C; ++c) column[r * pitch + c * channel_pitch] = 0.f;
    // Mirrored rows are not monotonic, so each is computed separately.
    const int32_t together = shared.folds ? 1 : kPassRows;
    for (int32_t r = begin; r < end; r += together)
      add_windows(shared, state, kind, row, staging, r,
                  static_cast<int32_t>(smaller(r + together, end)), column);
    for (int32_t r = 0; r < rows; ++r) {
      float value[C];
      for (int c = 0; c < C; ++c) {
        value[c] = column[r * pitch + c * channel_pitch];
        if (filter == Filter::kBicubic && keeps_levels(kind)) value[c] = clamp_level(value[c]);
      }
      finish(call, shared, state, row[r].inside, value, column + r * pitch, channel_pitch);
    }
  }

  // Applies affine, fill, erasures and rounding to one pixel and writes it to `staged`.
  JAXKERN_HD void finish(const ChainCall& call, const ChainTile& shared, const Thread& state,
                         uint32_t row_inside, float (&value)[C], float* staged,
                         int32_t channel_pitch) {
    const uint32_t both = state.column.inside & row_inside;
    const uint32_t erased = both & (kValid - 1);
    if (both == kValid) {
      JAXKERN_UNROLL
      for (int c = 0; c < C; ++c)
        value[c] = apply_affine(value[c], shared.scale[c], shared.bias[c]);
    } else {
      const float* const constant =
          erased != 0 ? shared.erase_value + highest_bit(erased) * C : shared.fill;
      JAXKERN_UNROLL
      for (int c = 0; c < C; ++c) value[c] = constant[c];
    }
    const Rounding rounding = call.plan.segment[call.segment].rounding;
    if (rounding != Rounding::kKeep) {
      JAXKERN_UNROLL
      for (int c = 0; c < C; ++c) value[c] = round_value(rounding, value[c]);
    }
    JAXKERN_UNROLL
    for (int c = 0; c < C; ++c) staged[c * channel_pitch] = value[c];
  }

  // Writes a pass as contiguous lines. Full rows of the image form a single line.
  template <Dtype dtype>
  JAXKERN_HD void store_pass(const ChainCall& call, const ChainTile& shared, int32_t pass,
                             int32_t thread, int32_t threads, const float* stage) {
    using Element = typename Stored<dtype>::Type;
    constexpr int32_t kVector = kStoreBytes / static_cast<int32_t>(sizeof(Element));
    const Segment& segment = call.plan.segment[call.segment];
    const Staging staging = shared.pass[pass];
    const bool full_rows = shared.tile.columns == segment.width;
    const int32_t planes = call.layout == Layout::kNCHW ? C : 1;
    const int32_t lines = full_rows ? 1 : staging.rows;
    const int32_t length =
        shared.tile.columns * staging.column_pitch * (full_rows ? staging.rows : 1);
    Element* const image = static_cast<Element*>(image_at(call, shared.tile)) + staging.first;
    for (int32_t p = 0; p < planes; ++p) {
      for (int32_t l = 0; l < lines; ++l) {
        const int32_t begin = staging.lead + p * staging.channel_pitch + l * staging.row_pitch;
        const int32_t end = begin + length;
        Element* const line = image + (static_cast<int64_t>(p) * segment.height + l) *
                                          segment.width * staging.column_pitch;
        for (int32_t v = begin / kVector * kVector + thread * kVector; v < end;
             v += threads * kVector) {
          if (v >= begin && v + kVector <= end) {
            store_vector<dtype>(stage + v, line + (v - begin));
          } else {
            for (int32_t e = v; e < v + kVector; ++e)
              if (e >= begin && e < end) store_value<dtype>(line, e - begin, stage[e]);
          }
        }
      }
    }
  }
};

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_CUDA_CHAIN_H_
