// Native work and waits without the interpreter's lock.
#ifndef JAXKERN_BIND_UNLOCKED_H_
#define JAXKERN_BIND_UNLOCKED_H_

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace jaxkern {

// Gives the interpreter's lock back for as long as it lives.
//
// Before Python 3.14 a thread that asks for the lock of an interpreter that ends is ended by
// pthread_exit, which unwinds its stack; nanobind's frames may not be unwound, and the process
// would abort. Such a thread rests here until the process is gone, as it does in Python 3.14.
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
