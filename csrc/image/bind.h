// The image domain's objects in the CPU module.
#ifndef JAXKERN_IMAGE_BIND_H_
#define JAXKERN_IMAGE_BIND_H_

#include <nanobind/nanobind.h>

namespace jaxkern::image {

void define_chain_producer(nanobind::module_& module);

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_BIND_H_
