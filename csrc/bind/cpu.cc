// The CPU module: which FFI target is which handler.
#include "core/module.h"
#include "image/handlers.h"

namespace nb = nanobind;
using jaxkern::capsule;

namespace {

nb::dict registrations() {
  nb::dict table;
  table["jaxkern.image_chain.v1"] = capsule(JaxkernImageChainCpu);
  table["jaxkern.image_chain_ragged.v1"] = capsule(JaxkernImageChainRaggedCpu);
  table["jaxkern.image_mix.v1"] = capsule(JaxkernImageMixCpu);
  return table;
}

}  // namespace

NB_MODULE(_cpu, m) {
  m.doc() = "jaxkern's CPU kernels as XLA FFI targets";
  m.def("registrations", &registrations, nb::sig("def registrations() -> dict[str, object]"),
        "FFI targets by name.");
  jaxkern::define_abi(m);
  m.def(
      "set_max_workers", [](int64_t count) { jaxkern::worker_cap().store(count); },
      nb::arg("count"), "Caps the threads that a kernel uses, the caller's included; 0: no cap.");
  m.def("max_workers", [] { return jaxkern::worker_cap().load(); }, "The cap on threads; 0: none.");
}
