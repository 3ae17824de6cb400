// What a ring says: why a call is refused, what a wait is for, and how it has run.
#include <algorithm>
#include <stdexcept>

#include "ring/ring.h"

namespace jaxkern::ring {

namespace {

Status invalid(std::string message) { return {Outcome::kInvalid, std::move(message), -1}; }

}  // namespace

LeafSpec leaf_spec(std::string dtype, int64_t item_size, std::vector<int64_t> shape) {
  LeafSpec leaf{std::move(dtype), item_size, std::move(shape), item_size};
  bool fits = item_size > 0;
  // An axis of size 0 makes the product exist whatever the others are.
  const bool empty = std::find(leaf.shape.begin(), leaf.shape.end(), 0) != leaf.shape.end();
  for (const int64_t size : leaf.shape) {
    fits = fits && size >= 0;
    if (!empty) fits = fits && !__builtin_mul_overflow(leaf.bytes, size, &leaf.bytes);
  }
  if (!fits) {
    throw std::invalid_argument(
        "a leaf has a negative size, no item size, or more than 2^63 - 1 bytes");
  }
  if (empty) leaf.bytes = 0;
  return leaf;
}

const char* Statistics::verdict() const {
  // A side that waits for less than 2% of the time is not held up by the other.
  const double least = 0.02 * elapsed;
  // Of many producers each waits for its part of the sum.
  const double producer = producer_wait / static_cast<double>(std::max<int64_t>(producers, 1));
  if (consumer_wait > 2 * producer && consumer_wait > least) return "producer-bound";
  if (producer > 2 * consumer_wait && producer > least) return "consumer-bound";
  return "balanced";
}

Status Ring::ring_closed() const { return {Outcome::kClosed, "the ring is closed", -1}; }

Status Ring::refuse(int64_t index, bool next) const {
  if (closed_) return ring_closed();
  if (end_ >= 0 && index >= end_) {
    return {Outcome::kFinished,
            next ? "the ring is finished: " + std::to_string(end_) + " is its end"
                 : "index " + std::to_string(index) +
                       " is behind the end: the ring is finished at " + std::to_string(end_),
            -1};
  }
  const std::string name = "index " + std::to_string(index);
  if (index < 0) return invalid(name + " is negative");
  if (index > kLastIndex) return invalid(name + " is beyond 2^62");
  if (index < next_) return invalid(name + " was put twice: it has been delivered");
  if (failures_.count(index) != 0) return invalid(name + " was put twice: it has failed");
  if (index < next_ + capacity_ && entry(index).state != State::kEmpty) {
    return invalid(name + " was put twice: it is " +
                   (entry(index).state == State::kReady ? "ready" : "being filled"));
  }
  return {};
}

std::string Ring::wait_for_batch() const {
  std::string text = "batch " + std::to_string(next_) + ", which " +
                     (entry(next_).state == State::kFilling ? "a producer is still filling"
                                                            : "no producer has put");
  std::string later;
  for (int64_t i = next_ + 1; i < next_ + capacity_; ++i) {
    if (entry(i).state != State::kReady) continue;
    later += (later.empty() ? "" : ", ") + std::to_string(i);
  }
  return text + (later.empty() ? "" : "; later ones are ready: " + later);
}

std::string Ring::wait_for_slot(int64_t index) const {
  return "a slot for batch " + std::to_string(index) + ": batch " + std::to_string(next_) +
         " is the next to be delivered, and of " + std::to_string(capacity_) + " slots " +
         std::to_string(ready_) + " are ready, " + std::to_string(filling_) + " being filled and " +
         std::to_string(held_) + " held by the consumer";
}

std::string Ring::no_memory(int64_t index) const {
  int64_t bytes = 0;
  for (const LeafSpec& leaf : leaves_) bytes += leaf.bytes;
  return "no memory for batch " + std::to_string(index) + " of " + std::to_string(bytes) +
         " bytes: the consumer keeps " + std::to_string(held_) + " batches beside the ring's " +
         std::to_string(capacity_) + " slots";
}

Deadline Ring::pop_deadline() const {
  return pop_timeout_.count() < 0 ? kNoDeadline : Clock::now() + pop_timeout_;
}

bool Ring::closed() const {
  if (forked()) return true;
  Lock lock(mutex_);
  return closed_;
}

int64_t Ring::delivered() const {
  if (forked()) return -1;
  Lock lock(mutex_);
  return next_;
}

Statistics Ring::statistics() const {
  if (forked()) return {};
  Lock lock(mutex_);
  Statistics result = counts_;
  if (first_use_ != Clock::time_point{})
    result.elapsed = std::chrono::duration<double>(Clock::now() - first_use_).count();
  result.ready = ready_;
  result.filling = filling_;
  result.held = held_;
  return result;
}

void Ring::count_hand_over(int64_t zero_copy, int64_t copied) {
  if (forked()) return;
  Lock lock(mutex_);
  counts_.zero_copy += zero_copy;
  counts_.copied += copied;
}

}  // namespace jaxkern::ring
