// Lists of the events of a row, and rows of C in threads.
#include "correlators/event_pairs.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "correlators/event_levels.h"

namespace jaxkern::correlators {
namespace {

constexpr int64_t kSliceRanks = 4096;

uint64_t sum_of(uint64_t word, int32_t count_bits) { return word >> count_bits; }

}  // namespace

EventPairs::EventPairs(const Executor& executor, const EventInput& input, EventMap map,
                       const int32_t* pixels, std::vector<int64_t> group_ends)
    : n_sums_(map.n_sums), group_ends_(std::move(group_ends)) {
  const int64_t count = group_ends_.empty() ? 0 : group_ends_.back();
  rank_.assign(map.n_pixels, static_cast<uint32_t>(count));
  for (int64_t i = 0; i < count; ++i) rank_[pixels[i]] = static_cast<uint32_t>(i);
  map.rank = rank_.data();
  map.n_ranks = count;
  sort_ =
      std::make_unique<EventSort>(executor, input, map, std::numeric_limits<double>::infinity());
  totals_.assign(n_groups() * n_sums_, 0);
  if (sort_->parts() == 0) {
    ends_.assign(count, 0);
    next_.assign(count, 0);
    return;
  }
  sort_->load(executor, 0);
  ends_ = sort_->sort_in_place(executor, &most_);
  next_.resize(count);
  for (int64_t rank = 0; rank < count; ++rank) next_[rank] = begin_of(rank);
  if (sort_->wide()) {
    sum_totals<uint64_t>(executor);
  } else {
    sum_totals<uint32_t>(executor);
  }
}

template <typename Word>
void EventPairs::sum_totals(const Executor& executor) {
  const Word* words = sort_->words<Word>();
  const int32_t bits = sort_->count_bits();
  const auto mask = static_cast<Word>((uint64_t{1} << bits) - 1);
  parallel_for(executor, n_groups(), 1, [&](int64_t group, int64_t) {
    uint64_t* totals = totals_.data() + group * n_sums_;
    const int64_t begin = group == 0 ? 0 : begin_of(group_ends_[group - 1]);
    const int64_t end = begin_of(group_ends_[group]);
    for (int64_t i = begin; i < end; ++i) totals[sum_of(words[i], bits)] += words[i] & mask;
    for (int64_t t = 0; t < n_sums_; ++t) {
      // This product bounds all sums of products of the row.
      if (static_cast<unsigned __int128>(totals[t]) * most_ >> 64 != 0) {
        throw std::invalid_argument(
            "sum " + std::to_string(t) + " of frames has " + std::to_string(totals[t]) +
            " counts in one static bin, and a pixel has " + std::to_string(most_) +
            "; expected less, so that no sum of products exceeds 64 bits");
      }
    }
  });
}

// Builds the lists of rows row .. row + rows - 1, ordered by row and then by slice.
template <typename Word>
void EventPairs::list_rows(const Executor& executor, const std::vector<Slice>& slices, int64_t row,
                           int64_t rows) {
  const Word* words = sort_->words<Word>();
  const int32_t bits = sort_->count_bits();
  const auto mask = static_cast<Word>((uint64_t{1} << bits) - 1);
  const auto n_slices = static_cast<int64_t>(slices.size());
  const auto first = static_cast<uint64_t>(row), stop = static_cast<uint64_t>(row + rows);
  list_ends_.assign(rows * n_slices, 0);
  parallel_for(executor, n_slices, 1, [&](int64_t s, int64_t) {
    for (int64_t rank = slices[s].begin; rank < slices[s].end; ++rank) {
      int64_t i = next_[rank];
      const int64_t begin = begin_of(rank), end = ends_[rank];
      if (i > begin && sum_of(words[i - 1], bits) >= first) i = begin;  // an earlier row
      while (i < end && sum_of(words[i], bits) < first) ++i;
      next_[rank] = i;
      for (; i < end && sum_of(words[i], bits) < stop; ++i) {
        ++list_ends_[(sum_of(words[i], bits) - first) * n_slices + s];
      }
    }
  });
  int64_t count = 0;
  for (int64_t& at : list_ends_) count += std::exchange(at, count);
  lists_.resize(count);
  parallel_for(executor, n_slices, 1, [&](int64_t s, int64_t) {
    for (int64_t rank = slices[s].begin; rank < slices[s].end; ++rank) {
      const int64_t end = ends_[rank];
      int64_t same = next_[rank];
      for (int64_t i = same; i < end && sum_of(words[i], bits) < stop; ++i) {
        // Each event of a sum is paired with all events of this sum.
        if (sum_of(words[i], bits) != sum_of(words[same], bits)) same = i;
        lists_[list_ends_[(sum_of(words[i], bits) - first) * n_slices + s]++] = {
            same, static_cast<uint32_t>(end - same), static_cast<uint32_t>(words[i] & mask)};
      }
    }
  });
}

template <typename Word>
void EventPairs::make_rows(const Executor& executor, int64_t first, int64_t last,
                           const double* factors, const double* divisors, double pixels,
                           int64_t row, int64_t rows, double* out) {
  std::vector<Slice> slices;
  for (int64_t group = first; group < last; ++group) {
    const int64_t stop = group_ends_[group];
    for (int64_t rank = group == 0 ? 0 : group_ends_[group - 1]; rank < stop; rank += kSliceRanks) {
      slices.push_back({group, rank, std::min(rank + kSliceRanks, stop)});
    }
  }
  list_rows<Word>(executor, slices, row, rows);
  const auto n_slices = static_cast<int64_t>(slices.size());
  const int64_t n = n_sums_, width = n - row;
  PairRow work = {};
  work.words = sort_->words<char>();
  work.wide = sort_->wide();
  work.count_bits = sort_->count_bits();
  work.n = n;
  work.divisors = divisors;
  work.pixels = pixels;
  parallel_for(executor, rows, 4, [&](int64_t begin, int64_t end) {
    std::vector<uint32_t> narrow(n, 0);
    std::vector<uint64_t> wide;
    for (int64_t r = begin; r < end; ++r) {
      PairRow own = work;
      own.row = row + r;
      own.narrow = narrow.data();
      own.out = out + r * width - row;
      std::fill(own.out + row, own.out + n, 0.0);
      const int64_t* ends = list_ends_.data() + r * n_slices;
      int64_t list = r == 0 ? 0 : n_slices == 0 ? 0 : ends[-1];
      for (int64_t s = 0; s < n_slices;) {
        const int64_t group = slices[s].group;
        while (s < n_slices && slices[s].group == group) ++s;
        own.lists = lists_.data() + list;
        own.n_lists = ends[s - 1] - list;
        list = ends[s - 1];
        if (own.n_lists == 0) continue;
        own.factors = factors + (group - first) * n;
        const bool fits = totals_[group * n + own.row] * most_ >> 32 == 0;
        if (!fits && wide.empty()) wide.resize(n, 0);
        own.sums = fits ? nullptr : wide.data();
        add_pairs_of_row(own);
      }
      divide_row(own);
    }
  });
}

void EventPairs::rows(const Executor& executor, int64_t first, int64_t last, const double* factors,
                      const double* divisors, double pixels, int64_t row, int64_t rows,
                      double* out) {
  if (sort_->wide()) {
    make_rows<uint64_t>(executor, first, last, factors, divisors, pixels, row, rows, out);
  } else {
    make_rows<uint32_t>(executor, first, last, factors, divisors, pixels, row, rows, out);
  }
}

}  // namespace jaxkern::correlators
