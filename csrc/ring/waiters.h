// Threads that may wait, for work that must not hold one of XLA's: a program that waits for a batch
// leaves the pool to the producer, which may run programs itself.
#ifndef JAXKERN_RING_WAITERS_H_
#define JAXKERN_RING_WAITERS_H_

#include <functional>

namespace jaxkern::ring {

// Runs `task`, which must not throw, in a thread of its own: an idle one, or a new one. Throws
// std::system_error when there is none to be had.
void run_waiting(std::function<void()> task);

}  // namespace jaxkern::ring

#endif  // JAXKERN_RING_WAITERS_H_
