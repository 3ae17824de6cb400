// Compares regions of JPEG images with the crop of a full decode by libjpeg: every subsampling, odd
// sizes, restart markers, progressive, scaled, all orientations, in bands and in one piece. Usage:
// check_jpeg [regions of each file]
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "image/jpeg.h"
#include "jpeg_seeds.h"

namespace jaxkern::image::testing {
namespace {

constexpr int64_t kMaxPixels = 1 << 24;

struct Picture {
  int32_t height = 0, width = 0, channels = 0;
  Bytes pixels;
};

// Decodes a file in full by libjpeg to RGB or inverted CMYK, and converts it like the decoder.
Picture full_decode(const Bytes& file, int32_t denominator) {
  jpeg_decompress_struct cinfo;
  jpeg_error_mgr errors;
  cinfo.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&cinfo);
  jpeg_mem_src(&cinfo, file.data(), file.size());
  jpeg_read_header(&cinfo, TRUE);
  cinfo.scale_num = 1;
  cinfo.scale_denom = static_cast<unsigned>(denominator);
  cinfo.out_color_space = cinfo.num_components == 4 ? JCS_CMYK : JCS_RGB;
  jpeg_start_decompress(&cinfo);
  const auto components = static_cast<size_t>(cinfo.output_components);
  Picture picture{
      static_cast<int32_t>(cinfo.output_height), static_cast<int32_t>(cinfo.output_width), 3, {}};
  picture.pixels.resize(size_t{cinfo.output_height} * cinfo.output_width * 3);
  Bytes line(cinfo.output_width * components);
  while (cinfo.output_scanline < cinfo.output_height) {
    uint8_t* out = picture.pixels.data() + size_t{cinfo.output_scanline} * cinfo.output_width * 3;
    JSAMPROW row = line.data();
    jpeg_read_scanlines(&cinfo, &row, 1);
    for (size_t x = 0; x < cinfo.output_width; ++x) {
      for (size_t c = 0; c < 3; ++c) {
        const int value = line[x * components + c];
        if (components == 3) {
          out[3 * x + c] = static_cast<uint8_t>(value);
        } else {  // light * (1 - ink), rounded like a product of bytes
          const int light = line[4 * x + 3];
          const double ink = (255 - value) * light / 255.0;
          out[3 * x + c] = static_cast<uint8_t>(light - static_cast<int>(ink + 0.5));
        }
      }
    }
  }
  jpeg_finish_decompress(&cinfo);
  jpeg_destroy_decompress(&cinfo);
  return picture;
}

// Returns the same file with an EXIF segment of this orientation.
Bytes with_orientation(const Bytes& file, int orientation, bool big_endian) {
  Bytes result = {0xFF, 0xD8, 0xFF, 0xE1, 0, 34, 'E', 'x', 'i', 'f', 0, 0};
  const auto number = [&](uint32_t value, int count) {
    for (int i = 0; i < count; ++i) {
      result.push_back(static_cast<uint8_t>(value >> 8 * (big_endian ? count - 1 - i : i)));
    }
  };
  result.insert(result.end(), 2, big_endian ? 'M' : 'I');
  number(42, 2);
  number(8, 4);
  number(1, 2);
  number(0x0112, 2);
  number(3, 2);
  number(1, 4);
  number(static_cast<uint32_t>(orientation), 2);
  number(0, 2);
  number(0, 4);
  result.insert(result.end(), file.begin() + 2, file.end());
  return result;
}

// Orients an image by a sequence of rotations and flips.
Picture upright(const Picture& from, int orientation) {
  const bool transposed = orientation >= 5;
  Picture to{transposed ? from.width : from.height, transposed ? from.height : from.width, 3, {}};
  to.pixels.resize(from.pixels.size());
  for (int32_t y = 0; y < to.height; ++y) {
    for (int32_t x = 0; x < to.width; ++x) {
      int32_t row = y, column = x;
      switch (orientation) {
        case 2:
          column = from.width - 1 - x;
          break;
        case 3:
          row = from.height - 1 - y, column = from.width - 1 - x;
          break;
        case 4:
          row = from.height - 1 - y;
          break;
        case 5:
          row = x, column = y;
          break;
        case 6:
          row = from.height - 1 - x, column = y;
          break;
        case 7:
          row = from.height - 1 - x, column = from.width - 1 - y;
          break;
        case 8:
          row = x, column = from.width - 1 - y;
          break;
        default:
          break;
      }
      memcpy(&to.pixels[static_cast<size_t>(y * to.width + x) * 3],
             &from.pixels[static_cast<size_t>(row * from.width + column) * 3], 3);
    }
  }
  return to;
}

int failures = 0;

void complain(const std::string& what, const JpegRegion& region, const std::string& how) {
  if (++failures <= 20) {
    fprintf(stderr, "%s: region %d x %d at (%d, %d): %s\n", what.c_str(), region.height,
            region.width, region.top, region.left, how.c_str());
  }
}

void check_region(JpegDecoder& decoder, const std::string& name, const Bytes& file,
                  const Picture& full, const JpegRegion& region, int32_t channels, int32_t band,
                  int32_t denominator) {
  const size_t line = static_cast<size_t>(region.width) * static_cast<size_t>(channels);
  Bytes out(static_cast<size_t>(region.height) * line, 7);
  std::string problem;
  if (band == 0) {
    problem = decoder.decode(file.data(), file.size(), channels, kMaxPixels, region, out.data(),
                             denominator);
  } else {
    problem = decoder.open(file.data(), file.size(), channels, kMaxPixels, region, denominator);
    for (int32_t row = 0; row < region.height && problem.empty(); row += band) {
      problem = decoder.read(std::min(band, region.height - row),
                             out.data() + static_cast<size_t>(row) * line);
    }
  }
  if (!problem.empty()) return complain(name, region, problem);
  for (int32_t y = 0; y < region.height; ++y) {
    for (int32_t x = 0; x < region.width; ++x) {
      const uint8_t* rgb =
          &full.pixels[static_cast<size_t>((y + region.top) * full.width + x + region.left) * 3];
      uint8_t expected[4] = {rgb[0], rgb[1], rgb[2], 255};
      if (channels == 1) {
        expected[0] =
            static_cast<uint8_t>((rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 32768) / 65536);
      }
      const uint8_t* got = &out[static_cast<size_t>(y) * line + static_cast<size_t>(x * channels)];
      if (memcmp(got, expected, static_cast<size_t>(channels)) != 0) {
        return complain(name, region,
                        "pixel (" + std::to_string(y) + ", " + std::to_string(x) + ") is " +
                            std::to_string(got[0]) + ", expected " + std::to_string(expected[0]));
      }
    }
  }
}

void check_kind(JpegDecoder& decoder, const JpegKind& kind, int regions) {
  constexpr int32_t sizes[][2] = {{1, 1},    {7, 9},   {16, 16}, {33, 17},
                                  {40, 131}, {97, 61}, {64, 96}};
  uint32_t seed = 1;
  for (const auto& [height, width] : sizes) {
    std::mt19937 random(seed);
    const Bytes file = make_jpeg(kind, height, width, seed++);
    for (const int32_t denominator : {1, 2, 4, 8}) {
      const Picture stored = full_decode(file, denominator);
      for (int i = 0; i < regions; ++i) {
        const int orientation = denominator == 1 ? i % 8 + 1 : 1;
        const Bytes turned = with_orientation(file, orientation, i % 2 == 0);
        const Picture full = upright(stored, orientation);
        const auto draw = [&](int32_t low, int32_t high) {
          return low + static_cast<int32_t>(random() % static_cast<uint32_t>(high - low + 1));
        };
        JpegRegion region;
        region.height = i == 0 ? full.height : draw(1, full.height);
        region.width = i == 0 ? full.width : draw(1, full.width);
        region.top = draw(0, full.height - region.height);
        region.left = draw(0, full.width - region.width);
        constexpr int32_t channels[] = {3, 3, 1, 4};
        check_region(decoder,
                     std::string(kind.name) + ", " + std::to_string(height) + " x " +
                         std::to_string(width) + ", 1/" + std::to_string(denominator) +
                         ", orientation " + std::to_string(orientation),
                     turned, full, region, channels[draw(0, 3)], draw(0, 1) * draw(1, 9),
                     denominator);
      }
    }
  }
}

int write_kinds(const std::string& folder) {
  for (const JpegKind& kind : kJpegKinds) {
    // Libraries smooth unrefined coefficients differently, and the comparison uses another library.
    if (kind.scans != 0) continue;
    std::string name;
    for (const char* c = kind.name; *c != '\0'; ++c) {
      if (*c != ',') name += std::isalnum(static_cast<unsigned char>(*c)) ? *c : '-';
    }
    const Bytes file = make_jpeg(kind, 24, 21, 1, 40);
    std::ofstream out(folder + "/" + name + ".jpg", std::ios::binary);
    out.write(reinterpret_cast<const char*>(file.data()),
              static_cast<std::streamsize>(file.size()));
    if (!out) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace jaxkern::image::testing

int main(int argc, char** argv) {
  using namespace jaxkern::image::testing;
  jaxkern::image::JpegDecoder decoder;
  if (argc > 1 && std::atoi(argv[1]) == 0) return write_kinds(argv[1]);
  const int regions = argc > 1 ? std::atoi(argv[1]) : 24;
  for (const JpegKind& kind : kJpegKinds) check_kind(decoder, kind, regions);
  printf("%s: %d failures\n", jaxkern::image::jpeg_decoder_name(), failures);
  return failures != 0;
}
