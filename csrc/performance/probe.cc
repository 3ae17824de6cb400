// Runs the probe loops on threads that start together, and keeps the best rate.
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

#include "performance/levels.h"

namespace jaxkern::performance {
namespace {

using Clock = std::chrono::steady_clock;

// Pages that are this process's alone, large ones where the system gives them: fewer misses of
// the translation buffer, so a higher ceiling.
class Pages {
 public:
  explicit Pages(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    void* memory =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
    madvise(memory, bytes_, MADV_HUGEPAGE);  // a wish: ordinary pages do too
#endif
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

// Threads that run the same task together. The constructor's threads live until the destructor, so
// that a pass of a few milliseconds is not mostly their start.
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

  // Seconds from the first start of task(thread) to the last end.
  double run(const std::function<void(int64_t)>& task) {
    task_ = &task;
    ready_.store(1);
    done_.store(0);
    turn_.fetch_add(1);
    take_part(0);
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
      while (turn_.load() == seen) std::this_thread::yield();
      if (ended_.load()) return;
      ready_.fetch_add(1);
      take_part(k);
    }
  }

  void take_part(int64_t k) {
    while (ready_.load() < size_) std::this_thread::yield();
    Span& span = spans_[static_cast<size_t>(k)];
    span.begin = Clock::now();
    (*task_)(k);
    span.end = Clock::now();
    done_.fetch_add(1);
  }

  void end() {
    ended_.store(true);
    turn_.fetch_add(1);
    for (std::thread& helper : helpers_) helper.join();
  }

  const int64_t size_;
  std::vector<Span> spans_;
  std::vector<std::thread> helpers_;
  const std::function<void(int64_t)>* task_ = nullptr;
  std::atomic<int64_t> turn_{0}, ready_{0}, done_{0};
  std::atomic<bool> ended_{false};
};

// Runs a task again and again for `seconds`, at least twice; the shortest run.
double shortest(Team& team, double seconds, const std::function<void(int64_t)>& task) {
  double best = std::numeric_limits<double>::infinity(), spent = 0;
  for (int run = 0; run < 2 || spent < seconds; ++run) {
    const double taken = team.run(task);
    best = std::min(best, taken);
    spent += taken;
  }
  return std::max(best, 1e-9);  // of the clock
}

void check(SimdLevel level, int64_t threads, double seconds) {
  if (!simd_level_available(level)) {
    throw std::invalid_argument("this CPU or build lacks that SIMD level");
  }
  if (threads < 1) throw std::invalid_argument("the number of threads is below 1");
  if (!(seconds >= 0)) throw std::invalid_argument("the seconds are below 0");
}

// Keeps a result that nothing else needs from being optimized away.
std::atomic<uint64_t> g_sink{0};

}  // namespace

Rates measure_memory(SimdLevel level, int64_t threads, int64_t bytes, double seconds) {
  check(level, threads, seconds);
  if (bytes < 1) throw std::invalid_argument("the number of bytes is below 1");
  // A thread's part is two buffers, of which a copy reads one and writes the other.
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
    // Some 5 ms a run: long beside the start of the threads, short beside other processes' turns.
    int64_t rounds = 1000;
    const auto count = [&](int64_t) {
      const double mean = loop(rounds, 1);
      g_sink.fetch_add(static_cast<uint64_t>(mean), std::memory_order_relaxed);
    };
    while (team.run(count) < 5e-3) rounds *= 2;
    const double all = static_cast<double>(rounds) * static_cast<double>(flops * threads);
    return all / shortest(team, seconds, count);
  };
  return {{"fma_f32", rate(multiply_add_f32.at(level), round_flops_f32.at(level)())},
          {"fma_f64", rate(multiply_add_f64.at(level), round_flops_f64.at(level)())}};
}

}  // namespace jaxkern::performance
