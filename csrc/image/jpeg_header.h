// What the decoder takes from a header beside JpegInfo.
#ifndef JAXKERN_IMAGE_JPEG_HEADER_H_
#define JAXKERN_IMAGE_JPEG_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "image/jpeg.h"

namespace jaxkern::image {

// `scan`: where the entropy-coded data of the first scan begins.
std::string read_jpeg_header(const uint8_t* data, size_t size, JpegInfo* info, size_t* scan);

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_JPEG_HEADER_H_
