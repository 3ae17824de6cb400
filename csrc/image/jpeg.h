// JPEG images: their headers, and regions of them decoded bit for bit as a full decode has them.
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
  int32_t orientation = 1;        // 1 to 8, as EXIF counts them; 5 to 8 swap height and width
  bool progressive = false;
};

// Reads the header alone: nothing beyond `size`, and without libjpeg. "" or what is wrong.
std::string read_jpeg_info(const uint8_t* data, size_t size, JpegInfo* info);

// Of the upright image: after the orientation, and after the scaling.
struct JpegRegion {
  int32_t top = 0, left = 0, height = 0, width = 0;
};

constexpr bool is_jpeg_denominator(int32_t value) {
  return value == 1 || value == 2 || value == 4 || value == 8;
}

// A side of `length` pixels decoded at 1 / `denominator`.
constexpr int32_t scaled_side(int32_t length, int32_t denominator) {
  return (length + denominator - 1) / denominator;
}

// Whether the decoder below was built, and "libjpeg-turbo 2.1.5" or "".
bool jpeg_decoder_available();
const char* jpeg_decoder_name();

// Decodes one image after the other, by one thread, in memory that it keeps. Values are those of
// Pillow's convert to "L", "RGB" or "RGBA" (alpha 255) for 1, 3 or 4 channels. `max_pixels`: height
// times width that the image may have; it is refused above before anything is allocated.
//
// `denominator` 1, 2, 4 or 8 decodes at that fraction by a smaller inverse DCT: an average over
// pixels before the chroma is interpolated, so values differ from a full decode that is resized.
//
// All functions return "" or what is wrong; then the pixels are undefined.
class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // `out`: [region.height, region.width, channels] without gaps.
  std::string decode(const uint8_t* data, size_t size, int32_t channels, int64_t max_pixels,
                     const JpegRegion& region, uint8_t* out, int32_t denominator = 1);

  // The same in bands from top to bottom; `data` must stay until the last `read`. Images that are
  // upright or mirrored are decoded as they are read, others are held decoded from `open` on.
  std::string open(const uint8_t* data, size_t size, int32_t channels, int64_t max_pixels,
                   const JpegRegion& region, int32_t denominator = 1);
  std::string read(int32_t rows, uint8_t* out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_JPEG_H_
