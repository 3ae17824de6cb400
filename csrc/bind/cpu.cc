// The CPU module: a table of FFI targets and their handlers.
#include <string>
#include <vector>

#include "bind/objects.h"
#include "core/module.h"
#include "core/simd_dispatch.h"
#include "correlators/ops.h"
#include "image/jpeg.h"
#include "image/ops.h"
#include "ring/ops.h"
#include "xpcs/ops.h"

namespace nb = nanobind;

namespace {

nb::dict registrations() {
  nb::dict table;
#define JAXKERN_ADD(name, target) jaxkern::add_handler<Jaxkern##name##Cpu>(table, target);
  JAXKERN_CORRELATORS_OPS(JAXKERN_ADD)
  JAXKERN_IMAGE_OPS(JAXKERN_ADD)
  JAXKERN_IMAGE_CPU_OPS(JAXKERN_ADD)
  JAXKERN_RING_OPS(JAXKERN_ADD)
  JAXKERN_XPCS_OPS(JAXKERN_ADD)
  if (jaxkern::image::jpeg_decoder_available()) {
    JAXKERN_IMAGE_JPEG_OPS(JAXKERN_ADD)
  }
#undef JAXKERN_ADD
  return table;
}

}  // namespace

NB_MODULE(_cpu, m) {
  m.doc() = "jaxkern's CPU kernels as XLA FFI targets";
  m.def("registrations", &registrations, nb::sig("def registrations() -> dict[str, object]"),
        "Return the FFI targets by name.");
  jaxkern::define_abi(m);
  jaxkern::define_constants(m);
  jaxkern::correlators::define_multitau(m);
  jaxkern::correlators::define_frame_sums(m);
  jaxkern::correlators::define_events(m);
  jaxkern::image::define_chain_producer(m);
  jaxkern::image::define_image_files(m);
  jaxkern::image::define_jpeg(m);
  jaxkern::performance::define_probes(m);
  jaxkern::ring::define_ring(m);
  jaxkern::ring::define_assembly(m);
  jaxkern::tokens::define_packing(m);
  m.def(
      "set_max_workers", [](int64_t count) { jaxkern::worker_cap().store(count); },
      nb::arg("count"), "Limit the threads of a kernel, including the calling one; 0: no limit.");
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
      "Return the SIMD levels that this machine can run, in ascending order.");
  m.def(
      "simd_level", [] { return jaxkern::simd_level_name(jaxkern::simd_level()); },
      "Return the SIMD level in use: the best one, or the one in JAXKERN_SIMD.");
  m.def("simd_problem", &jaxkern::simd_problem, nb::sig("def simd_problem() -> str | None"),
        "Return an error message for an invalid JAXKERN_SIMD, or None.");
  m.def(
      "max_workers", [] { return jaxkern::worker_cap().load(); },
      "Return the limit on threads; 0: none.");
}
