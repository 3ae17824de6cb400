// Two-time correlations of events: rows of C from the pairs of events of each pixel.
//
// For a row t, each pixel with an event in t adds its list from t on to a row of exact sums of its
// group of pixels, which is a static bin. The work is proportional to the number of pairs of
// events. The row is then weighted and added to C.
#ifndef JAXKERN_CORRELATORS_EVENT_PAIRS_H_
#define JAXKERN_CORRELATORS_EVENT_PAIRS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "correlators/events.h"

namespace jaxkern::correlators {

// An event, and the events of its pixel in the same and in later sums.
struct EventList {
  int64_t position;  // index of the first of these events among all words
  uint32_t size;     // their number
  uint32_t count;    // count of the event itself
};

class EventPairs {
 public:
  // Pixels are ordered by group; group g ends at group_ends[g]. The input need not outlive the
  // constructor. Throws as EventSort does, and std::invalid_argument if sums of products exceed 64
  // bits.
  EventPairs(const Executor& executor, const EventInput& input, EventMap map, const int32_t* pixels,
             std::vector<int64_t> group_ends);

  int64_t n_sums() const { return n_sums_; }
  int64_t n_groups() const { return static_cast<int64_t>(group_ends_.size()); }
  // [n_groups, n_sums] exact counts of each group in each sum.
  const std::vector<uint64_t>& totals() const { return totals_; }

  // out[r, k] = pixels sum_g f[g, t] f[g, t'] M_g[t, t'] / (d[t] d[t']) for t = row + r < row +
  // rows and t' = row + k from t on, and 0 before; M_g is the exact sum of products over group g's
  // pixels, factors f [last - first, n_sums] of groups first .. last - 1, divisors d [n_sums].
  void rows(const Executor& executor, int64_t first, int64_t last, const double* factors,
            const double* divisors, double pixels, int64_t row, int64_t rows, double* out);

 private:
  struct Slice {
    int64_t group, begin, end;  // ranks
  };
  template <typename Word>
  void sum_totals(const Executor& executor);
  template <typename Word>
  void list_rows(const Executor& executor, const std::vector<Slice>& slices, int64_t row,
                 int64_t rows);
  template <typename Word>
  void make_rows(const Executor& executor, int64_t first, int64_t last, const double* factors,
                 const double* divisors, double pixels, int64_t row, int64_t rows, double* out);
  int64_t begin_of(int64_t rank) const { return rank == 0 ? 0 : ends_[rank - 1]; }

  int64_t n_sums_;
  std::vector<int64_t> group_ends_, ends_, next_;
  std::vector<uint32_t> rank_;
  std::unique_ptr<EventSort> sort_;
  std::vector<uint64_t> totals_;
  uint64_t most_ = 0;               // the largest total of a pixel
  std::vector<EventList> lists_;    // of the current rows
  std::vector<int64_t> list_ends_;  // [rows, slices]
};

}  // namespace jaxkern::correlators

#endif  // JAXKERN_CORRELATORS_EVENT_PAIRS_H_
