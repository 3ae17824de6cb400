// The definitions of the modules apart from their handlers; each file of csrc/bind has one of them.
#ifndef JAXKERN_BIND_OBJECTS_H_
#define JAXKERN_BIND_OBJECTS_H_

#include <nanobind/nanobind.h>

#include <cstring>
#include <string>

namespace jaxkern {

// Returns the object in a capsule of the other module. The capsule's name includes a version.
template <typename T>
const T& shared_object(const nanobind::capsule& capsule, const char* expected) {
  const char* name = capsule.name();
  if (name == nullptr || std::strcmp(name, expected) != 0) {
    throw nanobind::type_error(
        (std::string("capsule: expected the name ") + expected + ", got " +
         (name == nullptr ? "none" : name) +
         "; jaxkern._cpu and jaxkern._cuda must be of one build: reinstall jaxkern")
            .c_str());
  }
  return *static_cast<const T*>(capsule.data());
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
