// Multi-tau sums of one pixel from its list of counts. event_sums.cc describes the algorithm.
#ifndef JAXKERN_CORRELATORS_EVENT_SUMS_H_
#define JAXKERN_CORRELATORS_EVENT_SUMS_H_

#include <cstdint>
#include <vector>

#include "correlators/events.h"

namespace jaxkern::correlators {

// The delays t = first .. last of a level, in sums of 2^level frames.
struct DelayLevel {
  int64_t size = 0;  // number of complete sums
  int64_t first = 0, last = 0;
  int64_t delay = 0;              // index of the first delay among all delays
  std::vector<uint32_t> weights;  // [size] good frames of each sum, with 2 dpl zeros on both sides
};

// The delays of all levels.
struct DelayPlan {
  // `weights`: numbers of good frames of n_sums sums, or null if they are all equal.
  DelayPlan(int64_t n_sums, int64_t dpl, const uint32_t* weights);

  int64_t dpl;
  bool weighted;
  int64_t n_delays = 0;
  std::vector<DelayLevel> levels;
  std::vector<double> pairs;  // [n_delays] sum c c', or the number of pairs
};

// Sums of one pixel at a time, with the working memory of a thread.
class PixelProducts {
 public:
  explicit PixelProducts(const DelayPlan& plan);

  // Computes G = sum s s', IP = sum s c' and IF = sum c s' at all delays exactly; c = 1 without
  // weights.
  void compute(const PixelCounts& pixel);

  const uint64_t* G() const { return sums_.data(); }
  const uint64_t* IP() const { return sums_.data() + plan_.n_delays; }
  const uint64_t* IF() const { return sums_.data() + 2 * plan_.n_delays; }

 private:
  // Counts of sums of level `base`, with strictly ascending positions.
  struct List {
    const uint32_t* position;
    const uint32_t* count;
    int64_t size;
    int64_t base;
  };

  bool sparse(const List& list, int64_t number) const;
  int64_t list_levels(const List& list);
  int64_t find_near(const List& list, uint32_t reach);
  void pair_products(const List& list, int64_t near, uint32_t reach, int64_t levels);
  void list_ends(const List& list, int64_t number, uint64_t* products);
  void weighted_ends(const List& list, int64_t number);
  List merged(const List& list, int64_t number);
  template <typename T>
  void dense_levels(const List& list, int64_t first, std::vector<T>& own);
  template <typename T>
  void set_sums(const DelayLevel& level, const uint64_t* products, uint64_t total, const T* begin,
                const T* end);
  void set_weighted_sums(const DelayLevel& level, const uint64_t* products);

  const DelayPlan& plan_;
  uint64_t total_ = 0;                      // total counts of the pixel
  std::vector<uint64_t> sums_;              // [3, n_delays]
  int64_t row_;                             // 2 dpl + 2
  std::vector<uint64_t> products_;          // [kTogether, row] by t
  std::vector<uint64_t> past_, future_;     // [row] sums s c' and c s', by t
  std::vector<uint64_t> begin_, end_;       // [row] the first and the last sums of a level
  std::vector<uint32_t> near_;              // indices of counts in the list
  std::vector<uint32_t> position_, count_;  // the merged list
  std::vector<int16_t> short_;              // dense sums of pixels with small totals
  std::vector<uint32_t> long_;              // dense sums of other pixels
};

}  // namespace jaxkern::correlators

#endif  // JAXKERN_CORRELATORS_EVENT_SUMS_H_
