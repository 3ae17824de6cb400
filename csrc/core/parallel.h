// A parallel loop whose caller takes part, so that it never waits for work that has not started.
#ifndef JAXKERN_CORE_PARALLEL_H_
#define JAXKERN_CORE_PARALLEL_H_

#include <cstdint>
#include <functional>

namespace jaxkern {

// Where a loop's helpers run. `schedule` hands a task to another thread (XLA's pool, or a test's);
// null means that the caller works alone.
struct Executor {
  std::function<void(std::function<void()>)> schedule;
  int64_t workers = 1;  // threads that may work at once, the caller included
};

// The process-wide cap on workers; 0 means none. Kernels read it at each call, so that changing it
// recompiles nothing.
void set_max_workers(int64_t count);
int64_t max_workers();

// Calls body(begin, end) for disjoint ranges that cover [0, count), each of at most `grain`
// iterations. Rethrows the first exception after every started range has ended.
void parallel_for(const Executor& executor, int64_t count, int64_t grain,
                  const std::function<void(int64_t begin, int64_t end)>& body);

}  // namespace jaxkern

#endif  // JAXKERN_CORE_PARALLEL_H_
