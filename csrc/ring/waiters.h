// Threads that may wait, for work that must not hold one of XLA's: a program that waits for a batch
// leaves the pool to the producer, which may run programs itself.
#ifndef JAXKERN_RING_WAITERS_H_
#define JAXKERN_RING_WAITERS_H_

#include <cstddef>
#include <functional>

#include "ring/ring.h"

namespace jaxkern::ring {

// Idle threads that are kept for the next task.
constexpr size_t kIdleWaiters = 4;

// Runs `task` in a thread of its own: an idle one, or a new one. What it throws is dropped: it has
// to report its failures itself. Throws std::system_error or std::bad_alloc where there is no
// thread to be had; then the task has not run.
//
// There are as many threads as tasks that wait at once, each of which is a program that waits for a
// ring, and at most kIdleWaiters more. A fixed number of threads could deadlock: all of them may
// wait for a batch that a queued task would put.
void run_waiting(std::function<void()> task);

// Ends the idle threads, waits for the others' tasks, and joins them all. False where some tasks
// still run at the deadline: their threads go on. Later tasks get new threads.
bool join_waiters(Deadline deadline);

// How many threads there are.
size_t waiter_threads();

}  // namespace jaxkern::ring

#endif  // JAXKERN_RING_WAITERS_H_
