// The ring's states under one mutex: who may fill, what may be delivered, who is woken.
#include "ring/ring.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>
#include <unordered_map>

namespace jaxkern::ring {
namespace {

using Seconds = std::chrono::duration<double>;

struct Names {
  std::mutex mutex;
  std::unordered_map<uint64_t, std::weak_ptr<Ring>> rings;
};

Names& names() { return of_this_process<Names>(); }

Status invalid(std::string message) { return {Outcome::kInvalid, std::move(message), -1}; }

Status forked_child() {
  return {Outcome::kForked,
          "this ring was made before the process forked and has no producers here; make a new "
          "ring in the child",
          -1};
}

// A thread may look for a change this long before it sleeps: about what falling asleep and being
// woken cost. Where that has not paid, as with long waits or busy cores, it sleeps at once, and
// looks again one time in kProbe.
constexpr std::chrono::microseconds kBeforeSleep(50);
constexpr int kMostCredit = 4;
constexpr uint32_t kProbe = 64;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// The mutex is held for less than a microsecond: asking again is cheaper than sleeping.
constexpr int kTries = 100;

bool several_cores() {
  static const bool several = std::thread::hardware_concurrency() > 1;
  return several;
}

void lock_soon(std::unique_lock<std::mutex>& lock) {
  for (int i = 0; i < kTries && several_cores(); ++i) {
    if (lock.try_lock()) return;
    pause();
  }
  lock.lock();
}

// Waits until `ready()`, and adds the time to `total`. False when the deadline came first.
// `changes` counts what may make it ready.
template <typename Ready>
bool wait(std::condition_variable& condition, std::unique_lock<std::mutex>& lock, int& waiting,
          const std::atomic<uint32_t>& changes, Patience& patience, Deadline deadline,
          double& total, const Ready& ready) {
  if (ready()) return true;
  if (deadline == kNow) return false;
  const Clock::time_point begin = Clock::now();
  const Clock::time_point sleep = std::min(begin + kBeforeSleep, deadline);
  bool done = false;
  const bool looks = several_cores() && (patience.credit > 0 || ++patience.waits % kProbe == 0);
  while (!done && looks && Clock::now() < sleep) {
    const uint32_t seen = changes.load(std::memory_order_relaxed);
    lock.unlock();
    while (changes.load(std::memory_order_relaxed) == seen && Clock::now() < sleep) pause();
    lock_soon(lock);
    done = ready();
  }
  if (looks) patience.credit = std::clamp(patience.credit + (done ? 1 : -1), 0, kMostCredit);
  ++waiting;
  if (!done && deadline == kNoDeadline) {
    condition.wait(lock, ready);
    done = true;
  } else if (!done) {
    done = condition.wait_until(lock, deadline, ready);
  }
  --waiting;
  total += Seconds(Clock::now() - begin).count();
  return done;
}

// Never destroyed, and never freed: for what a forked child must leave alone. Needs no memory.
template <typename T>
void leak(T& value) {
  alignas(T) unsigned char place[sizeof(T)];
  new (place) T(std::move(value));
}

}  // namespace

Ring::Lock::Lock(std::mutex& mutex) : std::unique_lock<std::mutex>(mutex, std::defer_lock) {
  lock_soon(*this);
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
    ring->abandoned(index_, std::move(blocks_));
  }
  ring_.reset();
}

Held::~Held() {
  if (index < 0) return;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i]) ring->give_back(i, std::move(blocks[i]));
  }
  ring->unheld();
}

Lease::~Lease() {
  if (--held_->leases[leaf_] == 0) {
    held_->ring->give_back(leaf_, std::move(held_->blocks[leaf_]));
  }
}

const LeafSpec& Lease::spec() const { return held_->ring->leaves()[leaf_]; }

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
      next_put_(options.start) {
  counts_.occupancy.assign(static_cast<size_t>(capacity_) + 1, 0);
  if (memory_) {
    std::vector<size_t> sizes;
    for (const LeafSpec& leaf : leaves_) sizes.push_back(static_cast<size_t>(leaf.bytes));
    memory_->expect(static_cast<size_t>(capacity_), sizes);
  }
  for (size_t i = 0; i < leaves_.size(); ++i) {
    free_[i].reserve(static_cast<size_t>(capacity_));
    for (int64_t k = 0; k < capacity_; ++k) free_[i].push_back(make_block(i));
  }
}

std::shared_ptr<Ring> Ring::create(std::vector<LeafSpec> leaves, const Options& options) {
  constexpr int64_t kMostSlots = int64_t{1} << 20;
  if (options.capacity < 1 || options.capacity > kMostSlots) {
    throw std::invalid_argument("capacity is " + std::to_string(options.capacity) +
                                "; wanted 1 to " + std::to_string(kMostSlots) + " slots");
  }
  if (options.start < 0 || options.start > kLastIndex) {
    throw std::invalid_argument("start is " + std::to_string(options.start) +
                                "; wanted an index from 0 to 2^62");
  }
  // In a forked child, a condition on which the parent's threads wait cannot be destroyed.
  std::shared_ptr<Ring> ring(new Ring(std::move(leaves), options), [](Ring* last) {
    if (!last->forked()) delete last;
  });
  if (options.key != 0) {
    Names& all = names();
    std::lock_guard<std::mutex> lock(all.mutex);
    if (!all.rings.emplace(options.key, ring).second) {
      throw std::invalid_argument("the ring's key is in use");
    }
  }
  return ring;
}

std::shared_ptr<Ring> Ring::find(uint64_t key) {
  Names& all = names();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.rings.find(key);
  return found == all.rings.end() ? nullptr : found->second.lock();
}

Ring::~Ring() {
  if (key_ == 0) return;
  Names& all = names();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.rings.find(key_);  // another ring's, where the key was in use
  if (found != all.rings.end() && found->second.expired()) all.rings.erase(found);
}

int64_t Ring::limit() const {
  // A batch that the consumer holds occupies its slot, so that there are never more than
  // `capacity`; but a consumer that keeps batches gets at most half of them for that: what it
  // keeps beyond is its own memory, and producers go on.
  return next_ + capacity_ - std::min(held_, capacity_ / 2);
}

bool Ring::deliverable() const {
  return closed_ || (end_ >= 0 && next_ >= end_) || entry(next_).state == State::kReady ||
         (!failures_.empty() && failures_.begin()->first == next_);
}

void Ring::name_index(int64_t index) { next_put_ = std::max(next_put_, index + 1); }

BlockRef Ring::make_block(size_t leaf) const {
  return std::make_shared<Block>(allocator_, static_cast<size_t>(leaves_[leaf].bytes), memory_);
}

std::vector<BlockRef> Ring::take_blocks() {
  std::vector<BlockRef> blocks(leaves_.size());
  // First those that the consumer keeps, see limit(): where there is no memory, the free ones stay.
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
  if (forked()) return forked_child();
  const bool next = index == kNextIndex;
  Lock lock(mutex_);
  if (first_use_ == Clock::time_point{}) first_use_ = Clock::now();
  const auto wanted = [&] { return next ? next_put_ : index; };
  const auto settled = [&] { return wanted() < limit() || refusal(wanted()) != Refusal::kNone; };
  bool done = false;
  if (next) {
    done = wait(producers_next_, lock, waiting_next_, changes_, producers_patience_, deadline,
                counts_.producer_wait, settled);
  } else {
    const auto waited = waited_indices_.insert(index);
    done = wait(producers_index_, lock, waiting_index_, changes_, producers_patience_, deadline,
                counts_.producer_wait, settled);
    waited_indices_.erase(waited);
  }
  if (Status refused = refuse(wanted(), next); !refused.ok()) return refused;
  index = wanted();
  if (!done) return {Outcome::kTimeout, deadline == kNow ? "" : wait_for_slot(index), index};
  std::vector<BlockRef> blocks;
  Failures::node_type failure = std::move(spare_failure_);
  try {
    if (failure.empty()) {
      Failures made;
      failure = made.extract(made.emplace(index, Failure{}).first);
    }
    blocks = take_blocks();
  } catch (const std::bad_alloc&) {
    wake_producers();  // the turn is another one's
    return {Outcome::kNoMemory, no_memory(index), index};
  }
  name_index(index);
  entry(index).state = State::kFilling;
  ++filling_;
  counts_.producers = std::max(counts_.producers, filling_ + waiting_next_ + waiting_index_);
  if (waiting_next_ > 0 && next_put_ < limit()) producers_next_.notify_one();
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
  if (forked()) return forked_child();
  if (slot.ring_.get() != this) return invalid("the slot is empty or another ring's");
  const int64_t index = slot.index_;
  Lock lock(mutex_);
  if (closed_) {
    lock.unlock();
    slot.abandon();
    return ring_closed();
  }
  Entry& target = entry(index);
  target.blocks = std::move(slot.blocks_);
  target.state = State::kReady;
  --filling_;
  ++ready_;
  if (spare_failure_.empty()) spare_failure_ = std::move(slot.failure_);
  const bool wake = index == next_ && waiting_take_ > 0;
  lock.unlock();
  ++changes_;  // unlocked, so that who sees it need not wait for the mutex
  if (wake) consumers_.notify_one();
  slot.ring_.reset();
  return {Outcome::kOk, {}, index};
}

Status Ring::fail(int64_t index, const std::string& message, int64_t record) {
  if (forked()) return forked_child();
  Failure failure{printable(message), record};
  Lock lock(mutex_);
  const bool next = index == kNextIndex;
  if (next) index = next_put_;
  if (Status refused = refuse(index, next); !refused.ok()) return refused;
  failures_.emplace(index, std::move(failure));
  name_index(index);
  if (index == next_) wake_consumers();
  return {Outcome::kOk, {}, index};
}

Status Ring::fail(Slot&& slot, std::string_view message, int64_t record) {
  if (forked()) return forked_child();
  if (slot.ring_.get() != this) return invalid("the slot is empty or another ring's");
  const int64_t index = slot.index_;
  Failure failure{{}, record};
  try {
    failure.message = printable(std::string(message));
  } catch (const std::bad_alloc&) {
    failure.message = "out of memory";  // short enough to need none
  }
  const std::shared_ptr<Ring> self = std::move(slot.ring_);
  std::vector<BlockRef> blocks = std::move(slot.blocks_);  // freed after the lock
  slot.failure_.mapped() = std::move(failure);
  Lock lock(mutex_);
  empty(index, &blocks);
  if (closed_) return ring_closed();
  failures_.insert(std::move(slot.failure_));
  if (index == next_) wake_consumers();
  lock.unlock();
  ++changes_;
  return {Outcome::kOk, {}, index};
}

Status Ring::finish(int64_t end) {
  if (forked()) return forked_child();
  Lock lock(mutex_);
  if (closed_) return ring_closed();
  int64_t last = next_put_ - 1;
  if (!waited_indices_.empty()) last = std::max(last, *waited_indices_.rbegin());
  if (end == kNextIndex) end = end_ >= 0 ? end_ : last + 1;
  if (end > kLastIndex + 1) return invalid("the end " + std::to_string(end) + " is beyond 2^62");
  if (end_ >= 0 && end != end_) {
    return invalid("the ring is finished at " + std::to_string(end_) + "; it cannot end at " +
                   std::to_string(end));
  }
  if (end <= last || end < next_) {
    return invalid("the end " + std::to_string(end) + " is not behind batch " +
                   std::to_string(std::max(last, next_ - 1)) + ", which was put");
  }
  end_ = end;
  wake_producers();
  wake_consumers();
  return {Outcome::kOk, {}, end};
}

Status Ring::take(Deadline deadline, Batch* batch) {
  if (forked()) return forked_child();
  batch->release();
  // Allocated before anything changes: what follows needs no memory, or a batch would be lost.
  auto held = std::make_shared<Held>(shared_from_this(), leaves_.size());
  Lock lock(mutex_);
  if (first_use_ == Clock::time_point{}) first_use_ = Clock::now();
  const int64_t came = ready_;
  if (!wait(consumers_, lock, waiting_take_, changes_, consumers_patience_, deadline,
            counts_.consumer_wait, [this] { return deliverable(); })) {
    return {Outcome::kTimeout, deadline == kNow ? "" : wait_for_batch(), next_};
  }
  if (closed_) return ring_closed();
  if (end_ >= 0 && next_ >= end_) {
    wake_consumers();  // a commit wakes one; each learns of the end from the one before
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
    held->index = index;
    held->blocks = std::move(source.blocks);
    source.blocks.clear();
    source.state = State::kEmpty;
    --ready_;
    if (!leaves_.empty()) ++held_;
    ++counts_.occupancy[static_cast<size_t>(std::min(came, capacity_))];
    ++counts_.batches;
    for (const LeafSpec& leaf : leaves_) counts_.bytes += leaf.bytes;
  }
  if (waiting_take_ > 0 && deliverable()) consumers_.notify_one();
  wake_producers();
  lock.unlock();
  ++changes_;
  if (status.ok()) batch->held_ = std::move(held);
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
  closed_because_ = why;
  failures_.clear();
  memory.swap(free_);
  wake_producers();
  wake_consumers();
}

void Ring::give_back(size_t leaf, BlockRef block) noexcept {
  if (forked()) return leak(block);  // a thread that is not here may hold the lock
  Lock lock(mutex_);
  keep(leaf, &block);  // else it is freed after the lock, since unmapping takes long
}

// Takes the block, or leaves it to the caller.
void Ring::keep(size_t leaf, BlockRef* block) noexcept {
  if (closed_) return;
  // Memory that the ring keeps, filled or not, is never more than its slots.
  const int64_t kept = static_cast<int64_t>(free_[leaf].size()) + filling_ + ready_;
  if (kept < capacity_) free_[leaf].push_back(std::move(*block));  // reserved
}

// What is left in `blocks` is the caller's to free, after the lock.
void Ring::empty(int64_t index, std::vector<BlockRef>* blocks) noexcept {
  entry(index).state = State::kEmpty;
  --filling_;
  for (size_t i = 0; i < blocks->size(); ++i) keep(i, &(*blocks)[i]);
}

void Ring::abandoned(int64_t index, std::vector<BlockRef> blocks) noexcept {
  if (forked()) return leak(blocks);
  Lock lock(mutex_);
  empty(index, &blocks);
  // The index is free again: where none behind it was put, the next producer gets it.
  next_put_ = failures_.empty() ? next_ : failures_.rbegin()->first + 1;
  for (int64_t i = next_; i < next_ + capacity_; ++i) {
    if (entry(i).state != State::kEmpty) name_index(i);
  }
  wake_producers();
}

void Ring::unheld() noexcept {
  if (forked() || leaves_.empty()) return;
  Lock lock(mutex_);
  --held_;
  wake_producers();
  lock.unlock();
  ++changes_;
}

void Ring::wake_producers() {
  if (waiting_index_ > 0) producers_index_.notify_all();  // only one of them may be the right one
  if (waiting_next_ == 0) return;
  if (closed_ || end_ >= 0) {
    producers_next_.notify_all();
  } else if (next_put_ < limit()) {
    producers_next_.notify_one();
  }
}

void Ring::wake_consumers() {
  if (waiting_take_ > 0 && deliverable()) consumers_.notify_all();
}

}  // namespace jaxkern::ring
