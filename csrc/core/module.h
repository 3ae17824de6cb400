// The functions that a nanobind module offers to `jaxkern.load_library`: its targets and FFI
// version.
#ifndef JAXKERN_CORE_MODULE_H_
#define JAXKERN_CORE_MODULE_H_

#include <nanobind/nanobind.h>

#include "ffi.h"

namespace jaxkern {

// Adds a handler to a table of registrations, as a capsule for jax.ffi.register_ffi_target.
template <XLA_FFI_Handler* handler>
void add_handler(nanobind::dict& table, const char* target) {
  NamedHandler<handler>::target = target;
  table[target] = nanobind::capsule(reinterpret_cast<void*>(&NamedHandler<handler>::call));
}

// Defines `abi()`, which the loader compares with the running jaxlib before it registers targets.
inline void define_abi(nanobind::module_& module) {
  module.def(
      "abi", [] { return nanobind::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR); },
      nanobind::sig("def abi() -> tuple[int, int]"),
      "The XLA FFI version (major, minor) that the handlers were built with.");
}

}  // namespace jaxkern

#endif  // JAXKERN_CORE_MODULE_H_
