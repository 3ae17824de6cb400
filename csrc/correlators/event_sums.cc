// Multi-tau sums G[t] = sum_k s[k] s[k + t], IP and IF of one pixel from its list of counts. The
// delays are those of Schätzel, Drewel and Stimac (J. Mod. Opt. 35, 711, 1988); for sparse levels
// the pairs of events are enumerated as by Wahl et al. (Opt. Express 11, 3583, 2003).
//
//   level          0        1        2        3        4      ...     sums of 2^level frames
//   list of      [ . 1 . . . 2 . . . . 1 . ]                     (position, count), nonzero only
//                  \_______ list_levels ______/ \__ list_levels __/
//                      up to kTogether levels      after merged()
//   array                                              [ 3 0 1 2 ... ]   dense_levels, all the rest
//
// While fewer than 1 / kSparse of the sums of a level are nonzero, the products come from pairs of
// counts in the list. The lags of a pair are the differences of its positions, shifted right by the
// level. One search for pairs serves up to kTogether levels: find_near() lists the counts whose
// next count is within the largest lag of these levels, and pair_products() then compares each with
// the next, second next, ... count while that is within reach. merged() adds neighbours to form the
// list of a later level. Once a level is dense, its sums are stored in an array, and products are
// computed by vectors; each further level halves the array in place.
//
// Invariants:
// - All sums are exact integers. The total of a pixel is less than 2^32, so that no product exceeds
//   64 bits; below kShortTotal the square of the total fits an int32 and 16-bit sums suffice.
// - Without weights, IP and IF are the total without the last and the first t sums. With weights c
//   (frames are missing), they are sum s c' and sum c s'.
// - A last sum that is not full is left out: its counts are subtracted from the total, and its
//   products are subtracted from those of list levels.
#include "correlators/event_sums.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "correlators/event_levels.h"

namespace jaxkern::correlators {
namespace {

// A level is sparse if the list has fewer than one count for this many of its sums.
constexpr int64_t kSparse = 16;
// Largest number of levels that are computed from one list, with one search for pairs.
constexpr int64_t kTogether = 4;
// For smaller totals, the square of the total, which bounds all sums of products, fits an int32.
constexpr uint64_t kShortTotal = 32768;

}  // namespace

DelayPlan::DelayPlan(int64_t n_sums, int64_t dpl, const uint32_t* weights)
    : dpl(dpl), weighted(weights != nullptr) {
  for (int64_t number = 0;; ++number) {
    DelayLevel level;
    level.size = n_sums >> number;
    level.first = number == 0 ? 1 : dpl + 1;
    level.last = std::min(2 * dpl, level.size - 1);
    if (level.last < level.first) return;
    level.delay = n_delays;
    n_delays += level.last - level.first + 1;
    if (weighted) {
      // Zero padding for the loops over arrays.
      level.weights.assign(2 * dpl + dense_positions(level.size, dpl), 0);
      for (int64_t k = 0; k < level.size; ++k) {
        const uint32_t* below = number == 0 ? nullptr : levels.back().weights.data() + 2 * dpl;
        level.weights[2 * dpl + k] = number == 0 ? weights[k] : below[2 * k] + below[2 * k + 1];
      }
    }
    for (int64_t t = level.first; t <= level.last; ++t) {
      unsigned __int128 sum = weighted ? 0 : level.size - t;
      const uint32_t* c = weighted ? level.weights.data() + 2 * dpl : nullptr;
      for (int64_t k = 0; weighted && k < level.size - t; ++k) sum += uint64_t{c[k]} * c[k + t];
      pairs.push_back(static_cast<double>(sum));
    }
    levels.push_back(std::move(level));
    if (levels.back().last < 2 * dpl) return;
  }
}

PixelProducts::PixelProducts(const DelayPlan& plan)
    : plan_(plan),
      sums_(3 * plan.n_delays),
      row_(2 * plan.dpl + 2),
      products_(kTogether * row_),
      past_(row_),
      future_(row_),
      begin_(row_),
      end_(row_) {}

void PixelProducts::compute(const PixelCounts& pixel) {
  const auto levels = static_cast<int64_t>(plan_.levels.size());
  total_ = pixel.total;
  List list = {pixel.sum, pixel.count, pixel.size, 0};
  int64_t number = 0;
  while (number < levels && sparse(list, number)) {
    if (number > 0) list = merged(list, number);
    number = list_levels(list);
  }
  if (number == levels) return;
  if (total_ < kShortTotal && !plan_.weighted) {
    dense_levels(list, number, short_);
  } else {
    dense_levels(list, number, long_);
  }
}

bool PixelProducts::sparse(const List& list, int64_t number) const {
  return list.size * kSparse < plan_.levels[number].size;
}

// Computes the level of a list and the sparse levels after it; returns the next level.
int64_t PixelProducts::list_levels(const List& list) {
  const auto all = static_cast<int64_t>(plan_.levels.size());
  int64_t levels = 1;
  while (levels < kTogether && list.base + levels < all && sparse(list, list.base + levels)) {
    ++levels;
  }
  // The largest difference of positions with a delay in these levels.
  const auto reach = [&] {
    const int64_t last = plan_.levels[list.base + levels - 1].last;
    return static_cast<uint32_t>(((last + 1) << (levels - 1)) - 1);
  };
  int64_t near = find_near(list, reach());
  if (levels > 1 && 4 * near > 3 * list.size) {
    // The counts are concentrated in time. A merged list has fewer pairs.
    levels = 1;
    near = find_near(list, reach());
  }
  pair_products(list, near, reach(), levels);
  for (int64_t k = 0; k < levels; ++k) {
    list_ends(list, list.base + k, products_.data() + k * row_);
  }
  return list.base + levels;
}

// Lists the counts whose next count is within reach; returns their number. There is no branch,
// since it would be mispredicted half of the time.
int64_t PixelProducts::find_near(const List& list, uint32_t reach) {
  if (static_cast<int64_t>(near_.size()) < list.size) near_.resize(list.size);
  const uint32_t* const position = list.position;
  uint32_t* const near = near_.data();
  int64_t size = 0;
  for (int64_t i = 0; i + 1 < list.size; ++i) {
    near[size] = static_cast<uint32_t>(i);
    size += position[i + 1] - position[i] <= reach;
  }
  return size;
}

// Computes products[level, t] of all pairs of counts whose sums are t apart. Lags beyond the last
// delay share one element, which is not used.
void PixelProducts::pair_products(const List& list, int64_t near, uint32_t reach, int64_t levels) {
  const uint32_t *const position = list.position, *const count = list.count;
  const int64_t row = row_;
  const auto beyond = static_cast<uint32_t>(row - 1);
  uint32_t* const from = near_.data();
  uint64_t* const products = products_.data();
  std::fill_n(products, levels * row, 0);
  for (int64_t apart = 1; near > 0; ++apart) {
    for (int64_t k = 0; k < near; ++k) {
      const int64_t i = from[k];
      const uint32_t a = position[i], b = position[i + apart];
      const uint64_t product = uint64_t{count[i]} * count[i + apart];
      uint64_t* of_level = products;
      for (int64_t level = 0; level < levels; ++level, of_level += row) {
        of_level[std::min((b >> level) - (a >> level), beyond)] += product;
      }
    }
    // Keep the counts for which the count after the next `apart` ones is within reach, too.
    if (from[near - 1] + apart + 1 == list.size) --near;
    int64_t remaining = 0;
    for (int64_t k = 0; k < near; ++k) {
      const uint32_t i = from[k];
      from[remaining] = i;
      remaining += position[i + apart + 1] - position[i] <= reach;
    }
    near = remaining;
  }
}

// Computes IP and IF of a level, and subtracts the products of an incomplete last sum.
void PixelProducts::list_ends(const List& list, int64_t number, uint64_t* products) {
  const DelayLevel& level = plan_.levels[number];
  const int64_t last = level.last, shift = number - list.base;
  uint64_t *const begin = begin_.data(), *const end = end_.data() + last;
  std::fill_n(begin, last, 0);
  std::fill_n(end_.data(), last + 1, 0);
  for (int64_t i = 0; i < list.size && list.position[i] >> shift < last; ++i) {
    begin[list.position[i] >> shift] += list.count[i];
  }
  for (int64_t i = list.size; i > 0; --i) {
    const int64_t t = level.size - (list.position[i - 1] >> shift);
    if (t > last) break;
    end[-t] += list.count[i - 1];
  }
  for (int64_t t = 1; end[0] != 0 && t <= last; ++t) products[t] -= end[0] * end[-t];
  if (plan_.weighted) {
    weighted_ends(list, number);
    set_weighted_sums(level, products);
  } else {
    set_sums(level, products, total_ - end[0], begin, end);
  }
}

void PixelProducts::weighted_ends(const List& list, int64_t number) {
  const DelayLevel& level = plan_.levels[number];
  const int64_t shift = number - list.base;
  uint64_t *const past = past_.data(), *const future = future_.data();
  std::fill_n(past, level.last + 1, 0);
  std::fill_n(future, level.last + 1, 0);
  const uint32_t* weights = level.weights.data() + 2 * plan_.dpl;
  for (int64_t i = 0; i < list.size && list.position[i] >> shift < level.size; ++i) {
    const uint32_t* c = weights + (list.position[i] >> shift);
    const uint64_t value = list.count[i];
    for (int64_t t = level.first; t <= level.last; ++t) {
      past[t] += value * c[t];
      future[t] += value * c[-t];
    }
  }
}

// Returns the list of a level from the list of a lower level, which may be the merged list itself.
PixelProducts::List PixelProducts::merged(const List& list, int64_t number) {
  if (static_cast<int64_t>(position_.size()) < list.size) {
    position_.resize(list.size);
    count_.resize(list.size);
  }
  uint32_t *const position = position_.data(), *const count = count_.data();
  const int64_t shift = number - list.base;
  int64_t size = 0;
  for (int64_t i = 0; i < list.size; ++i) {
    const uint32_t at = list.position[i] >> shift, value = list.count[i];
    if (size > 0 && position[size - 1] == at) {
      count[size - 1] += value;
    } else {
      position[size] = at;
      count[size++] = value;
    }
  }
  return {position, count, size, number};
}

// Computes the levels from `first` on with arrays.
template <typename T>
void PixelProducts::dense_levels(const List& list, int64_t first, std::vector<T>& own) {
  const int64_t positions = dense_positions(plan_.levels[first].size, plan_.dpl);
  if (static_cast<int64_t>(own.size()) < positions) own.resize(positions);
  T* s = own.data();
  std::fill_n(s, positions, T{0});
  uint64_t total = total_;
  for (int64_t i = 0; i < list.size; ++i) {
    const int64_t at = list.position[i] >> (first - list.base);
    if (at < plan_.levels[first].size) {
      s[at] = static_cast<T>(s[at] + list.count[i]);
    } else {
      total -= list.count[i];
    }
  }
  uint64_t* const products = products_.data();
  for (int64_t number = first; number < static_cast<int64_t>(plan_.levels.size()); ++number) {
    const DelayLevel& level = plan_.levels[number];
    if (number > first) {
      if ((plan_.levels[number - 1].size & 1) != 0) total -= s[2 * level.size];
      if constexpr (std::is_same_v<T, int16_t>) {
        short_merge(s, level.size);
      } else {
        long_merge(s, level.size);
      }
      std::fill(s + level.size, s + dense_positions(level.size, plan_.dpl), T{0});
    }
    if constexpr (std::is_same_v<T, int16_t>) {
      short_products(s, level.size, level.first, level.last, products);
    } else {
      long_products(s, s, level.size, level.first, level.last, 1, products);
      if (plan_.weighted) {
        const uint32_t* weights = level.weights.data() + 2 * plan_.dpl;
        long_products(s, weights, level.size, level.first, level.last, 1, past_.data());
        long_products(s, weights, level.size, level.first, level.last, -1, future_.data());
        set_weighted_sums(level, products);
        continue;
      }
    }
    set_sums(level, products, total, s, s + level.size);
  }
}

// Without weights, IP and IF are the total without the last and the first t sums.
template <typename T>
void PixelProducts::set_sums(const DelayLevel& level, const uint64_t* products, uint64_t total,
                             const T* begin, const T* end) {
  uint64_t* const G = sums_.data() + level.delay;
  uint64_t *const IP = G + plan_.n_delays, *const IF = IP + plan_.n_delays;
  uint64_t past = total, future = total;
  for (int64_t t = 1; t <= level.last; ++t) {
    past -= static_cast<uint64_t>(end[-t]);
    future -= static_cast<uint64_t>(begin[t - 1]);
    if (t < level.first) continue;
    G[t - level.first] = products[t];
    IP[t - level.first] = past;
    IF[t - level.first] = future;
  }
}

void PixelProducts::set_weighted_sums(const DelayLevel& level, const uint64_t* products) {
  uint64_t* out = sums_.data() + level.delay;
  for (int64_t t = level.first; t <= level.last; ++t, ++out) {
    out[0] = products[t];
    out[plan_.n_delays] = past_[t];
    out[2 * plan_.n_delays] = future_[t];
  }
}

}  // namespace jaxkern::correlators
