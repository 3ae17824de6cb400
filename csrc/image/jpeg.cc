// Decoding of regions of JPEG images by libjpeg-turbo.
#include "image/jpeg.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#ifdef JAXKERN_JPEG

#include "image/jpeg_library.h"

#define JAXKERN_TEXT_OF(x) #x
#define JAXKERN_TEXT(x) JAXKERN_TEXT_OF(x)

namespace jaxkern::image {
namespace {

// libjpeg's memory for images with several scans, without the coefficients.
constexpr long kWorkingBytes = 64L << 20;
// Largest buffer of an upright image that is kept for the next image.
constexpr size_t kKeptBytes = size_t{2} << 20;

bool ends_with_marker(const uint8_t* data, size_t begin, size_t end) {
  for (size_t at = end; at >= begin + 2; --at) {
    if (data[at - 1] == JPEG_EOI && data[at - 2] == 0xFF) return true;
  }
  return false;
}

// Luma as in Pillow's convert("L").
uint8_t luma(const uint8_t* rgb) {
  return static_cast<uint8_t>((rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16);
}

// Converts inverted CMYK, as Adobe stores it, to RGB, like Pillow's convert.
void cmyk_to_rgb(const uint8_t* cmyk, uint8_t* rgb) {
  const int light = cmyk[3];
  for (int c = 0; c < 3; ++c) {
    const int product = (255 - cmyk[c]) * light + 128;
    rgb[c] = static_cast<uint8_t>(std::max(0, light - ((product >> 8) + product) / 256));
  }
}

// Row conversions that libjpeg does not have.
enum class Conversion { kNone, kRgbToGray, kCmyk };

}  // namespace

struct JpegDecoder::State {
  jpeg_decompress_struct cinfo;
  Errors errors;
  Source source;
  jpeg_progress_mgr progress;
  bool created = false, started = false, several_scans = false;

  JpegInfo info;
  const uint8_t* data = nullptr;
  size_t size = 0, scan = 0;
  int32_t channels = 0, denominator = 1;
  Conversion conversion = Conversion::kNone;
  // The region in the stored orientation, and its first column in the cropped rows of libjpeg.
  bool transposed = false, flip_rows = false, flip_columns = false;
  int32_t top = 0, left = 0, height = 0, width = 0, inset = 0;
  int32_t rows_done = 0;        // rows of the stored region
  std::vector<uint8_t> row;     // a row from libjpeg
  std::vector<uint8_t> pixels;  // the same row with `channels` channels
  std::vector<uint8_t> upright;
  int32_t rows_read = 0;  // rows of `upright`

  State() {
    set_errors(&errors);
    set_source(&source);
    cinfo = jpeg_decompress_struct{};
    cinfo.err = &errors.manager;
    progress = jpeg_progress_mgr{};
    progress.progress_monitor = count_scans;
  }
  ~State() { jpeg_destroy_decompress(&cinfo); }

  void shrink() {
    if (upright.size() > kKeptBytes) upright = std::vector<uint8_t>();
  }

  int32_t out_height() const { return transposed ? width : height; }
  int32_t out_width() const { return transposed ? height : width; }
  bool streams() const { return !transposed && !flip_rows; }

  // Only the following functions are left by longjmp. None has a local with a destructor.

  // Each image has its own decompressor, which takes 0.2 us to create. jpeg_abort_decompress would
  // keep the Huffman and quantization tables, which the next image might lack.
  bool create() {
    created = false;
    jpeg_destroy_decompress(&cinfo);
    if (setjmp(errors.back)) return false;
    jpeg_create_decompress(&cinfo);
    created = true;
    return true;
  }

  bool begin(int64_t image_pixels) {
    if (setjmp(errors.back)) return false;
    source.ended = started = several_scans = false;
    source.manager.next_input_byte = data;
    source.manager.bytes_in_buffer = size;
    cinfo.src = &source.manager;
    cinfo.progress = &progress;
    cinfo.mem->max_memory_to_use =
        kWorkingBytes + static_cast<long>(image_pixels) * info.components * 2;
    jpeg_read_header(&cinfo, TRUE);
    if (cinfo.image_width != static_cast<JDIMENSION>(info.width) ||
        cinfo.image_height != static_cast<JDIMENSION>(info.height) ||
        cinfo.num_components != info.components) {
      snprintf(errors.message, sizeof errors.message, "its header is ambiguous");
      return false;
    }
    several_scans = jpeg_has_multiple_scans(&cinfo);
    cinfo.scale_num = 1;
    cinfo.scale_denom = static_cast<unsigned>(denominator);
    conversion = Conversion::kNone;
    if (info.components == 4) {
      cinfo.out_color_space = JCS_CMYK;
      conversion = Conversion::kCmyk;
    } else if (channels == 1 && info.components == 1) {
      cinfo.out_color_space = JCS_GRAYSCALE;
    } else if (channels == 4) {
      cinfo.out_color_space = JCS_EXT_RGBA;
    } else {
      cinfo.out_color_space = JCS_RGB;
      if (channels == 1) conversion = Conversion::kRgbToGray;
    }
    jpeg_start_decompress(&cinfo);
    started = true;
    if (several_scans && source.ended) {
      snprintf(errors.message, sizeof errors.message, "no end-of-image marker");
      return false;
    }
    crop();
    return true;
  }

  // Interpolated chroma depends on one more sample on each side. The crop therefore extends by one
  // block of pixels on the left, where libjpeg crops at blocks, and by one chroma sample on the
  // right.
  void crop() {
    inset = left;
    // libjpeg shifts the scaled chroma of 4:1:0 images in cropped rows.
    if (denominator > 1 && cinfo.max_h_samp_factor > 2) return;
    if (smooths_blocks() || (left == 0 && static_cast<JDIMENSION>(width) == cinfo.output_width)) {
      return;
    }
    const JDIMENSION margin = static_cast<JDIMENSION>(cinfo.max_h_samp_factor) * 2;
    JDIMENSION first = static_cast<JDIMENSION>(left) - std::min<JDIMENSION>(margin, left);
    JDIMENSION count =
        std::min<JDIMENSION>(cinfo.output_width, static_cast<JDIMENSION>(left + width) + margin) -
        first;
    jpeg_crop_scanline(&cinfo, &first, &count);
    inset = left - static_cast<int32_t>(first);
  }

  // True if libjpeg smooths over neighbouring blocks: for progressive images without their last
  // refinements.
  bool smooths_blocks() const {
    if (!cinfo.progressive_mode || cinfo.coef_bits == nullptr) return false;
    for (int c = 0; c < cinfo.num_components; ++c) {
      for (int k = 0; k < DCTSIZE2; ++k) {
        if (cinfo.coef_bits[c][k] != 0) return true;
      }
    }
    return false;
  }

  bool advance_rows(int32_t rows) {
    if (!smooths_blocks()) return skip_rows(rows);
    for (int32_t i = 0; i < rows; ++i) {
      if (!read_row()) return false;
    }
    return true;
  }

  bool skip_rows(int32_t rows) {
    if (setjmp(errors.back)) return false;
    if (rows > 0) jpeg_skip_scanlines(&cinfo, static_cast<JDIMENSION>(rows));
    return true;
  }

  bool read_row() {
    if (setjmp(errors.back)) return false;
    JSAMPROW target = row.data();
    jpeg_read_scanlines(&cinfo, &target, 1);
    return true;
  }

  // Ends the image and returns an error message in terms of the file.
  std::string problem() {
    if (!created) return std::string("libjpeg-turbo cannot start: ") + errors.message;
    const std::string text = errors.message, bytes = std::to_string(size) + " bytes";
    const int64_t rows = int64_t{cinfo.input_iMCU_row} * cinfo.max_v_samp_factor * DCTSIZE;
    const std::string decoded_rows = std::to_string(std::min<int64_t>(rows, info.height)) + " of " +
                                     std::to_string(info.height) + " rows";
    const std::string scan_number = std::to_string(cinfo.input_scan_number);
    jpeg_abort_decompress(&cinfo);
    if (several_scans && source.ended) {
      return "it is truncated: its " + bytes + " end in scan " + scan_number + " (" + text + ")";
    }
    if (!started) return "libjpeg-turbo cannot decode it: " + text;
    if (source.ended)
      return "it is truncated: its " + bytes + " hold " + decoded_rows + " (" + text + ")";
    return "it is damaged after " + decoded_rows + ": " + text;
  }

  std::string open(const uint8_t* bytes, size_t count, int32_t channel_count, int64_t max_pixels,
                   const JpegRegion& region, int32_t scale_denominator);
  std::string read_rows(int32_t rows, uint8_t* out);
  void copy_row(int32_t stored_row, const uint8_t* from, uint8_t* out) const;
};

std::string JpegDecoder::State::open(const uint8_t* bytes, size_t count, int32_t channel_count,
                                     int64_t max_pixels, const JpegRegion& region,
                                     int32_t scale_denominator) {
  data = bytes;
  size = count;
  channels = channel_count;
  denominator = scale_denominator;
  rows_done = rows_read = height = 0;
  if (channels != 1 && channels != 3 && channels != 4) {
    return "channels: expected 1, 3 or 4, got " + std::to_string(channels);
  }
  if (!is_jpeg_denominator(denominator)) {
    return "denominator: expected 1, 2, 4 or 8, got " + std::to_string(denominator);
  }
  if (std::string error = read_jpeg_header(data, size, &info, &scan); !error.empty()) return error;
  const int64_t image_pixels = int64_t{info.height} * info.width;
  const std::string sizes = std::to_string(info.height) + " x " + std::to_string(info.width);
  if (image_pixels > max_pixels) {
    return "max_pixels: expected at most " + std::to_string(max_pixels) + " pixels, got " + sizes;
  }
  transposed = info.orientation >= 5;
  flip_rows = info.orientation == 3 || info.orientation == 4 || info.orientation == 6 ||
              info.orientation == 7;
  flip_columns = info.orientation == 2 || info.orientation == 3 || info.orientation == 7 ||
                 info.orientation == 8;
  const int32_t stored_height = scaled_side(info.height, denominator);
  const int32_t stored_width = scaled_side(info.width, denominator);
  const int32_t upright_height = transposed ? stored_width : stored_height;
  const int32_t upright_width = transposed ? stored_height : stored_width;
  if (region.top < 0 || region.left < 0 || region.height < 1 || region.width < 1 ||
      region.top > upright_height - region.height || region.left > upright_width - region.width) {
    return "region: expected one inside the image of " + std::to_string(upright_height) + " x " +
           std::to_string(upright_width) + ", got " + std::to_string(region.height) + " x " +
           std::to_string(region.width) + " at (" + std::to_string(region.top) + ", " +
           std::to_string(region.left) + ")";
  }
  height = transposed ? region.width : region.height;
  width = transposed ? region.height : region.width;
  top = transposed ? region.left : region.top;
  left = transposed ? region.top : region.left;
  if (flip_rows) top = stored_height - top - height;
  if (flip_columns) left = stored_width - left - width;
  if (!create() || !begin(image_pixels)) return problem();
  row.resize(size_t{cinfo.output_width} * static_cast<size_t>(cinfo.output_components));
  pixels.resize(static_cast<size_t>(width) * static_cast<size_t>(channels));
  return advance_rows(top) ? "" : problem();
}

// Copies row `stored_row` of the stored region to its position in the upright region.
void JpegDecoder::State::copy_row(int32_t stored_row, const uint8_t* from, uint8_t* out) const {
  const size_t bytes = static_cast<size_t>(channels);
  const size_t line = static_cast<size_t>(flip_rows ? height - 1 - stored_row : stored_row);
  const size_t count = static_cast<size_t>(width);
  if (!transposed && !flip_columns) {
    memcpy(out + line * count * bytes, from, count * bytes);
    return;
  }
  const size_t step = (transposed ? static_cast<size_t>(height) : 1) * bytes;
  uint8_t* first = out + (transposed ? line : line * count) * bytes;
  for (size_t x = 0; x < count; ++x) {
    memcpy(first + (flip_columns ? count - 1 - x : x) * step, from + x * bytes, bytes);
  }
}

std::string JpegDecoder::State::read_rows(int32_t rows, uint8_t* out) {
  const size_t components = static_cast<size_t>(cinfo.output_components);
  for (int32_t i = 0; i < rows; ++i, ++rows_done) {
    if (!read_row()) return problem();
    const uint8_t* from = row.data() + static_cast<size_t>(inset) * components;
    if (conversion != Conversion::kNone) {
      const size_t count = static_cast<size_t>(width), bytes = static_cast<size_t>(channels);
      for (size_t x = 0; x < count; ++x, from += components) {
        uint8_t rgba[4] = {from[0], from[1], from[2], 255};
        if (conversion == Conversion::kCmyk) cmyk_to_rgb(from, rgba);
        if (channels == 1) rgba[0] = luma(rgba);
        memcpy(pixels.data() + x * bytes, rgba, bytes);
      }
      from = pixels.data();
    }
    copy_row(streams() ? i : rows_done, from, out);
  }
  if (rows_done < height) return "";
  // A truncated file is an error for every region. If the end marker is missing, decode the rest.
  const auto rest = static_cast<int32_t>(cinfo.output_height - cinfo.output_scanline);
  if (rest > 0 && !several_scans && !ends_with_marker(data, scan, size)) {
    if (!advance_rows(rest - 1) || !read_row()) return problem();
  }
  jpeg_abort_decompress(&cinfo);
  return "";
}

JpegDecoder::JpegDecoder() : state_(std::make_unique<State>()) {}
JpegDecoder::~JpegDecoder() = default;

std::string JpegDecoder::open(const uint8_t* data, size_t size, int32_t channels,
                              int64_t max_pixels, const JpegRegion& region, int32_t denominator) {
  State& state = *state_;
  std::string problem = state.open(data, size, channels, max_pixels, region, denominator);
  if (!problem.empty()) state.height = state.width = 0;  // nothing can be read
  if (!problem.empty() || state.streams()) return problem;
  state.upright.resize(static_cast<size_t>(state.height) * static_cast<size_t>(state.width) *
                       static_cast<size_t>(channels));
  problem = state.read_rows(state.height, state.upright.data());
  if (!problem.empty()) {
    state.height = state.width = 0;
    state.shrink();
  }
  return problem;
}

std::string JpegDecoder::read(int32_t rows, uint8_t* out) {
  State& state = *state_;
  const int32_t left =
      state.streams() ? state.height - state.rows_done : state.out_height() - state.rows_read;
  if (rows < 0 || rows > left) {
    return "rows: expected 0 to " + std::to_string(left) + ", got " + std::to_string(rows);
  }
  if (rows == 0) return "";
  if (state.streams()) return state.read_rows(rows, out);
  const size_t line = static_cast<size_t>(state.out_width()) * static_cast<size_t>(state.channels);
  memcpy(out, state.upright.data() + static_cast<size_t>(state.rows_read) * line,
         static_cast<size_t>(rows) * line);
  state.rows_read += rows;
  if (state.rows_read == state.out_height()) state.shrink();
  return "";
}

std::string JpegDecoder::decode(const uint8_t* data, size_t size, int32_t channels,
                                int64_t max_pixels, const JpegRegion& region, uint8_t* out,
                                int32_t denominator) {
  State& state = *state_;
  std::string problem = state.open(data, size, channels, max_pixels, region, denominator);
  return problem.empty() ? state.read_rows(state.height, out) : problem;
}

bool jpeg_decoder_available() { return true; }
const char* jpeg_decoder_name() { return "libjpeg-turbo " JAXKERN_TEXT(LIBJPEG_TURBO_VERSION); }

}  // namespace jaxkern::image

#else  // JAXKERN_JPEG

namespace jaxkern::image {
namespace {

std::string no_decoder() {
  return "this build of jaxkern has no JPEG decoder, because libjpeg-turbo was not found";
}

}  // namespace

struct JpegDecoder::State {};
JpegDecoder::JpegDecoder() = default;
JpegDecoder::~JpegDecoder() = default;
std::string JpegDecoder::decode(const uint8_t*, size_t, int32_t, int64_t, const JpegRegion&,
                                uint8_t*, int32_t) {
  return no_decoder();
}
std::string JpegDecoder::open(const uint8_t*, size_t, int32_t, int64_t, const JpegRegion&,
                              int32_t) {
  return no_decoder();
}
std::string JpegDecoder::read(int32_t, uint8_t*) { return no_decoder(); }
bool jpeg_decoder_available() { return false; }
const char* jpeg_decoder_name() { return ""; }

}  // namespace jaxkern::image

#endif  // JAXKERN_JPEG
