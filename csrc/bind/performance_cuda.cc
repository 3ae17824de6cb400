// The GPU's probes for Python; they run without the interpreter's lock.
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "bind/objects.h"
#include "bind/unlocked.h"
#include "performance/cuda.h"

namespace nb = nanobind;

namespace jaxkern::performance {

void define_device_probes(nb::module_& module) {
  module.def(
      "measure_device",
      [](int ordinal, double seconds) {
        Rates rates;
        if (const cudaError_t status = measure_device(ordinal, seconds, rates);
            status != cudaSuccess) {
          cudaGetLastError();  // an error of this measurement is not the next call's
          throw std::runtime_error("the probes of GPU " + std::to_string(ordinal) +
                                   " failed: " + cudaGetErrorString(status));
        }
        return rates;
      },
      nb::arg("ordinal"), nb::arg("seconds"), nb::call_guard<Unlocked>(),
      "Bytes and multiply-adds a second of one GPU: the best of `seconds` of launches each.");
}

}  // namespace jaxkern::performance
