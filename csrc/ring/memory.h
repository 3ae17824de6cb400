// Aligned memory for slots, counted so that a reader may outlive the ring, and the fork check.
#ifndef JAXKERN_RING_MEMORY_H_
#define JAXKERN_RING_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace jaxkern::ring {

// Where slots come from: the host's heap, or pinned memory that the CUDA module hands in.
struct Allocator {
  void* (*allocate)(size_t bytes) = nullptr;  // null on failure; 64-byte aligned
  void (*release)(void* data, size_t bytes) = nullptr;
};

// JAX takes host memory without a copy only at this alignment.
constexpr size_t kAlignment = 64;

Allocator host_allocator();

// One leaf of one slot. `bytes` may be 0; `data` is then still a valid address.
class Block {
 public:
  Block(const Allocator& allocator, size_t bytes);  // throws std::bad_alloc
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  char* data() const { return static_cast<char*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  Allocator allocator_;
  size_t bytes_;
  void* data_;
};

using BlockRef = std::shared_ptr<Block>;

// How many forks separate this process from the one that loaded the library. A forked child has
// none of its parent's threads, so a lock that one of them held is never released: what another
// generation made must not be touched.
uint64_t process_generation();

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
