// Check and sort of events: a two-pass radix sort by pixel, most significant digit first (Knuth,
// The Art of Computer Programming, volume 3, section 5.2.5).
//
//   input, any order      (pixel, frame, count)  split into `slices_` equal slices
//      | survey()         check every event; counts_[slice][bucket] = events that are used
//      v
//   buckets               2^shift_ consecutive ranks of pixels each; begins_ = prefix sums
//      | load(), scatter()  one pass over the input; each slice writes to its own ranges:
//      v                    | bucket 0: slice 0, slice 1, ... | bucket 1: slice 0, ... | ...
//   packed words          rank within the bucket | sum of frames | count
//                         (shift_ bits)            (sum_bits_)     (count_bits_)     32 or 64 bits
//      | sort_words()     counting sort of one bucket in the cache, by rank
//      v
//   pixels                one list (sum, count) each, sums ascending, equal sums added
//
// Invariants:
// - Both passes are stable and the ranges of slices do not overlap, so that the result does not
//   depend on the number of threads. A pixel's events remain in the order of the input. Only if
//   that is not ascending is the list sorted.
// - Events of unused pixels or frames are dropped in the first pass.
// - If the words need more than the allowed memory, buckets are processed in parts, and scatter()
//   reads the input once for each part.
// - The input may be a memory map of a file that another process changes. Each pass therefore
//   checks every value it uses, and scatter() checks the counts of survey().
#include "correlators/events.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <stdexcept>

#include "core/huge_pages.h"

namespace jaxkern::correlators {
namespace {

// The counts of a pixel must sum to less, as for dense frames.
constexpr uint64_t kMostTotal = 0xffffffff;
// Approximate number of events of a bucket, so that it and its sorted copy fit into the L2 cache.
constexpr double kBucketEvents = 32768;
constexpr int64_t kMostBuckets = 2048;
constexpr int64_t kMostSlices = 64, kLeastSlice = int64_t{1} << 16;

int32_t bits_of(uint64_t value) {
  int32_t bits = 0;
  for (; value != 0; value >>= 1) ++bits;
  return bits;
}

}  // namespace

// Decodes the events of a slice in chunks.
template <typename Run>
void EventSort::for_chunks(int64_t slice, const Run& run) const {
  const int64_t begin = input_.size / slices_ * slice + std::min(slice, input_.size % slices_);
  const int64_t end = begin + input_.size / slices_ + (slice < input_.size % slices_);
  for_event_chunks(input_, begin, end, run);
}

// Returns the sum of frames that a valid frame belongs to, or -1.
inline int64_t sum_of(const EventMap& map, uint32_t frame) {
  if (map.sum != nullptr) return map.sum[frame];
  const int64_t sum = static_cast<int64_t>(frame) - map.first_frame;
  return sum < map.n_sums ? std::max<int64_t>(sum, -1) : -1;
}

EventSort::EventSort(const Executor& executor, const EventInput& input, const EventMap& map,
                     double bytes)
    : input_(input), map_(map), sorted_(nullptr, std::free) {
  const auto within = [](int64_t value, int64_t most) { return value >= 0 && value <= most; };
  if (!within(map.n_pixels, kTooLarge - 1) || !within(map.n_ranks, kMostSums) ||
      !within(map.n_frames, kMostSums) || !within(map.n_sums, kMostSums) ||
      !within(map.first_frame, kMostSums) || !within(input.pixel_base, kMostSums) ||
      input.size < 0) {
    throw std::invalid_argument("expected fewer than 2^31 events, pixels and frames");
  }
  for (int64_t p = 0; p < map.n_pixels; ++p) {
    if (map.rank_of(static_cast<uint32_t>(p)) > map.n_ranks) {
      throw std::invalid_argument("a pixel's rank is out of range");
    }
  }
  for (int64_t f = 0; map.sum != nullptr && f < map.n_frames; ++f) {
    if (map.sum[f] >= map.n_sums) throw std::invalid_argument("a frame's sum is out of range");
  }
  sum_bits_ = bits_of(static_cast<uint64_t>(std::max<int64_t>(map.n_sums - 1, 0)));
  const double mean = static_cast<double>(input.size) / std::max<int64_t>(map.n_ranks, 1);
  const int32_t most = std::max(kLeastBucketShift, 64 - sum_bits_ - most_count_bits(input));
  while (shift_ < std::min(most, 16) &&
         (mean * static_cast<double>(int64_t{2} << shift_) <= kBucketEvents ||
          map.n_ranks >> shift_ >= kMostBuckets)) {
    ++shift_;
  }
  buckets_ = (map.n_ranks + (int64_t{1} << shift_) - 1) >> shift_;
  slices_ = std::clamp<int64_t>(input.size / kLeastSlice, 1, kMostSlices);
  survey(executor);
  plan_parts(bytes);
}

std::string EventSort::problem_of(int64_t event) const {
  return "event " + std::to_string(event) + ": expected a pixel from 0 to " +
         std::to_string(map_.n_pixels - 1) + ", a frame from 0 to " +
         std::to_string(map_.n_frames - 1) + " and a count from 0 to 2^32 - 2, got " +
         text_of_event(input_, event);
}

// Checks all events, and counts the events of each slice and bucket.
void EventSort::survey(const Executor& executor) {
  const int64_t none = input_.size;
  counts_.assign(slices_ * (buckets_ + 1), 0);
  std::mutex mutex;
  int64_t first_bad = none;
  uint32_t all_bits = 0;
  parallel_for(executor, slices_, 1, [&](int64_t slice, int64_t) {
    int64_t* counts = counts_.data() + slice * (buckets_ + 1);
    int64_t bad = none;
    uint32_t bits = 0;
    const auto n_pixels = static_cast<uint32_t>(map_.n_pixels);
    const auto n_frames = static_cast<uint32_t>(map_.n_frames);
    for_chunks(slice, [&](const EventChunk& chunk) {
      if (bad != none) return;
      bool wrong = false;
      for (int64_t i = 0; i < chunk.size; ++i) {
        wrong |= (chunk.pixel[i] >= n_pixels) | (chunk.frame[i] >= n_frames) |
                 (chunk.count[i] == kTooLarge);
        bits |= chunk.count[i];
      }
      for (int64_t i = 0; wrong && i < chunk.size; ++i) {
        if (chunk.pixel[i] >= n_pixels || chunk.frame[i] >= n_frames ||
            chunk.count[i] == kTooLarge) {
          bad = chunk.first + i;
          return;
        }
      }
      const EventMap map = map_;
      const int64_t dropped = buckets_;
      const int32_t shift = shift_;
      int64_t* const own = counts;
      for (int64_t i = 0; i < chunk.size; ++i) {
        const uint32_t rank = map.rank_of(chunk.pixel[i]);
        const bool counts_here =
            (rank < map.n_ranks) & (sum_of(map, chunk.frame[i]) >= 0) & (chunk.count[i] != 0);
        ++own[counts_here ? rank >> shift : dropped];
      }
    });
    std::lock_guard<std::mutex> lock(mutex);
    first_bad = std::min(first_bad, bad);
    all_bits |= bits;
  });
  if (first_bad != none) throw std::invalid_argument(problem_of(first_bad));
  count_bits_ = bits_of(all_bits);
  const int32_t bits = shift_ + sum_bits_ + count_bits_;
  if (bits > 64) {
    throw std::invalid_argument(
        "counts of up to " + std::to_string(all_bits) + " in " + std::to_string(map_.n_sums) +
        " frames do not fit into 64 bits; use smaller counts or fewer frames (begin=, end=, "
        "average=)");
  }
  wide_ = bits > 32;
}

void EventSort::plan_parts(double bytes) {
  begins_.assign(buckets_ + 1, 0);
  for (int64_t bucket = 0; bucket < buckets_; ++bucket) {
    begins_[bucket + 1] = begins_[bucket];
    for (int64_t slice = 0; slice < slices_; ++slice) {
      begins_[bucket + 1] += counts_[slice * (buckets_ + 1) + bucket];
    }
  }
  used_ = begins_[buckets_];
  const double most = bytes / (wide_ ? 8 : 4);
  for (int64_t first = 0, bucket = 0; bucket < buckets_; ++bucket) {
    const bool fits = static_cast<double>(begins_[bucket + 1] - begins_[first]) <= most;
    if (!fits && bucket > first) part_ends_.push_back(first = bucket);
    if (bucket + 1 == buckets_) part_ends_.push_back(buckets_);
  }
}

void EventSort::load(const Executor& executor, int64_t part) {
  first_ = part == 0 ? 0 : part_ends_[part - 1];
  last_ = part_ends_[part];
  const size_t events = begins_[last_] - begins_[first_];
  sorted_.reset();
  const size_t bytes = (events * (wide_ ? 8 : 4) + kHugePage) / kHugePage * kHugePage;
  sorted_.reset(static_cast<char*>(std::aligned_alloc(kHugePage, bytes)));
  if (!sorted_) throw std::bad_alloc();
  advise_huge_pages(sorted_.get(), bytes);
  if (wide_) {
    scatter(executor, reinterpret_cast<uint64_t*>(sorted_.get()));
  } else {
    scatter(executor, reinterpret_cast<uint32_t*>(sorted_.get()));
  }
}

template <typename Word>
void EventSort::scatter(const Executor& executor, Word* words) {
  // Where each slice writes the events of each bucket.
  const int64_t size = last_ - first_;
  std::vector<int64_t> positions(slices_ * size), ends(slices_ * size);
  for (int64_t b = 0; b < size; ++b) {
    int64_t position = begins_[first_ + b] - begins_[first_];
    for (int64_t slice = 0; slice < slices_; ++slice) {
      positions[slice * size + b] = position;
      ends[slice * size + b] = position += counts_[slice * (buckets_ + 1) + first_ + b];
    }
  }
  // The caller's memory may be a file that another process writes. Every value is checked again.
  std::atomic<bool> changed{false};
  const auto mask = static_cast<uint32_t>((uint64_t{1} << shift_) - 1);
  const auto first = static_cast<uint32_t>(first_), n_buckets = static_cast<uint32_t>(size);
  parallel_for(executor, slices_, 1, [&](int64_t slice, int64_t) {
    int64_t* next = positions.data() + slice * size;
    const int64_t* stop = ends.data() + slice * size;
    for_chunks(slice, [&](const EventChunk& chunk) {
      // Local copies, since the compiler must assume that a store to `out` changes members.
      const EventMap map = map_;
      const int32_t shift = shift_, sum_bits = sum_bits_, count_bits = count_bits_;
      const uint32_t local_mask = mask, first_bucket = first, count_of_buckets = n_buckets;
      int64_t* const own_next = next;
      const int64_t* const own_stop = stop;
      Word* const out = words;
      for (int64_t i = 0; i < chunk.size; ++i) {
        const uint32_t pixel = chunk.pixel[i], frame = chunk.frame[i], count = chunk.count[i];
        if (pixel >= map.n_pixels || frame >= map.n_frames) {
          changed = true;
          return;
        }
        const uint32_t rank = map.rank_of(pixel);
        const uint32_t bucket = (rank >> shift) - first_bucket;
        const int64_t sum = sum_of(map, frame);
        const bool counts_here =
            (rank < map.n_ranks) & (bucket < count_of_buckets) & (sum >= 0) & (count != 0);
        if (!counts_here) continue;
        const int64_t position = own_next[bucket];
        if (position >= own_stop[bucket] || static_cast<uint64_t>(count) >> count_bits != 0) {
          changed = true;
          return;
        }
        own_next[bucket] = position + 1;
        out[position] = static_cast<Word>(
            (static_cast<uint64_t>(rank & local_mask) << sum_bits | sum) << count_bits | count);
      }
    });
    for (int64_t b = 0; b < size; ++b) {
      if (next[b] != stop[b]) changed = true;
    }
  });
  if (changed) throw std::runtime_error("the events changed while they were sorted");
}

template <typename Word>
void EventSort::sort_words(const Word* words, int64_t bucket, Scratch& scratch) const {
  const Word* own = words + (begins_[bucket] - begins_[first_]);
  const int64_t events = bucket_events(bucket);
  const int32_t shift = sum_bits_ + count_bits_;
  scratch.ends.assign((int64_t{1} << shift_) + 1, 0);
  std::vector<Word>& sorted = scratch.words<Word>();
  if (static_cast<int64_t>(sorted.size()) < events) sorted.resize(events);
  // ends[p] is the index of pixel p's next event, and after the last event the end of the pixel.
  int64_t* next = scratch.ends.data();
  for (int64_t i = 0; i < events; ++i) ++next[(static_cast<uint64_t>(own[i]) >> shift) + 1];
  for (int64_t p = 0; p < int64_t{1} << shift_; ++p) next[p + 1] += next[p];
  Word* out = sorted.data();
  for (int64_t i = 0; i < events; ++i) out[next[static_cast<uint64_t>(own[i]) >> shift]++] = own[i];
}

void EventSort::sort_bucket(int64_t bucket, Scratch& scratch) const {
  if (wide_) {
    sort_words(reinterpret_cast<const uint64_t*>(sorted_.get()), bucket, scratch);
  } else {
    sort_words(reinterpret_cast<const uint32_t*>(sorted_.get()), bucket, scratch);
  }
}

void EventSort::throw_too_many(int64_t rank, uint64_t total) const {
  uint32_t pixel = 0;
  while (map_.rank_of(pixel) != rank) ++pixel;
  throw std::invalid_argument("pixel " + std::to_string(pixel) + " has " + std::to_string(total) +
                              " counts; expected less than 2^32 - 1, so that no sum of products "
                              "exceeds 64 bits; use fewer frames (begin=, end=) or mask the pixel");
}

template <typename Word>
uint64_t EventSort::sort_in_place(int64_t bucket, Scratch& scratch, int64_t* ends) {
  sort_bucket(bucket, scratch);
  Word* sorted = scratch.words<Word>().data();
  Word* out = reinterpret_cast<Word*>(sorted_.get());
  const auto mask = static_cast<Word>((uint64_t{1} << (sum_bits_ + count_bits_)) - 1);
  const auto count_mask = static_cast<Word>((uint64_t{1} << count_bits_) - 1);
  const int64_t base = begins_[bucket] - begins_[first_];
  uint64_t most = 0;
  int64_t begin = 0;
  for (int64_t local = 0; local < int64_t{1} << shift_; ++local) {
    const int64_t end = scratch.ends[local], rank = (bucket << shift_) + local;
    if (rank >= map_.n_ranks) break;
    if (!std::is_sorted(sorted + begin, sorted + end)) std::sort(sorted + begin, sorted + end);
    uint64_t total = 0;
    for (int64_t i = begin; i < end; ++i) {
      out[base + i] = sorted[i] & mask;
      total += sorted[i] & count_mask;
    }
    if (total >= kMostTotal) throw_too_many(rank, total);
    most = std::max(most, total);
    ends[rank - (first_ << shift_)] = base + end;
    begin = end;
  }
  return most;
}

std::vector<int64_t> EventSort::sort_in_place(const Executor& executor, uint64_t* most) {
  const int64_t ranks = std::min(last_ << shift_, map_.n_ranks) - (first_ << shift_);
  std::vector<int64_t> ends(std::max<int64_t>(ranks, 0));
  std::mutex mutex;
  *most = 0;
  parallel_for(executor, last_ - first_, 1, [&](int64_t i, int64_t) {
    Scratch scratch;
    const int64_t bucket = first_ + i;
    const uint64_t own = wide_ ? sort_in_place<uint64_t>(bucket, scratch, ends.data())
                               : sort_in_place<uint32_t>(bucket, scratch, ends.data());
    std::lock_guard<std::mutex> lock(mutex);
    *most = std::max(*most, own);
  });
  return ends;
}

template <typename Word>
PixelCounts EventSort::unpack_words(Word* words, int64_t rank, int64_t size,
                                    Scratch& scratch) const {
  if (static_cast<int64_t>(scratch.sums.size()) < size) {
    scratch.sums.resize(size);
    scratch.counts.resize(size);
  }
  uint32_t* sums = scratch.sums.data();
  uint32_t* counts = scratch.counts.data();
  const auto sum_mask = static_cast<uint32_t>((uint64_t{1} << sum_bits_) - 1);
  const auto count_mask = static_cast<uint32_t>((uint64_t{1} << count_bits_) - 1);
  const int32_t count_bits = count_bits_;
  int64_t n = 0;
  uint64_t total = 0;
  for (int64_t i = 0; i < size; ++i) {
    const uint64_t word = words[i];
    const auto sum = static_cast<uint32_t>(word >> count_bits) & sum_mask;
    const auto count = static_cast<uint32_t>(word) & count_mask;
    total += count;
    if (n > 0 && sum <= sums[n - 1]) {
      if (sum < sums[n - 1]) {  // the frames are not in order
        std::sort(words, words + size);
        return unpack_words(words, rank, size, scratch);
      }
      counts[n - 1] += count;  // this wraps only if the total is an error below
      continue;
    }
    sums[n] = sum;
    counts[n++] = count;
  }
  if (total >= kMostTotal) throw_too_many(rank, total);
  return {rank, n, sums, counts, total};
}

PixelCounts EventSort::unpack(int64_t rank, int64_t begin, int64_t end, Scratch& scratch) const {
  if (wide_) return unpack_words(scratch.wide.data() + begin, rank, end - begin, scratch);
  return unpack_words(scratch.narrow.data() + begin, rank, end - begin, scratch);
}

}  // namespace jaxkern::correlators
