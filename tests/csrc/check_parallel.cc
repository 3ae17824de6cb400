// Runs parallel_for from many threads at once, with exceptions and helpers that start late. Build
// it with -fsanitize=thread. Usage: check_parallel [loops per thread]
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/parallel.h"

namespace {

// A pool whose threads can be delayed, so that helpers start after their loop has ended.
class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { serve(); });
  }
  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
      held_ = false;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  void add(std::function<void()> task) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    wake_.notify_one();
  }
  void hold(bool held) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      held_ = held;
    }
    wake_.notify_all();
  }
  jaxkern::Executor executor() {
    return {[this](std::function<void()> task) { add(std::move(task)); },
            static_cast<int64_t>(threads_.size()) + 1};
  }

 private:
  void serve() {
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [this] { return !held_ && (ending_ || !tasks_.empty()); });
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool ending_ = false, held_ = false;
  std::vector<std::thread> threads_;
};

std::atomic<int> g_failures{0};

void expect(bool condition, const char* what) {
  if (condition) return;
  std::printf("check_parallel: %s\n", what);
  ++g_failures;
}

// Counters are not atomic, so a range that runs twice is a data race as well as a wrong count.
void covers(Pool& pool, int64_t count, int64_t grain) {
  std::vector<int> seen(static_cast<size_t>(count), 0);
  jaxkern::parallel_for(pool.executor(), count, grain, [&](int64_t begin, int64_t end) {
    expect(begin < end && end - begin <= (grain < 1 ? 1 : grain), "a range exceeds the grain");
    for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
  });
  for (int times : seen) expect(times == 1, "an iteration did not run exactly once");
}

void throws(Pool& pool, int64_t count, int64_t bad) {
  std::atomic<int64_t> started{0}, ended{0};
  bool caught = false;
  try {
    jaxkern::parallel_for(pool.executor(), count, 1, [&](int64_t begin, int64_t) {
      ++started;
      if (begin == bad) {
        ++ended;
        throw std::runtime_error("bad");
      }
      ++ended;
    });
  } catch (const std::runtime_error&) {
    caught = true;
  }
  expect(caught, "an exception was lost");
  expect(started == ended, "the loop returned before its ranges ended");
}

}  // namespace

int main(int argc, char** argv) {
  const int loops = argc > 1 ? std::atoi(argv[1]) : 500;
  {
    Pool pool(3);
    std::vector<std::thread> callers;
    for (int t = 0; t < 4; ++t)
      callers.emplace_back([&pool, loops, t] {
        for (int i = 0; i < loops; ++i) {
          covers(pool, (i * 7 + t) % 65, 1 + i % 5);
          if (i % 3 == 0) throws(pool, 8 + i % 5, i % 8);
        }
      });
    for (std::thread& caller : callers) caller.join();
  }
  {
    // No helper runs until the loop ends. The caller does all the work, and the memory that late
    // helpers use must still be valid.
    Pool pool(2);
    for (int i = 0; i < 50; ++i) {
      pool.hold(true);
      covers(pool, 20, 1);
      pool.hold(false);
    }
  }
  {
    Pool pool(2);
    jaxkern::worker_cap().store(1);
    const std::thread::id self = std::this_thread::get_id();
    jaxkern::parallel_for(pool.executor(), 100, 1, [&](int64_t, int64_t) {
      expect(std::this_thread::get_id() == self, "a cap of 1 ran a helper");
    });
    jaxkern::worker_cap().store(0);
  }
  {
    // A pool that throws for its second helper, while the first one is running.
    Pool pool(2);
    for (int i = 0; i < 200; ++i) {
      std::atomic<int> asked{0}, ran{0};
      jaxkern::Executor executor = {[&](std::function<void()> task) {
                                      if (++asked == 2) throw std::bad_alloc();
                                      pool.add(std::move(task));
                                    },
                                    4};
      jaxkern::parallel_for(executor, 50, 1, [&](int64_t, int64_t) { ++ran; });
      expect(asked == 2 && ran == 50, "iterations were lost with a failed helper");
    }
  }
  std::printf("check_parallel: %s\n", g_failures ? "FAILED" : "passed");
  return g_failures ? 1 : 0;
}
