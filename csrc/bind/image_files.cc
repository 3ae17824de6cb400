// The headers of many images for Python.
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bind/objects.h"
#include "bind/unlocked.h"
#include "image/files.h"

namespace nb = nanobind;

namespace jaxkern::image {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Places = nb::ndarray<const int64_t, nb::shape<-1, 3>, nb::c_contig, nb::device::cpu>;
using Stamps = nb::ndarray<int64_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;
using Sizes = nb::ndarray<int32_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;
static_assert(sizeof(FileStamp) == 2 * sizeof(int64_t) && sizeof(ImageSize) == 2 * sizeof(int32_t));

std::vector<std::string_view> texts(const std::vector<Bytes>& blobs, const Places& place) {
  // The copy is checked: another thread can write to the caller's array.
  const std::vector<int64_t> own(place.data(), place.data() + place.size());
  std::vector<std::string_view> found;
  found.reserve(place.shape(0));
  for (size_t i = 0; i < place.shape(0); ++i) {
    const int64_t* at = own.data() + 3 * i;
    const auto blob = static_cast<uint64_t>(at[0]);
    const int64_t bytes = blob < blobs.size() ? static_cast<int64_t>(blobs[blob].size()) : -1;
    if (at[1] < 0 || at[2] < 0 || at[1] > bytes || at[2] > bytes - at[1]) {
      throw nb::index_error(("place " + std::to_string(i) + " is (" + std::to_string(at[0]) + ", " +
                             std::to_string(at[1]) + ", " + std::to_string(at[2]) + "); wanted a " +
                             "blob, and an offset and a length within it")
                                .c_str());
    }
    found.emplace_back(reinterpret_cast<const char*>(blobs[blob].data()) + at[1], at[2]);
  }
  return found;
}

template <typename Array>
void check_rows(const Array& array, const Places& place) {
  if (array.shape(0) != place.shape(0)) {
    throw nb::value_error(("an output has " + std::to_string(array.shape(0)) + " rows; wanted " +
                           std::to_string(place.shape(0)))
                              .c_str());
  }
}

void stamps_of_files(const std::vector<Bytes>& blobs, const Places& place, int threads,
                     Stamps stamps) {
  check_rows(stamps, place);
  const std::vector<std::string_view> names = texts(blobs, place);
  const Unlocked released;
  stamp_files(names, threads, reinterpret_cast<FileStamp*>(stamps.data()));
}

void jpeg_sizes(const std::vector<Bytes>& blobs, const Places& place, int threads, Sizes sizes) {
  check_rows(sizes, place);
  const std::vector<std::string_view> images = texts(blobs, place);
  const Unlocked released;
  read_jpeg_sizes(images, threads, reinterpret_cast<ImageSize*>(sizes.data()));
}

void jpeg_file_sizes(const std::vector<Bytes>& blobs, const Places& place, int threads, Sizes sizes,
                     Stamps stamps) {
  check_rows(sizes, place);
  check_rows(stamps, place);
  const std::vector<std::string_view> names = texts(blobs, place);
  const Unlocked released;
  read_jpeg_file_sizes(names, threads, reinterpret_cast<ImageSize*>(sizes.data()),
                       reinterpret_cast<FileStamp*>(stamps.data()));
}

}  // namespace

void define_image_files(nb::module_& module) {
  module.def("stamp_files", &stamps_of_files, nb::arg("blobs"), nb::arg("place"),
             nb::arg("threads"), nb::arg("stamps").noconvert(),
             "Fills int64 [N, 2] with size and time of change in ns of files, whose names lie at "
             "place int64 [N, 3]: blob, offset, length; -1 where there is none.");
  module.def("jpeg_sizes", &jpeg_sizes, nb::arg("blobs"), nb::arg("place"), nb::arg("threads"),
             nb::arg("sizes").noconvert(),
             "Fills int32 [N, 2] with height and width, upright, of encoded images; 0 where one is "
             "no JPEG.");
  module.def("jpeg_file_sizes", &jpeg_file_sizes, nb::arg("blobs"), nb::arg("place"),
             nb::arg("threads"), nb::arg("sizes").noconvert(), nb::arg("stamps").noconvert(),
             "jpeg_sizes of files, and their stamps.");
}

}  // namespace jaxkern::image
