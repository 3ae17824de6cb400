// As many threads as there have been tasks at once; idle ones wait for the next task.
#include "ring/waiters.h"

#include <condition_variable>
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

  void serve() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      ++idle;
      work.wait(lock, [this] { return !tasks.empty(); });
      --idle;
      std::function<void()> task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      task();
      task = nullptr;  // it may be a ring's last owner, which frees memory
      lock.lock();
    }
  }
};

}  // namespace

void run_waiting(std::function<void()> task) {
  auto& all = of_this_process<Waiters>();
  std::lock_guard<std::mutex> lock(all.mutex);
  // Every queued task has an idle thread of its own, since a task may wait for the next one.
  if (all.idle <= all.tasks.size()) std::thread([&all] { all.serve(); }).detach();
  all.tasks.push_back(std::move(task));
  all.work.notify_one();
}

}  // namespace jaxkern::ring
