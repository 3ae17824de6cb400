// The walk over a pixel's list and the switch to arrays.
#include "correlators/event_sums.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "correlators/event_levels.h"

namespace jaxkern::correlators {
namespace {

// A level is taken from the list where that has fewer than one count for this many of its sums.
constexpr int64_t kSparse = 16;
// Levels that are taken from one list together: each pair of counts is then found once.
constexpr int64_t kTogether = 4;
// Below this the square of a pixel's counts, which no sum of products exceeds, fits an int32.
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
      // Zeros also as far as the loops over arrays look.
      level.weights.assign(2 * dpl + dense_places(level.size, dpl), 0);
      for (int64_t k = 0; k < level.size; ++k) {
        const uint32_t* below = number == 0 ? nullptr : levels.back().weights.data() + 2 * dpl;
        level.weights[2 * dpl + k] = number == 0 ? weights[k] : below[2 * k] + below[2 * k + 1];
      }
    }
    for (int64_t t = level.first; t <= level.last; ++t) {
      unsigned __int128 sum = weighted ? 0 : level.size - t;
      const uint32_t* c = level.weights.data() + 2 * dpl;
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
      before_(row_),
      behind_(row_),
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

// A list's own level, and those behind it that are sparse too; gives the next one.
int64_t PixelProducts::list_levels(const List& list) {
  const auto all = static_cast<int64_t>(plan_.levels.size());
  int64_t levels = 1;
  while (levels < kTogether && list.base + levels < all && sparse(list, list.base + levels)) {
    ++levels;
  }
  // What lies farther apart has no delay of these levels.
  const auto reach = [&] {
    const int64_t last = plan_.levels[list.base + levels - 1].last;
    return static_cast<uint32_t>(((last + 1) << (levels - 1)) - 1);
  };
  int64_t near = find_near(list, reach());
  if (levels > 1 && 4 * near > 3 * list.size) {
    // All light came at once. A merged list has fewer pairs.
    levels = 1;
    near = find_near(list, reach());
  }
  pair_products(list, near, reach(), levels);
  for (int64_t k = 0; k < levels; ++k) {
    list_ends(list, list.base + k, products_.data() + k * row_);
  }
  return list.base + levels;
}

// Numbers the counts whose next one is within reach. Without a branch, which would be mispredicted
// at every other of them.
int64_t PixelProducts::find_near(const List& list, uint32_t reach) {
  if (static_cast<int64_t>(near_.size()) < list.size) near_.resize(list.size);
  const uint32_t* const place = list.place;
  uint32_t* const near = near_.data();
  int64_t found = 0;
  for (int64_t i = 0; i + 1 < list.size; ++i) {
    near[found] = static_cast<uint32_t>(i);
    found += place[i + 1] - place[i] <= reach;
  }
  return found;
}

// products[level, t]: of all pairs of counts whose sums lie t apart. Lags beyond the last delay
// have a place together, which nobody reads.
void PixelProducts::pair_products(const List& list, int64_t near, uint32_t reach, int64_t levels) {
  const uint32_t *const place = list.place, *const count = list.count;
  const int64_t row = row_;
  const auto beyond = static_cast<uint32_t>(row - 1);
  uint32_t* const from = near_.data();
  uint64_t* const products = products_.data();
  std::fill_n(products, levels * row, 0);
  for (int64_t apart = 1; near > 0; ++apart) {
    for (int64_t k = 0; k < near; ++k) {
      const int64_t i = from[k];
      const uint32_t a = place[i], b = place[i + apart];
      const uint64_t product = uint64_t{count[i]} * count[i + apart];
      uint64_t* of_level = products;
      for (int64_t level = 0; level < levels; ++level, of_level += row) {
        of_level[std::min((b >> level) - (a >> level), beyond)] += product;
      }
    }
    // Those whose next but `apart` is within reach too.
    if (from[near - 1] + apart + 1 == list.size) --near;
    int64_t left = 0;
    for (int64_t k = 0; k < near; ++k) {
      const uint32_t i = from[k];
      from[left] = i;
      left += place[i + apart + 1] - place[i] <= reach;
    }
    near = left;
  }
}

// IP and IF of a level, and products without those of a sum that is not full: it lies behind the
// last that counts.
void PixelProducts::list_ends(const List& list, int64_t number, uint64_t* products) {
  const DelayLevel& level = plan_.levels[number];
  const int64_t last = level.last, shift = number - list.base;
  uint64_t *const begin = begin_.data(), *const end = end_.data() + last;
  std::fill_n(begin, last, 0);
  std::fill_n(end_.data(), last + 1, 0);
  for (int64_t i = 0; i < list.size && list.place[i] >> shift < last; ++i) {
    begin[list.place[i] >> shift] += list.count[i];
  }
  for (int64_t i = list.size; i > 0; --i) {
    const int64_t t = level.size - (list.place[i - 1] >> shift);
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
  uint64_t *const before = before_.data(), *const behind = behind_.data();
  std::fill_n(before, level.last + 1, 0);
  std::fill_n(behind, level.last + 1, 0);
  const uint32_t* weights = level.weights.data() + 2 * plan_.dpl;
  for (int64_t i = 0; i < list.size && list.place[i] >> shift < level.size; ++i) {
    const uint32_t* c = weights + (list.place[i] >> shift);
    const uint64_t value = list.count[i];
    for (int64_t t = level.first; t <= level.last; ++t) {
      before[t] += value * c[t];
      behind[t] += value * c[-t];
    }
  }
}

// The list of a level's sums from one of a level below, which may be the merged one itself.
PixelProducts::List PixelProducts::merged(const List& list, int64_t number) {
  if (static_cast<int64_t>(place_.size()) < list.size) {
    place_.resize(list.size);
    count_.resize(list.size);
  }
  uint32_t *const place = place_.data(), *const count = count_.data();
  const int64_t shift = number - list.base;
  int64_t size = 0;
  for (int64_t i = 0; i < list.size; ++i) {
    const uint32_t at = list.place[i] >> shift, value = list.count[i];
    if (size > 0 && place[size - 1] == at) {
      count[size - 1] += value;
    } else {
      place[size] = at;
      count[size++] = value;
    }
  }
  return {place, count, size, number};
}

// The levels from `first` on, as arrays.
template <typename T>
void PixelProducts::dense_levels(const List& list, int64_t first, std::vector<T>& own) {
  const int64_t places = dense_places(plan_.levels[first].size, plan_.dpl);
  if (static_cast<int64_t>(own.size()) < places) own.resize(places);
  T* s = own.data();
  std::fill_n(s, places, T{0});
  uint64_t total = total_;
  for (int64_t i = 0; i < list.size; ++i) {
    const int64_t at = list.place[i] >> (first - list.base);
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
      std::fill(s + level.size, s + dense_places(level.size, plan_.dpl), T{0});
    }
    if constexpr (std::is_same_v<T, int16_t>) {
      short_products(s, level.size, level.first, level.last, products);
    } else {
      long_products(s, s, level.size, level.first, level.last, 1, products);
      if (plan_.weighted) {
        const uint32_t* weights = level.weights.data() + 2 * plan_.dpl;
        long_products(s, weights, level.size, level.first, level.last, 1, before_.data());
        long_products(s, weights, level.size, level.first, level.last, -1, behind_.data());
        set_weighted_sums(level, products);
        continue;
      }
    }
    set_sums(level, products, total, s, s + level.size);
  }
}

// Where all sums hold as many frames: IP and IF are the total but for the last and the first t
// sums.
template <typename T>
void PixelProducts::set_sums(const DelayLevel& level, const uint64_t* products, uint64_t total,
                             const T* begin, const T* end) {
  uint64_t* const G = sums_.data() + level.delay;
  uint64_t *const IP = G + plan_.n_delays, *const IF = IP + plan_.n_delays;
  uint64_t before = total, behind = total;
  for (int64_t t = 1; t <= level.last; ++t) {
    before -= static_cast<uint64_t>(end[-t]);
    behind -= static_cast<uint64_t>(begin[t - 1]);
    if (t < level.first) continue;
    G[t - level.first] = products[t];
    IP[t - level.first] = before;
    IF[t - level.first] = behind;
  }
}

void PixelProducts::set_weighted_sums(const DelayLevel& level, const uint64_t* products) {
  uint64_t* out = sums_.data() + level.delay;
  for (int64_t t = level.first; t <= level.last; ++t, ++out) {
    out[0] = products[t];
    out[plan_.n_delays] = before_[t];
    out[2 * plan_.n_delays] = behind_[t];
  }
}

}  // namespace jaxkern::correlators
