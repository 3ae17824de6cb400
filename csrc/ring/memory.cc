// Slot memory on the host, in huge pages where the kernel has them.
#include "ring/memory.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "core/huge_pages.h"

namespace jaxkern::ring {
namespace {

void* allocate(size_t bytes) {
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
  return {&allocate, [](void* data, size_t) { std::free(data); }};
}

Block::Block(const Allocator& allocator, size_t bytes)
    : allocator_(allocator), bytes_(bytes), data_(allocator.allocate(bytes)) {
  if (data_ == nullptr) throw std::bad_alloc();
}

Block::~Block() { allocator_.release(data_, bytes_); }

uint64_t process_generation() {
  (void)g_fork_hook;
  return g_generation.load(std::memory_order_relaxed);
}

}  // namespace jaxkern::ring
