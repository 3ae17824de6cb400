// The CUDA module: a table of FFI targets and their handlers, and the architectures of its code.
#include <cuda_runtime_api.h>

#include <memory>

#include "bind/objects.h"
#include "core/module.h"
#include "correlators/ops.h"
#include "image/ops.h"
#include "ring/cuda_module.h"
#include "xpcs/ops.h"

namespace nb = nanobind;

namespace {

nb::dict registrations() {
  nb::dict table;
#define JAXKERN_ADD(name, target) jaxkern::add_handler<Jaxkern##name##Cuda>(table, target);
  JAXKERN_CORRELATORS_OPS(JAXKERN_ADD)
  JAXKERN_IMAGE_OPS(JAXKERN_ADD)
  JAXKERN_XPCS_OPS(JAXKERN_ADD)
#undef JAXKERN_ADD
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
        "Return the FFI targets by name.");
  jaxkern::define_abi(m);
  jaxkern::performance::define_device_probes(m);
  m.def(
      "set_ring_access",
      [](const nb::capsule& access) {
        using namespace jaxkern::ring;
        set_program_access(&jaxkern::shared_object<ProgramAccess>(access, kProgramAccess));
      },
      nb::arg("access"), "Set the functions of the CPU module that memory of rings uses.");
  m.def(
      "pinned_allocator",
      [](int device) {
        using jaxkern::ring::Allocator;
        auto allocator = std::make_unique<Allocator>(jaxkern::ring::pinned_allocator(device));
        nb::capsule capsule(allocator.get(), jaxkern::ring::kAllocator,
                            [](void* memory) noexcept { delete static_cast<Allocator*>(memory); });
        (void)allocator.release();
        return capsule;
      },
      nb::arg("device"), nb::sig("def pinned_allocator(device: int) -> object"),
      "Return an allocator of page-locked memory for the slots of a ring, on CUDA device "
      "`device`.");
  m.def(
      "cuda_runtime", [] { return CUDART_VERSION; },
      "Return the version of the CUDA runtime in this module: 1000 * major + 10 * minor.");
  m.def("architectures", &architectures, nb::sig("def architectures() -> list[str]"),
        "Return the architectures of the kernels: sm_* is machine code, compute_* PTX for newer "
        "devices.");
}
