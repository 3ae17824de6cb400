// Headers and metadata of many images for Python.
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
using Ranges = nb::ndarray<const int64_t, nb::shape<-1, 3>, nb::c_contig, nb::device::cpu>;
using Stamps = nb::ndarray<int64_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;
using Sizes = nb::ndarray<int32_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;
static_assert(sizeof(FileStamp) == 2 * sizeof(int64_t) && sizeof(ImageSize) == 2 * sizeof(int32_t));

std::vector<std::string_view> views(const std::vector<Bytes>& blobs, const Ranges& ranges) {
  // The copy is checked, because another thread can write to the caller's array.
  const std::vector<int64_t> copy(ranges.data(), ranges.data() + ranges.size());
  std::vector<std::string_view> result;
  result.reserve(ranges.shape(0));
  for (size_t i = 0; i < ranges.shape(0); ++i) {
    const int64_t* at = copy.data() + 3 * i;
    const auto blob = static_cast<uint64_t>(at[0]);
    const int64_t bytes = blob < blobs.size() ? static_cast<int64_t>(blobs[blob].size()) : -1;
    if (at[1] < 0 || at[2] < 0 || at[1] > bytes || at[2] > bytes - at[1]) {
      throw nb::index_error(("ranges[" + std::to_string(i) +
                             "]: expected a blob, and an offset and a length inside it, got (" +
                             std::to_string(at[0]) + ", " + std::to_string(at[1]) + ", " +
                             std::to_string(at[2]) + ")")
                                .c_str());
    }
    result.emplace_back(reinterpret_cast<const char*>(blobs[blob].data()) + at[1], at[2]);
  }
  return result;
}

template <typename Array>
void check_rows(const Array& array, const Ranges& ranges) {
  if (array.shape(0) != ranges.shape(0)) {
    throw nb::value_error(("output: expected " + std::to_string(ranges.shape(0)) + " rows, got " +
                           std::to_string(array.shape(0)))
                              .c_str());
  }
}

void stamps_of_files(const std::vector<Bytes>& blobs, const Ranges& ranges, int threads,
                     Stamps stamps) {
  check_rows(stamps, ranges);
  const std::vector<std::string_view> names = views(blobs, ranges);
  const Unlocked released;
  stamp_files(names, threads, reinterpret_cast<FileStamp*>(stamps.data()));
}

void jpeg_sizes(const std::vector<Bytes>& blobs, const Ranges& ranges, int threads, Sizes sizes) {
  check_rows(sizes, ranges);
  const std::vector<std::string_view> images = views(blobs, ranges);
  const Unlocked released;
  read_jpeg_sizes(images, threads, reinterpret_cast<ImageSize*>(sizes.data()));
}

void jpeg_file_sizes(const std::vector<Bytes>& blobs, const Ranges& ranges, int threads,
                     Sizes sizes, Stamps stamps) {
  check_rows(sizes, ranges);
  check_rows(stamps, ranges);
  const std::vector<std::string_view> names = views(blobs, ranges);
  const Unlocked released;
  read_jpeg_file_sizes(names, threads, reinterpret_cast<ImageSize*>(sizes.data()),
                       reinterpret_cast<FileStamp*>(stamps.data()));
}

}  // namespace

void define_image_files(nb::module_& module) {
  module.def("stamp_files", &stamps_of_files, nb::arg("blobs"), nb::arg("ranges"),
             nb::arg("threads"), nb::arg("stamps").noconvert(),
             "Write the size and the modification time in ns of files to int64 [N, 2], or -1. "
             "`ranges` int64 [N, 3] are the file names: blob, offset, length.");
  module.def("jpeg_sizes", &jpeg_sizes, nb::arg("blobs"), nb::arg("ranges"), nb::arg("threads"),
             nb::arg("sizes").noconvert(),
             "Write the height and width of encoded images, after orientation, to int32 [N, 2]; 0 "
             "for an image that is not a JPEG.");
  module.def("jpeg_file_sizes", &jpeg_file_sizes, nb::arg("blobs"), nb::arg("ranges"),
             nb::arg("threads"), nb::arg("sizes").noconvert(), nb::arg("stamps").noconvert(),
             "The same as jpeg_sizes for files, with their stamps.");
}

}  // namespace jaxkern::image
