// Interleaved timing, order statistics, and measured load and store speeds of the machine.
#ifndef JAXKERN_BENCHMARKS_MEASURE_H_
#define JAXKERN_BENCHMARKS_MEASURE_H_

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace jaxkern::benchmarks {

struct FreeBlock {
  void operator()(char* block) const { std::free(block); }
};
using Block = std::unique_ptr<char, FreeBlock>;

// Memory that is aligned to 64 bytes and resident.
inline Block block(size_t bytes) {
  Block result(static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)));
  if (!result) std::abort();
  std::memset(result.get(), 1, bytes);
  return result;
}

// Calls body(i) for i in [0, count) on `threads` threads, including the caller.
inline void spread(int threads, int64_t count, const std::function<void(int64_t)>& body) {
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(i);
  };
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
}

struct Arm {
  std::string name, level;
  int threads = 1;
  double items = 0;              // images
  double elements = 0;           // output values
  double read = 0, written = 0;  // bytes that must cross memory
  std::function<void()> run;
  std::vector<double> seconds;

  double quantile(double q) const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1) + .5)];
  }
};

// Returns seconds of wall time, or of CPU time per thread, which excludes other processes.
inline double now(bool cpu, int threads) {
  if (!cpu)
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return (static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec)) / threads;
}

// One warm-up, then `repetitions` rounds over all arms, so that drift affects all of them equally.
inline void measure(std::vector<Arm>& arms, int repetitions, bool cpu) {
  for (Arm& arm : arms) arm.run();
  for (int r = 0; r < repetitions; ++r)
    for (Arm& arm : arms) {
      const double start = now(cpu, arm.threads);
      arm.run();
      arm.seconds.push_back(now(cpu, arm.threads) - start);
    }
}

// ---------------------------------------------------------------- ceilings

// Stores that bypass the caches, if the machine has them.
inline void streaming_fill(char* to, size_t bytes) {
#if defined(__x86_64__)
  const __m128i value = _mm_set1_epi32(0x3f800000);
  for (size_t i = 0; i < bytes; i += 64) {
    __m128i* line = reinterpret_cast<__m128i*>(to + i);
    _mm_stream_si128(line, value);
    _mm_stream_si128(line + 1, value);
    _mm_stream_si128(line + 2, value);
    _mm_stream_si128(line + 3, value);
  }
  _mm_sfence();
#else
  std::memset(to, 1, bytes);
#endif
}

inline uint64_t load_sum(const char* from, size_t bytes) {
  uint64_t sums[8] = {};
  const uint64_t* words = reinterpret_cast<const uint64_t*>(from);
  for (size_t i = 0; i < bytes / 8; i += 8)
    for (int k = 0; k < 8; ++k) sums[k] += words[i + static_cast<size_t>(k)];
  uint64_t sum = 0;
  for (uint64_t part : sums) sum += part;
  return sum;
}

}  // namespace jaxkern::benchmarks

#endif  // JAXKERN_BENCHMARKS_MEASURE_H_
