// Horizontal resampling of u8 rows in fixed point: the taps of each output value arranged for byte
// shuffles, and the loop that applies them to a row.
//
// Values are in memory order: all channels of a pixel together (interleaved), or one channel of all
// pixels (planar). A lane computes four values from a 16-byte window of the source row. For RGB,
// with taps at pixels p and p + 1 for the first three values and q and q + 1 for the fourth:
//
//    window   row[offset .. offset + 16):   Rp Gp Bp | Rp+1 Gp+1 Bp+1 | ... Rq Gq Bq | Rq+1 ...
//    shuffle  to eight 16-bit words:        Rp Rp+1 | Gp Gp+1 | Bp Bp+1 | Rq Rq+1
//    multiply_pairs by 16-bit weights:      w0 Rp + w1 Rp+1 | ...            four int32 sums
//
// - `windows` is 1 if each lane has its own window, 0 if one window serves all lanes of a
//   vector, and 2 if the taps of a lane are too far apart for 16 bytes: then two windows are
//   shuffled and combined, where a mask byte of 0x80 gives 0.
// - A filter with 2 n taps uses n pairs. Pair k applies the same shuffle to windows 2 k pixels
//   further right, with other weights, and the sums are added.
//
// Invariants: the weights of a value add up to exactly 1 << bits, so constant images stay constant.
// A weight fits a signed 16-bit word (14 bits, more if all weights are small), and a sum fits an
// int32. Loads stay within `reach` bytes of the first column of the box.
#ifndef JAXKERN_IMAGE_FAST_COLUMNS_INL_H_
#define JAXKERN_IMAGE_FAST_COLUMNS_INL_H_

#include "core/simd-inl.h"
#include "image/arithmetic.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

// Allocator of working memory, from front to back. `take` returns null if the rest is too small.
struct Arena {
  char* next;
  char* end;

  template <typename T>
  T* take(int64_t count) {
    const int64_t bytes = (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    if (bytes > end - next) return nullptr;
    T* result = reinterpret_cast<T*>(next);
    next += bytes;
    return result;
  }
};

struct Columns {
  int32_t values;   // of one row of one plane
  int32_t vectors;  // vectors that hold these values
  int32_t pairs;    // pairs of taps
  int32_t windows;  // windows per lane, 1 or 2, or 0: one for all lanes
  int64_t reach;    // bytes, from the box's first column, that a row's loads may touch
  float unit;       // value of a fixed-point 1
  bool levels;      // results are clamped to [0, 255]
  int32_t* offset;  // [windows, vectors, kLanes] byte offset of each window
  uint8_t* mask;    // [windows, vectors, 16 kLanes]
  int16_t* weight;  // [pairs, vectors, 8 kLanes]
};

// The taps of a range of output columns, before they are arranged for shuffles.
struct ColumnTaps {
  int32_t count, pairs;
  int32_t* first;  // [count] box column of the first tap
  int32_t* pair;   // [pairs, count] two 16-bit weights, the first tap's in the low half
  int32_t bits;    // a weight of one is 1 << bits
};

constexpr int32_t kWeightBits = 14;  // 1 << 14 fits a signed 16-bit word and represents 1 exactly

inline int32_t pack_pair(int32_t low, int32_t high) {
  const uint32_t first = static_cast<uint32_t>(low) & 0xffffu;
  return static_cast<int32_t>(first | static_cast<uint32_t>(high) << 16);
}

inline void lookup_taps(const Segment& segment, const Geometry& g, int32_t begin,
                        ColumnTaps& taps) {
  taps.bits = kWeightBits;
  for (int32_t k = 0; k < taps.count; ++k) {
    const int32_t i = shown_column(segment, g, begin + k);
    taps.first[k] =
        segment.filter == Filter::kNone ? i : nearest_index(i, g.box_width, g.resampled_width);
    taps.pair[k] = 1 << kWeightBits;
  }
}

// bilinear_taps of consecutive indices. The position advances by a constant fraction, stored as an
// integer part and a remainder, so each step costs an addition instead of a division.
struct BilinearWalk {
  int64_t denominator, part, remainder;
  int32_t quotient, first;
  float unit;
  int32_t last;  // of the box

  BilinearWalk(int32_t i, int32_t step, int32_t box, int32_t resampled) {
    denominator = 2 * static_cast<int64_t>(resampled);
    const int64_t numerator = (2 * static_cast<int64_t>(i) + 1) * box - resampled;
    divide(numerator, first, remainder);
    divide(2 * static_cast<int64_t>(box) * step, quotient, part);
    unit = 1.f / static_cast<float>(denominator);
    last = box - 1;
  }
  void divide(int64_t numerator, int32_t& quotient, int64_t& rest) const {
    int64_t floor = numerator / denominator;
    rest = numerator - floor * denominator;
    if (rest < 0) {
      rest += denominator;
      --floor;
    }
    quotient = static_cast<int32_t>(floor);
  }
  // The taps are first and first + 1. Before the box (first < 0) and at its last index both taps
  // are the same pixel.
  float weight() const { return static_cast<float>(remainder) * unit; }
  void advance() {
    first += quotient;
    remainder += part;
    const bool carry = remainder >= denominator;
    remainder -= carry ? denominator : 0;
    first += carry;
  }
};

__attribute__((noinline)) void bilinear_column_taps(const Segment& segment, const Geometry& g,
                                                    int32_t begin, ColumnTaps& taps) {
  constexpr int32_t kOne = 1 << kWeightBits;
  taps.bits = kWeightBits;
  BilinearWalk walk(g.column_offset + g.column_step * begin, g.column_step, g.box_width,
                    g.resampled_width);
  const int32_t last = walk.last;
  // The shuffle needs a second tap, so the pair moves left at the right edge.
  const int32_t edge = last > 0 ? last - 1 : 0, edge_weight = last > 0 ? kOne : 0;
  const bool folded = segment.padding != Padding::kFill;
  for (int32_t k = 0; k < taps.count; ++k, walk.advance()) {
    if (folded)
      walk = BilinearWalk(shown_column(segment, g, begin + k), 1, g.box_width, g.resampled_width);
    int32_t first = walk.first;
    int32_t weight = static_cast<int32_t>(walk.weight() * kOne + .5f);
    weight = first < 0 ? 0 : first >= last ? edge_weight : weight;
    first = first < 0 ? 0 : first >= last ? edge : first;
    taps.first[k] = first;
    taps.pair[k] = pack_pair(kOne - weight, weight);
  }
}

// Computes the first tap and the weights of resampled column i. Unused entries of the `room`
// weights are set to 0. Returns the sum of the weights.
inline float window_weights(const Segment& segment, const Geometry& g, int32_t i, int32_t room,
                            int32_t& first, float* weights) {
  if (is_bicubic(segment.filter)) {
    const BicubicWindow window = bicubic_window(segment.filter, i, g.box_width, g.resampled_width);
    float total = 0;
    first = window.begin;
    for (int32_t t = 0; t < room; ++t) {
      const int32_t j = window.begin + t;
      weights[t] = j < window.end ? bicubic_weight(window, j) : 0.f;
      total += weights[t];
    }
    return total;
  }
  const AntialiasWindow window = antialias_window(i, g.box_width, g.resampled_width);
  int64_t total = 0;
  first = window.begin;
  for (int32_t t = 0; t < room; ++t) {
    const int32_t j = window.begin + t;
    const int64_t height = j < window.end ? antialias_height(window, j) : 0;
    weights[t] = static_cast<float>(height);
    total += height;
  }
  return static_cast<float>(total);
}

inline bool window_column_taps(const Segment& segment, const Geometry& g, int32_t begin,
                               ColumnTaps& taps, Arena arena) {
  const int32_t room = 2 * taps.pairs;
  float* weight = arena.take<float>(static_cast<int64_t>(taps.count) * room);
  if (!weight) return false;
  float largest = 0;
  for (int32_t k = 0; k < taps.count; ++k) {
    float* weights = weight + static_cast<int64_t>(k) * room;
    const float scale = 1.f / window_weights(segment, g, shown_column(segment, g, begin + k), room,
                                             taps.first[k], weights);
    for (int32_t t = 0; t < room; ++t) {
      weights[t] *= scale;
      largest = weights[t] > largest ? weights[t] : largest;
    }
  }
  // Long filters have small weights, which can have more fractional bits.
  taps.bits = kWeightBits;
  while (taps.bits < 20 && largest * static_cast<float>(1 << (taps.bits + 1)) <= 32000.f)
    ++taps.bits;
  const float one = static_cast<float>(1 << taps.bits);
  for (int32_t k = 0; k < taps.count; ++k) {
    const float* weights = weight + static_cast<int64_t>(k) * room;
    // Rounding the running sums makes the weights add up to exactly one.
    float sum = 0;
    int32_t before = 0;
    for (int32_t p = 0; p < taps.pairs; ++p) {
      sum += weights[2 * p];
      const int32_t middle = static_cast<int32_t>(sum * one + .5f);
      sum += weights[2 * p + 1];
      const int32_t after =
          p + 1 == taps.pairs ? 1 << taps.bits : static_cast<int32_t>(sum * one + .5f);
      taps.pair[static_cast<int64_t>(p) * taps.count + k] =
          pack_pair(middle - before, after - middle);
      before = after;
    }
  }
  return true;
}

// Arranges taps for shuffles. kTogether is the number of values per pixel (the channels, or 1 in a
// plane), and source pixels have `channels` bytes. Returns false if the taps of a lane do not fit
// its windows.
template <int kTogether, int kWindows>
__attribute__((noinline)) bool arrange(const ColumnTaps& taps, int32_t channels, Columns& columns) {
  int32_t farthest = 0;
  constexpr int kValues = kWindows == 0 ? kFloats : 4;  // values that share windows
  const int64_t lanes = static_cast<int64_t>(columns.vectors) * kLanes;
  const uint32_t next = static_cast<uint32_t>(channels) << 16;
  const int32_t last = taps.count - 1;
  int32_t p = 0, c = 0;
  for (int64_t lane = 0; lane < lanes; lane += kValues / 4) {
    int32_t pixel[kValues], byte[kValues];
    for (int e = 0; e < kValues; ++e) {
      pixel[e] = p < last ? p : last;
      byte[e] = channels * taps.first[pixel[e]] + c;
      if (++c == kTogether) {
        c = 0;
        ++p;
      }
    }
    // With two windows, the first serves the lane's first pixel (or the first two of four), and the
    // second the others.
    for (int w = 0; w == 0 || w < kWindows; ++w) {
      bool in_window[kValues];
      int32_t low = INT32_MAX, high = 0;
      for (int e = 0; e < kValues; ++e) {
        in_window[e] = kWindows < 2 || (kTogether == 1 ? e / 2 : pixel[e] != pixel[0]) == w;
        low = in_window[e] && byte[e] < low ? byte[e] : low;
        high = in_window[e] && byte[e] > high ? byte[e] : high;
      }
      if (low == INT32_MAX) low = high = byte[0];
      if (high - low + channels > 15) return false;
      farthest = low > farthest ? low : farthest;
      const int64_t at = w * lanes + lane;
      columns.offset[at] = low;
      uint32_t word[kValues];
      for (int e = 0; e < kValues; ++e)
        word[e] = in_window[e]
                      ? 0x80008000u + static_cast<uint32_t>(byte[e] - low) * 0x10001u + next
                      : 0x80808080u;
      memcpy(columns.mask + 16 * at, word, sizeof word);
    }
    for (int32_t k = 0; k < taps.pairs; ++k) {
      const int32_t* pair = taps.pair + static_cast<int64_t>(k) * taps.count;
      int32_t word[kValues];
      for (int e = 0; e < kValues; ++e) word[e] = pair[pixel[e]];
      memcpy(columns.weight + (k * lanes + lane) * 8, word, sizeof word);
    }
  }
  columns.windows = kWindows;
  columns.reach = static_cast<int64_t>(farthest) + 2 * channels * (taps.pairs - 1) + 16;
  columns.unit = 1.f / static_cast<float>(1 << taps.bits);
  return true;
}

template <int kTogether>
inline bool arrange_any(const ColumnTaps& taps, int32_t channels, Columns& columns) {
  return arrange<kTogether, 0>(taps, channels, columns) ||
         arrange<kTogether, 1>(taps, channels, columns) ||
         arrange<kTogether, 2>(taps, channels, columns);
}

// The largest number of taps of an output under a filter.
inline int64_t longest_window(Filter filter, int32_t box, int32_t resampled) {
  const int64_t least = is_bicubic(filter) ? 4 : 2;
  if (!has_antialias(filter) || box <= resampled) return least;
  return (least * box + resampled - 1) / resampled;
}

// Prepares the horizontal pass of output columns [range.begin, range.end). Returns false if the
// taps do not fit the memory or the shuffles.
inline bool prepare(const Segment& segment, const Geometry& g, Range range, int32_t together,
                    int32_t channels, Arena& arena, Columns& columns) {
  ColumnTaps taps;
  taps.count = range.end - range.begin;
  taps.pairs = 1;
  const Filter filter = segment.filter;
  const bool windows = filter == Filter::kAntialias || is_bicubic(filter);
  if (windows) {
    const int64_t longest = longest_window(filter, g.box_width, g.resampled_width);
    if (longest > 64) return false;
    taps.pairs = static_cast<int32_t>(longest + 1) / 2;
  }
  columns.values = taps.count * together;
  columns.vectors = (columns.values + kFloats - 1) / kFloats;
  columns.pairs = taps.pairs;
  columns.levels = keeps_levels(filter);
  const int64_t lanes = static_cast<int64_t>(columns.vectors) * kLanes;
  columns.offset = arena.take<int32_t>(2 * lanes);
  columns.mask = arena.take<uint8_t>(2 * 16 * lanes);
  columns.weight = arena.take<int16_t>(8 * lanes * taps.pairs);
  Arena temporary = arena;
  taps.first = temporary.take<int32_t>(taps.count);
  taps.pair = temporary.take<int32_t>(static_cast<int64_t>(taps.count) * taps.pairs);
  if (!columns.offset || !columns.mask || !columns.weight || !taps.first || !taps.pair)
    return false;
  if (filter == Filter::kBilinear)
    bilinear_column_taps(segment, g, range.begin, taps);
  else if (!windows)
    lookup_taps(segment, g, range.begin, taps);
  else if (!window_column_taps(segment, g, range.begin, taps, temporary))
    return false;
  if (together == 1) return arrange_any<1>(taps, channels, columns);
  if (together == 3) return arrange_any<3>(taps, channels, columns);
  return arrange_any<4>(taps, channels, columns);
}

// Copies of the fields of Columns. Stores of results cannot change them, so they stay in registers.
template <int kWindows>
struct WindowLoop {
  const int32_t* __restrict offset;
  const uint8_t* __restrict mask;
  const int16_t* __restrict weight;
  int64_t vectors;

  explicit WindowLoop(const Columns& columns)
      : offset(columns.offset),
        mask(columns.mask),
        weight(columns.weight),
        vectors(columns.vectors) {}

  Ints picked(const uint8_t* row, int64_t v) const {
    if (kWindows == 0)
      return pick_bytes(load_shared_window(row, offset[v * kLanes]), mask + v * 16 * kLanes);
    const Ints first = pick_bytes(load_windows(row, offset + v * kLanes), mask + v * 16 * kLanes);
    if (kWindows == 1) return first;
    const int64_t other = vectors + v;
    return either(
        first, pick_bytes(load_windows(row, offset + other * kLanes), mask + other * 16 * kLanes));
  }
  Ints product(const uint8_t* row, int64_t v, int64_t pair) const {
    return multiply_pairs(picked(row, v), weight + (pair * vectors + v) * 8 * kLanes);
  }
};

// `row` points to the first column of the box (and, in a plane, to the channel), with columns.reach
// readable bytes. Writes whole vectors.
template <int kWindows, int kPairs, bool kLevels = false>
__attribute__((noinline)) void resample_windows(const Columns& columns, const uint8_t* row,
                                                int32_t channels, float* __restrict out) {
  const WindowLoop<kWindows> loop(columns);
  const int64_t pairs = kPairs > 0 ? kPairs : columns.pairs;
  const int64_t advance = 2 * channels;
  const Floats most = splat(255.f / columns.unit);
  for (int64_t v = 0; v < loop.vectors; ++v) {
    Ints sum = loop.product(row, v, 0);
    for (int64_t k = 1; k < pairs; ++k) sum = add_ints(sum, loop.product(row + advance * k, v, k));
    const Floats values = ints_to_floats(sum);
    store(out + v * kFloats, kLevels ? limit(values, most) : values);
  }
}

using Resample = void (*)(const Columns&, const uint8_t*, int32_t, float*);

inline Resample choose_resample(const Columns& columns) {
  if (columns.levels) {
    if (columns.windows == 2) return resample_windows<2, 0, true>;
    if (columns.windows == 0) return resample_windows<0, 0, true>;
    if (columns.pairs == 2) return resample_windows<1, 2, true>;
    return columns.pairs == 3 ? resample_windows<1, 3, true> : resample_windows<1, 0, true>;
  }
  if (columns.windows == 2) return resample_windows<2, 0>;
  if (columns.windows == 0)
    return columns.pairs == 1 ? resample_windows<0, 1> : resample_windows<0, 0>;
  if (columns.pairs == 1) return resample_windows<1, 1>;
  if (columns.pairs == 2) return resample_windows<1, 2>;
  return resample_windows<1, 0>;
}

}  // namespace
}  // namespace jaxkern::image::JAXKERN_LEVEL

#endif  // JAXKERN_IMAGE_FAST_COLUMNS_INL_H_
