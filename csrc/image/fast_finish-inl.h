// The vertical pass of a fast row: blend ring rows, multiply and add per channel, cast, store.
//
//    out[i] = cast(scale[c] * sum over t of weight[t] * row[t][i] + bias[c])   (i in channel c)
//
// Values are interleaved, so scale and bias repeat with a period of 1, 3 or 4 values. Three vectors
// of kFloats values are a multiple of each period, and the main loop covers that pattern twice, in
// pairs of vectors, because narrow dtypes are stored two vectors at a time:
//
//    pattern   | first | second | third |                             scale and bias, loaded once
//    values    | first second | third first | second third |          six vectors per iteration
//
// A Blend is prepared for each of the three positions (`scaled`): with up to three taps the scale
// is multiplied into the weights. Streaming stores need an aligned address, so a row first stores a
// head of values up to the alignment, and the pattern starts at the channel where the head ends.
// Ring rows are padded to whole vectors, so the last vector may load beyond the last value.
#ifndef JAXKERN_IMAGE_FAST_FINISH_INL_H_
#define JAXKERN_IMAGE_FAST_FINISH_INL_H_

#include "core/simd-inl.h"
#include "image/fast_columns-inl.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

// Per-channel scale and bias, repeated over three vectors, a multiple of every channel count, with
// room to start at any channel.
struct Pattern {
  float scale[3 * kFloats + kMaxChannels];
  float bias[3 * kFloats + kMaxChannels];
};

inline void fill_pattern(Pattern& pattern, const float* scale, const float* bias, float unit,
                         int32_t together) {
  for (int32_t i = 0, c = 0; i < 3 * kFloats + kMaxChannels; ++i) {
    pattern.scale[i] = scale[c] * unit;
    pattern.bias[i] = bias[c];
    if (++c == together) c = 0;
  }
}

// ---------------------------------------------------------------- sources of values

// A source, prepared for one position in the channel pattern, computes scale * value + bias. The
// value is the weighted sum of kTaps rows, or of `taps` rows if kTaps is 0. The weight of a single
// row is 1. With few taps the scale is folded into the weights.
template <int kTaps>
struct Blend {
  const float* const* row;
  const float* weight;
  int32_t taps;

  struct Scaled {
    Blend blend;
    Floats weight[kTaps > 0 ? kTaps : 1];
    Floats bias;
    const float* row[kTaps > 0 ? kTaps : 1];  // copies, which no store can change

    Floats at(int32_t i) const {
      if constexpr (kTaps > 0) {
        Floats sum = bias;
        for (int t = 0; t < kTaps; ++t) sum = multiply_add(weight[t], load(row[t] + i), sum);
        return sum;
      }
      Floats sum = multiply(splat(blend.weight[0]), load(blend.row[0] + i));
      for (int32_t t = 1; t < blend.taps; ++t)
        sum = multiply_add(splat(blend.weight[t]), load(blend.row[t] + i), sum);
      return multiply_add(sum, weight[0], bias);
    }
    // Rows are padded to whole vectors beyond their last value.
    Floats at_end(int32_t i, int32_t) const { return at(i); }
  };

  Scaled scaled(const float* scale, const float* bias) const {
    Scaled result = {*this, {load(scale)}, load(bias), {row[0]}};
    for (int t = 1; t < kTaps; ++t) result.row[t] = row[t];
    for (int t = kTaps - 1; kTaps > 1 && t >= 0; --t)
      result.weight[t] = multiply(result.weight[0], splat(weight[t]));
    return result;
  }
};

// The same for levels, whose weighted sum is clamped to [0, most] before it is scaled.
template <int kTaps>
struct LevelBlend {
  const float* const* row;
  const float* weight;
  int32_t taps;
  float most;

  struct Scaled {
    LevelBlend blend;
    Floats weight[kTaps > 0 ? kTaps : 1];
    Floats scale, bias, most;
    const float* row[kTaps > 0 ? kTaps : 1];

    Floats at(int32_t i) const {
      const int32_t taps = kTaps > 0 ? kTaps : blend.taps;
      const auto weighted = [&](int32_t t) {
        return kTaps > 0 ? weight[t] : splat(blend.weight[t]);
      };
      const auto values = [&](int32_t t) { return load((kTaps > 0 ? row[t] : blend.row[t]) + i); };
      Floats sum = multiply(weighted(0), values(0));
      for (int32_t t = 1; t < taps; ++t) sum = multiply_add(weighted(t), values(t), sum);
      return multiply_add(limit(sum, most), scale, bias);
    }
    Floats at_end(int32_t i, int32_t) const { return at(i); }
  };

  Scaled scaled(const float* scale, const float* bias) const {
    Scaled result = {*this, {}, load(scale), load(bias), splat(most), {}};
    for (int t = 0; t < kTaps; ++t) {
      result.weight[t] = splat(weight[t]);
      result.row[t] = row[t];
    }
    return result;
  }
};

struct Bytes {
  const uint8_t* row;

  struct Scaled {
    const uint8_t* row;
    Floats scale, bias;
    Floats at(int32_t i) const { return multiply_add(bytes_to_floats(row + i), scale, bias); }
    Floats at_end(int32_t i, int32_t count) const {
      uint8_t padded[kFloats] = {};
      for (int32_t k = 0; k < count; ++k) padded[k] = row[i + k];
      return multiply_add(bytes_to_floats(padded), scale, bias);
    }
  };

  Scaled scaled(const float* scale, const float* bias) const {
    return {row, load(scale), load(bias)};
  }
};

// ---------------------------------------------------------------- destinations of values

// put stores one vector at any address, put2 two vectors, at an aligned address if kStream.
template <Dtype dtype, Rounding rounding, bool stream>
struct Sink {
  using Value = typename Stored<dtype>::Type;
  static constexpr bool kStream = stream;
  static void put(Value* p, Floats x) {
    if constexpr (dtype == Dtype::kF32) return store(p, x);
    if constexpr (dtype == Dtype::kBF16) return put_bf16(p, x);
    if constexpr (dtype == Dtype::kF16) return put_f16(p, x);
    if constexpr (dtype == Dtype::kU8)
      rounding == Rounding::kNearest ? put_u8_nearest(p, x) : put_u8_truncate(p, x);
  }
  static void put2(Value* p, Floats x, Floats y) {
    if constexpr (dtype == Dtype::kF32) {
      stream ? stream_f32(p, x) : store(p, x);
      stream ? stream_f32(p + kFloats, y) : store(p + kFloats, y);
    }
    if constexpr (dtype == Dtype::kBF16) stream ? stream2_bf16(p, x, y) : put2_bf16(p, x, y);
    if constexpr (dtype == Dtype::kF16) stream ? stream2_f16(p, x, y) : put2_f16(p, x, y);
    if constexpr (dtype == Dtype::kU8)
      rounding == Rounding::kNearest ? put2_u8_nearest(p, x, y) : put2_u8_truncate(p, x, y);
  }
};

// ---------------------------------------------------------------- the loop

template <typename Sink, typename Source>
inline void finish_part(const Source& source, const float* scale, const float* bias, int32_t i,
                        int32_t count, typename Sink::Value* out) {
  if (count == kFloats) return Sink::put(out + i, source.scaled(scale, bias).at(i));
  typename Sink::Value value[kFloats];
  Sink::put(value, source.scaled(scale, bias).at_end(i, count));
  for (int32_t k = 0; k < count; ++k) out[i + k] = value[k];
}

// out[i] = cast(scale * source[i] + bias) for i in [0, count). `together` is the pattern's period.
template <typename Sink, typename Source>
inline void finish_values(const Source& source, const Pattern& pattern, int32_t together,
                          int32_t count, typename Sink::Value* __restrict out) {
  int32_t i = 0, phase = 0;
  if (Sink::kStream) {
    constexpr uintptr_t kAlignment = 4 * kFloats;
    const uintptr_t past = reinterpret_cast<uintptr_t>(out) % kAlignment;
    int32_t head =
        past ? static_cast<int32_t>((kAlignment - past) / sizeof(typename Sink::Value)) : 0;
    if (head > count) head = count;
    phase = head % together;
    for (; head > kFloats; head -= kFloats, i += kFloats)
      finish_part<Sink>(source, pattern.scale + i % together, pattern.bias + i % together, i,
                        kFloats, out);
    if (head)
      finish_part<Sink>(source, pattern.scale + i % together, pattern.bias + i % together, i, head,
                        out);
    i += head;
  }
  const float* scale = pattern.scale + phase;
  const float* bias = pattern.bias + phase;
  const auto first = source.scaled(scale, bias);
  const auto second = source.scaled(scale + kFloats, bias + kFloats);
  const auto third = source.scaled(scale + 2 * kFloats, bias + 2 * kFloats);
  for (; i + 6 * kFloats <= count; i += 6 * kFloats) {
    Sink::put2(out + i, first.at(i), second.at(i + kFloats));
    Sink::put2(out + i + 2 * kFloats, third.at(i + 2 * kFloats), first.at(i + 3 * kFloats));
    Sink::put2(out + i + 4 * kFloats, second.at(i + 4 * kFloats), third.at(i + 5 * kFloats));
  }
  int32_t k = 0;  // the next third of the pattern
  if (i + 2 * kFloats <= count) {
    Sink::put2(out + i, first.at(i), second.at(i + kFloats));
    i += 2 * kFloats;
    k = 2;
    if (i + 2 * kFloats <= count) {
      Sink::put2(out + i, third.at(i), first.at(i + kFloats));
      i += 2 * kFloats;
      k = 1;
    }
  }
  for (; i + kFloats <= count; i += kFloats, k = k == 2 ? 0 : k + 1)
    Sink::put(out + i, source.scaled(scale + k * kFloats, bias + k * kFloats).at(i));
  if (i == count) return;
  // Streamed lines are not written twice.
  if (Sink::kStream || count < kFloats)
    return finish_part<Sink>(source, pattern.scale + i % together, pattern.bias + i % together, i,
                             count - i, out);
  i = count - kFloats;  // overlaps the vector before
  Sink::put(out + i,
            source.scaled(pattern.scale + i % together, pattern.bias + i % together).at(i));
}

// The rows of the source image, or of the ring, that one output row blends.
struct RowTaps {
  int32_t count;
  const float** row;
  float* weight;
  const uint8_t* bytes;  // instead of rows: one unresampled row of bytes
  float most = 0;        // upper bound of the sums of levels; 0: not clamped
};

template <typename Sink>
inline void finish_levels(const RowTaps& taps, const Pattern& pattern, int32_t together,
                          int32_t count, typename Sink::Value* out) {
  const auto finish = [&](auto blend) {
    finish_values<Sink>(blend, pattern, together, count, out);
  };
  if (taps.count == 4) return finish(LevelBlend<4>{taps.row, taps.weight, 4, taps.most});
  if (taps.count == 5) return finish(LevelBlend<5>{taps.row, taps.weight, 5, taps.most});
  finish(LevelBlend<0>{taps.row, taps.weight, taps.count, taps.most});
}

template <typename Sink>
inline void finish_row(const RowTaps& taps, const Pattern& pattern, int32_t together, int32_t count,
                       void* output) {
  auto* out = static_cast<typename Sink::Value*>(output);
  if (taps.most > 0) return finish_levels<Sink>(taps, pattern, together, count, out);
  if (taps.bytes) return finish_values<Sink>(Bytes{taps.bytes}, pattern, together, count, out);
  if (taps.count == 1)
    return finish_values<Sink>(Blend<1>{taps.row, taps.weight, 1}, pattern, together, count, out);
  if (taps.count == 2)
    return finish_values<Sink>(Blend<2>{taps.row, taps.weight, 2}, pattern, together, count, out);
  if (taps.count == 3)
    return finish_values<Sink>(Blend<3>{taps.row, taps.weight, 3}, pattern, together, count, out);
  finish_values<Sink>(Blend<0>{taps.row, taps.weight, taps.count}, pattern, together, count, out);
}

using FinishRow = void (*)(const RowTaps&, const Pattern&, int32_t, int32_t, void*);

inline FinishRow choose_finish(Dtype dtype, Rounding rounding, bool stream) {
  return with_dtype(dtype, [&](auto type) -> FinishRow {
    if constexpr (type == Dtype::kU8)
      return rounding == Rounding::kNearest ? finish_row<Sink<type, Rounding::kNearest, false>>
                                            : finish_row<Sink<type, Rounding::kTruncate, false>>;
    else
      return stream ? finish_row<Sink<type, Rounding::kKeep, true>>
                    : finish_row<Sink<type, Rounding::kKeep, false>>;
  });
}

}  // namespace
}  // namespace jaxkern::image::JAXKERN_LEVEL

#endif  // JAXKERN_IMAGE_FAST_FINISH_INL_H_
