// Events (pixel, frame, count), checked and sorted by pixel in threads. events.cc describes the
// algorithm.
#ifndef JAXKERN_CORRELATORS_EVENTS_H_
#define JAXKERN_CORRELATORS_EVENTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/parallel.h"
#include "correlators/event_input.h"

namespace jaxkern::correlators {

// Ranks of 32 consecutive pixels, of which some are used: first + the index within the strip.
struct StripRanks {
  uint32_t first = 0, used = 0;  // used: one bit per pixel
};

// The pixels and frames that are used, with their ranks and sums.
struct EventMap {
  int64_t n_pixels = 0;  // pixels are 0 to n_pixels - 1
  // The rank of a pixel; n_ranks if it is not used. Either one number per pixel [n_pixels], or one
  // StripRanks per strip, which is smaller and remains in the cache.
  const uint32_t* rank = nullptr;
  const StripRanks* strips = nullptr;
  int64_t n_ranks = 0;
  int64_t n_frames = 0;          // frames are 0 to n_frames - 1
  int64_t n_sums = 0;            // sums of frames that are correlated
  const int32_t* sum = nullptr;  // [n_frames] the sum that a frame belongs to, or -1
  int64_t first_frame = 0;       // without `sum`, frame f is sum f - first_frame

  uint32_t rank_of(uint32_t pixel) const {
    if (rank != nullptr) return rank[pixel];
    const StripRanks strip = strips[pixel / 32];
    const bool in_use = (strip.used >> pixel % 32 & 1) != 0;
    return in_use ? strip.first + pixel % 32 : static_cast<uint32_t>(n_ranks);
  }
};

// The counts of one pixel in strictly ascending order of sums.
struct PixelCounts {
  int64_t rank = 0;
  int64_t size = 0;
  const uint32_t* sum = nullptr;
  const uint32_t* count = nullptr;
  uint64_t total = 0;  // below 2^32, so that no product of two sums of counts exceeds 64 bits
};

// Buckets hold 2^shift ranks, at least this many, and begin at multiples of it.
constexpr int32_t kLeastBucketShift = 9;
constexpr int64_t kMostSums = (int64_t{1} << 31) - 1;

class EventSort {
 public:
  // Working memory of one thread.
  struct Scratch {
    // The words of a bucket; only the vector of the width of words is used.
    std::vector<uint32_t> narrow;
    std::vector<uint64_t> wide;
    std::vector<int64_t> ends;
    std::vector<uint32_t> sums, counts;

    template <typename Word>
    std::vector<Word>& words() {
      if constexpr (sizeof(Word) == 8) {
        return wide;
      } else {
        return narrow;
      }
    }
  };

  // Checks every event. The input and the map must outlive this object. If the sorted events need
  // more than `bytes`, they are processed in parts. Throws std::invalid_argument that names the
  // first invalid event.
  EventSort(const Executor& executor, const EventInput& input, const EventMap& map, double bytes);

  int64_t used() const { return used_; }  // number of used events
  int64_t parts() const { return static_cast<int64_t>(part_ends_.size()); }
  // Distributes the events of a part to its buckets, and discards the previous part.
  void load(const Executor& executor, int64_t part);
  // Buckets of the loaded part.
  int64_t first_bucket() const { return first_; }
  int64_t last_bucket() const { return last_; }
  int64_t bucket_events(int64_t bucket) const { return begins_[bucket + 1] - begins_[bucket]; }
  int32_t bucket_shift() const { return shift_; }

  // Sorts the loaded part in place. The words of a pixel, sum << count_bits() | count, are then
  // consecutive with ascending sums; equal sums are not added. Stores the largest total of a pixel
  // in `most`, and returns the end of the words of each rank of the part. Throws as `pixels` does.
  std::vector<int64_t> sort_in_place(const Executor& executor, uint64_t* most);
  template <typename Word>
  const Word* words() const {
    return reinterpret_cast<const Word*>(sorted_.get());
  }
  bool wide() const { return wide_; }
  int32_t count_bits() const { return count_bits_; }

  // Calls visit(const PixelCounts&) for each pixel with counts of a loaded bucket, ranks ascending.
  // Throws std::invalid_argument if a pixel has 2^32 - 1 counts or more.
  template <typename Visit>
  void pixels(int64_t bucket, Scratch& scratch, const Visit& visit) const {
    sort_bucket(bucket, scratch);
    int64_t begin = 0;
    for (int64_t local = 0; local < int64_t{1} << shift_; ++local) {
      const int64_t end = scratch.ends[local];
      if (end == begin) continue;
      visit(unpack((bucket << shift_) + local, begin, end, scratch));
      begin = end;
    }
  }

 private:
  template <typename Run>
  void for_chunks(int64_t slice, const Run& run) const;
  void survey(const Executor& executor);
  void plan_parts(double bytes);
  template <typename Word>
  void scatter(const Executor& executor, Word* words);
  template <typename Word>
  void sort_words(const Word* words, int64_t bucket, Scratch& scratch) const;
  void sort_bucket(int64_t bucket, Scratch& scratch) const;
  template <typename Word>
  PixelCounts unpack_words(Word* words, int64_t rank, int64_t size, Scratch& scratch) const;
  PixelCounts unpack(int64_t rank, int64_t begin, int64_t end, Scratch& scratch) const;
  template <typename Word>
  uint64_t sort_in_place(int64_t bucket, Scratch& scratch, int64_t* ends);
  [[noreturn]] void throw_too_many(int64_t rank, uint64_t total) const;
  std::string problem_of(int64_t event) const;

  EventInput input_;
  EventMap map_;
  int32_t shift_ = kLeastBucketShift, sum_bits_ = 0, count_bits_ = 0;
  bool wide_ = false;  // words of 64 bits, else of 32
  int64_t buckets_ = 0, slices_ = 0, used_ = 0, first_ = 0, last_ = 0;
  std::vector<int64_t> counts_;     // [slices, buckets + 1] events; the last column counts dropped
  std::vector<int64_t> begins_;     // [buckets + 1] index of the first used event of each bucket
  std::vector<int64_t> part_ends_;  // [parts] end of the buckets of each part
  std::unique_ptr<char, void (*)(void*)> sorted_;
};

}  // namespace jaxkern::correlators

#endif  // JAXKERN_CORRELATORS_EVENTS_H_
