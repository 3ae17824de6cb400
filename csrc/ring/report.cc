// Messages and statistics of a ring: rejected calls, waits, and the verdict.
#include <algorithm>
#include <stdexcept>

#include "ring/ring.h"

namespace jaxkern::ring {

namespace {

// Maximum length of a producer's message, small compared with a batch.
constexpr size_t kMaxMessageBytes = 4000;

// Returns the length in bytes of the UTF-8 character that starts at `at` (RFC 3629); 0 if invalid.
size_t character_length(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t size = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  // Excludes overlong forms, surrogates and code points above U+10FFFF.
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < size; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  }
  return size;
}

}  // namespace

std::string printable(const std::string& message) {
  std::string text;
  for (size_t at = 0; at < message.size();) {
    const size_t size = character_length(message, at);
    if (text.size() + size > kMaxMessageBytes) return text + " ...";
    if (size == 0 || message[at] == '\0') {  // XLA's errors are zero-terminated
      text += '?';
    } else {
      text.append(message, at, size);
    }
    at += std::max<size_t>(size, 1);
  }
  return text;
}

LeafSpec leaf_spec(std::string dtype, int64_t item_size, std::vector<int64_t> shape) {
  LeafSpec leaf{std::move(dtype), item_size, std::move(shape), item_size};
  bool fits = item_size > 0;
  // With an axis of size 0 the product is 0 even if a partial product overflows.
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
  // Waits below 2% of the elapsed time are ignored.
  const double threshold = 0.02 * elapsed;
  // producer_wait is the sum over all producers.
  const double producer = producer_wait / static_cast<double>(std::max<int64_t>(producers, 1));
  if (consumer_wait > 2 * producer && consumer_wait > threshold) return "producer-bound";
  if (producer > 2 * consumer_wait && producer > threshold) return "consumer-bound";
  return "balanced";
}

Status Ring::closed_status() const {
  std::string text = "the ring is closed";
  if (close_reason_ != nullptr) text = text + ": " + close_reason_;
  return {Outcome::kClosed, std::move(text), -1};
}

Ring::Rejection Ring::rejection(int64_t index) const noexcept {
  if (closed_) return Rejection::kClosed;
  if (end_ >= 0 && index >= end_) return Rejection::kAfterEnd;
  if (index < 0) return Rejection::kNegative;
  if (index > kLastIndex) return Rejection::kTooLarge;
  if (index < next_) return Rejection::kDelivered;
  if (failures_.count(index) != 0) return Rejection::kFailed;
  if (index >= next_ + capacity_) return Rejection::kNone;
  switch (entry(index).state) {
    case State::kReady:
      return Rejection::kReady;
    case State::kFilling:
      return Rejection::kFilling;
    default:
      return Rejection::kNone;
  }
}

Status Ring::rejection_status(int64_t index, bool next) const {
  const Rejection why = rejection(index);
  if (why == Rejection::kNone) return {};
  if (why == Rejection::kClosed) return closed_status();
  const std::string name = "index " + std::to_string(index);
  switch (why) {
    case Rejection::kAfterEnd:
      return {Outcome::kFinished,
              next ? "the ring is finished at " + std::to_string(end_)
                   : name + " is after the end: the ring is finished at " + std::to_string(end_),
              -1};
    case Rejection::kNegative:
      return invalid_status(name + " is negative");
    case Rejection::kTooLarge:
      return invalid_status(name + " is above 2^62");
    case Rejection::kDelivered:
      return invalid_status(name + " was put twice: it has been delivered");
    case Rejection::kFailed:
      return invalid_status(name + " was put twice: it has failed");
    case Rejection::kReady:
      return invalid_status(name + " was put twice: it is ready");
    default:
      return invalid_status(name + " was put twice: it is being filled");
  }
}

std::string Ring::describe_batch_wait() const {
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

std::string Ring::describe_slot_wait(int64_t index) const {
  return "a slot for batch " + std::to_string(index) + ": batch " + std::to_string(next_) +
         " is the next to be delivered, and of " + std::to_string(capacity_) + " slots " +
         std::to_string(ready_) + " are ready, " + std::to_string(filling_) + " being filled and " +
         std::to_string(held_) + " held by the consumer";
}

std::string Ring::describe_no_memory(int64_t index) const {
  int64_t bytes = 0;
  for (const LeafSpec& leaf : leaves_) bytes += leaf.bytes;
  return "no memory for batch " + std::to_string(index) + " of " + std::to_string(bytes) +
         " bytes: the consumer holds " + std::to_string(held_) +
         " batches in addition to the ring's " + std::to_string(capacity_) + " slots";
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
