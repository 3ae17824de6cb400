// Before Python 3.14, a thread that requests the lock of a finalizing interpreter is ended by
// pthread_exit, which unwinds its stack. C++ frames must not be unwound: nanobind's would abort the
// process, and libgcc cannot unwind those of a static libc++. Therefore such a thread sleeps here
// until the process ends, as in Python 3.14. Compiled without exceptions, where the cleanup handler
// is called by longjmp.
#include "bind/unlocked.h"

#include <pthread.h>
#include <unistd.h>

namespace jaxkern {

void restore_thread(PyThreadState* state) noexcept {
  pthread_cleanup_push(
      [](void*) {
        for (;;) pause();
      },
      nullptr);
  PyEval_RestoreThread(state);
  pthread_cleanup_pop(0);
}

}  // namespace jaxkern
