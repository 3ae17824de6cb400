// As many threads as there have been tasks at once; idle ones wait for the next task.
#include "ring/waiters.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "ring/memory.h"

namespace jaxkern::ring {
namespace {

struct Waiters {
  std::mutex mutex;
  std::condition_variable work;
  std::deque<std::function<void()>> tasks;
  size_t idle = 0;
  const uint64_t generation = process_generation();

  void serve() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      ++idle;
      work.wait(lock, [this] { return !tasks.empty(); });
      --idle;
      const std::function<void()> task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }
};

// Never destroyed, since its threads never end; a forked child has none of them and starts anew.
Waiters& waiters() {
  static std::atomic<Waiters*> all{new Waiters};
  Waiters* current = all.load();
  while (current->generation != process_generation()) {
    if (Waiters* fresh = new Waiters; all.compare_exchange_strong(current, fresh)) {
      current = fresh;
    } else {
      delete fresh;
    }
  }
  return *current;
}

}  // namespace

void run_waiting(std::function<void()> task) {
  Waiters& all = waiters();
  std::lock_guard<std::mutex> lock(all.mutex);
  // Every queued task has an idle thread of its own, since a task may wait for the next one.
  if (all.idle <= all.tasks.size()) std::thread([&all] { all.serve(); }).detach();
  all.tasks.push_back(std::move(task));
  all.work.notify_one();
}

}  // namespace jaxkern::ring
