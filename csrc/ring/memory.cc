// Slot memory on the host, in huge pages if the kernel supports them.
#include "ring/memory.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <utility>

#include "core/huge_pages.h"

namespace jaxkern::ring {
namespace {

void* allocate(size_t bytes, int) {
  // Huge pages reduce page faults by a factor of 512. Small blocks come from the heap.
  const bool huge = bytes >= 2 * kHugePage;
  const size_t alignment = huge ? kHugePage : kAlignment;
  if (bytes > SIZE_MAX - alignment) return nullptr;
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* data = nullptr;
  if (posix_memalign(&data, alignment, rounded == 0 ? kAlignment : rounded) != 0) return nullptr;
  if (huge) advise_huge_pages(data, bytes);
  return data;
}

std::atomic<uint64_t> g_generation{0};

// Registered when the library is loaded: a child must be detected even if no ring existed before.
const int g_fork_hook = pthread_atfork(nullptr, nullptr, [] { ++g_generation; });

}  // namespace

Allocator host_allocator() {
  return {&allocate, [](void* data, size_t, int) { std::free(data); }};
}

SlotMemory::~SlotMemory() {
  for (const FreeBlock& block : free_) block.allocator.free(block.data, block.bytes);
}

// In a forked child the mutex may be locked forever, so it is not used there.
void SlotMemory::prepare(size_t slots, const std::vector<size_t>& leaf_bytes) {
  if (generation_ != process_generation()) return;
  std::vector<FreeBlock> others;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.reserve((slots + 1) *
                  leaf_bytes.size());  // `release` runs in destructors: must not throw
    const auto fits = [&](const FreeBlock& block) {
      return std::find(leaf_bytes.begin(), leaf_bytes.end(), block.bytes) != leaf_bytes.end();
    };
    const auto rest = std::partition(free_.begin(), free_.end(), fits);
    others.assign(rest, free_.end());
    free_.erase(rest, free_.end());
    blocks_ -= others.size();
    max_blocks_ = (slots + 1) * leaf_bytes.size();
  }
  for (const FreeBlock& block : others) block.allocator.free(block.data, block.bytes);
}

void* SlotMemory::allocate(const Allocator& allocator, size_t bytes) {
  if (generation_ != process_generation()) return allocator.make(bytes);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (FreeBlock& block : free_) {
      if (block.bytes != bytes || !(block.allocator == allocator)) continue;
      void* data = block.data;
      block = free_.back();
      free_.pop_back();
      return data;
    }
  }
  void* data = allocator.make(bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  if (data != nullptr) ++blocks_;
  return data;
}

void SlotMemory::release(const Allocator& allocator, void* data, size_t bytes) {
  if (generation_ == process_generation()) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (blocks_ <= max_blocks_) {
      free_.push_back({allocator, data, bytes});
      return;
    }
    --blocks_;
  }
  allocator.free(data, bytes);
}

Block::Block(const Allocator& allocator, size_t bytes, std::shared_ptr<SlotMemory> memory)
    : allocator_(allocator),
      bytes_(bytes),
      memory_(std::move(memory)),
      data_(memory_ ? memory_->allocate(allocator, bytes) : allocator.make(bytes)) {
  if (data_ == nullptr) throw std::bad_alloc();
}

Block::~Block() {
  if (memory_) {
    memory_->release(allocator_, data_, bytes_);
  } else {
    allocator_.free(data_, bytes_);
  }
}

uint64_t process_generation() {
  (void)g_fork_hook;
  return g_generation.load(std::memory_order_relaxed);
}

}  // namespace jaxkern::ring
