// Chunks are claimed from a shared counter; a helper that starts late finds none left and returns.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>

#include "core/parallel.h"

namespace jaxkern {
namespace {

std::atomic<int64_t> g_max_workers{0};

struct Loop {
  std::atomic<int64_t> next{0};
  int64_t count = 0, grain = 1;
  const std::function<void(int64_t, int64_t)>* body = nullptr;  // valid while chunks are left
  std::mutex mutex;
  std::condition_variable idle;
  int64_t finished = 0;  // iterations done, under mutex
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

}  // namespace

void set_max_workers(int64_t count) { g_max_workers.store(count, std::memory_order_relaxed); }
int64_t max_workers() { return g_max_workers.load(std::memory_order_relaxed); }

void parallel_for(const Executor& executor, int64_t count, int64_t grain,
                  const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  int64_t workers = executor.schedule ? executor.workers : 1;
  if (const int64_t cap = max_workers(); cap > 0) workers = std::min(workers, cap);
  const int64_t chunks = count / grain + (count % grain != 0);
  workers = std::min(workers, chunks);
  if (workers <= 1) {
    for (int64_t begin = 0; begin < count; begin += grain)
      body(begin, std::min(begin + grain, count));
    return;
  }
  auto loop = std::make_shared<Loop>();
  loop->count = count;
  loop->grain = grain;
  loop->body = &body;
  for (int64_t i = 1; i < workers; ++i) executor.schedule([loop] { loop->work(); });
  loop->work();
  std::unique_lock<std::mutex> lock(loop->mutex);
  loop->idle.wait(lock, [&] { return loop->finished == loop->count; });
  if (loop->error) std::rethrow_exception(loop->error);
}

}  // namespace jaxkern
