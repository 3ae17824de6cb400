// The walk over a pixel's list and the switch to arrays.
#include "correlators/event_sums.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "correlators/event_levels.h"

namespace jaxkern::correlators {
namespace {

// A list is walked while fewer than one sum in this many is not zero. Its cost a sum is 10 to 20
// cycles, that of an array's places a quarter of a cycle, with both measured on AVX-512.
constexpr int64_t kSparse = 32;
// Below this the square of a pixel's counts, which no sum of products exceeds, fits an int32.
constexpr uint64_t kShortTotal = 32768;
constexpr uint32_t kEnd = 0xffffffff;

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
      products_(2 * plan.dpl + 4),
      before_(2 * plan.dpl + 4),
      behind_(2 * plan.dpl + 4) {}

void PixelProducts::compute(const PixelCounts& pixel) {
  size_ = pixel.size;
  total_ = pixel.total;
  if (static_cast<int64_t>(place_.size()) <= size_) {
    place_.resize(size_ + 1);
    count_.resize(size_ + 1);
  }
  std::memcpy(place_.data(), pixel.sum, size_ * sizeof(uint32_t));
  std::memcpy(count_.data(), pixel.count, size_ * sizeof(uint32_t));
  for (size_t number = 0; number < plan_.levels.size(); ++number) {
    const DelayLevel& level = plan_.levels[number];
    if (number > 0) merge_list(level.size);
    if (size_ * kSparse >= level.size) {
      if (pixel.total < kShortTotal && !plan_.weighted) {
        dense_levels(number, short_);
      } else {
        dense_levels(number, long_);
      }
      return;
    }
    place_[size_] = kEnd;
    list_level(level);
    set_sums(level);
  }
}

// Sums of neighbours of the level below; what does not fill one is left out.
void PixelProducts::merge_list(int64_t size) {
  uint32_t* place = place_.data();
  uint32_t* count = count_.data();
  if (size_ > 0 && place[size_ - 1] >= 2 * size) total_ -= count[--size_];
  int64_t n = 0;
  for (int64_t i = 0; i < size_; ++i) {
    const uint32_t at = place[i] >> 1, value = count[i];
    if (n > 0 && place[n - 1] == at) {
      count[n - 1] += value;
    } else {
      place[n] = at;
      count[n++] = value;
    }
  }
  size_ = n;
}

void PixelProducts::list_level(const DelayLevel& level) {
  const uint32_t* place = place_.data();
  const uint32_t* count = count_.data();
  const auto last = static_cast<uint32_t>(level.last);
  uint64_t* products = products_.data();
  std::fill_n(products, level.last + 1, 0);
  const int64_t size = size_;  // a copy: products could otherwise be it
  for (int64_t i = 0; i < size; ++i) {
    const uint32_t at = place[i];
    uint32_t lag = place[i + 1] - at;
    if (lag > last) continue;
    const uint64_t value = count[i];
    for (int64_t j = i + 1; lag <= last; lag = place[++j] - at) products[lag] += value * count[j];
  }
  uint64_t* before = before_.data();
  uint64_t* behind = behind_.data();
  std::fill_n(before, level.last + 1, 0);
  std::fill_n(behind, level.last + 1, 0);
  if (plan_.weighted) {
    const uint32_t* weights = level.weights.data() + 2 * plan_.dpl;
    for (int64_t i = 0; i < size_; ++i) {
      const uint32_t* c = weights + place[i];
      const uint64_t value = count[i];
      for (int64_t t = level.first; t <= level.last; ++t) {
        before[t] += value * c[t];
        behind[t] += value * c[-t];
      }
    }
    return;
  }
  // What lies before the first t sums has no earlier partner, behind the last t no later one.
  for (int64_t i = 0; i < size_ && place[i] < last; ++i) behind[place[i] + 1] += count[i];
  const auto end = static_cast<uint32_t>(level.size);
  for (int64_t i = size_; i > 0 && end - place[i - 1] <= last; --i) {
    before[end - place[i - 1]] += count[i - 1];
  }
  for (int64_t t = 1; t <= level.last; ++t) {
    before[t] += before[t - 1];
    behind[t] += behind[t - 1];
  }
}

template <typename T>
void PixelProducts::dense_ends(const T* s, const DelayLevel& level) {
  before_[0] = behind_[0] = 0;
  for (int64_t t = 1; t <= level.last; ++t) {
    behind_[t] = behind_[t - 1] + static_cast<uint64_t>(s[t - 1]);
    before_[t] = before_[t - 1] + static_cast<uint64_t>(s[level.size - t]);
  }
}

// The levels from `first` on, from the list of that level.
template <typename T>
void PixelProducts::dense_levels(size_t first, std::vector<T>& own) {
  const int64_t places = dense_places(plan_.levels[first].size, plan_.dpl);
  if (static_cast<int64_t>(own.size()) < places) own.resize(places);
  T* s = own.data();
  std::fill_n(s, places, T{0});
  for (int64_t i = 0; i < size_; ++i) s[place_[i]] = static_cast<T>(count_[i]);
  for (size_t number = first; number < plan_.levels.size(); ++number) {
    const DelayLevel& level = plan_.levels[number];
    if (number > first) {
      if ((plan_.levels[number - 1].size & 1) != 0) total_ -= s[2 * level.size];
      if constexpr (std::is_same_v<T, int16_t>) {
        short_merge(s, level.size);
      } else {
        long_merge(s, level.size);
      }
      std::fill(s + level.size, s + dense_places(level.size, plan_.dpl), T{0});
    }
    if constexpr (std::is_same_v<T, int16_t>) {
      short_products(s, level.size, level.first, level.last, products_.data());
    } else {
      long_products(s, s, level.size, level.first, level.last, 1, products_.data());
    }
    if constexpr (std::is_same_v<T, uint32_t>) {
      if (plan_.weighted) {
        const uint32_t* weights = level.weights.data() + 2 * plan_.dpl;
        long_products(s, weights, level.size, level.first, level.last, 1, before_.data());
        long_products(s, weights, level.size, level.first, level.last, -1, behind_.data());
        set_sums(level);
        continue;
      }
    }
    dense_ends(s, level);
    set_sums(level);
  }
}

void PixelProducts::set_sums(const DelayLevel& level) {
  const int64_t n_delays = plan_.n_delays;
  uint64_t* out = sums_.data() + level.delay;
  for (int64_t t = level.first; t <= level.last; ++t, ++out) {
    out[0] = products_[t];
    out[n_delays] = plan_.weighted ? before_[t] : total_ - before_[t];
    out[2 * n_delays] = plan_.weighted ? behind_[t] : total_ - behind_[t];
  }
}

}  // namespace jaxkern::correlators
