// Aligned memory for slots, counted so that a reader may outlive the ring and kept from one ring to
// the next, and the fork check.
#ifndef JAXKERN_RING_MEMORY_H_
#define JAXKERN_RING_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace jaxkern::ring {

// Where slots come from: the host's heap, or pinned memory that the CUDA module hands in.
struct Allocator {
  // Null on failure; 64-byte aligned. Neither throws.
  void* (*allocate)(size_t bytes, int device) = nullptr;
  void (*release)(void* data, size_t bytes, int device) = nullptr;
  int device = 0;  // the CUDA device whose context is used; the heap has none

  void* make(size_t bytes) const { return allocate(bytes, device); }
  void free(void* data, size_t bytes) const { release(data, bytes, device); }
  bool operator==(const Allocator& other) const {
    return allocate == other.allocate && device == other.device;
  }
};

// JAX takes host memory without a copy only at this alignment.
constexpr size_t kAlignment = 64;

Allocator host_allocator();

// How many forks separate this process from the one that loaded the library. A forked child has
// none of its parent's threads, so a lock that one of them held is never released: what another
// generation made must not be touched.
uint64_t process_generation();

// Memory of rings that come one after the other, such as those of a pipeline's epochs: the next one
// takes what the last one gave back. The first touch of fresh pages takes longer than filling them
// again. No more is kept than a ring's slots and one, which the consumer of the last ring still has
// when the next one begins; a forked child's memory is its own.
class SlotMemory {
 public:
  ~SlotMemory();
  // A ring of so many slots begins, whose leaves have so many bytes: others are freed.
  void expect(size_t slots, const std::vector<size_t>& leaves);
  // A block of that size; null where the system has no memory.
  void* take(const Allocator& allocator, size_t bytes);
  void give(const Allocator& allocator, void* data, size_t bytes);

 private:
  struct Kept {
    Allocator allocator;
    void* data;
    size_t bytes;
  };

  const uint64_t generation_ = process_generation();
  std::mutex mutex_;  // guards everything below
  std::vector<Kept> kept_;
  size_t most_ = 0, alive_ = 0;  // blocks: that may be kept, and all, given out or kept
};

// One leaf of one slot. `bytes` may be 0; `data` is then still a valid address.
class Block {
 public:
  // Throws std::bad_alloc. `memory` may be null.
  Block(const Allocator& allocator, size_t bytes, std::shared_ptr<SlotMemory> memory);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  char* data() const { return static_cast<char*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  Allocator allocator_;
  size_t bytes_;
  std::shared_ptr<SlotMemory> memory_;
  void* data_;
};

using BlockRef = std::shared_ptr<Block>;

// The one T of this process, never destroyed: threads may use it while the process exits. A forked
// child starts anew, because a lock of the parent's may be held for ever.
template <typename T>
T& of_this_process() {
  struct Made {
    T value;
    const uint64_t generation = process_generation();
  };
  static std::atomic<Made*> all{new Made};
  Made* current = all.load();
  while (current->generation != process_generation()) {
    if (Made* fresh = new Made; all.compare_exchange_strong(current, fresh)) {
      current = fresh;
    } else {
      delete fresh;
    }
  }
  return current->value;
}

}  // namespace jaxkern::ring

#endif  // JAXKERN_RING_MEMORY_H_
