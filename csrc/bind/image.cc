// A chain's producer for Python: a capsule, made from the attributes that the handlers take.
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bind/objects.h"
#include "image/producer.h"

namespace nb = nanobind;

namespace jaxkern::image {
namespace {

using Integers = std::vector<int32_t>;

nb::object chain_producer(const Integers& filter, const Integers& size, const Integers& erasures,
                          const Integers& rounding, int32_t layout, int32_t channels,
                          int32_t source_dtype, int32_t output_dtype, int32_t height,
                          int32_t width) {
  Plan plan{};
  if (!set_segments(filter, size, erasures, rounding, &plan)) {
    throw nb::value_error(("the plan describes " + std::to_string(filter.size()) +
                           " segments with " + std::to_string(size.size()) + " sizes, " +
                           std::to_string(erasures.size()) + " erasure counts and " +
                           std::to_string(rounding.size()) +
                           " roundings; wanted 1 to 8 segments, two sizes each and one of the "
                           "rest")
                              .c_str());
  }
  plan.channels = channels;
  plan.source_dtype = static_cast<Dtype>(source_dtype);
  plan.output_dtype = static_cast<Dtype>(output_dtype);
  plan.layout = static_cast<Layout>(layout);
  const JaxkernProducer* made = make_chain_producer(plan, height, width);
  PyObject* capsule = PyCapsule_New(const_cast<JaxkernProducer*>(made), JAXKERN_PRODUCER_CAPSULE,
                                    [](PyObject* self) {
                                      const auto* last = static_cast<const JaxkernProducer*>(
                                          PyCapsule_GetPointer(self, JAXKERN_PRODUCER_CAPSULE));
                                      last->release(last->state);
                                    });
  if (capsule == nullptr) {
    made->release(made->state);
    throw nb::python_error();
  }
  return nb::steal(capsule);
}

}  // namespace

void define_chain_producer(nb::module_& module) {
  module.def("image_chain_producer", &chain_producer, nb::kw_only(), nb::arg("filter"),
             nb::arg("size"), nb::arg("erasures"), nb::arg("rounding"), nb::arg("layout"),
             nb::arg("channels"), nb::arg("source_dtype"), nb::arg("output_dtype"),
             nb::arg("height"), nb::arg("width"),
             "A capsule of core/producer.h that runs this plan on images of this size.");
}

}  // namespace jaxkern::image
