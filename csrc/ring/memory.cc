// Slot memory on the host, in huge pages where the kernel has them.
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
  // First touches of fresh memory are page faults: 512 times fewer with huge pages. A block that
  // is small against them keeps to the heap.
  const bool huge = bytes >= 2 * kHugePage;
  const size_t alignment = huge ? kHugePage : kAlignment;
  if (bytes > SIZE_MAX - alignment) return nullptr;
  const size_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* data = nullptr;
  if (posix_memalign(&data, alignment, whole == 0 ? kAlignment : whole) != 0) return nullptr;
  if (huge) advise_huge_pages(data, bytes);
  return data;
}

std::atomic<uint64_t> g_generation{0};

// Runs when the library is loaded: a child must count even if its parent never made a ring.
const int g_fork_hook = pthread_atfork(nullptr, nullptr, [] { ++g_generation; });

}  // namespace

Allocator host_allocator() {
  return {&allocate, [](void* data, size_t, int) { std::free(data); }};
}

SlotMemory::~SlotMemory() {
  for (const Kept& kept : kept_) kept.allocator.free(kept.data, kept.bytes);
}

// In a forked child the lock may be one that nobody there will release.
void SlotMemory::expect(size_t slots, const std::vector<size_t>& leaves) {
  if (generation_ != process_generation()) return;
  std::vector<Kept> others;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    kept_.reserve((slots + 1) * leaves.size());  // first: `give` runs in destructors
    const auto fits = [&](const Kept& kept) {
      return std::find(leaves.begin(), leaves.end(), kept.bytes) != leaves.end();
    };
    const auto rest = std::partition(kept_.begin(), kept_.end(), fits);
    others.assign(rest, kept_.end());
    kept_.erase(rest, kept_.end());
    alive_ -= others.size();
    most_ = (slots + 1) * leaves.size();
  }
  for (const Kept& kept : others) kept.allocator.free(kept.data, kept.bytes);
}

void* SlotMemory::take(const Allocator& allocator, size_t bytes) {
  if (generation_ != process_generation()) return allocator.make(bytes);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Kept& kept : kept_) {
      if (kept.bytes != bytes || !(kept.allocator == allocator)) continue;
      void* data = kept.data;
      kept = kept_.back();
      kept_.pop_back();
      return data;
    }
  }
  void* data = allocator.make(bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  if (data != nullptr) ++alive_;
  return data;
}

void SlotMemory::give(const Allocator& allocator, void* data, size_t bytes) {
  if (generation_ == process_generation()) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (alive_ <= most_) {
      kept_.push_back({allocator, data, bytes});
      return;
    }
    --alive_;
  }
  allocator.free(data, bytes);
}

Block::Block(const Allocator& allocator, size_t bytes, std::shared_ptr<SlotMemory> memory)
    : allocator_(allocator),
      bytes_(bytes),
      memory_(std::move(memory)),
      data_(memory_ ? memory_->take(allocator, bytes) : allocator.make(bytes)) {
  if (data_ == nullptr) throw std::bad_alloc();
}

Block::~Block() {
  if (memory_) {
    memory_->give(allocator_, data_, bytes_);
  } else {
    allocator_.free(data_, bytes_);
  }
}

uint64_t process_generation() {
  (void)g_fork_hook;
  return g_generation.load(std::memory_order_relaxed);
}

}  // namespace jaxkern::ring
