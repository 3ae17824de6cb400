// Calls that differ between Linux and macOS, or that only one of them has. They are advice or
// names, so elsewhere they do nothing. <unistd.h> is not included, since a header that ops of other
// packages use includes this one.
#ifndef JAXKERN_CORE_PLATFORM_H_
#define JAXKERN_CORE_PLATFORM_H_

#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace jaxkern {

// Asks the system to use huge pages for whole pages of private memory. Errors are ignored.
inline void use_huge_pages([[maybe_unused]] void* begin, [[maybe_unused]] size_t bytes) {
#if defined(MADV_HUGEPAGE)
  (void)madvise(begin, bytes, MADV_HUGEPAGE);
#endif
}

// Returns true if the page at this address is in memory; false where the system cannot tell.
inline bool is_resident([[maybe_unused]] void* page) {
#if defined(__linux__)
  unsigned char flags = 0;
  return mincore(page, 1, &flags) == 0 && (flags & 1) != 0;
#else
  return false;
#endif
}

// Releases the memory of the whole pages of the mapping of a file in [begin, begin + bytes). The
// next access reads the file again.
void release_file_pages(const void* begin, size_t bytes);

// The CPUs that this process may use; empty where the system cannot tell.
std::vector<int> allowed_cpus();

// The size of the last-level cache in the tables of the C library, or 0.
int64_t reported_cache_bytes();

// The time of the last modification of a file, in nanoseconds.
inline int64_t modified_ns(const struct stat& status) {
#if defined(__APPLE__)
  const struct timespec& time = status.st_mtimespec;
#else
  const struct timespec& time = status.st_mtim;
#endif
  return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

// Names the calling thread for debuggers and process lists; Linux allows 15 characters.
inline void name_this_thread(const char* name) {
#if defined(__APPLE__)
  (void)pthread_setname_np(name);
#else
  (void)pthread_setname_np(pthread_self(), name);
#endif
}

// Tells the processor that the thread is spinning.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");  // takes about as long as x86's pause; `yield` is a no-op on most cores
#endif
}

}  // namespace jaxkern

#endif  // JAXKERN_CORE_PLATFORM_H_
