// Threads for tasks that wait, and for loops outside of XLA. They must not block XLA's thread pool:
// while a program waits for a batch, the producer may need the pool to run its own programs.
#ifndef JAXKERN_RING_WAITERS_H_
#define JAXKERN_RING_WAITERS_H_

#include <cstddef>
#include <functional>

#include "ring/ring.h"

namespace jaxkern::ring {

// Number of idle threads kept for later tasks: one a core, and at least 4.
size_t idle_waiters();

// Runs `task` in an idle or a new thread. Exceptions of the task are dropped. Throws
// std::system_error or std::bad_alloc if no thread can be started; then the task has not run.
//
// There are as many threads as concurrently waiting tasks, plus at most idle_waiters(). A fixed
// number of threads could deadlock: all of them might wait for a batch that a queued task would
// put.
void run_in_thread(std::function<void()> task);

// Ends idle threads, waits for running tasks, and joins all threads. Returns false if tasks still
// run at the deadline; their threads continue. Later tasks get new threads.
bool join_waiters(Deadline deadline);

// Returns the number of threads.
size_t waiter_threads();

}  // namespace jaxkern::ring

#endif  // JAXKERN_RING_WAITERS_H_
