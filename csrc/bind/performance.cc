// Bindings of the CPU probes; they release the GIL.
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <string>

#include "bind/objects.h"
#include "bind/unlocked.h"
#include "performance/probe.h"

namespace nb = nanobind;

namespace jaxkern::performance {
namespace {

SimdLevel level_of(const std::string& name) {
  for (int i = 0; i < kSimdLevels; ++i) {
    const SimdLevel level = static_cast<SimdLevel>(i);
    if (name == simd_level_name(level)) return level;
  }
  throw nb::value_error(("level: expected one of simd_levels(), got '" + name + "'").c_str());
}

}  // namespace

void define_probes(nb::module_& module) {
  module.def(
      "measure_memory",
      [](const std::string& level, int64_t threads, int64_t bytes, double seconds) {
        return measure_memory(level_of(level), threads, bytes, seconds);
      },
      nb::arg("level"), nb::arg("threads"), nb::arg("bytes"), nb::arg("seconds"),
      nb::call_guard<Unlocked>(),
      "Measure bytes per second over `bytes` of memory: the best of `seconds` of passes.");
  module.def(
      "measure_compute",
      [](const std::string& level, int64_t threads, double seconds) {
        return measure_compute(level_of(level), threads, seconds);
      },
      nb::arg("level"), nb::arg("threads"), nb::arg("seconds"), nb::call_guard<Unlocked>(),
      "Measure operations per second of multiply-adds: the best of `seconds` of runs.");
}

}  // namespace jaxkern::performance
