// A bounded ring buffer of batches between threads: any number of producers and consumers, delivery
// strictly in the order of the index.
//
// A producer acquires an empty slot for an index, fills its leaves and commits it:
//
//   Slot slot;
//   Status status = ring->acquire(kNextIndex, deadline, &slot);   // waits for a free slot
//   if (!status.ok()) return;                                     // closed, finished or timeout
//   fill(slot.index(), slot.leaf(0));
//   ring->commit(std::move(slot));                                // or ring->fail(index, "why")
//
// A consumer calls `take`. The leaves of its batch are not overwritten until their leases end, in
// any thread, even after the ring is destroyed. This file does not depend on Python, JAX or XLA.
// ring.cc begins with the algorithm.
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
constexpr Deadline kNow = Deadline::min();  // do not wait; the status has no message

// Converts seconds, limited to about 30 years.
inline Clock::duration duration(double seconds) {
  constexpr double kMaxSeconds = 1e9;
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(seconds < kMaxSeconds ? seconds : kMaxSeconds));
}

// Returns the time in `seconds` from now; no deadline if negative.
inline Deadline deadline_in(double seconds) {
  return seconds >= 0 ? Clock::now() + duration(seconds) : kNoDeadline;
}

// For `acquire` and `fail`: the index after the highest index used so far. For `finish`: the end
// right after the highest index used so far.
constexpr int64_t kNextIndex = -1;

// The largest index; the sum with a capacity does not overflow.
constexpr int64_t kLastIndex = int64_t{1} << 62;

// One array of a batch: row-major and contiguous.
struct LeafSpec {
  std::string dtype;  // as NumPy and ml_dtypes name it
  int64_t item_size = 0;
  std::vector<int64_t> shape;
  int64_t bytes = 0;  // item_size times the product of the shape
};

// Throws std::invalid_argument for a negative size or one that does not fit into 63 bits.
LeafSpec leaf_spec(std::string dtype, int64_t item_size, std::vector<int64_t> shape);

enum class Outcome {
  kOk,
  kTimeout,   // the message describes the awaited event: "batch 3, which no producer has put"
  kFailed,    // take: the producer's message, at its own index
  kFinished,  // take: the stream has ended; acquire: the index is after the end
  kClosed,
  kInvalid,   // the call can never succeed: an index put twice, or a second, different end
  kForked,    // the ring belongs to the parent of this forked process
  kNoMemory,  // acquire: the consumer holds batches, and allocating another one failed
};

struct Status {
  Outcome outcome = Outcome::kOk;
  std::string message;
  int64_t index = -1;   // of the batch that was delivered or failed
  int64_t record = -1;  // of a failure: the record that could not be made; -1: not one record
  bool ok() const { return outcome == Outcome::kOk; }
};

inline Status invalid_status(std::string message) {
  return {Outcome::kInvalid, std::move(message), -1};
}

// Returns a producer's message as valid UTF-8 (invalid bytes become '?'), truncated.
std::string printable(const std::string& message);

struct Options {
  int64_t capacity = 4;
  int64_t start = 0;                         // the first index
  uint64_t key = 0;                          // key for `Ring::find`; 0: none
  std::chrono::nanoseconds pop_timeout{-1};  // for waits inside programs; < 0: none
  Allocator allocator = host_allocator();
  std::shared_ptr<SlotMemory> memory;  // cache of slot memory between rings; null: no cache
};

struct Statistics {
  int64_t batches = 0, bytes = 0, failures = 0;
  int64_t zero_copy = 0, copied = 0;                         // leaves delivered to JAX
  double producer_wait = 0, consumer_wait = 0, elapsed = 0;  // seconds; elapsed since first use
  int64_t producers = 0;                     // maximum number of concurrent producers
  std::vector<int64_t> occupancy;            // [capacity + 1]: ready batches at each take
  int64_t ready = 0, filling = 0, held = 0;  // now
  // "producer-bound": the consumer waits; "consumer-bound": producers wait; else "balanced".
  const char* verdict() const;
};

class Ring;
struct BatchOwner;

// A failure that is delivered instead of a batch, by index.
struct Failure {
  std::string message;
  int64_t record = -1;
};
using Failures = std::map<int64_t, Failure>;

// A producer's slot. Destruction without a commit returns the slot and frees its index.
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
  Failures::node_type failure_;  // allocated in advance, so that `fail` cannot run out of memory
};

// Records whether spinning before sleep has succeeded recently; see wait() in ring.cc.
struct SpinBudget {
  int credit = 1;
  uint32_t waits = 0;
};

// The memory of one delivered batch. The destructor recycles the leaves that were not leased.
struct BatchOwner {
  BatchOwner(std::shared_ptr<Ring> owner, size_t leaves) : ring(std::move(owner)), leases(leaves) {}
  ~BatchOwner();
  const std::shared_ptr<Ring> ring;
  int64_t index = -1;  // -1 until a batch is delivered
  std::vector<BlockRef> blocks;
  std::vector<std::atomic<int>> leases;  // [leaf]
};

// One leaf of a delivered batch. Its memory is not reused before the lease ends.
class Lease {
 public:
  Lease(std::shared_ptr<BatchOwner> owner, size_t leaf) : owner_(std::move(owner)), leaf_(leaf) {
    ++owner_->leases[leaf_];
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease();
  char* data() const { return owner_->blocks[leaf_]->data(); }
  const LeafSpec& spec() const;

 private:
  std::shared_ptr<BatchOwner> owner_;
  size_t leaf_;
};

// A delivered batch. Destruction recycles the leaves that were not leased.
class Batch {
 public:
  Batch() = default;
  Batch(Batch&&) = default;
  Batch& operator=(Batch&&) = default;
  explicit operator bool() const { return owner_ != nullptr; }
  int64_t index() const { return owner_->index; }
  size_t size() const { return owner_->blocks.size(); }
  const char* leaf(size_t i) const { return owner_->blocks[i]->data(); }
  // Call at most once per leaf.
  std::unique_ptr<Lease> lease(size_t i) const { return std::make_unique<Lease>(owner_, i); }
  void release() { owner_.reset(); }

 private:
  friend class Ring;
  std::shared_ptr<BatchOwner> owner_;
};

class Ring : public std::enable_shared_from_this<Ring> {
 public:
  // Throws std::invalid_argument for a capacity below 1 and std::bad_alloc.
  static std::shared_ptr<Ring> create(std::vector<LeafSpec> leaves, const Options& options);
  // Returns the ring with this key in this process, or null.
  static std::shared_ptr<Ring> find(uint64_t key);
  ~Ring();

  Status acquire(int64_t index, Deadline deadline, Slot* slot);
  Status commit(Slot&& slot);
  // Delivers the message and the record instead of the batch.
  Status fail(int64_t index, const std::string& message, int64_t record = -1);
  // If the message cannot be allocated, it becomes "out of memory". Throws std::bad_alloc only for
  // the status of a closed ring.
  Status fail(Slot&& slot, std::string_view message, int64_t record = -1);
  Status finish(int64_t end = kNextIndex);
  Status take(Deadline deadline, Batch* batch);
  // Wakes all threads and drops undelivered batches. `why` is a string literal for later statuses.
  void close(const char* why = nullptr);

  const std::vector<LeafSpec>& leaves() const { return leaves_; }
  int64_t capacity() const { return capacity_; }
  Deadline pop_deadline() const {
    return pop_timeout_.count() < 0 ? kNoDeadline : Clock::now() + pop_timeout_;
  }
  bool closed() const;
  bool forked() const { return generation_ != process_generation(); }
  int64_t delivered() const;  // all batches and failures before this index were delivered
  Statistics statistics() const;
  void count_hand_over(int64_t zero_copy, int64_t copied);

 private:
  friend class Slot;
  friend class Lease;
  friend struct BatchOwner;
  enum class State : uint8_t { kEmpty, kFilling, kReady };
  struct Entry {
    State state = State::kEmpty;
    std::vector<BlockRef> blocks;
  };
  // The reason that a producer cannot acquire an index.
  enum class Rejection : uint8_t {
    kNone,
    kClosed,
    kAfterEnd,
    kNegative,
    kTooLarge,
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
  int64_t limit() const;  // producers may acquire indices below this one
  bool deliverable() const;
  Rejection rejection(int64_t index) const noexcept;  // called while waiting; does not allocate
  Status rejection_status(int64_t index, bool next) const;  // the refusal in words
  void reserve_index(int64_t index);
  BlockRef make_block(size_t leaf) const;
  std::vector<BlockRef> allocate_blocks();
  void recycle(size_t leaf, BlockRef block) noexcept;
  void wake_producers();
  void wake_consumers();
  void empty(int64_t index, std::vector<BlockRef>* blocks) noexcept;
  void return_slot(int64_t index, std::vector<BlockRef> blocks) noexcept;
  void release_batch() noexcept;
  void try_recycle(size_t leaf, BlockRef* block) noexcept;
  std::string describe_batch_wait() const;
  std::string describe_slot_wait(int64_t index) const;
  std::string describe_no_memory(int64_t index) const;
  Status closed_status() const;

  const std::vector<LeafSpec> leaves_;
  const int64_t capacity_;
  const uint64_t key_, generation_ = process_generation();
  const std::chrono::nanoseconds pop_timeout_;
  const Allocator allocator_;
  const std::shared_ptr<SlotMemory> memory_;

  mutable std::mutex mutex_;          // guards everything below
  std::atomic<uint32_t> changes_{0};  // read by spinning threads without the mutex
  std::condition_variable producers_next_, producers_index_, consumers_;
  SpinBudget producers_budget_, consumers_budget_;
  int waiting_next_ = 0, waiting_index_ = 0, waiting_take_ = 0;
  std::multiset<int64_t> waiting_indices_;  // indices that producers wait for
  std::vector<Entry> entries_;              // [capacity]: index % capacity
  Failures failures_;
  Failures::node_type spare_failure_;        // of the last committed slot, for reuse
  std::vector<std::vector<BlockRef>> free_;  // [leaf], `capacity` reserved; empty when closed
  int64_t next_;                             // the next index to deliver
  int64_t next_unused_;                      // the index after the highest one used so far
  int64_t end_ = -1;                         // first index after the stream; -1: not finished
  int64_t ready_ = 0, filling_ = 0, held_ = 0;
  bool closed_ = false;
  const char* close_reason_ = nullptr;
  Statistics counts_;
  Clock::time_point first_use_{};
};

}  // namespace jaxkern::ring

#endif  // JAXKERN_RING_RING_H_
