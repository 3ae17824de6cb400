// One thread for each concurrent task, and a few idle threads.
#include "ring/waiters.h"

#include <algorithm>
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
  Threads threads, ended;  // `ended`: the last ended thread; it joins the one before
  size_t idle = 0;
  int joining = 0;  // callers of join_waiters

  void serve(Threads::iterator self) {
    std::unique_lock<std::mutex> lock(mutex);
    while (!tasks.empty() || (joining == 0 && idle < idle_waiters())) {
      ++idle;
      work.wait(lock, [this] { return joining > 0 || !tasks.empty(); });
      --idle;
      if (tasks.empty()) continue;
      std::function<void()> task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      try {
        task();
      } catch (...) {  // an escaping exception would end the process
      }
      task = nullptr;  // may own the last reference to a ring; freed without the lock
      lock.lock();
    }
    Threads before;
    before.swap(ended);
    ended.splice(ended.end(), threads, self);
    if (threads.empty()) all_ended.notify_all();
    lock.unlock();
    join(before);  // not in run_in_thread, which CUDA's callback calls and must not block
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

size_t idle_waiters() {
  static const size_t count = std::max(4u, std::thread::hardware_concurrency());
  return count;
}

void run_in_thread(std::function<void()> task) {
  auto& all = process_singleton<Waiters>();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.tasks.push_back(std::move(task));
  try {
    // Each queued task needs its own idle thread, because a task may wait for the next one.
    if (all.idle < all.tasks.size()) all.start();
  } catch (...) {
    task = std::move(all.tasks.back());  // destroyed after the lock
    all.tasks.pop_back();
    throw;
  }
  all.work.notify_one();
}

bool join_waiters(Deadline deadline) {
  auto& all = process_singleton<Waiters>();
  Threads ended;
  bool all_joined = false;
  {
    std::unique_lock<std::mutex> lock(all.mutex);
    ++all.joining;
    all.work.notify_all();
    const auto empty = [&] { return all.threads.empty(); };
    if (deadline == kNoDeadline) {
      all.all_ended.wait(lock, empty);
      all_joined = true;
    } else {
      all_joined = all.all_ended.wait_until(lock, deadline, empty);
    }
    --all.joining;
    ended.swap(all.ended);
  }
  join(ended);
  return all_joined;
}

size_t waiter_threads() {
  auto& all = process_singleton<Waiters>();
  std::lock_guard<std::mutex> lock(all.mutex);
  return all.threads.size();
}

}  // namespace jaxkern::ring
