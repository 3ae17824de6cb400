// The loops over a pixel's dense sums that levels.cc defines once per instruction-set level.
#ifndef JAXKERN_CORRELATORS_EVENT_LEVELS_H_
#define JAXKERN_CORRELATORS_EVENT_LEVELS_H_

#include <cstdint>

#include "core/simd_dispatch.h"
#include "correlators/event_pairs.h"

namespace jaxkern::correlators {

// The length of an array of n sums with zero padding for the loops.
inline int64_t dense_positions(int64_t n, int64_t dpl) { return (n + 63) / 64 * 64 + 2 * dpl; }

// out[t] = sum_k s[k] s[k + t] for t = first .. last; the square of the sum of s is below 2^31.
JAXKERN_LEVEL_FUNCTION(void, short_products, const int16_t* s, int64_t n, int64_t first,
                       int64_t last, uint64_t* out)

// out[t] = sum_k s[k] other[k + sign t]; `other` has zero padding on both sides.
JAXKERN_LEVEL_FUNCTION(void, long_products, const uint32_t* s, const uint32_t* other, int64_t n,
                       int64_t first, int64_t last, int64_t sign, uint64_t* out)

// s[k] = s[2 k] + s[2 k + 1] for k < n.
JAXKERN_LEVEL_FUNCTION(void, short_merge, int16_t* s, int64_t n)
JAXKERN_LEVEL_FUNCTION(void, long_merge, uint32_t* s, int64_t n)

// Adds G, IP and IF [3, n] of a pixel to `sums`; ratios[tau] = G pairs / (IP IF), 0 without counts.
JAXKERN_LEVEL_FUNCTION(void, pixel_ratios, const uint64_t* own, int64_t n, const double* pairs,
                       uint64_t* sums, double* ratios)

// A row of C and the lists of one group of pixels that are added to it.
struct PairRow {
  const char* words;  // sum << count_bits | count
  bool wide;          // true for words of 64 bits, false for 32
  int32_t count_bits;
  int64_t n;  // number of sums
  const EventList* lists;
  int64_t n_lists;
  int64_t row;
  uint32_t* narrow;        // [n] zeros before and after the call
  uint64_t* sums;          // the same with 64 bits if 32 may overflow, else null
  const double* factors;   // [n] factors of the group
  const double* divisors;  // [n]
  double pixels;
  double* out;  // [n], written from `row` on
};

JAXKERN_LEVEL_FUNCTION(void, add_pairs_of_row, const PairRow& work)
// out[t'] = out[t'] pixels / (divisors[row] divisors[t']) from t' = row on.
JAXKERN_LEVEL_FUNCTION(void, divide_row, const PairRow& work)

}  // namespace jaxkern::correlators

#endif  // JAXKERN_CORRELATORS_EVENT_LEVELS_H_
