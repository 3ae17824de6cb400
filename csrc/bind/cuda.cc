// The CUDA module: which FFI target is which handler, and what the machine code is for.
#include <cuda_runtime_api.h>

#include <cstring>

#include "core/module.h"
#include "image/cuda_handlers.h"
#include "performance/bind.h"
#include "ring/cuda_handlers.h"
#include "xpcs/cuda_handlers.h"

namespace nb = nanobind;
using jaxkern::add_handler;

namespace {

nb::dict registrations() {
  nb::dict table;
  add_handler<JaxkernImageChainCuda>(table, "jaxkern.image_chain.v1");
  add_handler<JaxkernImageChainRaggedCuda>(table, "jaxkern.image_chain_ragged.v1");
  add_handler<JaxkernImageMixCuda>(table, "jaxkern.image_mix.v1");
  add_handler<JaxkernRingPopCuda>(table, "jaxkern.ring_pop.v1");
  add_handler<JaxkernRingPushCuda>(table, "jaxkern.ring_push.v1");
  add_handler<JaxkernTwoTimeG2Cuda>(table, "jaxkern.two_time_g2.v1");
  add_handler<JaxkernTwoTimeG2TangentCuda>(table, "jaxkern.two_time_g2_tangent.v1");
  add_handler<JaxkernTwoTimeG2CotangentCuda>(table, "jaxkern.two_time_g2_cotangent.v1");
  add_handler<JaxkernTwoTimeResidualCuda>(table, "jaxkern.two_time_residual.v1");
  add_handler<JaxkernTwoTimeG2AtCuda>(table, "jaxkern.two_time_g2_at.v1");
  add_handler<JaxkernTwoTimeNormalEquationsCuda>(table, "jaxkern.two_time_normal_equations.v1");
  return table;
}

// JAXKERN_CUDA_ARCHITECTURES is a list of strings.
nb::list architectures() {
  nb::list names;
  for (const char* name : {JAXKERN_CUDA_ARCHITECTURES}) names.append(nb::str(name));
  return names;
}

}  // namespace

NB_MODULE(_cuda, m) {
  m.doc() = "jaxkern's CUDA kernels as XLA FFI targets";
  m.def("registrations", &registrations, nb::sig("def registrations() -> dict[str, object]"),
        "FFI targets by name.");
  jaxkern::define_abi(m);
  jaxkern::performance::define_device_probes(m);
  m.def(
      "set_ring_access",
      [](const nb::capsule& access) {
        if (std::strcmp(access.name(), jaxkern::ring::kProgramAccess) != 0) {
          throw nb::type_error("what the CPU module's ring_access() returns is wanted");
        }
        jaxkern::ring::set_program_access(
            static_cast<const jaxkern::ring::ProgramAccess*>(access.data()));
      },
      nb::arg("access"), "Where the rings of jitted programs are.");
  m.def(
      "pinned_allocator",
      [] { return nb::capsule(&jaxkern::ring::pinned_allocator(), jaxkern::ring::kAllocator); },
      nb::sig("def pinned_allocator() -> object"), "Page-locked memory for the slots of a ring.");
  m.def(
      "cuda_runtime", [] { return CUDART_VERSION; },
      "The version of the CUDA runtime inside this module: 1000 * major + 10 * minor.");
  m.def(
      "architectures", &architectures, nb::sig("def architectures() -> list[str]"),
      "What the kernels are compiled for: sm_* is machine code, compute_* PTX for newer devices.");
}
