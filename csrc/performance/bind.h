// The machine probes for Python.
#ifndef JAXKERN_PERFORMANCE_BIND_H_
#define JAXKERN_PERFORMANCE_BIND_H_

#include <nanobind/nanobind.h>

namespace jaxkern::performance {

// measure_memory and measure_compute of the CPU module.
void define_probes(nanobind::module_& module);

// measure_device of the CUDA module.
void define_device_probes(nanobind::module_& module);

}  // namespace jaxkern::performance

#endif  // JAXKERN_PERFORMANCE_BIND_H_
