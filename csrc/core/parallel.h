// A parallel loop in which the calling thread takes part, so that it never waits for work that has
// not started.
//
// Threads claim chunks from a shared counter. A helper that starts late finds no chunk and returns.
#ifndef JAXKERN_CORE_PARALLEL_H_
#define JAXKERN_CORE_PARALLEL_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>

namespace jaxkern {

// Runs the helpers of a loop. `schedule` passes a task to another thread (of XLA's pool, or of a
// test). If it is null, the caller works alone.
struct Executor {
  std::function<void(std::function<void()>)> schedule;
  int64_t workers = 1;  // maximum number of threads, including the caller
};

// Limit on the workers of the library that contains this code; 0 means no limit. Kernels read it at
// each call, so changing it recompiles nothing.
inline std::atomic<int64_t>& worker_cap() {
  static std::atomic<int64_t> cap{0};
  return cap;
}

// Calls body(begin, end) for disjoint ranges that cover [0, count), each of at most `grain`
// iterations. Rethrows the first exception after every started range has ended.
inline void parallel_for(const Executor& executor, int64_t count, int64_t grain,
                         const std::function<void(int64_t begin, int64_t end)>& body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  int64_t workers = executor.schedule ? executor.workers : 1;
  if (const int64_t cap = worker_cap().load(std::memory_order_relaxed); cap > 0) {
    workers = std::min(workers, cap);
  }
  workers = std::min(workers, count / grain + (count % grain != 0));
  if (workers <= 1) {
    for (int64_t begin = 0; begin < count; begin += grain) {
      body(begin, std::min(begin + grain, count));
    }
    return;
  }
  struct Loop {
    std::atomic<int64_t> next{0};
    int64_t count = 0, grain = 1;
    const std::function<void(int64_t, int64_t)>* body = nullptr;  // valid while chunks remain
    std::mutex mutex;
    std::condition_variable idle;
    int64_t finished = 0;  // iterations done; like `error`, guarded by `mutex`
    std::exception_ptr error;

    void work() {
      for (;;) {
        const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
        if (begin >= count) return;
        const int64_t end = std::min(begin + grain, count);
        std::exception_ptr caught;
        try {
          (*body)(begin, end);
        } catch (...) {
          caught = std::current_exception();
        }
        std::lock_guard<std::mutex> lock(mutex);
        if (caught && !error) error = caught;
        finished += end - begin;
        if (finished == count) idle.notify_all();
      }
    }
  };
  auto loop = std::make_shared<Loop>();
  loop->count = count;
  loop->grain = grain;
  loop->body = &body;
  try {
    for (int64_t i = 1; i < workers; ++i) executor.schedule([loop] { loop->work(); });
  } catch (...) {  // continue with fewer helpers; `body` must outlive those that have started
  }
  loop->work();
  std::unique_lock<std::mutex> lock(loop->mutex);
  loop->idle.wait(lock, [&] { return loop->finished == loop->count; });
  if (loop->error) std::rethrow_exception(loop->error);
}

}  // namespace jaxkern

#endif  // JAXKERN_CORE_PARALLEL_H_
