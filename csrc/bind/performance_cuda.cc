// The GPU's probes for Python; they run without the interpreter's lock.
#include <stdexcept>
#include <string>

#include "bind/objects.h"
#include "performance/cuda.h"

namespace nb = nanobind;

namespace jaxkern::performance {
namespace {

nb::dict device(int ordinal, double seconds) {
  DeviceRates rates;
  cudaError_t status;
  {
    nb::gil_scoped_release release;
    status = measure_device(ordinal, seconds, &rates);
  }
  if (status != cudaSuccess) {
    cudaGetLastError();  // an error of this measurement is not the next call's
    throw std::runtime_error("the probes of GPU " + std::to_string(ordinal) +
                             " failed: " + cudaGetErrorString(status));
  }
  nb::dict table;
  table["load"] = rates.load;
  table["store"] = rates.store;
  table["copy"] = rates.copy;
  table["fma_f32"] = rates.fma_f32;
  table["fma_f64"] = rates.fma_f64;
  table["cache_bytes"] = rates.cache_bytes;
  table["buffer_bytes"] = rates.buffer_bytes;
  return table;
}

}  // namespace

void define_device_probes(nb::module_& module) {
  module.def(
      "measure_device", &device, nb::arg("ordinal"), nb::arg("seconds"),
      nb::sig("def measure_device(ordinal: int, seconds: float) -> dict[str, float]"),
      "Bytes and multiply-adds a second of one GPU: the best of `seconds` of launches each.");
}

}  // namespace jaxkern::performance
