// As many threads as there are tasks at once, and a few idle ones that wait for the next task.
#include "ring/waiters.h"

#include <condition_variable>
#include <deque>
#include <iterator>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

#include "ring/memory.h"

namespace jaxkern::ring {
namespace {

using Threads = std::list<std::thread>;

void join(Threads& threads) {
  for (std::thread& thread : threads) thread.join();
}

struct Waiters {
  std::mutex mutex;
  std::condition_variable work, all_ended;
  std::deque<std::function<void()>> tasks;
  Threads threads, ended;  // `ended`: the last one that ended; it joins the one before it
  size_t idle = 0;
  int joining = 0;  // callers of join_waiters

  void serve(Threads::iterator self) {
    std::unique_lock<std::mutex> lock(mutex);
    while (!tasks.empty() || (joining == 0 && idle < kIdleWaiters)) {
      ++idle;
      work.wait(lock, [this] { return joining > 0 || !tasks.empty(); });
      --idle;
      if (tasks.empty()) continue;
      std::function<void()> task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      try {
        task();
      } catch (...) {  // it would end the process
      }
      task = nullptr;  // it may be a ring's last owner, which frees memory
      lock.lock();
    }
    Threads before;
    before.swap(ended);
    ended.splice(ended.end(), threads, self);
    if (threads.empty()) all_ended.notify_all();
    lock.unlock();
    join(before);  // not in run_waiting, which CUDA's callback calls and which must not block
  }

  void start() {
    const auto self = threads.emplace(threads.end());
    try {
      *self = std::thread([this, self] { serve(self); });
    } catch (...) {
      threads.erase(self);
      throw;
    }
  }
};

}  // namespace

void run_waiting(std::function<void()> task) {
  auto& all = of_this_process<Waiters>();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.tasks.push_back(std::move(task));
  try {
    // Every queued task has an idle thread of its own, since a task may wait for the next one.
    if (all.idle < all.tasks.size()) all.start();
  } catch (...) {
    task = std::move(all.tasks.back());  // destroyed after the lock
    all.tasks.pop_back();
    throw;
  }
  all.work.notify_one();
}

bool join_waiters(Deadline deadline) {
  auto& all = of_this_process<Waiters>();
  Threads ended;
  bool none = false;
  {
    std::unique_lock<std::mutex> lock(all.mutex);
    ++all.joining;
    all.work.notify_all();
    const auto left = [&] { return all.threads.empty(); };
    if (deadline == kNoDeadline) {
      all.all_ended.wait(lock, left);
      none = true;
    } else {
      none = all.all_ended.wait_until(lock, deadline, left);
    }
    --all.joining;
    ended.swap(all.ended);
  }
  join(ended);
  return none;
}

size_t waiter_threads() {
  auto& all = of_this_process<Waiters>();
  std::lock_guard<std::mutex> lock(all.mutex);
  return all.threads.size();
}

}  // namespace jaxkern::ring
