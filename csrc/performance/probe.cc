// Runs the probe loops on threads that start together, and returns the best rate.
#include "performance/probe.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <limits>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/platform.h"
#include "performance/levels.h"

namespace jaxkern::performance {
namespace {

using Clock = std::chrono::steady_clock;

// Private memory, with huge pages if the system provides them: fewer TLB misses, so a higher rate.
class Pages {
 public:
  explicit Pages(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    void* memory =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    use_huge_pages(memory, bytes_);
    data_ = static_cast<char*>(memory);
  }
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  char* data() const { return data_; }

 private:
  size_t bytes_;
  char* data_;
};

// Threads that run the same task together. They live as long as the object, because starting them
// would take most of a pass of a few milliseconds.
class Team {
 public:
  explicit Team(int64_t threads) : size_(threads), spans_(static_cast<size_t>(threads)) {
    try {
      for (int64_t k = 1; k < size_; ++k) helpers_.emplace_back([this, k] { help(k); });
    } catch (...) {
      end();
      throw;
    }
  }
  ~Team() { end(); }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Returns the seconds from the first start of task(thread) to the last end.
  double run(const std::function<void(int64_t)>& task) {
    task_ = &task;
    ready_.store(1);
    done_.store(0);
    generation_.fetch_add(1);
    run_part(0);
    while (done_.load() < size_) std::this_thread::yield();
    Clock::time_point first = Clock::time_point::max(), last = Clock::time_point::min();
    for (const Span& span : spans_) {
      first = std::min(first, span.begin);
      last = std::max(last, span.end);
    }
    return std::chrono::duration<double>(last - first).count();
  }

 private:
  struct Span {
    Clock::time_point begin, end;
  };

  void help(int64_t k) {
    for (int64_t seen = 0;; ++seen) {
      while (generation_.load() == seen) std::this_thread::yield();
      if (ended_.load()) return;
      ready_.fetch_add(1);
      run_part(k);
    }
  }

  void run_part(int64_t k) {
    while (ready_.load() < size_) std::this_thread::yield();
    Span& span = spans_[static_cast<size_t>(k)];
    span.begin = Clock::now();
    (*task_)(k);
    span.end = Clock::now();
    done_.fetch_add(1);
  }

  void end() {
    ended_.store(true);
    generation_.fetch_add(1);
    for (std::thread& helper : helpers_) helper.join();
  }

  const int64_t size_;
  std::vector<Span> spans_;
  std::vector<std::thread> helpers_;
  const std::function<void(int64_t)>* task_ = nullptr;
  std::atomic<int64_t> generation_{0}, ready_{0}, done_{0};
  std::atomic<bool> ended_{false};
};

// Repeats a task for `seconds`, at least twice, and returns the duration of the shortest run.
double shortest(Team& team, double seconds, const std::function<void(int64_t)>& task) {
  double best = std::numeric_limits<double>::infinity(), spent = 0;
  for (int run = 0; run < 2 || spent < seconds; ++run) {
    const double elapsed = team.run(task);
    best = std::min(best, elapsed);
    spent += elapsed;
  }
  return std::max(best, 1e-9);  // resolution of the clock
}

void check(SimdLevel level, int64_t threads, double seconds) {
  if (!simd_level_available(level)) {
    throw std::invalid_argument("level: not supported by this CPU or build");
  }
  if (threads < 1) throw std::invalid_argument("threads: expected at least 1");
  if (!(seconds >= 0)) throw std::invalid_argument("seconds: expected at least 0");
}

// Prevents the compiler from removing computations whose results are not used.
std::atomic<uint64_t> g_sink{0};

}  // namespace

Rates measure_memory(SimdLevel level, int64_t threads, int64_t bytes, double seconds) {
  check(level, threads, seconds);
  if (bytes < 1) throw std::invalid_argument("bytes: expected at least 1");
  // The part of a thread consists of two buffers; a copy reads the first and writes the second.
  const int64_t half = std::max<int64_t>(bytes / (2 * threads) / kBlockBytes, 1) * kBlockBytes;
  const int64_t part = 2 * half;
  if (part > std::numeric_limits<int64_t>::max() / threads) throw std::bad_alloc();
  const int64_t total = part * threads;
  const auto load = load_bytes.at(level);
  const auto store = store_bytes.at(level);
  const auto copy = copy_bytes.at(level);
  Pages pages(total);
  char* const data = pages.data();
  Team team(threads);
  team.run([&](int64_t k) { store(data + k * part, part, 1, false); });

  const auto rate = [&](const std::function<void(int64_t)>& task) {
    return static_cast<double>(total) / shortest(team, seconds, task);
  };
  Rates rates;
  rates["load"] = rate(
      [&](int64_t k) { g_sink.fetch_add(load(data + k * part, part), std::memory_order_relaxed); });
  rates["store"] = rate([&](int64_t k) { store(data + k * part, part, 2, false); });
  rates["store_streaming"] = rate([&](int64_t k) { store(data + k * part, part, 3, true); });
  rates["copy"] =
      rate([&](int64_t k) { copy(data + k * part, data + k * part + half, half, false); });
  rates["copy_streaming"] =
      rate([&](int64_t k) { copy(data + k * part, data + k * part + half, half, true); });
  return rates;
}

Rates measure_compute(SimdLevel level, int64_t threads, double seconds) {
  check(level, threads, seconds);
  Team team(threads);
  const auto rate = [&](auto loop, int64_t flops) {
    // About 5 ms per run: longer than the start of the threads, shorter than a scheduler's slice.
    int64_t rounds = 1000;
    const auto count = [&](int64_t) {
      const double mean = loop(rounds, 1);
      g_sink.fetch_add(static_cast<uint64_t>(mean), std::memory_order_relaxed);
    };
    while (team.run(count) < 5e-3) rounds *= 2;
    const double total = static_cast<double>(rounds) * static_cast<double>(flops * threads);
    return total / shortest(team, seconds, count);
  };
  return {{"fma_f32", rate(multiply_add_f32.at(level), round_flops_f32.at(level)())},
          {"fma_f64", rate(multiply_add_f64.at(level), round_flops_f64.at(level)())}};
}

}  // namespace jaxkern::performance
