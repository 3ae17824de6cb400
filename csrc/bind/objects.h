// What the modules offer beside their handlers, a file of csrc/bind each.
#ifndef JAXKERN_BIND_OBJECTS_H_
#define JAXKERN_BIND_OBJECTS_H_

#include <nanobind/nanobind.h>

#include <cstring>
#include <string>

namespace jaxkern {

// What the other module made: the object in its capsule, whose name says of which version it is.
template <typename T>
const T& shared_object(const nanobind::capsule& given, const char* wanted) {
  const char* name = given.name();
  if (name == nullptr || std::strcmp(name, wanted) != 0) {
    throw nanobind::type_error(
        (std::string("the capsule's name is ") + (name == nullptr ? "missing" : name) +
         "; wanted " + wanted +
         ". jaxkern._cpu and jaxkern._cuda must be of one build: install jaxkern again")
            .c_str());
  }
  return *static_cast<const T*>(given.data());
}

void define_constants(nanobind::module_& module);
namespace correlators {
void define_events(nanobind::module_& module);
void define_multitau(nanobind::module_& module);
void define_frame_sums(nanobind::module_& module);
}  // namespace correlators
namespace image {
void define_chain_producer(nanobind::module_& module);
void define_image_files(nanobind::module_& module);
void define_jpeg(nanobind::module_& module);
}  // namespace image
namespace performance {
void define_probes(nanobind::module_& module);         // of the CPU module
void define_device_probes(nanobind::module_& module);  // of the CUDA module
}  // namespace performance
namespace ring {
void define_ring(nanobind::module_& module);
void define_assembly(nanobind::module_& module);
}  // namespace ring
namespace tokens {
void define_packing(nanobind::module_& module);
}  // namespace tokens
}  // namespace jaxkern

#endif  // JAXKERN_BIND_OBJECTS_H_
