// Native work and waits without the interpreter's lock (GIL).
#ifndef JAXKERN_BIND_UNLOCKED_H_
#define JAXKERN_BIND_UNLOCKED_H_

#include <Python.h>

namespace jaxkern {

// Requests the interpreter's lock. Returns only if the interpreter is not finalizing.
void restore_thread(PyThreadState* state) noexcept;

// Releases the interpreter's lock during its lifetime.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() { restore_thread(state_); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace jaxkern

#endif  // JAXKERN_BIND_UNLOCKED_H_
