// The ring as a class of the CPU module.
#ifndef JAXKERN_RING_BIND_H_
#define JAXKERN_RING_BIND_H_

#include <nanobind/nanobind.h>

namespace jaxkern::ring {

void define_ring(nanobind::module_& module);

}  // namespace jaxkern::ring

#endif  // JAXKERN_RING_BIND_H_
