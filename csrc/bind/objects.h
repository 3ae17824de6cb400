// What the modules offer beside their handlers, a file of csrc/bind each.
#ifndef JAXKERN_BIND_OBJECTS_H_
#define JAXKERN_BIND_OBJECTS_H_

#include <nanobind/nanobind.h>

namespace jaxkern {
namespace image {
void define_chain_producer(nanobind::module_& module);
}
namespace performance {
void define_probes(nanobind::module_& module);         // of the CPU module
void define_device_probes(nanobind::module_& module);  // of the CUDA module
}  // namespace performance
namespace ring {
void define_ring(nanobind::module_& module);
void define_assembly(nanobind::module_& module);
}  // namespace ring
}  // namespace jaxkern

#endif  // JAXKERN_BIND_OBJECTS_H_
