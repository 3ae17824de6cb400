// Products of a pixel's dense sums, and rows of pairs. An array s of n sums has zero padding, see
// dense_positions.
#ifndef JAXKERN_CORRELATORS_EVENTS_INL_H_
#define JAXKERN_CORRELATORS_EVENTS_INL_H_

#include <cstring>

#include "core/simd-inl.h"
#include "correlators/event_levels.h"

namespace jaxkern::correlators::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

// Sums per step of a loop: s has zeros up to the next multiple, and `last` more.
constexpr int64_t kDenseStep = 64;

template <typename Wide, typename T>
inline void four_products(const T* s, const T* s0, const T* s1, const T* s2, const T* s3,
                          int64_t steps, Wide* out) {
  Wide a0 = 0, a1 = 0, a2 = 0, a3 = 0;
  for (int64_t k = 0; k < steps * kDenseStep; ++k) {
    const auto x = static_cast<Wide>(s[k]);
    a0 += x * static_cast<Wide>(s0[k]);
    a1 += x * static_cast<Wide>(s1[k]);
    a2 += x * static_cast<Wide>(s2[k]);
    a3 += x * static_cast<Wide>(s3[k]);
  }
  out[0] = a0;
  out[1] = a1;
  out[2] = a2;
  out[3] = a3;
}

// out[t] = sum_k s[k] other[k + sign t] for t = first .. last.
template <typename Wide, typename T>
inline void products_of(const T* s, const T* other, int64_t n, int64_t first, int64_t last,
                        int64_t sign, uint64_t* out) {
  const int64_t steps = (n + kDenseStep - 1) / kDenseStep;
  for (int64_t t = first; t <= last; t += 4) {
    Wide sums[4];
    const auto at = [&](int64_t j) { return other + sign * (t + j < last ? t + j : last); };
    four_products<Wide>(s, at(0), at(1), at(2), at(3), steps, sums);
    for (int64_t j = 0; j < 4 && t + j <= last; ++j) out[t + j] = static_cast<uint64_t>(sums[j]);
  }
}

inline void ratios_of(const uint64_t* own, int64_t n, const double* pairs,
                      uint64_t* __restrict sums, double* __restrict ratios) {
  const uint64_t *G = own, *IP = own + n, *IF = own + 2 * n;
  for (int64_t i = 0; i < 3 * n; ++i) sums[i] += own[i];
  for (int64_t tau = 0; tau < n; ++tau) {
    const double norm = static_cast<double>(IP[tau]) * static_cast<double>(IF[tau]);
    const double ratio = static_cast<double>(G[tau]) * pairs[tau] / (norm == 0 ? 1 : norm);
    ratios[tau] = norm == 0 ? 0 : ratio;
  }
}

// s[k] = s[2 k] + s[2 k + 1] in blocks, so that no element is read after it was overwritten.
template <typename T>
inline void merge_neighbours(T* s, int64_t n) {
  int64_t k = 0;
  for (; k + kDenseStep <= n; k += kDenseStep) {
    T merged[kDenseStep];
    const T* from = s + 2 * k;
    for (int64_t i = 0; i < kDenseStep; ++i)
      merged[i] = static_cast<T>(from[2 * i] + from[2 * i + 1]);
    std::memcpy(s + k, merged, sizeof(merged));
  }
  for (; k < n; ++k) s[k] = static_cast<T>(s[2 * k] + s[2 * k + 1]);
}

// Number of lists to prefetch ahead.
constexpr int64_t kListsAhead = 6;

template <typename Word, typename Sum>
inline void add_pairs_as(const PairRow& work, Sum* __restrict sums) {
  const Word* words = reinterpret_cast<const Word*>(work.words);
  const int32_t bits = work.count_bits;
  const auto mask = static_cast<Word>((uint64_t{1} << bits) - 1);
  const EventList* lists = work.lists;
  int64_t pairs = 0;
  for (int64_t i = 0; i < work.n_lists; ++i) {
    if (i + kListsAhead < work.n_lists) {
      const Word* ahead = words + lists[i + kListsAhead].position;
      __builtin_prefetch(ahead);
      __builtin_prefetch(ahead + 64 / sizeof(Word));
    }
    const Word* own = words + lists[i].position;
    const auto size = static_cast<int64_t>(lists[i].size);
    const auto count = static_cast<Sum>(lists[i].count);
    for (int64_t j = 0; j < size; ++j) {
      sums[own[j] >> bits] += count * static_cast<Sum>(own[j] & mask);
    }
    pairs += size;
  }
  const double factor = work.factors[work.row];
  if (3 * pairs < work.n - work.row) {
    // Few sums are nonzero. Find them by the lists.
    for (int64_t i = 0; i < work.n_lists; ++i) {
      const Word* own = words + lists[i].position;
      for (int64_t j = 0; j < static_cast<int64_t>(lists[i].size); ++j) {
        const auto t = static_cast<int64_t>(own[j] >> bits);
        if (sums[t] == 0) continue;
        work.out[t] += factor * work.factors[t] * static_cast<double>(sums[t]);
        sums[t] = 0;
      }
    }
    return;
  }
  const double* __restrict factors = work.factors;
  double* __restrict out = work.out;
  for (int64_t t = work.row; t < work.n; ++t) {
    out[t] += factor * factors[t] * static_cast<double>(sums[t]);
    sums[t] = 0;
  }
}

inline void add_pairs_in_row(const PairRow& work) {
  if (work.wide) {
    work.sums == nullptr ? add_pairs_as<uint64_t>(work, work.narrow)
                         : add_pairs_as<uint64_t>(work, work.sums);
  } else {
    work.sums == nullptr ? add_pairs_as<uint32_t>(work, work.narrow)
                         : add_pairs_as<uint32_t>(work, work.sums);
  }
}

inline void divide_in_row(const PairRow& work) {
  const double divisor = work.divisors[work.row], pixels = work.pixels;
  const double* __restrict divisors = work.divisors;
  double* __restrict out = work.out;
  for (int64_t t = work.row; t < work.n; ++t) out[t] = out[t] * pixels / (divisor * divisors[t]);
}

}  // namespace
}  // namespace jaxkern::correlators::JAXKERN_LEVEL

#endif  // JAXKERN_CORRELATORS_EVENTS_INL_H_
