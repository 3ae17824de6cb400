// Multi-tau sums of one pixel from its list of counts, which grows denser from level to level.
//
// As long as few sums of a level are not zero, their products are found by walking along the list;
// then the list becomes an array, and products are multiplied out.
#ifndef JAXKERN_CORRELATORS_EVENT_SUMS_H_
#define JAXKERN_CORRELATORS_EVENT_SUMS_H_

#include <cstdint>
#include <vector>

#include "correlators/events.h"

namespace jaxkern::correlators {

// The delays of a level: t = first .. last in sums of 2^level frames, of which there are `size`.
struct DelayLevel {
  int64_t size = 0;
  int64_t first = 0, last = 0;
  int64_t delay = 0;              // the number of its first one among all delays
  std::vector<uint32_t> weights;  // [size] good frames of each sum, 2 dpl zeros on both sides
};

struct DelayPlan {
  // `weights`: good frames of each of n_sums sums, or null where all hold the same.
  DelayPlan(int64_t n_sums, int64_t dpl, const uint32_t* weights);

  int64_t dpl;
  bool weighted;
  int64_t n_delays = 0;
  std::vector<DelayLevel> levels;
  std::vector<double> pairs;  // [n_delays] sum c c', or the pairs
};

// Working memory and sums of one thread.
class PixelProducts {
 public:
  explicit PixelProducts(const DelayPlan& plan);

  // G = sum s s', IP = sum s c' and IF = sum c s' at all delays, exact; c = 1 without weights.
  void compute(const PixelCounts& pixel);

  const uint64_t* G() const { return sums_.data(); }
  const uint64_t* IP() const { return sums_.data() + plan_.n_delays; }
  const uint64_t* IF() const { return sums_.data() + 2 * plan_.n_delays; }

 private:
  void list_level(const DelayLevel& level);
  void merge_list(int64_t size);
  template <typename T>
  void dense_levels(size_t first, std::vector<T>& own);
  template <typename T>
  void dense_ends(const T* s, const DelayLevel& level);
  void set_sums(const DelayLevel& level);

  const DelayPlan& plan_;
  std::vector<uint64_t> sums_;             // [3, n_delays]
  std::vector<uint32_t> place_, count_;    // the list
  int64_t size_ = 0;                       // its length
  uint64_t total_ = 0;                     // of the level's sums
  std::vector<uint64_t> products_;         // [2 dpl + 4] by t
  std::vector<uint64_t> before_, behind_;  // [2 dpl + 4] sums s c' and c s', by t; or ends
  std::vector<int16_t> short_;             // the array of small sums
  std::vector<uint32_t> long_;
};

}  // namespace jaxkern::correlators

#endif  // JAXKERN_CORRELATORS_EVENT_SUMS_H_
