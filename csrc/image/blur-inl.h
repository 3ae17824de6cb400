// Gaussian blur of one image in float64; blur.h defines the operation.
//
// An output row is computed in spans of columns: first sums down the columns of the span and of its
// reach on either side, then sums along the row. The weights are symmetric, so two pixels share one
// multiplication.
#ifndef JAXKERN_IMAGE_BLUR_INL_H_
#define JAXKERN_IMAGE_BLUR_INL_H_

#include "core/simd-inl.h"
#include "image/blur.h"
#include "image/pixel.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

// Loads kDoubles consecutive values.
inline Doubles load_doubles(const double* from) { return load(from); }
template <typename Element>
inline Doubles load_doubles(const Element* from) {
#if defined(__AVX2__) || defined(JAXKERN_NEON)
  typedef float Narrow __attribute__((vector_size(4 * kDoubles), aligned(4), may_alias));
  typedef int32_t NarrowInts __attribute__((vector_size(4 * kDoubles)));
  if constexpr (sizeof(Element) == 4) {
    return __builtin_convertvector(*reinterpret_cast<const Narrow*>(from), Doubles);
  } else {
#if defined(__AVX512F__)
    const auto ints = (NarrowInts)_mm256_cvtepu8_epi32(_mm_loadu_si64(from));
#elif defined(JAXKERN_NEON)
    const NarrowInts ints = {from[0], from[1]};
#else
    const auto ints = (NarrowInts)_mm_cvtepu8_epi32(_mm_loadu_si32(from));
#endif
    return __builtin_convertvector(ints, Doubles);
  }
#else
  Doubles all = {};
  for (int32_t k = 0; k < kDoubles; ++k) all[k] = from[k];
  return all;
#endif
}

// Computes sums[i] = weight[0] centre[i] + sum over t of weight[t] (before(t)[i] + after(t)[i]) for
// i >= first, kTogether vectors at a time. Returns the first i that was not computed.
template <int32_t kTogether, typename Before, typename After, typename Element>
inline int64_t symmetric_vectors(const double* weight, int32_t reach, const Element* centre,
                                 const Before& before, const After& after, int64_t first,
                                 int64_t count, double* sums) {
  int64_t i = first;
  for (; i + kTogether * kDoubles <= count; i += kTogether * kDoubles) {
    Doubles sum[kTogether];
    for (int32_t k = 0; k < kTogether; ++k)
      sum[k] = weight[0] * load_doubles(centre + i + k * kDoubles);
    for (int32_t t = 1; t <= reach; ++t) {
      const Element *const one = before(t) + i, *const other = after(t) + i;
      for (int32_t k = 0; k < kTogether; ++k)
        sum[k] +=
            weight[t] * (load_doubles(one + k * kDoubles) + load_doubles(other + k * kDoubles));
    }
    for (int32_t k = 0; k < kTogether; ++k) store(sums + i + k * kDoubles, sum[k]);
  }
  return i;
}

// Computes the same for all i < count.
template <typename Before, typename After, typename Element>
inline void symmetric_sums(const double* weight, int32_t reach, const Element* centre,
                           const Before& before, const After& after, int64_t count, double* sums) {
  int64_t i = symmetric_vectors<4>(weight, reach, centre, before, after, 0, count, sums);
  i = symmetric_vectors<1>(weight, reach, centre, before, after, i, count, sums);
  for (; i < count; ++i) {
    double sum = weight[0] * static_cast<double>(centre[i]);
    for (int32_t t = 1; t <= reach; ++t)
      sum += weight[t] * (static_cast<double>(before(t)[i]) + static_cast<double>(after(t)[i]));
    sums[i] = sum;
  }
}

template <typename Element, typename Result>
struct SpanBlur {
  const Blur& blur;
  const Element* in;
  Result* out;
  double *weight_x, *weight_y;
  double *columns, *sums;  // column sums of a span and its reach, and sums of the span
  int32_t reach_x, reach_y;

  SpanBlur(const Blur& blur, const Element* in, float sigma_x, float sigma_y, double* scratch,
           Result* out)
      : blur(blur), in(in), out(out), weight_x(scratch) {
    weight_y = weight_x + kMaxBlurReach + 1;
    columns = weight_y + kMaxBlurReach + 1;
    sums = columns + (kBlurSpan + 2 * kMaxBlurReach) * blur.channels;
    reach_x = blur_weights(blur.kernel_x, sigma_x, weight_x);
    reach_y = blur_weights(blur.kernel_y, sigma_y, weight_y);
  }

  // Writes columns [first, first + count) of row y; count is at most kBlurSpan.
  void write(int32_t y, int32_t first, int32_t count) const {
    const int64_t channels = blur.channels, row_values = blur.width * channels;
    const Element *above[kMaxBlurReach + 1], *below[kMaxBlurReach + 1];
    for (int32_t t = 0; t <= reach_y; ++t) {
      above[t] = in + reflected(int64_t{y} - t, blur.height) * row_values;
      below[t] = in + reflected(int64_t{y} + t, blur.height) * row_values;
    }
    // Of the `padded` columns from first - reach_x, [begin, end) exist. The others are reflections.
    const int32_t start = first - reach_x, padded = count + 2 * reach_x;
    const int32_t begin = start < 0 ? -start : 0;
    const int32_t end = blur.width - start < padded ? blur.width - start : padded;
    const int64_t offset = (start + begin) * channels;
    symmetric_sums(
        weight_y, reach_y, above[0] + offset, [&](int32_t t) { return above[t] + offset; },
        [&](int32_t t) { return below[t] + offset; }, (end - begin) * channels,
        columns + begin * channels);
    const auto reflect = [&](int32_t at) {
      const int32_t from = reflected(int64_t{start} + at, blur.width) - start;
      for (int64_t c = 0; c < channels; ++c)
        columns[at * channels + c] = columns[from * channels + c];
    };
    for (int32_t at = 0; at < begin; ++at) reflect(at);
    for (int32_t at = end; at < padded; ++at) reflect(at);
    const double* const centre = columns + reach_x * channels;
    symmetric_sums(
        weight_x, reach_x, centre, [&](int32_t t) { return centre - t * channels; },
        [&](int32_t t) { return centre + t * channels; }, count * channels, sums);
    Result* const to = out + y * row_values + first * channels;
    for (int64_t i = 0; i < count * channels; ++i) to[i] = stored_value<Result>(sums[i]);
  }
};

template <typename Element, typename Result>
void blur_rows(const Blur& blur, const Element* in, float sigma_x, float sigma_y, double* scratch,
               Result* out) {
  const SpanBlur<Element, Result> spans(blur, in, sigma_x, sigma_y, scratch, out);
  for (int32_t y = 0; y < blur.height; ++y) {
    for (int32_t first = 0; first < blur.width; first += kBlurSpan)
      spans.write(y, first, blur.width - first < kBlurSpan ? blur.width - first : kBlurSpan);
  }
}

}  // namespace

}  // namespace jaxkern::image::JAXKERN_LEVEL

#endif  // JAXKERN_IMAGE_BLUR_INL_H_
