// JPEG images: their headers, and regions that are bit-identical to the crop of a full decode.
#ifndef JAXKERN_IMAGE_JPEG_H_
#define JAXKERN_IMAGE_JPEG_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace jaxkern::image {

struct JpegInfo {
  int32_t height = 0, width = 0;  // as stored
  int32_t components = 0;         // 1: grayscale, 3: colour, 4: CMYK
  int32_t orientation = 1;        // EXIF orientation, 1 to 8; 5 to 8 swap height and width
  bool progressive = false;
};

// Reads the header of a JPEG file, without libjpeg. Returns "" or an error message. `scan` is the
// offset of the entropy-coded data of the first scan.
std::string read_jpeg_header(const uint8_t* data, size_t size, JpegInfo* info, size_t* scan);
std::string read_jpeg_info(const uint8_t* data, size_t size, JpegInfo* info);

// A region of the upright image, after the orientation and the scaling.
struct JpegRegion {
  int32_t top = 0, left = 0, height = 0, width = 0;
};

constexpr bool is_jpeg_denominator(int32_t value) {
  return value == 1 || value == 2 || value == 4 || value == 8;
}

// The side of an image of `length` pixels decoded at 1 / `denominator`.
constexpr int32_t scaled_side(int32_t length, int32_t denominator) {
  return (length + denominator - 1) / denominator;
}

// True if the decoder below is part of this build, and its name: "libjpeg-turbo 2.1.5" or "".
bool jpeg_decoder_available();
const char* jpeg_decoder_name();

// A decoder of one image at a time, for one thread, which reuses its memory. Values are those of
// Pillow's convert to "L", "RGB" or "RGBA" (alpha 255) for 1, 3 or 4 channels. `max_pixels` is the
// largest accepted height times width; larger images are errors before anything is allocated.
//
// A `denominator` of 1, 2, 4 or 8 decodes at that fraction by a smaller inverse DCT. It averages
// pixels before the chroma is interpolated, so values differ from a full decode that is resized.
//
// All functions return "" or an error message; after an error the pixels are undefined.
class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // Decodes a region to `out`, [region.height, region.width, channels] without gaps.
  std::string decode(const uint8_t* data, size_t size, int32_t channels, int64_t max_pixels,
                     const JpegRegion& region, uint8_t* out, int32_t denominator = 1);

  // Decodes a region in bands from top to bottom. `data` must stay valid until the last `read`.
  // Images that are upright or mirrored are decoded by `read`; others are decoded in full by
  // `open`.
  std::string open(const uint8_t* data, size_t size, int32_t channels, int64_t max_pixels,
                   const JpegRegion& region, int32_t denominator = 1);
  std::string read(int32_t rows, uint8_t* out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_JPEG_H_
