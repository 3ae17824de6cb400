// The CPU module: which FFI target is which handler.
#include <string>
#include <vector>

#include "core/module.h"
#include "core/simd_level.h"
#include "image/bind.h"
#include "image/handlers.h"
#include "performance/bind.h"
#include "ring/bind.h"
#include "ring/handlers.h"
#include "xpcs/handlers.h"

namespace nb = nanobind;
using jaxkern::add_handler;

namespace {

nb::dict registrations() {
  nb::dict table;
  add_handler<JaxkernImageChainCpu>(table, "jaxkern.image_chain.v1");
  add_handler<JaxkernImageChainRaggedCpu>(table, "jaxkern.image_chain_ragged.v1");
  add_handler<JaxkernImageMixCpu>(table, "jaxkern.image_mix.v1");
  add_handler<JaxkernRingPopCpu>(table, "jaxkern.ring_pop.v1");
  add_handler<JaxkernRingPushCpu>(table, "jaxkern.ring_push.v1");
  add_handler<JaxkernTwoTimeG2Cpu>(table, "jaxkern.two_time_g2.v1");
  add_handler<JaxkernTwoTimeG2TangentCpu>(table, "jaxkern.two_time_g2_tangent.v1");
  add_handler<JaxkernTwoTimeG2CotangentCpu>(table, "jaxkern.two_time_g2_cotangent.v1");
  add_handler<JaxkernTwoTimeResidualCpu>(table, "jaxkern.two_time_residual.v1");
  add_handler<JaxkernTwoTimeG2AtCpu>(table, "jaxkern.two_time_g2_at.v1");
  add_handler<JaxkernTwoTimeNormalEquationsCpu>(table, "jaxkern.two_time_normal_equations.v1");
  return table;
}

}  // namespace

NB_MODULE(_cpu, m) {
  m.doc() = "jaxkern's CPU kernels as XLA FFI targets";
  m.def("registrations", &registrations, nb::sig("def registrations() -> dict[str, object]"),
        "FFI targets by name.");
  jaxkern::define_abi(m);
  jaxkern::image::define_chain_producer(m);
  jaxkern::performance::define_probes(m);
  jaxkern::ring::define_ring(m);
  jaxkern::ring::define_assembly(m);
  m.def(
      "set_max_workers", [](int64_t count) { jaxkern::worker_cap().store(count); },
      nb::arg("count"), "Caps the threads that a kernel uses, the caller's included; 0: no cap.");
  m.def(
      "simd_levels",
      [] {
        nb::list names;
        for (const char* const* name = jaxkern::available_simd_levels(); *name; ++name) {
          names.append(nb::str(*name));
        }
        return names;
      },
      nb::sig("def simd_levels() -> list[str]"),
      "The instruction-set levels that this machine can run, ascending.");
  m.def(
      "simd_level", [] { return jaxkern::simd_level_name(jaxkern::simd_level()); },
      "The instruction-set level in use: the best one, or the one that JAXKERN_SIMD names.");
  m.def("simd_problem", &jaxkern::simd_problem, nb::sig("def simd_problem() -> str | None"),
        "What is wrong with JAXKERN_SIMD, or None.");
  m.def("max_workers", [] { return jaxkern::worker_cap().load(); }, "The cap on threads; 0: none.");
}
