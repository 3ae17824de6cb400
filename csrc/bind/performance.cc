// The CPU's probes for Python; they run without the interpreter's lock.
#include <nanobind/stl/string.h>

#include <string>

#include "bind/objects.h"
#include "performance/probe.h"

namespace nb = nanobind;

namespace jaxkern::performance {
namespace {

SimdLevel level_of(const std::string& name) {
  for (int i = 0; i < kSimdLevels; ++i) {
    const SimdLevel level = static_cast<SimdLevel>(i);
    if (name == simd_level_name(level)) return level;
  }
  throw nb::value_error(("'" + name + "' is no SIMD level; simd_levels() lists them").c_str());
}

nb::dict memory(const std::string& level, int64_t threads, int64_t bytes, double seconds) {
  MemoryRates rates;
  {
    nb::gil_scoped_release release;
    rates = measure_memory(level_of(level), threads, bytes, seconds);
  }
  nb::dict table;
  table["load"] = rates.load;
  table["store"] = rates.store;
  table["store_streaming"] = rates.store_streaming;
  table["copy"] = rates.copy;
  table["copy_streaming"] = rates.copy_streaming;
  return table;
}

nb::dict compute(const std::string& level, int64_t threads, double seconds) {
  ComputeRates rates;
  {
    nb::gil_scoped_release release;
    rates = measure_compute(level_of(level), threads, seconds);
  }
  nb::dict table;
  table["fma_f32"] = rates.f32;
  table["fma_f64"] = rates.f64;
  return table;
}

}  // namespace

void define_probes(nb::module_& module) {
  module.def("measure_memory", &memory, nb::arg("level"), nb::arg("threads"), nb::arg("bytes"),
             nb::arg("seconds"),
             nb::sig("def measure_memory(level: str, threads: int, bytes: int, seconds: float) "
                     "-> dict[str, float]"),
             "Bytes a second of streams over `bytes` of memory: the best of `seconds` of passes.");
  module.def("measure_compute", &compute, nb::arg("level"), nb::arg("threads"), nb::arg("seconds"),
             nb::sig("def measure_compute(level: str, threads: int, seconds: float) "
                     "-> dict[str, float]"),
             "Operations a second of multiply-adds in registers: the best of `seconds` of runs.");
}

}  // namespace jaxkern::performance
