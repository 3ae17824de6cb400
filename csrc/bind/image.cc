// Producers of image records for Python: capsules, created from the attributes of the ops.
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bind/objects.h"
#include "image/parameters.h"
#include "image/producer.h"

namespace nb = nanobind;

namespace jaxkern::image {
namespace {

using Integers = std::vector<int32_t>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Creates stages from the attributes of the ops (image/operands.h) and the properties of the
// source.
Stages stages_of(const Integers& filter, const Integers& size, const Integers& erasures,
                 const Integers& rounding, const Integers& segments, const Integers& steps,
                 const Integers& dtype, const Integers& codes, const Integers& interpolation,
                 const Integers& kernel, const std::vector<float>& warp_fill, int32_t layout,
                 int32_t channels, int32_t source_dtype, int32_t height, int32_t width) {
  const auto list = [](const auto& values) {
    return Slice<typename std::decay_t<decltype(values)>::value_type>{values.data(), values.size()};
  };
  const StagesAttributes attributes = {list(filter),   list(size),      list(erasures),
                                       list(rounding), list(segments),  list(steps),
                                       list(dtype),    list(codes),     list(interpolation),
                                       list(kernel),   list(warp_fill), layout,
                                       channels,       source_dtype,    height,
                                       width};
  Stages stages;
  if (const std::string error = set_stages(attributes, &stages); !error.empty()) {
    throw nb::value_error(error.c_str());
  }
  return stages;
}

nb::object in_capsule(const JaxkernProducer* producer) {
  PyObject* capsule = PyCapsule_New(const_cast<JaxkernProducer*>(producer),
                                    JAXKERN_PRODUCER_CAPSULE, [](PyObject* self) {
                                      const auto* last = static_cast<const JaxkernProducer*>(
                                          PyCapsule_GetPointer(self, JAXKERN_PRODUCER_CAPSULE));
                                      last->release(last->state);
                                    });
  if (capsule == nullptr) {
    producer->release(producer->state);
    throw nb::python_error();
  }
  return nb::steal(capsule);
}

nb::object chain_producer(const Stages& stages, int32_t height, int32_t width) {
  return in_capsule(make_chain_producer(stages, height, width));
}

nb::object encoded_producer(const Stages& stages, const std::vector<Bytes>& blobs, bool in_files,
                            int32_t codec, int64_t max_pixels, bool scaled) {
  EncodedSource source;
  for (const Bytes& blob : blobs) source.blobs.push_back({blob.data(), blob.size()});
  source.in_files = in_files;
  source.codec = static_cast<Codec>(codec);
  source.max_pixels = max_pixels;
  source.scaled = scaled;
  return in_capsule(make_encoded_producer(stages, std::move(source)));
}

}  // namespace

void define_chain_producer(nb::module_& module) {
  nb::class_<Stages>(module, "ImageStages", "Checked stages, for producers.");
  module.def(
      "image_stages", &stages_of, nb::kw_only(), nb::arg("filter"), nb::arg("size"),
      nb::arg("erasures"), nb::arg("rounding"), nb::arg("segments"), nb::arg("steps"),
      nb::arg("dtype"), nb::arg("codes"), nb::arg("interpolation"), nb::arg("kernel"),
      nb::arg("warp_fill"), nb::arg("layout"), nb::arg("channels"), nb::arg("source_dtype"),
      nb::arg("height"), nb::arg("width"),
      "Create stages from an op's attributes. Height and width of the source are used only if "
      "a program is first.");
  module.def(
      "image_parameter_ops",
      [] {
        nb::dict kinds;
        for (int32_t op = 0; op < kParameterOps; ++op) {
          kinds[parameter_ops()[op].name] = nb::str(parameter_ops()[op].kinds, 5);
        }
        return kinds;
      },
      nb::sig("def image_parameter_ops() -> dict[str, str]"),
      "Return the ops of parameter programs in the order of their numbers, with their kinds.");
  module.def("image_chain_producer", &chain_producer, nb::arg("stages"), nb::arg("height"),
             nb::arg("width"),
             "Return a capsule of core/producer.h that runs stages on images of this size.");
  module.def("image_encoded_producer", &encoded_producer, nb::arg("stages"), nb::kw_only(),
             nb::arg("blobs").noconvert(), nb::arg("in_files"), nb::arg("codec"),
             nb::arg("max_pixels"), nb::arg("scaled"),
             "Return a capsule of core/producer.h that runs stages on encoded images. `blobs` are "
             "arrays uint8 [B] that must outlive the capsule.");
}

}  // namespace jaxkern::image
