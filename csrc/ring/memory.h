// Aligned, reference-counted memory for slots, a cache of it between rings, and fork detection.
#ifndef JAXKERN_RING_MEMORY_H_
#define JAXKERN_RING_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace jaxkern::ring {

// Allocator of slots: the host's heap, or pinned memory from the CUDA module.
struct Allocator {
  // Returns 64-byte aligned memory, or null on failure. Neither function throws.
  void* (*allocate)(size_t bytes, int device) = nullptr;
  void (*release)(void* data, size_t bytes, int device) = nullptr;
  int device = 0;  // the CUDA device whose context is used; ignored by the heap

  void* make(size_t bytes) const { return allocate(bytes, device); }
  void free(void* data, size_t bytes) const { release(data, bytes, device); }
  bool operator==(const Allocator& other) const {
    return allocate == other.allocate && device == other.device;
  }
};

// JAX uses host memory without a copy only at this alignment, in bytes.
constexpr size_t kAlignment = 64;

Allocator host_allocator();

// Returns the number of forks between the process that loaded the library and this one. A forked
// child has none of its parent's threads, so a lock held by one of them is never released: objects
// of another generation must not be touched.
uint64_t process_generation();

// Cache of memory for successive rings, such as those of a pipeline's epochs. Page faults of fresh
// memory take longer than refilling it. The cache holds at most one more block per leaf than the
// ring has slots, because the consumer of the previous ring may still hold a batch when the next
// ring begins. A forked child does not use the cache.
class SlotMemory {
 public:
  ~SlotMemory();
  // Prepares for a ring of `slots` slots with leaves of these sizes; frees blocks of other sizes.
  void prepare(size_t slots, const std::vector<size_t>& leaf_bytes);
  // Returns a block of that size; null if allocation fails.
  void* allocate(const Allocator& allocator, size_t bytes);
  void release(const Allocator& allocator, void* data, size_t bytes);

 private:
  struct FreeBlock {
    Allocator allocator;
    void* data;
    size_t bytes;
  };

  const uint64_t generation_ = process_generation();
  std::mutex mutex_;  // guards everything below
  std::vector<FreeBlock> free_;
  size_t max_blocks_ = 0, blocks_ = 0;  // limit and current number of blocks, free or in use
};

// Memory of one leaf of one slot. `data` is a valid address even if `bytes` is 0.
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

// Returns this process's T, which is never destroyed because threads may use it during exit. A
// forked child creates its own T, because a lock in the parent's may never be released.
template <typename T>
T& process_singleton() {
  struct Instance {
    T value;
    const uint64_t generation = process_generation();
  };
  static std::atomic<Instance*> instance{new Instance};
  Instance* current = instance.load();
  while (current->generation != process_generation()) {
    if (Instance* fresh = new Instance; instance.compare_exchange_strong(current, fresh)) {
      current = fresh;
    } else {
      delete fresh;
    }
  }
  return current->value;
}

}  // namespace jaxkern::ring

#endif  // JAXKERN_RING_MEMORY_H_
