// A chain's producers for Python: capsules, made from the attributes that the handlers take.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bind/objects.h"
#include "image/encoded_producer.h"
#include "image/producer.h"

namespace nb = nanobind;

namespace jaxkern::image {
namespace {

using Integers = std::vector<int32_t>;

Plan plan_of(const Integers& filter, const Integers& size, const Integers& erasures,
             const Integers& rounding, int32_t layout, int32_t channels, int32_t source_dtype,
             int32_t output_dtype) {
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
  return plan;
}

nb::object in_capsule(const JaxkernProducer* made) {
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

nb::object chain_producer(const Integers& filter, const Integers& size, const Integers& erasures,
                          const Integers& rounding, int32_t layout, int32_t channels,
                          int32_t source_dtype, int32_t output_dtype, int32_t height,
                          int32_t width) {
  return in_capsule(make_chain_producer(
      plan_of(filter, size, erasures, rounding, layout, channels, source_dtype, output_dtype),
      height, width));
}

nb::object encoded_producer(const Integers& filter, const Integers& size, const Integers& erasures,
                            const Integers& rounding, int32_t layout, int32_t channels,
                            int32_t source_dtype, int32_t output_dtype,
                            const std::vector<std::pair<uintptr_t, size_t>>& blobs, bool in_files,
                            int32_t codec, int64_t max_pixels, bool scaled) {
  EncodedSource source;
  for (const auto& [address, bytes] : blobs) {
    source.blobs.push_back({reinterpret_cast<const uint8_t*>(address), bytes});
  }
  source.in_files = in_files;
  source.codec = static_cast<Codec>(codec);
  source.max_pixels = max_pixels;
  source.scaled = scaled;
  return in_capsule(make_encoded_producer(
      plan_of(filter, size, erasures, rounding, layout, channels, source_dtype, output_dtype),
      std::move(source)));
}

}  // namespace

void define_chain_producer(nb::module_& module) {
  module.def("image_chain_producer", &chain_producer, nb::kw_only(), nb::arg("filter"),
             nb::arg("size"), nb::arg("erasures"), nb::arg("rounding"), nb::arg("layout"),
             nb::arg("channels"), nb::arg("source_dtype"), nb::arg("output_dtype"),
             nb::arg("height"), nb::arg("width"),
             "A capsule of core/producer.h that runs this plan on images of this size.");
  module.def("image_encoded_producer", &encoded_producer, nb::kw_only(), nb::arg("filter"),
             nb::arg("size"), nb::arg("erasures"), nb::arg("rounding"), nb::arg("layout"),
             nb::arg("channels"), nb::arg("source_dtype"), nb::arg("output_dtype"),
             nb::arg("blobs"), nb::arg("in_files"), nb::arg("codec"), nb::arg("max_pixels"),
             nb::arg("scaled"),
             "A capsule of core/producer.h that runs this plan on encoded images. `blobs` are "
             "(address, bytes) of memory that outlives its use.");
}

}  // namespace jaxkern::image
