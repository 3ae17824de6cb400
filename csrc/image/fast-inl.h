// The fast path of a chain: one segment of a uint8 source, with any filter and nothing rounded
// before the output.
//
// Resampling is separable. Box rows are resampled horizontally into a ring of float32 rows, and
// each output row is a weighted sum of the ring rows under its vertical filter:
//
//    source (u8)                     ring (f32)                    output row y
//    box row j    -- resample -->  slot j % ring_size  --+
//    box row j+1  -- resample -->  slot (j+1) % ...    --+-- finish -->  cast(scale * sum + bias)
//    box row j+2  -- resample -->  slot (j+2) % ...    --+
//
// - resample (fast_columns-inl.h) uses 16-bit fixed-point weights, byte shuffles and multiply-add,
//   the instructions of Pillow-SIMD's horizontal pass. Its results are in units of `taps.unit`,
//   which is folded into the affine scale.
// - finish (fast_finish-inl.h) blends, applies the affine, casts and stores in one pass. Large
//   results bypass the caches.
//
// Invariants:
// - ring_size is a power of two and at least the longest vertical window, so all rows of an output
//   row are in the ring at once. ring_row[slot] is the box row that a slot holds, or -1.
// - Output rows are computed in order, so each box row is resampled once (unless padding folds
//   indices). A flip only permutes the column taps and reverses the order of rows.
// - A row that an erase box crosses is composed as float32 in `staged` before it is cast. Other
//   rows copy their invalid pixels from `fill_row`, which has the output dtype.
// - resample may load up to `taps.reach` bytes from a row's start. Rows that are closer to the end
//   of the image are copied to `guard` first.
// - A plain window (no filter, interleaved) skips the ring: `bytes` is true. A mirrored row is
//   reversed in `guard` first.
#ifndef JAXKERN_IMAGE_FAST_INL_H_
#define JAXKERN_IMAGE_FAST_INL_H_

#include "core/simd-inl.h"
#include "image/fast_columns-inl.h"
#include "image/fast_finish-inl.h"
#include "image/stream-inl.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

constexpr int32_t kFastRing = 64;           // maximum number of rows; a power of two
constexpr int64_t kStreamBytes = 64 << 10;  // smaller images have too many partial cache lines
constexpr int32_t kPrefetchRows = 4;        // distance of the prefetched source row
constexpr int64_t kGuardBytes = 128 << 10;  // longest row that can be copied at the image's end

struct Fast {
  const Plan* plan;
  const Segment* segment;
  const Geometry* geometry;
  const Sample* sample;
  int32_t channels, planes, together;  // together: values of a pixel in one plane of the output
  Range rows, columns;
  bool bytes;     // source rows need no horizontal pass
  bool mirrored;  // `bytes`, from right to left
  Columns taps;
  int32_t stride;     // floats between planes of a ring row
  int32_t ring_size;  // a power of two
  float* ring;
  int32_t ring_row[kFastRing];
  const uint8_t* box;  // the box's first pixel
  const uint8_t* end;  // of the source image
  Range stored;        // bytes of a box row that the sample holds
  int64_t row_bytes;
  uint8_t* guard;  // a copy of a row, with room to read past its end
  float* staged;   // [planes, width * together]
  char* fill_row;  // [planes, width * together] of the output dtype; null if all pixels are valid
  Pattern affine[kMaxChannels], plain;
  float most;  // 255 in fixed point if a bicubic filter clamps to levels, else 0
  FinishRow store, stage;
  Resample resample;
};

inline bool finite(const float* value, int32_t count) {
  for (int32_t i = 0; i < count; ++i)
    if ((float_bits(value[i]) & 0x7f800000u) == 0x7f800000u) return false;
  return true;
}

// Prefetches box row j. Rows are short, so the hardware prefetcher starts late on each.
inline void prefetch_row(const Fast& fast, int32_t j) {
  if (j < 0 || j >= fast.geometry->box_height) return;
  const uint8_t* row = fast.box + j * fast.row_bytes;
  const int64_t bytes = static_cast<int64_t>(fast.geometry->box_width) * fast.channels;
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i);
}

// Returns box row j resampled horizontally.
inline const float* ring_row(Fast& fast, int32_t j) {
  const int32_t slot = j & (fast.ring_size - 1);
  float* out = fast.ring + static_cast<int64_t>(slot) * fast.planes * fast.stride;
  if (fast.ring_row[slot] == j) return out;
  fast.ring_row[slot] = j;
  prefetch_row(fast, j + kPrefetchRows * fast.geometry->row_step);
  const uint8_t* row = fast.box + j * fast.row_bytes;
  if (fast.end - row < fast.taps.reach + fast.planes - 1) {
    memcpy(fast.guard + fast.stored.begin, row + fast.stored.begin,
           static_cast<size_t>(fast.stored.end - fast.stored.begin));
    row = fast.guard;
  }
  for (int32_t p = 0; p < fast.planes; ++p)
    fast.resample(fast.taps, row + p, fast.channels, out + p * fast.stride);
  return out;
}

using Bytes16 = uint8_t __attribute__((vector_size(16)));

// Reverses the first 16 / channels pixels; the last byte stays if 3 channels leave one over.
template <int channels>
inline Bytes16 reverse_pixels(Bytes16 x) {
  if constexpr (channels == 1)
    return __builtin_shufflevector(x, x, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  if constexpr (channels == 3)
    return __builtin_shufflevector(x, x, 12, 13, 14, 9, 10, 11, 6, 7, 8, 3, 4, 5, 0, 1, 2, 15);
  return __builtin_shufflevector(x, x, 12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
}

// Copies `count` pixels in reverse order. Writes up to 16 bytes, and reads none, beyond them.
template <int channels>
inline void mirror_pixels(const uint8_t* row, int32_t count, uint8_t* out) {
  constexpr int32_t kGroup = 16 / channels;
  const uint8_t* from = row + (count - 1) * channels;
  const auto copy_group = [&](int32_t x) {
    Bytes16 pixels;
    memcpy(&pixels, from - (x + kGroup - 1) * channels, sizeof pixels);
    pixels = reverse_pixels<channels>(pixels);
    memcpy(out + x * channels, &pixels, sizeof pixels);
  };
  // A vector of 3 channels has a byte of the next pixel, so the row's last pixel is copied alone.
  const int32_t alone = count > kGroup ? 1 : count;
  for (int32_t x = 0; x < alone; ++x)
    for (int c = 0; c < channels; ++c) out[x * channels + c] = from[c - x * channels];
  int32_t x = alone;
  for (; x + kGroup <= count; x += kGroup) copy_group(x);
  if (x < count) copy_group(count - kGroup);  // overlaps the group before
}

inline const uint8_t* mirrored_row(const Fast& fast, const uint8_t* row) {
  const int32_t count = fast.columns.end - fast.columns.begin;
  if (fast.channels == 1) mirror_pixels<1>(row, count, fast.guard);
  if (fast.channels == 3) mirror_pixels<3>(row, count, fast.guard);
  if (fast.channels == 4) mirror_pixels<4>(row, count, fast.guard);
  return fast.guard;
}

// Iterator over output rows: the box rows and weights of each.
struct RowWalk {
  const Fast& fast;
  BilinearWalk bilinear;
  int32_t y;
  Range range;
  float weight[kFastRing];

  RowWalk(const Fast& fast, int32_t y)
      : fast(fast),
        bilinear(index(fast, y), fast.geometry->row_step, fast.geometry->box_height,
                 fast.geometry->resampled_height),
        y(y) {
    set();
  }
  static int32_t index(const Fast& fast, int32_t y) {
    return shown_row(*fast.segment, *fast.geometry, y);
  }
  void set() {
    const Geometry& g = *fast.geometry;
    if (fast.segment->filter != Filter::kBilinear) {
      range = tap_weights(fast.segment->filter, index(fast, y), g.box_height, g.resampled_height,
                          weight);
      return;
    }
    const int32_t first = bilinear.first;
    range.begin = first < 0 ? 0 : first;
    const float second = bilinear.weight();
    const bool single = first < 0 || first >= bilinear.last || second == 0.f;
    range.end = range.begin + (single ? 1 : 2);
    weight[0] = single ? 1.f : 1.f - second;
    weight[1] = second;
  }
  void advance() {
    ++y;
    if (fast.segment->padding == Padding::kFill)
      bilinear.advance();
    else
      bilinear = BilinearWalk(index(fast, y), 1, fast.geometry->box_height,
                              fast.geometry->resampled_height);
    set();
  }
};

// The rows of one plane.
struct PlaneTaps {
  const float* row[kFastRing];
  RowTaps taps;

  // Returns `all` itself for the first plane: a copy would load vectors of fields just stored.
  const RowTaps& of(const Fast& fast, const RowTaps& all, int32_t plane) {
    if (plane == 0) return all;
    for (int32_t t = 0; t < all.count; ++t) row[t] = all.row[t] + plane * fast.stride;
    taps = {all.count, row, all.weight, all.bytes, all.most};
    return taps;
  }
};

inline char* output_row(const Fast& fast, void* output, int32_t plane, int32_t y) {
  const int64_t start = (static_cast<int64_t>(plane) * fast.segment->height + y) *
                        fast.segment->width * fast.together;
  return static_cast<char*>(output) + start * dtype_bytes(fast.plan->output_dtype);
}

inline void stage_pixels(const Fast& fast, Range range, const float* value) {
  const int64_t plane = static_cast<int64_t>(fast.segment->width) * fast.together;
  for (int32_t p = 0; p < fast.planes; ++p)
    for (int32_t x = range.begin; x < range.end; ++x)
      for (int32_t c = 0; c < fast.together; ++c)
        fast.staged[p * plane + static_cast<int64_t>(x) * fast.together + c] = value[p + c];
}

// Casts and stores a plane of the staged row.
inline void store_staged(const Fast& fast, FinishRow store, int32_t plane, char* out) {
  const int32_t values = fast.segment->width * fast.together;
  const float* staged = fast.staged + static_cast<int64_t>(plane) * values;
  float one = 1.f;
  store({1, &staged, &one, nullptr}, fast.plain, 1, values, out);
}

// Writes a row that an erase box crosses. `taps` is null for a row without valid pixels.
inline void compose_row(const Fast& fast, const RowTaps* taps, int32_t y, void* output) {
  const Segment& segment = *fast.segment;
  const int32_t width = segment.width;
  const int64_t plane = static_cast<int64_t>(width) * fast.together;
  PlaneTaps shifted;
  Range valid = {0, 0};
  if (taps) {
    valid = fast.columns;
    for (int32_t p = 0; p < fast.planes; ++p)
      fast.stage(shifted.of(fast, *taps, p), fast.affine[p], fast.together,
                 (valid.end - valid.begin) * fast.together,
                 fast.staged + p * plane + static_cast<int64_t>(valid.begin) * fast.together);
  }
  stage_pixels(fast, {0, valid.begin}, fast.sample->fill);
  stage_pixels(fast, {valid.end, width}, fast.sample->fill);
  for (int32_t k = 0; k < segment.erasures; ++k) {
    const EraseBox& box = fast.sample->erase_box[k];
    if (inside(erased_range(box.top, box.height, segment.height), y))
      stage_pixels(fast, erased_range(box.left, box.width, width),
                   fast.sample->erase_value + k * fast.channels);
  }
  for (int32_t p = 0; p < fast.planes; ++p)
    store_staged(fast, fast.store, p, output_row(fast, output, p, y));
}

inline bool erased_row(const Fast& fast, int32_t y) {
  for (int32_t k = 0; k < fast.segment->erasures; ++k) {
    const EraseBox& box = fast.sample->erase_box[k];
    if (inside(erased_range(box.top, box.height, fast.segment->height), y)) return true;
  }
  return false;
}

// Writes a row. `taps` is null for a row without valid pixels.
inline void write_row(const Fast& fast, const RowTaps* taps, int32_t y, void* output) {
  if (erased_row(fast, y)) return compose_row(fast, taps, y, output);
  const Range valid = taps ? fast.columns : Range{0, 0};
  const int32_t width = fast.segment->width;
  const int64_t pixel = fast.together * dtype_bytes(fast.plan->output_dtype);
  int32_t values = (valid.end - valid.begin) * fast.together;
  if (taps && taps->bytes && !fast.sample->streaming) {
    // Whole vectors, whose last values the copies of `fill_row` replace.
    const int32_t vectors = (values + kFloats - 1) / kFloats * kFloats;
    const bool readable = fast.mirrored || fast.end - taps->bytes >= vectors;
    if (readable && vectors <= (width - valid.begin) * fast.together) values = vectors;
  }
  PlaneTaps shifted;
  for (int32_t p = 0; p < fast.planes; ++p) {
    char* const out = output_row(fast, output, p, y);
    if (taps)
      fast.store(shifted.of(fast, *taps, p), fast.affine[p], fast.together, values,
                 out + valid.begin * pixel);
    if (valid.end - valid.begin < width) {
      const char* const fill = fast.fill_row + p * width * pixel;
      memcpy(out, fill, static_cast<size_t>(valid.begin * pixel));
      memcpy(out + valid.end * pixel, fill, static_cast<size_t>((width - valid.end) * pixel));
    }
  }
}

// Fills `fast`. Returns false if this path does not support the plan or the sample.
inline bool prepare_fast(const Plan& plan, const Sample& sample, Arena arena, Fast& fast) {
  const Segment& segment = plan.segment[0];
  const Geometry& g = *sample.geometry;
  const int32_t channels = plan.channels;
  if (plan.segments != 1 || plan.source_dtype != Dtype::kU8) return false;
  if (plan.output_dtype != Dtype::kU8 && segment.rounding != Rounding::kKeep) return false;
  // Finite factors never turn bytes into NaN, and the bfloat16 stores do not handle NaN.
  if (!finite(sample.affine, 2 * channels) || !finite(sample.fill, channels) ||
      !finite(sample.erase_value, segment.erasures * channels))
    return false;
  const bool planar = plan.layout == Layout::kNCHW && channels > 1;
  fast.plan = &plan;
  fast.segment = &segment;
  fast.geometry = &g;
  fast.sample = &sample;
  fast.channels = channels;
  fast.planes = planar ? channels : 1;
  fast.together = planar ? 1 : channels;
  fast.rows = valid_rows(g, segment);
  fast.columns = valid_columns(g, segment);
  if (fast.columns.begin == fast.columns.end) fast.rows.end = fast.rows.begin;
  fast.row_bytes = static_cast<int64_t>(sample.width) * channels;
  const uint8_t* pixels = static_cast<const uint8_t*>(sample.pixels);
  fast.end = pixels + sample.height * fast.row_bytes;
  fast.box = pixels + g.top * fast.row_bytes + static_cast<int64_t>(g.left) * channels;
  fast.bytes = segment.filter == Filter::kNone && !planar &&
               !shows_outside(g.column_offset, g.column_step, g.resampled_width, fast.columns);
  fast.mirrored = fast.bytes && g.column_step < 0;
  fast.staged = arena.take<float>(static_cast<int64_t>(segment.width) * channels + 4 * kFloats);
  if (!fast.staged) return false;
  float unit = 1.f;
  fast.most = 0;
  if (fast.bytes) {
    const int32_t leftmost = fast.mirrored ? fast.columns.end - 1 : fast.columns.begin;
    fast.box += mapped_index(g.column_offset, g.column_step, leftmost) * channels;
    if (fast.mirrored) {
      const int64_t pixels = fast.columns.end - fast.columns.begin;
      fast.guard = arena.take<uint8_t>(pixels * channels + 16);
      if (!fast.guard) return false;
    }
  } else if (fast.rows.begin < fast.rows.end) {
    if (g.box_width > kGuardBytes / channels) return false;
    const int64_t right = static_cast<int64_t>(sample.width) - g.left;
    const int32_t columns = right < g.box_width ? static_cast<int32_t>(right) : g.box_width;
    fast.stored = {g.left < 0 ? -g.left * channels : 0, columns * channels};
    if (!prepare(segment, g, fast.columns, fast.together, channels, arena, fast.taps)) return false;
    unit = fast.taps.unit;
    if (keeps_levels(segment.filter)) fast.most = 255.f / unit;
    const int64_t window = longest_window(segment.filter, g.box_height, g.resampled_height);
    if (window > kFastRing) return false;
    for (fast.ring_size = 2; fast.ring_size < window;) fast.ring_size *= 2;
    fast.resample = choose_resample(fast.taps);
    fast.stride = fast.taps.vectors * kFloats + kFloats;
    fast.ring = arena.take<float>(static_cast<int64_t>(fast.ring_size) * fast.planes * fast.stride);
    const int64_t row = static_cast<int64_t>(g.box_width) * channels;
    const int64_t reach = fast.taps.reach + fast.planes - 1;
    fast.guard = arena.take<uint8_t>(row > reach ? row : reach);
    if (!fast.ring || !fast.guard) return false;
    for (int32_t slot = 0; slot < fast.ring_size; ++slot) fast.ring_row[slot] = -1;
  }
  for (int32_t p = 0; p < fast.planes; ++p)
    fill_pattern(fast.affine[p], sample.affine + p, sample.affine + channels + p, unit,
                 fast.together);
  const float one = 1.f, zero = 0.f;
  fill_pattern(fast.plain, &one, &zero, 1.f, 1);
  const int64_t bytes = static_cast<int64_t>(segment.height) * segment.width * channels *
                        dtype_bytes(plan.output_dtype);
  const bool stream = sample.streaming && !plan.stays_in_cache && bytes >= kStreamBytes;
  fast.store = choose_finish(plan.output_dtype, segment.rounding, stream);
  fast.stage = choose_finish(Dtype::kF32, Rounding::kKeep, false);
  fast.fill_row = nullptr;
  const bool filled = fast.rows.begin > 0 || fast.rows.end < segment.height ||
                      fast.columns.begin > 0 || fast.columns.end < segment.width;
  if (filled) {
    const int64_t row =
        static_cast<int64_t>(segment.width) * fast.together * dtype_bytes(plan.output_dtype);
    fast.fill_row = arena.take<char>(fast.planes * row);
    if (!fast.fill_row) return false;
    stage_pixels(fast, {0, segment.width}, sample.fill);
    const FinishRow cast = choose_finish(plan.output_dtype, segment.rounding, false);
    for (int32_t p = 0; p < fast.planes; ++p) store_staged(fast, cast, p, fast.fill_row + p * row);
  }
  return true;
}

inline void run_valid_rows(Fast& fast, void* output) {
  const float* row[kFastRing];
  RowWalk walk(fast, fast.rows.begin);
  for (int32_t y = fast.rows.begin; y < fast.rows.end; ++y, walk.advance()) {
    const RowTaps taps = {walk.range.end - walk.range.begin, row, walk.weight, nullptr, fast.most};
    for (int32_t t = 0; t < taps.count; ++t) row[t] = ring_row(fast, walk.range.begin + t);
    write_row(fast, &taps, y, output);
  }
}

inline void run_window_rows(const Fast& fast, void* output) {
  for (int32_t y = fast.rows.begin; y < fast.rows.end; ++y) {
    const uint8_t* row = fast.box + RowWalk::index(fast, y) * fast.row_bytes;
    const RowTaps taps = {1, nullptr, nullptr, fast.mirrored ? mirrored_row(fast, row) : row};
    write_row(fast, &taps, y, output);
  }
}

inline bool run_fast(const Plan& plan, const Sample& sample, void* output, char* scratch) {
  Fast fast;
  if (!prepare_fast(plan, sample, {scratch, scratch + kScratchBytes}, fast)) return false;
  for (int32_t y = 0; y < fast.rows.begin; ++y) write_row(fast, nullptr, y, output);
  if (fast.rows.begin < fast.rows.end)
    fast.bytes ? run_window_rows(fast, output) : run_valid_rows(fast, output);
  for (int32_t y = fast.rows.end; y < plan.segment[0].height; ++y)
    write_row(fast, nullptr, y, output);
  end_streaming();
  return true;
}

}  // namespace
}  // namespace jaxkern::image::JAXKERN_LEVEL

#endif  // JAXKERN_IMAGE_FAST_INL_H_
