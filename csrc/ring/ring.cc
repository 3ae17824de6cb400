// The ring buffer: one mutex, three condition variables, and a slot for each index modulo capacity.
//
//              acquire(i)             commit(slot)               take()
//     EMPTY ---------------> FILLING ---------------> READY ---------------> EMPTY
//       ^                       |                       (blocks move to a BatchOwner)
//       +-----------------------+
//        ~Slot, fail(slot)
//
// Index i has the slot entries_[i % capacity_], or only an element of failures_. Indices below
// next_ are delivered, those below limit() may be acquired, and producers of later ones wait.
//  * limit() <= next_ + capacity_, so two live indices never share an entry.
//  * next_ only grows, by one per take. Each index is delivered exactly once, as batch or failure.
//  * next_unused_ is one above the highest index in use; acquire(kNextIndex) gets it.
//  * free_[leaf] holds recycled blocks; with the filled ones there are at most `capacity` of them.
//
// mutex_ guards all of this. Memory is freed, and messages of callers are built, outside of it.
// A waiting thread first spins on changes_ for up to kSpinTime, then sleeps on producers_next_ (any
// index), producers_index_ (a given index) or consumers_. Changes that complete without the mutex
// increment changes_ after unlocking. In a forked child nothing is locked or freed: another thread
// of the parent may have held the mutex.
#include "ring/ring.h"

#include <algorithm>
#include <stdexcept>
#include <thread>
#include <unordered_map>

#include "core/platform.h"

namespace jaxkern::ring {
namespace {

struct RingsByKey {
  std::mutex mutex;
  std::unordered_map<uint64_t, std::weak_ptr<Ring>> rings;
};

RingsByKey& rings_by_key() { return process_singleton<RingsByKey>(); }

Status forked_status() {
  return {Outcome::kForked,
          "this ring was created before the process forked and has no producers here; create a new "
          "ring in the child",
          -1};
}

// A thread spins this long before it sleeps, which is about the cost of sleeping and waking up. If
// spinning failed recently (long waits, busy cores), it sleeps at once, and spins again only in one
// of kProbePeriod waits.
constexpr std::chrono::microseconds kSpinTime(50);
constexpr int kMaxCredit = 4;
constexpr uint32_t kProbePeriod = 64;

// The mutex is held for less than 1 us, so spinning is cheaper than sleeping.
constexpr int kLockSpins = 100;

bool multicore() {
  static const bool several = std::thread::hardware_concurrency() > 1;
  return several;
}

void spin_then_lock(std::unique_lock<std::mutex>& lock) {
  for (int i = 0; i < kLockSpins && multicore(); ++i) {
    if (lock.try_lock()) return;
    spin_pause();
  }
  lock.lock();
}

// Waits until `ready()` and adds the waiting time to `total`. Returns false at the deadline.
// `changes` is incremented by events that may change `ready()`.
template <typename Ready>
bool wait(std::condition_variable& condition, std::unique_lock<std::mutex>& lock, int& waiting,
          const std::atomic<uint32_t>& changes, SpinBudget& budget, Deadline deadline,
          double& total, const Ready& ready) {
  if (ready()) return true;
  if (deadline == kNow) return false;
  const Clock::time_point begin = Clock::now();
  const Clock::time_point sleep = std::min(begin + kSpinTime, deadline);
  bool done = false;
  const bool spins = multicore() && (budget.credit > 0 || ++budget.waits % kProbePeriod == 0);
  while (!done && spins && Clock::now() < sleep) {
    const uint32_t seen = changes.load(std::memory_order_relaxed);
    lock.unlock();
    while (changes.load(std::memory_order_relaxed) == seen && Clock::now() < sleep) spin_pause();
    spin_then_lock(lock);
    done = ready();
  }
  if (spins) budget.credit = std::clamp(budget.credit + (done ? 1 : -1), 0, kMaxCredit);
  ++waiting;
  if (!done && deadline == kNoDeadline) {
    condition.wait(lock, ready);
    done = true;
  } else if (!done) {
    done = condition.wait_until(lock, deadline, ready);
  }
  --waiting;
  total += std::chrono::duration<double>(Clock::now() - begin).count();
  return done;
}

// Leaks a value that a forked child must not destroy. Does not allocate.
template <typename T>
void leak(T& value) {
  alignas(T) unsigned char storage[sizeof(T)];
  new (storage) T(std::move(value));
}

}  // namespace

Ring::Lock::Lock(std::mutex& mutex) : std::unique_lock<std::mutex>(mutex, std::defer_lock) {
  spin_then_lock(*this);
}

Slot& Slot::operator=(Slot&& other) noexcept {
  abandon();
  ring_ = std::move(other.ring_);
  index_ = other.index_;
  blocks_ = std::move(other.blocks_);
  failure_ = std::move(other.failure_);
  other.ring_.reset();
  other.blocks_.clear();
  return *this;
}

void Slot::abandon() {
  if (const std::shared_ptr<Ring> ring = std::move(ring_)) {
    ring->return_slot(index_, std::move(blocks_));
  }
  ring_.reset();
}

BatchOwner::~BatchOwner() {
  if (index < 0) return;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i]) ring->recycle(i, std::move(blocks[i]));
  }
  ring->release_batch();
}

Lease::~Lease() {
  if (--owner_->leases[leaf_] == 0) {
    owner_->ring->recycle(leaf_, std::move(owner_->blocks[leaf_]));
  }
}

const LeafSpec& Lease::spec() const { return owner_->ring->leaves()[leaf_]; }

Ring::Ring(std::vector<LeafSpec> leaves, const Options& options)
    : leaves_(std::move(leaves)),
      capacity_(options.capacity),
      key_(options.key),
      pop_timeout_(options.pop_timeout),
      allocator_(options.allocator),
      memory_(options.memory),
      entries_(static_cast<size_t>(options.capacity)),
      free_(leaves_.size()),
      next_(options.start),
      next_unused_(options.start) {
  counts_.occupancy.assign(static_cast<size_t>(capacity_) + 1, 0);
  if (memory_) {
    std::vector<size_t> sizes;
    for (const LeafSpec& leaf : leaves_) sizes.push_back(static_cast<size_t>(leaf.bytes));
    memory_->prepare(static_cast<size_t>(capacity_), sizes);
  }
  for (size_t i = 0; i < leaves_.size(); ++i) {
    free_[i].reserve(static_cast<size_t>(capacity_));
    for (int64_t k = 0; k < capacity_; ++k) free_[i].push_back(make_block(i));
  }
}

std::shared_ptr<Ring> Ring::create(std::vector<LeafSpec> leaves, const Options& options) {
  constexpr int64_t kMaxCapacity = int64_t{1} << 20;
  if (options.capacity < 1 || options.capacity > kMaxCapacity) {
    throw std::invalid_argument("capacity is " + std::to_string(options.capacity) +
                                "; expected 1 to " + std::to_string(kMaxCapacity) + " slots");
  }
  if (options.start < 0 || options.start > kLastIndex) {
    throw std::invalid_argument("start is " + std::to_string(options.start) +
                                "; expected an index from 0 to 2^62");
  }
  // A forked child must not destroy condition variables on which the parent's threads wait.
  std::shared_ptr<Ring> ring(new Ring(std::move(leaves), options), [](Ring* last) {
    if (!last->forked()) delete last;
  });
  if (options.key != 0) {
    RingsByKey& all = rings_by_key();
    std::lock_guard<std::mutex> lock(all.mutex);
    if (!all.rings.emplace(options.key, ring).second) {
      throw std::invalid_argument("a ring with this key already exists");
    }
  }
  return ring;
}

std::shared_ptr<Ring> Ring::find(uint64_t key) {
  RingsByKey& all = rings_by_key();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.rings.find(key);
  return found == all.rings.end() ? nullptr : found->second.lock();
}

Ring::~Ring() {
  if (key_ == 0) return;
  RingsByKey& all = rings_by_key();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.rings.find(key_);  // of another ring if create() failed
  if (found != all.rings.end() && found->second.expired()) all.rings.erase(found);
}

int64_t Ring::limit() const {
  // A batch that the consumer holds counts as a slot, so the ring has at most `capacity` batches.
  // At most half of the slots are counted this way: a consumer that holds more batches allocates
  // additional memory, and producers continue.
  return next_ + capacity_ - std::min(held_, capacity_ / 2);
}

bool Ring::deliverable() const {
  return closed_ || (end_ >= 0 && next_ >= end_) || entry(next_).state == State::kReady ||
         (!failures_.empty() && failures_.begin()->first == next_);
}

void Ring::reserve_index(int64_t index) { next_unused_ = std::max(next_unused_, index + 1); }

BlockRef Ring::make_block(size_t leaf) const {
  return std::make_shared<Block>(allocator_, static_cast<size_t>(leaves_[leaf].bytes), memory_);
}

std::vector<BlockRef> Ring::allocate_blocks() {
  std::vector<BlockRef> blocks(leaves_.size());
  // First allocate blocks that the consumer still holds, see limit(); if that throws, free_ is
  // unchanged.
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (free_[i].empty()) blocks[i] = make_block(i);
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i]) continue;
    blocks[i] = std::move(free_[i].back());
    free_[i].pop_back();
  }
  return blocks;
}

Status Ring::acquire(int64_t index, Deadline deadline, Slot* slot) {
  if (forked()) return forked_status();
  const bool next = index == kNextIndex;
  Lock lock(mutex_);
  if (first_use_ == Clock::time_point{}) first_use_ = Clock::now();
  const auto target = [&] { return next ? next_unused_ : index; };
  const auto decided = [&] {
    return target() < limit() || rejection(target()) != Rejection::kNone;
  };
  bool done = false;
  if (next) {
    done = wait(producers_next_, lock, waiting_next_, changes_, producers_budget_, deadline,
                counts_.producer_wait, decided);
  } else {
    const auto entry = waiting_indices_.insert(index);
    done = wait(producers_index_, lock, waiting_index_, changes_, producers_budget_, deadline,
                counts_.producer_wait, decided);
    waiting_indices_.erase(entry);
  }
  if (Status rejected = rejection_status(target(), next); !rejected.ok()) return rejected;
  index = target();
  if (!done) return {Outcome::kTimeout, deadline == kNow ? "" : describe_slot_wait(index), index};
  std::vector<BlockRef> blocks;
  Failures::node_type failure = std::move(spare_failure_);
  try {
    if (failure.empty()) {
      Failures single;
      failure = single.extract(single.emplace(index, Failure{}).first);
    }
    blocks = allocate_blocks();
  } catch (const std::bad_alloc&) {
    wake_producers();  // another producer may acquire the index
    return {Outcome::kNoMemory, describe_no_memory(index), index};
  }
  reserve_index(index);
  entry(index).state = State::kFilling;
  ++filling_;
  counts_.producers = std::max(counts_.producers, filling_ + waiting_next_ + waiting_index_);
  if (waiting_next_ > 0 && next_unused_ < limit()) producers_next_.notify_one();
  lock.unlock();
  slot->abandon();
  slot->ring_ = shared_from_this();
  slot->index_ = index;
  slot->blocks_ = std::move(blocks);
  slot->failure_ = std::move(failure);
  slot->failure_.key() = index;
  return {Outcome::kOk, {}, index};
}

Status Ring::commit(Slot&& slot) {
  if (forked()) return forked_status();
  if (slot.ring_.get() != this)
    return invalid_status("the slot is empty or belongs to another ring");
  const int64_t index = slot.index_;
  Lock lock(mutex_);
  if (closed_) {
    lock.unlock();
    slot.abandon();
    return closed_status();
  }
  Entry& target = entry(index);
  target.blocks = std::move(slot.blocks_);
  target.state = State::kReady;
  --filling_;
  ++ready_;
  if (spare_failure_.empty()) spare_failure_ = std::move(slot.failure_);
  const bool wake = index == next_ && waiting_take_ > 0;
  lock.unlock();
  ++changes_;  // after unlocking, so that spinning threads can lock at once
  if (wake) consumers_.notify_one();
  slot.ring_.reset();
  return {Outcome::kOk, {}, index};
}

Status Ring::fail(int64_t index, const std::string& message, int64_t record) {
  if (forked()) return forked_status();
  Failure failure{printable(message), record};
  Lock lock(mutex_);
  const bool next = index == kNextIndex;
  if (next) index = next_unused_;
  if (Status rejected = rejection_status(index, next); !rejected.ok()) return rejected;
  failures_.emplace(index, std::move(failure));
  reserve_index(index);
  if (index == next_) wake_consumers();
  return {Outcome::kOk, {}, index};
}

Status Ring::fail(Slot&& slot, std::string_view message, int64_t record) {
  if (forked()) return forked_status();
  if (slot.ring_.get() != this)
    return invalid_status("the slot is empty or belongs to another ring");
  const int64_t index = slot.index_;
  Failure failure{{}, record};
  try {
    failure.message = printable(std::string(message));
  } catch (const std::bad_alloc&) {
    failure.message = "out of memory";  // fits the string's inline buffer
  }
  const std::shared_ptr<Ring> self = std::move(slot.ring_);
  std::vector<BlockRef> blocks = std::move(slot.blocks_);  // freed after the lock
  slot.failure_.mapped() = std::move(failure);
  Lock lock(mutex_);
  empty(index, &blocks);
  if (closed_) return closed_status();
  failures_.insert(std::move(slot.failure_));
  if (index == next_) wake_consumers();
  lock.unlock();
  ++changes_;
  return {Outcome::kOk, {}, index};
}

Status Ring::finish(int64_t end) {
  if (forked()) return forked_status();
  Lock lock(mutex_);
  if (closed_) return closed_status();
  int64_t last = next_unused_ - 1;
  if (!waiting_indices_.empty()) last = std::max(last, *waiting_indices_.rbegin());
  if (end == kNextIndex) end = end_ >= 0 ? end_ : last + 1;
  if (end > kLastIndex + 1)
    return invalid_status("the end " + std::to_string(end) + " is above 2^62");
  if (end_ >= 0 && end != end_) {
    return invalid_status("the ring is finished at " + std::to_string(end_) +
                          "; it cannot end at " + std::to_string(end));
  }
  if (end <= last || end < next_) {
    return invalid_status("the end " + std::to_string(end) + " is not after batch " +
                          std::to_string(std::max(last, next_ - 1)) + ", which was put");
  }
  end_ = end;
  wake_producers();
  wake_consumers();
  return {Outcome::kOk, {}, end};
}

Status Ring::take(Deadline deadline, Batch* batch) {
  if (forked()) return forked_status();
  batch->release();
  // Allocate before changing state: an exception later would lose the batch.
  auto owner = std::make_shared<BatchOwner>(shared_from_this(), leaves_.size());
  Lock lock(mutex_);
  if (first_use_ == Clock::time_point{}) first_use_ = Clock::now();
  const int64_t ready_before = ready_;
  if (!wait(consumers_, lock, waiting_take_, changes_, consumers_budget_, deadline,
            counts_.consumer_wait, [this] { return deliverable(); })) {
    return {Outcome::kTimeout, deadline == kNow ? "" : describe_batch_wait(), next_};
  }
  if (closed_) return closed_status();
  if (end_ >= 0 && next_ >= end_) {
    wake_consumers();  // a commit wakes one consumer; at the end each wakes the next
    return {Outcome::kFinished, "the ring is finished", -1};
  }
  const int64_t index = next_++;
  const auto failure = failures_.find(index);
  Status status{Outcome::kOk, {}, index};
  if (failure != failures_.end()) {
    status = {Outcome::kFailed, std::move(failure->second.message), index, failure->second.record};
    failures_.erase(failure);
    ++counts_.failures;
  } else {
    Entry& source = entry(index);
    owner->index = index;
    owner->blocks = std::move(source.blocks);
    source.blocks.clear();
    source.state = State::kEmpty;
    --ready_;
    if (!leaves_.empty()) ++held_;
    ++counts_.occupancy[static_cast<size_t>(std::min(ready_before, capacity_))];
    ++counts_.batches;
    for (const LeafSpec& leaf : leaves_) counts_.bytes += leaf.bytes;
  }
  if (waiting_take_ > 0 && deliverable()) consumers_.notify_one();
  wake_producers();
  lock.unlock();
  ++changes_;
  if (status.ok()) batch->owner_ = std::move(owner);
  return status;
}

void Ring::close(const char* why) {
  if (forked()) return;
  std::vector<std::vector<BlockRef>> memory;  // freed after the lock
  Lock lock(mutex_);
  if (closed_) return;
  for (Entry& each : entries_) {
    if (each.state != State::kReady) continue;
    for (size_t i = 0; i < leaves_.size(); ++i) free_[i].push_back(std::move(each.blocks[i]));
    each = {};
  }
  ready_ = 0;
  closed_ = true;
  close_reason_ = why;
  failures_.clear();
  memory.swap(free_);
  wake_producers();
  wake_consumers();
}

void Ring::recycle(size_t leaf, BlockRef block) noexcept {
  if (forked()) return leak(block);
  Lock lock(mutex_);
  try_recycle(leaf, &block);  // a block that is not recycled is freed after unlocking
}

// Moves the block to free_, or leaves it to the caller.
void Ring::try_recycle(size_t leaf, BlockRef* block) noexcept {
  if (closed_) return;
  // The ring never owns more blocks, filled or free, than it has slots.
  const int64_t owned = static_cast<int64_t>(free_[leaf].size()) + filling_ + ready_;
  if (owned < capacity_) free_[leaf].push_back(std::move(*block));  // within the reserved size
}

// Blocks that remain in `blocks` must be freed by the caller, after unlocking.
void Ring::empty(int64_t index, std::vector<BlockRef>* blocks) noexcept {
  entry(index).state = State::kEmpty;
  --filling_;
  for (size_t i = 0; i < blocks->size(); ++i) try_recycle(i, &(*blocks)[i]);
}

void Ring::return_slot(int64_t index, std::vector<BlockRef> blocks) noexcept {
  if (forked()) return leak(blocks);
  Lock lock(mutex_);
  empty(index, &blocks);
  // The index is free again. If no later index is in use, the next producer gets it.
  next_unused_ = failures_.empty() ? next_ : failures_.rbegin()->first + 1;
  for (int64_t i = next_; i < next_ + capacity_; ++i) {
    if (entry(i).state != State::kEmpty) reserve_index(i);
  }
  wake_producers();
}

void Ring::release_batch() noexcept {
  if (forked() || leaves_.empty()) return;
  Lock lock(mutex_);
  --held_;
  wake_producers();
  lock.unlock();
  ++changes_;
}

void Ring::wake_producers() {
  if (waiting_index_ > 0) producers_index_.notify_all();  // each waits for another index
  if (waiting_next_ == 0) return;
  if (closed_ || end_ >= 0) {
    producers_next_.notify_all();
  } else if (next_unused_ < limit()) {
    producers_next_.notify_one();
  }
}

void Ring::wake_consumers() {
  if (waiting_take_ > 0 && deliverable()) consumers_.notify_all();
}

}  // namespace jaxkern::ring
