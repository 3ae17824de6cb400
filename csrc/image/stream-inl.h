// The general path of a chain: any plan, row by row, in tiles of columns, without intermediate
// images.
//
// Each segment is a stage that produces rows of its output on demand (pull) from rows of its input.
// A stage keeps the input rows that it has resampled horizontally in a small ring, because
// neighbouring output rows share them. A stage holds at most kTile columns of anything. Wider
// inputs are pulled in parts, so memory is bounded for every size.
#ifndef JAXKERN_IMAGE_STREAM_INL_H_
#define JAXKERN_IMAGE_STREAM_INL_H_

#include "core/simd-inl.h"
#include "image/arithmetic.h"
#include "image/levels.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

// ---------------------------------------------------------------- weights of taps

// The weights of an index's taps one by one, for the two kinds of filter with windows. kZeros: some
// weights are 0, and the inputs of these may be NaN.
struct TriangleWeights {
  static constexpr bool kZeros = false;
  AntialiasWindow window = {};
  double unit = 0;

  void set(Filter, int32_t i, int32_t box, int32_t resampled) {
    window = antialias_window(i, box, resampled);
    unit = 1. / static_cast<double>(antialias_total(window));
  }
  float at(int32_t j) const {
    return static_cast<float>(static_cast<double>(antialias_height(window, j)) * unit);
  }
};

struct BicubicWeights {
  static constexpr bool kZeros = true;
  BicubicWindow window = {};
  float unit = 0;

  void set(Filter filter, int32_t i, int32_t box, int32_t resampled) {
    window = bicubic_window(filter, i, box, resampled);
    unit = 1.f / bicubic_total(window);
  }
  float at(int32_t j) const { return bicubic_weight(window, j) * unit; }
};

// Computes the weights of the taps of resampled index i; `out` has room for the whole tap_range.
// Returns that range, without a second tap of weight zero.
Range tap_weights(Filter filter, int32_t i, int32_t box, int32_t resampled, float* out) {
  Range range = tap_range(filter, i, box, resampled);
  if (filter == Filter::kBilinear) {
    const BilinearTaps taps = bilinear_taps(i, box, resampled);
    if (taps.weight == 0.f || taps.second == taps.first) {
      range.end = range.begin + 1;
      out[0] = 1.f;
    } else {
      out[0] = 1.f - taps.weight;
      out[1] = taps.weight;
    }
  } else if (filter == Filter::kAntialias) {
    const AntialiasWindow window = antialias_window(i, box, resampled);
    const double total = static_cast<double>(antialias_total(window));
    for (int32_t j = window.begin; j < window.end; ++j)
      out[j - window.begin] =
          static_cast<float>(static_cast<double>(antialias_height(window, j)) / total);
  } else if (is_bicubic(filter)) {
    BicubicWeights weights;
    weights.set(filter, i, box, resampled);
    for (int32_t j = range.begin; j < range.end; ++j) out[j - range.begin] = weights.at(j);
  } else {
    out[0] = 1.f;
  }
  return range;
}

// ---------------------------------------------------------------- stages

constexpr int32_t kTile = 1024;
constexpr int32_t kRingRows = 16;
constexpr int32_t kWeights = 8 * kTile;  // tap weights that a stage stores; more are recomputed

struct Stage {
  const Segment* segment;
  const Geometry* geometry;
  const float* scale;
  const float* bias;
  const float* fill;
  const EraseBox* erase_box;
  const float* erase_value;
  Range rows, columns;  // valid outputs

  // Horizontal taps of the output columns [tile.begin, tile.end), indexed from tile.begin.
  Range tile;
  Range taps[kTile];         // relative to the box
  Range span;                // the union of all taps
  int32_t weight_at[kTile];  // index in `weight` of the first tap's weight, or -1
  float weight[kWeights + 1];

  float pair[kTile][2];  // bilinear: weights of the first and the last tap

  int64_t ring_row[kRingRows];  // the box row in each slot, or -1
  float* ring;                  // [kRingRows, kTile, C] resampled columns in output order
  float* input;                 // [kTile, C] pulled from the previous stage
};

struct Chain {
  const Plan* plan;
  const Sample* sample;
  Stage* stage;  // [segments]
};

// ---------------------------------------------------------------- taps of the output columns

void prepare_columns(Stage& stage, Range tile) {
  const Geometry& g = *stage.geometry;
  stage.tile = tile;
  stage.span = {INT32_MAX, 0};
  int32_t used = 0;
  for (int32_t x = tile.begin; x < tile.end; ++x) {
    const int32_t i = shown_column(*stage.segment, g, x);
    const Range range = tap_range(stage.segment->filter, i, g.box_width, g.resampled_width);
    const int32_t k = x - tile.begin;
    if (range.end - range.begin <= kWeights - used) {
      stage.taps[k] = tap_weights(stage.segment->filter, i, g.box_width, g.resampled_width,
                                  stage.weight + used);
      stage.weight_at[k] = used;
      // A single tap is stored as two halves, which is exact and preserves infinities.
      const bool single = stage.taps[k].end - stage.taps[k].begin == 1;
      stage.pair[k][0] = single ? .5f : stage.weight[used];
      stage.pair[k][1] = single ? .5f : stage.weight[used + 1];
      used += range.end - range.begin;
    } else {
      stage.taps[k] = range;
      stage.weight_at[k] = -1;
    }
    if (stage.taps[k].begin < stage.span.begin) stage.span.begin = stage.taps[k].begin;
    if (stage.taps[k].end > stage.span.end) stage.span.end = stage.taps[k].end;
  }
  for (int32_t slot = 0; slot < kRingRows; ++slot) stage.ring_row[slot] = -1;
}

// ---------------------------------------------------------------- horizontal resampling

// Resamples columns of one or two taps from `input`, which starts at box column `start`.
template <int C, Dtype dtype>
void interpolate_columns(const Stage& stage, const void* input, int32_t start,
                         float* __restrict out) {
  const int32_t count = stage.tile.end - stage.tile.begin;
  if (stage.segment->filter != Filter::kBilinear) {
    for (int32_t k = 0; k < count; ++k) {
      const int64_t from = static_cast<int64_t>(stage.taps[k].begin - start) * C;
      for (int c = 0; c < C; ++c)
        out[static_cast<int64_t>(k) * C + c] = load_value<dtype>(input, from + c);
    }
    return;
  }
  for (int32_t k = 0; k < count; ++k) {
    const int64_t first = static_cast<int64_t>(stage.taps[k].begin - start) * C;
    const int64_t last = static_cast<int64_t>(stage.taps[k].end - 1 - start) * C;
    const float low = stage.pair[k][0], high = stage.pair[k][1];
    for (int c = 0; c < C; ++c)
      out[static_cast<int64_t>(k) * C + c] =
          low * load_value<dtype>(input, first + c) + high * load_value<dtype>(input, last + c);
  }
}

// Adds what the input columns [have.begin, have.end) contribute to every output column of the
// tile. `input` holds those columns (box-relative), C values each.
template <int C, Dtype dtype, typename Weights>
void accumulate_columns(const Stage& stage, const void* input, Range have, float* out) {
  const Geometry& g = *stage.geometry;
  const int32_t count = stage.tile.end - stage.tile.begin;
  for (int32_t k = 0; k < count; ++k) {
    const Range taps = stage.taps[k];
    const int32_t begin = taps.begin > have.begin ? taps.begin : have.begin;
    const int32_t end = taps.end < have.end ? taps.end : have.end;
    if (begin >= end) continue;
    float sum[C];
    for (int c = 0; c < C; ++c) sum[c] = out[static_cast<int64_t>(k) * C + c];
    if (stage.weight_at[k] >= 0) {
      const float* weight = stage.weight + stage.weight_at[k] - taps.begin;
      for (int32_t j = begin; j < end; ++j) {
        if (Weights::kZeros && weight[j] == 0.f) continue;
        for (int c = 0; c < C; ++c)
          sum[c] +=
              weight[j] * load_value<dtype>(input, static_cast<int64_t>(j - have.begin) * C + c);
      }
    } else {
      Weights weights;
      weights.set(stage.segment->filter, shown_column(*stage.segment, g, stage.tile.begin + k),
                  g.box_width, g.resampled_width);
      for (int32_t j = begin; j < end; ++j) {
        const float weight = weights.at(j);
        if (Weights::kZeros && weight == 0.f) continue;
        for (int c = 0; c < C; ++c)
          sum[c] += weight * load_value<dtype>(input, static_cast<int64_t>(j - have.begin) * C + c);
      }
    }
    for (int c = 0; c < C; ++c) out[static_cast<int64_t>(k) * C + c] = sum[c];
  }
}

template <int C>
void pull(Chain& chain, int32_t s, int32_t y, Range columns, float* out);

// Resamples the columns of the tile from input columns `span`, which include every tap.
template <int C, Dtype dtype>
void resample_columns(const Stage& stage, const void* input, Range span, float* out) {
  const Filter filter = stage.segment->filter;
  if (filter != Filter::kAntialias && !is_bicubic(filter))
    return interpolate_columns<C, dtype>(stage, input, span.begin, out);
  const int64_t values = static_cast<int64_t>(stage.tile.end - stage.tile.begin) * C;
  for (int64_t i = 0; i < values; ++i) out[i] = 0.f;
  if (is_bicubic(filter))
    return accumulate_columns<C, dtype, BicubicWeights>(stage, input, span, out);
  accumulate_columns<C, dtype, TriangleWeights>(stage, input, span, out);
}

// Resamples box row j of stage s onto the tile's columns, without clamping to levels.
template <int C>
void unclamped_row(Chain& chain, int32_t s, int32_t j, float* out) {
  Stage& stage = chain.stage[s];
  const Geometry& g = *stage.geometry;
  const int32_t count = stage.tile.end - stage.tile.begin;
  const Range span = stage.span;
  if (s == 0) {
    const Sample& sample = *chain.sample;
    const int64_t start =
        ((static_cast<int64_t>(g.top) + j) * sample.width + g.left + span.begin) * C;
    const char* bytes =
        static_cast<const char*>(sample.pixels) + start * dtype_bytes(chain.plan->source_dtype);
    return with_dtype(chain.plan->source_dtype,
                      [&](auto dtype) { resample_columns<C, dtype>(stage, bytes, span, out); });
  }
  if (span.end - span.begin <= kTile) {
    pull<C>(chain, s - 1, g.top + j, {g.left + span.begin, g.left + span.end}, stage.input);
    return resample_columns<C, Dtype::kF32>(stage, stage.input, span, out);
  }
  for (int64_t i = 0; i < static_cast<int64_t>(count) * C; ++i) out[i] = 0.f;
  for (int32_t begin = span.begin; begin < span.end; begin += kTile) {
    const Range part = {begin, begin + kTile < span.end ? begin + kTile : span.end};
    pull<C>(chain, s - 1, g.top + j, {g.left + part.begin, g.left + part.end}, stage.input);
    if (is_bicubic(stage.segment->filter))
      accumulate_columns<C, Dtype::kF32, BicubicWeights>(stage, stage.input, part, out);
    else
      accumulate_columns<C, Dtype::kF32, TriangleWeights>(stage, stage.input, part, out);
  }
}

// Resamples box row j of stage s onto the tile's columns.
template <int C>
void resample_row(Chain& chain, int32_t s, int32_t j, float* out) {
  unclamped_row<C>(chain, s, j, out);
  const Stage& stage = chain.stage[s];
  if (!keeps_levels(stage.segment->filter)) return;
  const int64_t values = static_cast<int64_t>(stage.tile.end - stage.tile.begin) * C;
  for (int64_t i = 0; i < values; ++i) out[i] = clamp_level(out[i]);
}

// ---------------------------------------------------------------- one output row of a stage

template <int C>
void set_pixels(float* out, Range columns, Range set, const float* value) {
  for (int32_t x = set.begin > columns.begin ? set.begin : columns.begin;
       x < set.end && x < columns.end; ++x)
    for (int c = 0; c < C; ++c) out[static_cast<int64_t>(x - columns.begin) * C + c] = value[c];
}

// Resamples vertically and applies the affine on the tile's columns; `out` points to the first one.
template <int C>
void valid_row(Chain& chain, int32_t s, int32_t y, float* out) {
  Stage& stage = chain.stage[s];
  const Geometry& g = *stage.geometry;
  const int32_t i = shown_row(*stage.segment, g, y);
  const Filter filter = stage.segment->filter;
  const int64_t values = static_cast<int64_t>(stage.tile.end - stage.tile.begin) * C;

  Range range = tap_range(filter, i, g.box_height, g.resampled_height);
  const bool use_ring = range.end - range.begin <= kRingRows;
  float ring_weights[kRingRows];
  const bool bicubic = is_bicubic(filter);
  TriangleWeights triangle;
  BicubicWeights cubic;
  if (use_ring)
    range = tap_weights(filter, i, g.box_height, g.resampled_height, ring_weights);
  else if (bicubic)
    cubic.set(filter, i, g.box_height, g.resampled_height);
  else
    triangle.set(filter, i, g.box_height, g.resampled_height);
  bool started = false;
  for (int32_t j = range.begin; j < range.end; ++j) {
    const float weight = use_ring  ? ring_weights[j - range.begin]
                         : bicubic ? cubic.at(j)
                                   : triangle.at(j);
    if (bicubic && weight == 0.f) continue;
    const int32_t slot = use_ring ? j % kRingRows : 0;
    float* row = stage.ring + static_cast<int64_t>(slot) * kTile * C;
    if (stage.ring_row[slot] != j) {
      stage.ring_row[slot] = -1;
      resample_row<C>(chain, s, j, row);
      stage.ring_row[slot] = j;
    }
    if (!started)
      for (int64_t v = 0; v < values; ++v) out[v] = weight * row[v];
    else
      for (int64_t v = 0; v < values; ++v) out[v] += weight * row[v];
    started = true;
  }
  if (keeps_levels(filter))
    for (int64_t v = 0; v < values; ++v) out[v] = clamp_level(out[v]);
  for (int64_t v = 0; v < values; v += C)
    for (int c = 0; c < C; ++c)
      out[v + c] = apply_affine(out[v + c], stage.scale[c], stage.bias[c]);
}

// Computes columns `columns` (at most kTile) of row y of stage s.
template <int C>
void pull(Chain& chain, int32_t s, int32_t y, Range columns, float* out) {
  Stage& stage = chain.stage[s];
  const Segment& segment = *stage.segment;
  Range valid = {columns.begin > stage.columns.begin ? columns.begin : stage.columns.begin,
                 columns.end < stage.columns.end ? columns.end : stage.columns.end};
  if (!inside(stage.rows, y) || valid.begin >= valid.end) {
    set_pixels<C>(out, columns, columns, stage.fill);
  } else {
    if (valid.begin != stage.tile.begin || valid.end != stage.tile.end)
      prepare_columns(stage, valid);
    set_pixels<C>(out, columns, {columns.begin, valid.begin}, stage.fill);
    valid_row<C>(chain, s, y, out + static_cast<int64_t>(valid.begin - columns.begin) * C);
    set_pixels<C>(out, columns, {valid.end, columns.end}, stage.fill);
  }
  for (int32_t k = 0; k < segment.erasures; ++k) {
    const EraseBox& box = stage.erase_box[k];
    if (inside(erased_range(box.top, box.height, segment.height), y))
      set_pixels<C>(out, columns, erased_range(box.left, box.width, segment.width),
                    stage.erase_value + k * C);
  }
  if (segment.rounding != Rounding::kKeep) {
    const int64_t values = static_cast<int64_t>(columns.end - columns.begin) * C;
    for (int64_t v = 0; v < values; ++v) out[v] = round_value(segment.rounding, out[v]);
  }
}

// ---------------------------------------------------------------- output

template <int C, Dtype dtype>
void store_columns(const Plan& plan, const float* values, int32_t y, Range columns, void* output) {
  const Segment& last = plan.segment[plan.segments - 1];
  const int32_t count = columns.end - columns.begin;
  if (plan.layout == Layout::kNHWC) {
    const int64_t start = (static_cast<int64_t>(y) * last.width + columns.begin) * C;
    for (int64_t v = 0; v < static_cast<int64_t>(count) * C; ++v)
      store_value<dtype>(output, start + v, values[v]);
    return;
  }
  for (int c = 0; c < C; ++c) {
    const int64_t start = (static_cast<int64_t>(c) * last.height + y) * last.width + columns.begin;
    for (int32_t k = 0; k < count; ++k)
      store_value<dtype>(output, start + k, values[static_cast<int64_t>(k) * C + c]);
  }
}

// True if every stage can pull its input span at once for `width` output columns. Otherwise rows of
// the earlier stages are computed more than once.
bool spans_fit(const Chain& chain, int32_t width) {
  int64_t span = width;
  for (int32_t s = chain.plan->segments - 1; s > 0; --s) {
    const Geometry& g = *chain.stage[s].geometry;
    span = (span + 2) * g.box_width / g.resampled_width + 3;
    if (span > chain.plan->segment[s - 1].width) span = chain.plan->segment[s - 1].width;
    if (span > kTile) return false;
  }
  return true;
}

template <int C>
void stream_channels(Chain& chain, float* row, void* output) {
  const Plan& plan = *chain.plan;
  const Segment& last = plan.segment[plan.segments - 1];
  int32_t width = last.width < kTile ? last.width : kTile;
  while (width > 16 && !spans_fit(chain, width)) width /= 2;
  for (int32_t begin = 0; begin < last.width; begin += width) {
    const Range tile = {begin, begin + width < last.width ? begin + width : last.width};
    for (int32_t y = 0; y < last.height; ++y) {
      pull<C>(chain, plan.segments - 1, y, tile, row);
      with_dtype(plan.output_dtype,
                 [&](auto dtype) { store_columns<C, dtype>(plan, row, y, tile, output); });
    }
  }
}

constexpr size_t kStageBytes =
    (sizeof(Stage) + 63) / 64 * 64 + sizeof(float) * kTile * kMaxChannels * (kRingRows + 1);
static_assert(kMaxSegments * kStageBytes + sizeof(float) * kTile * kMaxChannels <= kScratchBytes);

void run_stream(const Plan& plan, const Sample& sample, void* output, char* scratch) {
  const int32_t channels = plan.channels;
  Chain chain = {&plan, &sample, reinterpret_cast<Stage*>(scratch)};
  float* rows = reinterpret_cast<float*>(
      scratch + (sizeof(Stage) * static_cast<size_t>(plan.segments) + 63) / 64 * 64);
  float* const output_row = rows;
  rows += kTile * channels;
  int32_t erasures = 0;
  for (int32_t s = 0; s < plan.segments; ++s) {
    Stage& stage = chain.stage[s];
    stage.segment = &plan.segment[s];
    stage.geometry = &sample.geometry[s];
    stage.scale = sample.affine + 2 * s * channels;
    stage.bias = stage.scale + channels;
    stage.fill = sample.fill + s * channels;
    stage.erase_box = sample.erase_box + erasures;
    stage.erase_value = sample.erase_value + erasures * channels;
    erasures += plan.segment[s].erasures;
    stage.rows = valid_rows(*stage.geometry, *stage.segment);
    stage.columns = valid_columns(*stage.geometry, *stage.segment);
    stage.tile = {0, 0};
    stage.ring = rows;
    rows += static_cast<int64_t>(kRingRows) * kTile * channels;
    stage.input = rows;
    rows += kTile * channels;
  }
  if (channels == 1) return stream_channels<1>(chain, output_row, output);
  if (channels == 3) return stream_channels<3>(chain, output_row, output);
  stream_channels<4>(chain, output_row, output);
}

}  // namespace
}  // namespace jaxkern::image::JAXKERN_LEVEL

#endif  // JAXKERN_IMAGE_STREAM_INL_H_
