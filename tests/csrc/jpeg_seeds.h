// JPEG files of every kind that libjpeg's compressor supports, with pixels determined by a seed.
#ifndef JAXKERN_TESTS_JPEG_SEEDS_H_
#define JAXKERN_TESTS_JPEG_SEEDS_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

// jpeglib.h needs the types of the headers above.
#include <jpeglib.h>

namespace jaxkern::image::testing {

using Bytes = std::vector<uint8_t>;

struct JpegKind {
  const char* name;
  int components;    // 1, 3 or 4
  int across, down;  // pixels per chroma sample
  bool progressive, arithmetic;
  unsigned restart;      // MCUs between restart markers; 0: none
  J_COLOR_SPACE stored;  // JCS_UNKNOWN: libjpeg's choice
  int scans = 0;         // number of scans of progressive files; 0: all
};

constexpr JpegKind kJpegKinds[] = {
    {"grayscale", 1, 1, 1, false, false, 0, JCS_UNKNOWN},
    {"4:4:4", 3, 1, 1, false, false, 0, JCS_UNKNOWN},
    {"4:2:2", 3, 2, 1, false, false, 0, JCS_UNKNOWN},
    {"4:2:0", 3, 2, 2, false, false, 0, JCS_UNKNOWN},
    {"4:4:0", 3, 1, 2, false, false, 0, JCS_UNKNOWN},
    {"4:1:1", 3, 4, 1, false, false, 0, JCS_UNKNOWN},
    {"4:1:0", 3, 4, 2, false, false, 0, JCS_UNKNOWN},
    {"3 to 1", 3, 3, 1, false, false, 0, JCS_UNKNOWN},
    {"grayscale, progressive", 1, 1, 1, true, false, 0, JCS_UNKNOWN},
    {"4:4:4, progressive", 3, 1, 1, true, false, 0, JCS_UNKNOWN},
    {"4:2:2, progressive", 3, 2, 1, true, false, 0, JCS_UNKNOWN},
    {"4:2:0, progressive", 3, 2, 2, true, false, 0, JCS_UNKNOWN},
    {"4:4:0, progressive", 3, 1, 2, true, false, 0, JCS_UNKNOWN},
    {"4:2:0, restarts", 3, 2, 2, false, false, 3, JCS_UNKNOWN},
    {"4:4:4, restarts", 3, 1, 1, false, false, 1, JCS_UNKNOWN},
    {"4:2:0, progressive, restarts", 3, 2, 2, true, false, 2, JCS_UNKNOWN},
    {"RGB", 3, 1, 1, false, false, 0, JCS_RGB},
    {"CMYK", 4, 1, 1, false, false, 0, JCS_CMYK},
    {"YCCK", 4, 1, 1, false, false, 0, JCS_YCCK},
    {"YCCK, 4:2:0", 4, 2, 2, false, false, 0, JCS_YCCK},
    {"4:2:0, progressive, unrefined", 3, 2, 2, true, false, 0, JCS_UNKNOWN, 3},
    {"4:4:4, progressive, unrefined", 3, 1, 1, true, false, 0, JCS_UNKNOWN, 5},
    {"4:2:0, arithmetic", 3, 2, 2, false, true, 0, JCS_UNKNOWN},
    {"4:4:4, arithmetic, progressive", 3, 1, 1, true, true, 0, JCS_UNKNOWN},
};

inline Bytes make_jpeg(const JpegKind& kind, int height, int width, uint32_t seed,
                       int quality = 85) {
  // Edges, slopes and a little noise: blocks of every kind, and chroma that interpolation changes.
  std::mt19937 random(seed);
  const auto channels = static_cast<size_t>(kind.components);
  Bytes pixels(static_cast<size_t>(height) * static_cast<size_t>(width) * channels);
  const unsigned step = random() % 19 + 3;
  for (size_t i = 0; i < pixels.size(); ++i) {
    const size_t c = i % channels, x = i / channels % static_cast<size_t>(width);
    const size_t y = i / channels / static_cast<size_t>(width);
    const size_t tile = (x / step + y / (step + 2) + c) % 3 * 90;
    pixels[i] = static_cast<uint8_t>((tile + x * (c + 1) / 2 + y * 2 + random() % 24) & 0xff);
  }
  jpeg_compress_struct cinfo;
  jpeg_error_mgr errors;
  cinfo.err = jpeg_std_error(&errors);
  jpeg_create_compress(&cinfo);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&cinfo, &memory, &size);
  cinfo.image_height = static_cast<JDIMENSION>(height);
  cinfo.image_width = static_cast<JDIMENSION>(width);
  cinfo.input_components = kind.components;
  cinfo.in_color_space = kind.components == 1   ? JCS_GRAYSCALE
                         : kind.components == 3 ? JCS_RGB
                                                : JCS_CMYK;
  jpeg_set_defaults(&cinfo);
  if (kind.stored != JCS_UNKNOWN) jpeg_set_colorspace(&cinfo, kind.stored);
  jpeg_set_quality(&cinfo, quality, TRUE);
  for (int c = 0; c < cinfo.num_components; ++c) {
    const bool luma = c == 0 || c == 3;
    cinfo.comp_info[c].h_samp_factor = luma ? kind.across : 1;
    cinfo.comp_info[c].v_samp_factor = luma ? kind.down : 1;
  }
  if (kind.components == 1) cinfo.comp_info[0].h_samp_factor = cinfo.comp_info[0].v_samp_factor = 1;
  cinfo.restart_interval = kind.restart;
  cinfo.arith_code = kind.arithmetic ? TRUE : FALSE;
  if (kind.progressive) jpeg_simple_progression(&cinfo);
  if (kind.scans != 0) cinfo.num_scans = kind.scans;
  jpeg_start_compress(&cinfo, TRUE);
  while (cinfo.next_scanline < cinfo.image_height) {
    JSAMPROW row =
        pixels.data() + size_t{cinfo.next_scanline} * static_cast<size_t>(width) * channels;
    jpeg_write_scanlines(&cinfo, &row, 1);
  }
  jpeg_finish_compress(&cinfo);
  Bytes file(memory, memory + size);
  free(memory);
  jpeg_destroy_compress(&cinfo);
  return file;
}

}  // namespace jaxkern::image::testing

#endif  // JAXKERN_TESTS_JPEG_SEEDS_H_
