// A bounded ring of batches between threads: any number of producers, delivery strictly by index.
//
// A producer takes an empty slot for an index, fills its leaves and commits it:
//
//   Slot slot;
//   Status status = ring->acquire(kNextIndex, deadline, &slot);   // waits for its turn
//   if (!status.ok()) return;                                     // closed, finished or late
//   fill(slot.index(), slot.leaf(0));
//   ring->commit(std::move(slot));                                // or ring->fail(index, "why")
//
// A consumer calls `take`; the leaves of its batch stay as they are until their leases end, in any
// thread and also after the ring has gone. No call here knows of Python, JAX or XLA, and every wait
// is on a condition variable.
#ifndef JAXKERN_RING_RING_H_
#define JAXKERN_RING_RING_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ring/memory.h"

namespace jaxkern::ring {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;
constexpr Deadline kNoDeadline = Deadline::max();
constexpr Deadline kNow = Deadline::min();  // do not wait, and do not say for what

// At most some thirty years.
inline Clock::duration duration(double seconds) {
  constexpr double kLongest = 1e9;
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(seconds < kLongest ? seconds : kLongest));
}

// The time that is so many seconds away; none where they are negative.
inline Deadline deadline_in(double seconds) {
  return seconds >= 0 ? Clock::now() + duration(seconds) : kNoDeadline;
}

// Asks `acquire` and `fail` for the index after the highest one that any producer has named, and
// `finish` for an end behind it.
constexpr int64_t kNextIndex = -1;

// The last index, so that sums with a capacity fit.
constexpr int64_t kLastIndex = int64_t{1} << 62;

// One array of a batch: row-major, without gaps.
struct LeafSpec {
  std::string dtype;  // as NumPy and ml_dtypes name it
  int64_t item_size = 0;
  std::vector<int64_t> shape;
  int64_t bytes = 0;  // item_size times the shape's product
};

// Throws std::invalid_argument for a negative size or one that does not fit into 63 bits.
LeafSpec leaf_spec(std::string dtype, int64_t item_size, std::vector<int64_t> shape);

enum class Outcome {
  kOk,
  kTimeout,   // the message says what the wait was for: "batch 3, which no producer has put"
  kFailed,    // take: the producer's message, at its own index
  kFinished,  // take: the stream has ended; acquire: the index is behind the end
  kClosed,
  kInvalid,   // a call that can never succeed: an index put twice, a second, different end
  kForked,    // the ring belongs to the process that this one was forked from
  kNoMemory,  // acquire: the consumer keeps batches, and there is no memory for another one
};

struct Status {
  Outcome outcome = Outcome::kOk;
  std::string message;
  int64_t index = -1;   // of the batch that was delivered or failed
  int64_t record = -1;  // of a failure: the record that could not be made; -1: not one record
  bool ok() const { return outcome == Outcome::kOk; }
};

// A producer's message as everybody can show it: valid UTF-8 (other bytes become '?'), cut off
// where it is long.
std::string printable(const std::string& message);

struct Options {
  int64_t capacity = 4;
  int64_t start = 0;                         // the first index
  uint64_t key = 0;                          // a name for `Ring::find`; 0: none
  std::chrono::nanoseconds pop_timeout{-1};  // for takers that cannot be interrupted; < 0: none
  Allocator allocator = host_allocator();
  std::shared_ptr<SlotMemory> memory;  // where slots are taken from and given back; null: nowhere
};

struct Statistics {
  int64_t batches = 0, bytes = 0, failures = 0;
  int64_t zero_copy = 0, copied = 0;                         // leaves handed over
  double producer_wait = 0, consumer_wait = 0, elapsed = 0;  // seconds; elapsed since first use
  int64_t producers = 0;                                     // that were there at once, at most
  std::vector<int64_t> occupancy;            // [capacity + 1]: batches ready when the consumer came
  int64_t ready = 0, filling = 0, held = 0;  // now
  // "producer-bound": the consumer waits; "consumer-bound": producers do; else "balanced".
  const char* verdict() const;
};

class Ring;
struct Held;

// What a producer reports in a batch's place, by index.
struct Failure {
  std::string message;
  int64_t record = -1;
};
using Failures = std::map<int64_t, Failure>;

// A producer's slot. Destroyed without a commit it is given back, and its index is free again.
class Slot {
 public:
  Slot() = default;
  Slot(Slot&& other) noexcept { *this = std::move(other); }
  Slot& operator=(Slot&& other) noexcept;
  ~Slot() { abandon(); }
  void abandon();
  explicit operator bool() const { return ring_ != nullptr; }
  int64_t index() const { return index_; }
  size_t size() const { return blocks_.size(); }
  char* leaf(size_t i) const { return blocks_[i]->data(); }
  const BlockRef& block(size_t i) const { return blocks_[i]; }

 private:
  friend class Ring;
  std::shared_ptr<Ring> ring_;
  int64_t index_ = -1;
  std::vector<BlockRef> blocks_;
  Failures::node_type failure_;  // allocated with the slot, so that `fail` needs no memory
};

// Whether looking for a change before sleeping has paid lately.
struct Patience {
  int credit = 1;
  uint32_t waits = 0;
};

// What the consumer keeps of one batch; the last owner gives everything back.
struct Held {
  Held(std::shared_ptr<Ring> owner, size_t leaves) : ring(std::move(owner)), leases(leaves) {}
  ~Held();
  const std::shared_ptr<Ring> ring;
  int64_t index = -1;  // below 0 until a batch is delivered
  std::vector<BlockRef> blocks;
  std::vector<std::atomic<int>> leases;  // [leaf]
};

// One leaf of a delivered batch: its memory is not written again before the lease ends.
class Lease {
 public:
  Lease(std::shared_ptr<Held> held, size_t leaf) : held_(std::move(held)), leaf_(leaf) {
    ++held_->leases[leaf_];
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease();
  char* data() const { return held_->blocks[leaf_]->data(); }
  const LeafSpec& spec() const;

 private:
  std::shared_ptr<Held> held_;
  size_t leaf_;
};

// A delivered batch; leaves that were not leased go back with it.
class Batch {
 public:
  Batch() = default;
  Batch(Batch&&) = default;
  Batch& operator=(Batch&&) = default;
  explicit operator bool() const { return held_ != nullptr; }
  int64_t index() const { return held_->index; }
  size_t size() const { return held_->blocks.size(); }
  const char* leaf(size_t i) const { return held_->blocks[i]->data(); }
  // At most once a leaf.
  std::unique_ptr<Lease> lease(size_t i) const { return std::make_unique<Lease>(held_, i); }
  void release() { held_.reset(); }

 private:
  friend class Ring;
  std::shared_ptr<Held> held_;
};

class Ring : public std::enable_shared_from_this<Ring> {
 public:
  // Throws std::invalid_argument for a capacity below 1 and std::bad_alloc.
  static std::shared_ptr<Ring> create(std::vector<LeafSpec> leaves, const Options& options);
  // The open ring of that key in this process, or null.
  static std::shared_ptr<Ring> find(uint64_t key);
  ~Ring();

  Status acquire(int64_t index, Deadline deadline, Slot* slot);
  Status commit(Slot&& slot);
  // The consumer gets the message and the record in the batch's place.
  Status fail(int64_t index, const std::string& message, int64_t record = -1);
  // Needs no memory: without any the message is "out of memory".
  Status fail(Slot&& slot, std::string_view message, int64_t record = -1);
  Status finish(int64_t end = kNextIndex);
  Status take(Deadline deadline, Batch* batch);
  // Wakes everybody; what was not delivered is dropped. `why` is a literal for later statuses.
  void close(const char* why = nullptr);

  const std::vector<LeafSpec>& leaves() const { return leaves_; }
  int64_t capacity() const { return capacity_; }
  Deadline pop_deadline() const {
    return pop_timeout_.count() < 0 ? kNoDeadline : Clock::now() + pop_timeout_;
  }
  bool closed() const;
  bool forked() const { return generation_ != process_generation(); }
  int64_t delivered() const;  // every batch (or failure) before this index is delivered
  Statistics statistics() const;
  void count_hand_over(int64_t zero_copy, int64_t copied);

 private:
  friend class Slot;
  friend class Lease;
  friend struct Held;
  enum class State : uint8_t { kEmpty, kFilling, kReady };
  struct Entry {
    State state = State::kEmpty;
    std::vector<BlockRef> blocks;
  };
  // Why no producer may have an index.
  enum class Refusal : uint8_t {
    kNone,
    kClosed,
    kBehindEnd,
    kNegative,
    kBeyondLast,
    kDelivered,
    kFailed,
    kReady,
    kFilling,
  };
  class Lock : public std::unique_lock<std::mutex> {
   public:
    explicit Lock(std::mutex& mutex);
  };

  Ring(std::vector<LeafSpec> leaves, const Options& options);
  Entry& entry(int64_t index) { return entries_[static_cast<size_t>(index % capacity_)]; }
  const Entry& entry(int64_t index) const {
    return entries_[static_cast<size_t>(index % capacity_)];
  }
  int64_t limit() const;  // producers may have indices below this one
  bool deliverable() const;
  Refusal refusal(int64_t index) const noexcept;  // called while waiting: allocates nothing
  Status refuse(int64_t index, bool next) const;  // the refusal in words
  void name_index(int64_t index);
  BlockRef make_block(size_t leaf) const;
  std::vector<BlockRef> take_blocks();
  void give_back(size_t leaf, BlockRef block) noexcept;
  void wake_producers();
  void wake_consumers();
  void empty(int64_t index, std::vector<BlockRef>* blocks) noexcept;
  void abandoned(int64_t index, std::vector<BlockRef> blocks) noexcept;
  void unheld() noexcept;
  void keep(size_t leaf, BlockRef* block) noexcept;
  std::string wait_for_batch() const;
  std::string wait_for_slot(int64_t index) const;
  std::string no_memory(int64_t index) const;
  Status ring_closed() const;

  const std::vector<LeafSpec> leaves_;
  const int64_t capacity_;
  const uint64_t key_, generation_ = process_generation();
  const std::chrono::nanoseconds pop_timeout_;
  const Allocator allocator_;
  const std::shared_ptr<SlotMemory> memory_;

  mutable std::mutex mutex_;          // guards everything below
  std::atomic<uint32_t> changes_{0};  // read without the mutex by those who are about to wait
  std::condition_variable producers_next_, producers_index_, consumers_;
  Patience producers_patience_, consumers_patience_;
  int waiting_next_ = 0, waiting_index_ = 0, waiting_take_ = 0;
  std::multiset<int64_t> waited_indices_;  // of producers that wait for a given index
  std::vector<Entry> entries_;             // [capacity]: index % capacity
  Failures failures_;
  Failures::node_type spare_failure_;        // the last committed slot's, for the next one
  std::vector<std::vector<BlockRef>> free_;  // [leaf], `capacity` reserved; none once it is closed
  int64_t next_;                             // the next index to deliver
  int64_t next_put_;                         // the index after the highest that was named
  int64_t end_ = -1;                         // no index from here on; -1: not finished
  int64_t ready_ = 0, filling_ = 0, held_ = 0;
  bool closed_ = false;
  const char* closed_because_ = nullptr;
  Statistics counts_;
  Clock::time_point first_use_{};
};

}  // namespace jaxkern::ring

#endif  // JAXKERN_RING_RING_H_
