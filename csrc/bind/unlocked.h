// Native work and waits without the interpreter's lock (GIL).
#ifndef JAXKERN_BIND_UNLOCKED_H_
#define JAXKERN_BIND_UNLOCKED_H_

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace jaxkern {

// Releases the interpreter's lock during its lifetime.
//
// Before Python 3.14, a thread that requests the lock of a finalizing interpreter is ended by
// pthread_exit, which unwinds its stack. nanobind's frames must not be unwound, and the process
// would abort. Therefore such a thread sleeps here until the process ends, as in Python 3.14.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() {
#ifdef __GLIBCXX__
    try {
      PyEval_RestoreThread(state_);
    } catch (abi::__forced_unwind&) {
      for (;;) pause();
    }
#else
    PyEval_RestoreThread(state_);
#endif
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace jaxkern

#endif  // JAXKERN_BIND_UNLOCKED_H_
