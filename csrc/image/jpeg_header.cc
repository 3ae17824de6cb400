// Headers of JPEG files: the size of the frame and the orientation of EXIF, from untrusted bytes.
#include <cstring>
#include <string_view>

#include "image/jpeg.h"

namespace jaxkern::image {
namespace {

// The bytes of a segment or table. Numbers outside of it read as 0.
struct Bytes {
  const uint8_t* data;
  size_t size;
  bool big_endian = true;

  bool has(size_t offset, size_t count) const { return offset <= size && count <= size - offset; }
  uint32_t number(size_t offset, size_t count) const {
    if (!has(offset, count)) return 0;
    uint32_t value = 0;
    for (size_t i = 0; i < count; ++i) {
      value = value << 8 | data[offset + (big_endian ? i : count - 1 - i)];
    }
    return value;
  }
  bool starts_with(const char* text, size_t count) const {
    return has(0, count) && memcmp(data, text, count) == 0;
  }
};

// Returns the orientation in the first directory of a TIFF structure, or 0.
int32_t tiff_orientation(Bytes tiff) {
  constexpr uint32_t kOrientation = 0x0112, kByte = 1, kShort = 3, kLong = 4;
  if (tiff.starts_with("II*\0", 4)) {
    tiff.big_endian = false;
  } else if (!tiff.starts_with("MM\0*", 4)) {
    return 0;
  }
  const size_t directory = tiff.number(4, 4);
  const size_t entries = tiff.number(directory, 2);
  for (size_t i = 0; i < entries; ++i) {
    const size_t entry = directory + 2 + 12 * i;
    if (!tiff.has(entry, 12)) return 0;
    if (tiff.number(entry, 2) != kOrientation) continue;
    const uint32_t type = tiff.number(entry + 2, 2);
    if (tiff.number(entry + 4, 4) != 1) return 0;
    if (type == kByte) return static_cast<int32_t>(tiff.number(entry + 8, 1));
    if (type == kShort) return static_cast<int32_t>(tiff.number(entry + 8, 2));
    if (type == kLong) return static_cast<int32_t>(tiff.number(entry + 8, 4) & 0xffff);
    return 0;
  }
  return 0;
}

// Returns the orientation in an XMP packet, or 0. Like Pillow, it is used if EXIF has none.
int32_t xmp_orientation(const Bytes& packet) {
  const std::string_view text(reinterpret_cast<const char*>(packet.data), packet.size);
  constexpr std::string_view kName = "tiff:Orientation";
  for (size_t at = text.find(kName); at != text.npos; at = text.find(kName, at)) {
    at += kName.size();
    const std::string_view rest = text.substr(at);
    const size_t value = rest.substr(0, 2) == "=\"" ? 2 : rest.substr(0, 1) == ">" ? 1 : 0;
    if (value && value < rest.size() && rest[value] >= '0' && rest[value] <= '9') {
      return rest[value] - '0';
    }
  }
  return 0;
}

std::string frame_problem(int marker, const Bytes& frame, JpegInfo* info) {
  if (!frame.has(0, 6)) return "its frame header is truncated";
  const uint32_t bits = frame.number(0, 1);
  info->height = static_cast<int32_t>(frame.number(1, 2));
  info->width = static_cast<int32_t>(frame.number(3, 2));
  info->components = static_cast<int32_t>(frame.number(5, 1));
  info->progressive = marker == 0xC2 || marker == 0xCA;
  if (marker == 0xC3 || marker == 0xCB)
    return "expected a baseline or progressive JPEG, got a lossless one";
  if (marker != 0xC0 && marker != 0xC1 && marker != 0xC2 && marker != 0xC9 && marker != 0xCA) {
    return "expected a baseline or progressive JPEG, got a hierarchical one";
  }
  if (bits != 8) {
    return "expected samples of 8 bits, got " + std::to_string(bits);
  }
  if (info->height == 0 || info->width == 0) {
    return "expected a height and width above 0, got " + std::to_string(info->height) + " x " +
           std::to_string(info->width) + " pixels";
  }
  if (info->components != 1 && info->components != 3 && info->components != 4) {
    return "expected 1, 3 or 4 components, got " + std::to_string(info->components);
  }
  return "";
}

}  // namespace

std::string read_jpeg_header(const uint8_t* data, size_t size, JpegInfo* info, size_t* scan) {
  *info = JpegInfo{};
  const Bytes file{data, size};
  if (!file.starts_with("\xff\xd8", 2)) {
    return size == 0 ? "expected a JPEG, got no bytes"
                     : "expected a JPEG, but it does not begin with FF D8";
  }
  int32_t exif = 0, xmp = 0;
  bool has_frame = false;
  size_t at = 2;
  for (;;) {
    // Like libjpeg, skip bytes before a marker; a marker begins with any number of FF bytes.
    while (at < size && data[at] != 0xFF) ++at;
    while (at < size && data[at] == 0xFF) ++at;
    if (at >= size) {
      return "its header is truncated: " + std::to_string(size) + " bytes end before the " +
             (has_frame ? "first scan" : "frame header");
    }
    const int marker = data[at++];
    if (marker == 0x00 || marker == 0x01 || (marker >= 0xD0 && marker <= 0xD7)) continue;
    if (marker == 0xD8) return "its header has a second start-of-image marker (FF D8)";
    if (marker == 0xD9) return "it has an end-of-image marker (FF D9) before the first scan";
    const size_t length = file.number(at, 2);
    if (length < 2 || !file.has(at, length)) {
      return "its header is truncated: a segment of " + std::to_string(length) +
             " bytes begins at " + std::to_string(at) + " of " + std::to_string(size);
    }
    const Bytes segment{data + at + 2, length - 2};
    at += length;
    if (marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC) {
      if (has_frame) return "it has two frame headers";
      has_frame = true;
      if (std::string problem = frame_problem(marker, segment, info); !problem.empty()) {
        return problem;
      }
    } else if (marker == 0xE1) {
      constexpr size_t kExif = 6, kXmp = 29;
      if (exif == 0 && segment.starts_with("Exif\0\0", kExif)) {
        exif = tiff_orientation({segment.data + kExif, segment.size - kExif});
      } else if (xmp == 0 && segment.starts_with("http://ns.adobe.com/xap/1.0/\0", kXmp)) {
        xmp = xmp_orientation({segment.data + kXmp, segment.size - kXmp});
      }
    } else if (marker == 0xDA) {
      if (!has_frame) return "it has a scan before a frame header";
      break;
    }
  }
  const int32_t orientation = exif != 0 ? exif : xmp;
  info->orientation = orientation >= 1 && orientation <= 8 ? orientation : 1;
  *scan = at;
  return "";
}

std::string read_jpeg_info(const uint8_t* data, size_t size, JpegInfo* info) {
  size_t scan = 0;
  return read_jpeg_header(data, size, info, &scan);
}

}  // namespace jaxkern::image
