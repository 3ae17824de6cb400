// JPEG headers and regions for Python.
#include "image/jpeg.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <climits>
#include <string>

#include "bind/objects.h"
#include "bind/unlocked.h"

namespace nb = nanobind;

namespace jaxkern::image {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Pixels = nb::ndarray<uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

void check(const std::string& problem) {
  if (!problem.empty()) throw nb::value_error(problem.c_str());
}

nb::tuple info_of(const Bytes& data) {
  JpegInfo info;
  std::string problem;
  {
    Unlocked released;
    problem = read_jpeg_info(data.data(), data.size(), &info);
  }
  check(problem);
  return nb::make_tuple(info.height, info.width, info.components, info.orientation,
                        info.progressive);
}

void decode_region(const Bytes& data, const Pixels& out, int32_t top, int32_t left,
                   int64_t max_pixels, int32_t denominator, int32_t band) {
  thread_local JpegDecoder decoder;
  if (out.shape(0) > INT32_MAX || out.shape(1) > INT32_MAX || out.shape(2) > 4) {
    throw nb::value_error(
        "out: expected [height, width, channels] with at most 4 channels, got another shape");
  }
  const JpegRegion region{top, left, static_cast<int32_t>(out.shape(0)),
                          static_cast<int32_t>(out.shape(1))};
  const auto channels = static_cast<int32_t>(out.shape(2));
  std::string problem;
  {
    Unlocked released;
    if (band <= 0) {
      problem = decoder.decode(data.data(), data.size(), channels, max_pixels, region, out.data(),
                               denominator);
    } else {
      problem = decoder.open(data.data(), data.size(), channels, max_pixels, region, denominator);
      const size_t line = out.shape(1) * out.shape(2);
      for (int32_t row = 0; row < region.height && problem.empty(); row += band) {
        problem = decoder.read(std::min(band, region.height - row),
                               out.data() + static_cast<size_t>(row) * line);
      }
    }
  }
  check(problem);
}

}  // namespace

void define_jpeg(nb::module_& module) {
  module.def(
      "jpeg_decoder", &jpeg_decoder_name,
      "Return the name of the native JPEG library, such as \"libjpeg-turbo 2.1.5\", or \"\".");
  module.def("jpeg_info", &info_of, nb::arg("data"),
             nb::sig("def jpeg_info(data: object) -> tuple[int, int, int, int, bool]"),
             "Return the height and width as stored, the components, the EXIF orientation and the "
             "progressive flag of a JPEG header.");
  module.def("jpeg_decode", &decode_region, nb::arg("data"), nb::arg("out"), nb::kw_only(),
             nb::arg("top") = 0, nb::arg("left") = 0, nb::arg("max_pixels") = int64_t{178956970},
             nb::arg("denominator") = 1, nb::arg("band") = 0,
             nb::sig("def jpeg_decode(data: object, out: object, *, top: int = 0, left: int = 0, "
                     "max_pixels: int = 178956970, denominator: int = 1, band: int = 0) -> None"),
             "Decode the region of the upright image at (top, left) with the size of `out`, uint8 "
             "[height, width, channels], in bands of `band` rows if it is positive.");
}

}  // namespace jaxkern::image
