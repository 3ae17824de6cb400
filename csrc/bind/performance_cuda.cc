// Bindings of the GPU probes; they release the GIL.
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "bind/objects.h"
#include "bind/unlocked.h"
#include "performance/cuda.h"
#include "performance/rates.h"

namespace nb = nanobind;

namespace jaxkern::performance {

void define_device_probes(nb::module_& module) {
  module.def(
      "measure_device",
      [](int ordinal, double seconds) {
        DeviceRates rates;
        if (const cudaError_t status = measure_device(ordinal, seconds, rates);
            status != cudaSuccess) {
          cudaGetLastError();  // clears the error, so that the next call does not report it
          throw std::runtime_error("the probes of GPU " + std::to_string(ordinal) +
                                   " failed: " + cudaGetErrorString(status));
        }
        return Rates{{"load", rates.load},
                     {"store", rates.store},
                     {"copy", rates.copy},
                     {"fma_f32", rates.fma_f32},
                     {"fma_f64", rates.fma_f64},
                     {"cache_bytes", rates.cache_bytes},
                     {"buffer_bytes", rates.buffer_bytes}};
      },
      nb::arg("ordinal"), nb::arg("seconds"), nb::call_guard<Unlocked>(),
      "Measure bytes and operations per second of a GPU: the best of `seconds` of launches.");
}

}  // namespace jaxkern::performance
