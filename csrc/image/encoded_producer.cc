// The producer of encoded images: finds the bytes, decodes a region and runs the stages on it.
#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "image/check.h"
#include "image/files.h"
#include "image/jpeg.h"
#include "image/levels.h"
#include "image/producer.h"
#include "image/region.h"

namespace jaxkern::image {
namespace {

// Largest buffer that a thread keeps from one image to the next.
constexpr size_t kThreadBufferBytes = size_t{2} << 20;

// An error in an image, which the caller may replace by zeros.
struct BadImage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Memory that a thread keeps from one image to the next.
struct Workspace {
  Buffer file, pixels, planes;
  JpegDecoder decoder;

  void shrink() {
    for (Buffer* buffer : {&file, &pixels, &planes}) {
      if (buffer->size() > kThreadBufferBytes) buffer->release();
    }
  }
};

Workspace& thread_workspace() {
  thread_local Workspace workspace;
  return workspace;
}

struct Size {
  int32_t height, width;
};

std::string text(Size size) {
  return std::to_string(size.height) + " x " + std::to_string(size.width);
}

// Longest part of a path in a message. The end of a path identifies a file better than its
// beginning.
constexpr size_t kMaxPathLength = 700;

std::string with_path(const std::string& path, const std::string& problem) {
  if (path.empty()) return problem;
  if (path.size() <= kMaxPathLength) return path + ": " + problem;
  return "..." + path.substr(path.size() - kMaxPathLength) + ": " + problem;
}

class EncodedChain final : public ChainState {
 public:
  EncodedChain(const Stages& stages, EncodedSource source)
      : ChainState(stages), source_(std::move(source)) {
    set_row_bytes(sizeof(ImageRange));
    size_ = add_parameter(sizeof(Size));
  }

 private:
  struct ImageRange {
    int64_t blob, offset, length;
  };

  void write(const JaxkernRecords& records, int64_t i, void* output) const override;
  Blob read_bytes(const ImageRange& range, std::string* name, Workspace* workspace) const;
  void check_size(Size actual, Size drawn) const;
  void run_raw(Blob bytes, Size drawn, Sample sample, void* output) const;
  void run_jpeg(Blob bytes, Size drawn, Sample sample, void* output, Workspace* workspace) const;
  void run_bands(const Region& region, const Sample& sample, void* output,
                 Workspace* workspace) const;
  void run_zeros(const Sample& sample, void* output) const;
  int32_t shrink(Size* size, Geometry* geometry) const;
  bool in_bands(const Region& region) const {
    // With other paddings, mirrored rows would be read backwards.
    return plan_.segments == 1 && plan_.segment[0].padding == Padding::kFill &&
           int64_t{region.height()} * region.width() * plan_.channels / 2 > source_.band_bytes;
  }

  const EncodedSource source_;
  int64_t size_;  // index of the parameter
};

void EncodedChain::write(const JaxkernRecords& records, int64_t i, void* output) const {
  // Copied before the checks, because the caller can write to the operands and rows.
  ImageRange range;
  std::memcpy(&range, records.rows[i], sizeof range);
  Size drawn;
  std::memcpy(&drawn, parameter<char>(records, size_, i), sizeof drawn);
  Geometry geometry[kMaxStageSegments];
  read_geometry(records, i, geometry);
  const StagesSample sample = checked_sample(records, i, geometry, drawn.height, drawn.width);
  Workspace& workspace = thread_workspace();
  std::string name;  // of the file, if any
  const Blob bytes = read_bytes(range, &name, &workspace);
  void* const image = first_chain_output(stages_, output);
  try {
    if (source_.codec == Codec::kRaw) {
      run_raw(bytes, drawn, sample.chain, image);
    } else {
      run_jpeg(bytes, drawn, sample.chain, image, &workspace);
    }
  } catch (const BadImage& error) {
    if (records.valid == nullptr) throw std::runtime_error(with_path(name, error.what()));
    records.valid[i] = 0;
    run_zeros(sample.chain, image);
  }
  run_after_first_chain(stages_, sample, image, output);
  workspace.shrink();
}

// Returns the bytes of an image, and the name of its file, if it has one.
Blob EncodedChain::read_bytes(const ImageRange& range, std::string* name,
                              Workspace* workspace) const {
  const auto blobs = static_cast<int64_t>(source_.blobs.size());
  if (range.blob < 0 || range.blob >= blobs) {
    throw std::out_of_range("row: expected blob 0 to " + std::to_string(blobs - 1) + ", got " +
                            std::to_string(range.blob));
  }
  const Blob& blob = source_.blobs[static_cast<size_t>(range.blob)];
  const auto size = static_cast<int64_t>(blob.size);
  if (range.offset < 0 || range.length < 0 || range.offset > size ||
      range.length > size - range.offset) {
    throw std::out_of_range("row: expected a range inside the " + std::to_string(size) +
                            " bytes of blob " + std::to_string(range.blob) + ", got " +
                            std::to_string(range.length) + " bytes at " +
                            std::to_string(range.offset));
  }
  const Blob bytes = {blob.data + range.offset, static_cast<size_t>(range.length)};
  if (!source_.in_files) return bytes;
  const std::string path(reinterpret_cast<const char*>(bytes.data), bytes.size);
  if (path.empty() || path.find('\0') != std::string::npos) {
    throw std::runtime_error(
        "file name: expected a name without zero bytes, got an empty or invalid one");
  }
  *name = path;
  size_t length = 0;
  if (const std::string error = read_file(path, &workspace->file, &length); !error.empty()) {
    throw std::runtime_error(with_path(path, error));
  }
  return {workspace->file.reserve(length), length};
}

void EncodedChain::check_size(Size actual, Size drawn) const {
  if (actual.height != drawn.height || actual.width != drawn.width) {
    throw BadImage("it has changed since its header was read: expected " + text(drawn) +
                   " pixels, got " + text(actual));
  }
  if (int64_t{actual.height} * actual.width > source_.max_pixels) {
    throw BadImage("max_pixels: expected at most " + std::to_string(source_.max_pixels) +
                   " pixels, got " + text(actual));
  }
}

void EncodedChain::run_raw(Blob bytes, Size drawn, Sample sample, void* output) const {
  check_size(drawn, drawn);
  const uint64_t expected =
      uint64_t(drawn.height) * uint64_t(drawn.width) * uint64_t(plan_.channels);
  if (bytes.size != expected) {
    throw BadImage("expected " + std::to_string(expected) + " bytes for " + text(drawn) + " x " +
                   std::to_string(plan_.channels) + " values, got " + std::to_string(bytes.size));
  }
  sample.pixels = bytes.data;
  run_sample(plan_, sample, output, thread_scratch<kScratchBytes>());
}

void EncodedChain::run_jpeg(Blob bytes, Size drawn, Sample sample, void* output,
                            Workspace* workspace) const {
  JpegInfo info;
  if (const std::string error = read_jpeg_info(bytes.data, bytes.size, &info); !error.empty()) {
    throw BadImage(error);
  }
  Size size = {info.height, info.width};
  if (info.orientation >= 5) std::swap(size.height, size.width);
  check_size(size, drawn);
  Geometry geometry[kMaxSegments];
  std::copy_n(sample.geometry, plan_.segments, geometry);
  sample.geometry = geometry;
  const int32_t denominator = source_.scaled ? shrink(&size, &geometry[0]) : 1;
  const Region region = read_region(plan_, geometry);
  const JpegRegion part = {region.rows.begin, region.columns.begin, region.height(),
                           region.width()};
  JpegDecoder& decoder = workspace->decoder;
  const int32_t channels = plan_.channels;
  if (in_bands(region)) {
    const std::string error =
        decoder.open(bytes.data, bytes.size, channels, source_.max_pixels, part, denominator);
    if (!error.empty()) throw BadImage(error);
    run_bands(region, sample, output, workspace);
    return;
  }
  uint8_t* pixels =
      workspace->pixels.reserve(static_cast<size_t>(part.height) * static_cast<size_t>(part.width) *
                                static_cast<size_t>(channels));
  const std::string error = decoder.decode(bytes.data, bytes.size, channels, source_.max_pixels,
                                           part, pixels, denominator);
  if (!error.empty()) throw BadImage(error);
  geometry[0].top -= part.top;
  geometry[0].left -= part.left;
  sample.pixels = pixels;
  sample.height = part.height;
  sample.width = part.width;
  run_sample(plan_, sample, output, thread_scratch<kScratchBytes>());
}

// Chooses the denominator of a scaled decode: 2, 4 or 8 if the box is resampled to at most that
// fraction of its size. Changes the size and the box to those of the smaller image.
int32_t EncodedChain::shrink(Size* size, Geometry* geometry) const {
  Geometry& g = *geometry;
  const Filter filter = plan_.segment[0].filter;
  int32_t denominator = 1;
  if (filter == Filter::kNone || filter == Filter::kNearest) return denominator;
  while (denominator < 8 && g.box_height / (2 * denominator) >= g.resampled_height &&
         g.box_width / (2 * denominator) >= g.resampled_width) {
    denominator *= 2;
  }
  const auto scale_side = [denominator](int32_t* side, int32_t* start, int32_t* length) {
    *side = scaled_side(*side, denominator);
    const int32_t end = std::min(scaled_side(*start + *length, denominator), *side);
    *start = std::min(*start / denominator, *side - 1);
    *length = end - *start;
  };
  scale_side(&size->height, &g.top, &g.box_height);
  scale_side(&size->width, &g.left, &g.box_width);
  return denominator;
}

// Computes the output in bands of rows, in the order of the source rows that they read. A window of
// decoded rows moves down the region.
void EncodedChain::run_bands(const Region& region, const Sample& sample, void* output,
                             Workspace* workspace) const {
  const int32_t height = plan_.segment[0].height;
  const int64_t row_bytes = int64_t{region.width()} * plan_.channels;
  const int64_t planes = plan_.layout == Layout::kNCHW ? plan_.channels : 1;
  const int64_t output_row =
      int64_t{plan_.segment[0].width} * (plan_.channels / planes) * dtype_bytes(plan_.output_dtype);
  const bool down = sample.geometry[0].row_step > 0;
  const auto band_at = [&](int32_t done, int32_t rows) -> Range {
    return down ? Range{done, done + rows} : Range{height - done - rows, height - done};
  };
  Range decoded = {region.rows.begin, region.rows.begin};  // source rows in the window
  for (int32_t done = 0; done < height;) {
    int32_t rows = 1;
    Range band = band_at(done, rows), need = read_rows(plan_, sample.geometry, band);
    while (done + rows < height) {
      const Range longer = band_at(done, rows + 1);
      const Range more = read_rows(plan_, sample.geometry, longer);
      const int64_t planar = planes > 1 ? (rows + 1) * output_row * planes : 0;
      if (std::max((more.end - more.begin) * row_bytes, planar) > source_.band_bytes) break;
      band = longer;
      need = more;
      ++rows;
    }
    done += rows;
    const bool reads = need.end > need.begin;
    if (!reads) need = {decoded.end, decoded.end};
    uint8_t* window = workspace->pixels.reserve(
        static_cast<size_t>(std::max((need.end - need.begin) * row_bytes, source_.band_bytes)));
    const auto read = [&](Range rows_to_read, uint8_t* to) {
      const std::string error = workspace->decoder.read(rows_to_read.end - rows_to_read.begin, to);
      if (!error.empty()) throw BadImage(error);
      decoded.end = rows_to_read.end;
    };
    const int32_t most = static_cast<int32_t>(std::max<int64_t>(source_.band_bytes / row_bytes, 1));
    const bool overlaps = decoded.end > need.begin;
    while (decoded.end < need.begin) {  // skip rows that no tap reads
      read({decoded.end, std::min(need.begin, decoded.end + most)}, window);
    }
    if (overlaps) {
      std::memmove(window, window + (need.begin - decoded.begin) * row_bytes,
                   static_cast<size_t>((decoded.end - need.begin) * row_bytes));
    }
    decoded.begin = need.begin;
    if (need.end > decoded.end) {
      read({decoded.end, need.end}, window + (decoded.end - need.begin) * row_bytes);
    }
    Band part(plan_, sample, band);
    part.geometry.top -= need.begin;
    part.geometry.left -= region.columns.begin;
    Sample band_sample = sample;
    band_sample.pixels = window;
    band_sample.height = std::max(need.end - need.begin, 1);
    band_sample.width = region.width();
    band_sample.geometry = &part.geometry;
    band_sample.erase_box = part.erase_box;
    band_sample.streaming = sample.streaming && planes == 1;
    auto* target = static_cast<char*>(output) + band.begin * output_row;
    if (planes == 1) {
      run_sample(part.plan, band_sample, target, thread_scratch<kScratchBytes>());
      continue;
    }
    const auto plane = static_cast<size_t>(rows * output_row);
    uint8_t* planar = workspace->planes.reserve(plane * static_cast<size_t>(planes));
    run_sample(part.plan, band_sample, planar, thread_scratch<kScratchBytes>());
    for (int64_t c = 0; c < planes; ++c) {
      std::memcpy(target + c * height * output_row, planar + static_cast<size_t>(c) * plane, plane);
    }
  }
}

// Runs the chain on an image of zeros: a single pixel, resampled to the nearest neighbour.
void EncodedChain::run_zeros(const Sample& original, void* output) const {
  const uint8_t zero[kMaxChannels] = {};
  Plan plan = plan_;
  plan.segment[0].filter = Filter::kNearest;
  Geometry geometry[kMaxSegments];
  std::copy_n(original.geometry, plan.segments, geometry);
  geometry[0].top = geometry[0].left = 0;
  geometry[0].box_height = geometry[0].box_width = 1;
  Sample sample = original;
  sample.pixels = zero;
  sample.height = sample.width = 1;
  sample.geometry = geometry;
  run_sample(plan, sample, output, thread_scratch<kScratchBytes>());
}

}  // namespace

const JaxkernProducer* make_encoded_producer(const Stages& stages, EncodedSource source) {
  const Plan& first = stages.stage[0].chain;
  if (first.segments == 0) {
    throw std::invalid_argument(
        "stages: expected a chain first, because only chains read encoded images, got a program");
  }
  if (first.source_dtype != Dtype::kU8) {
    throw std::invalid_argument(
        "source dtype: expected u8, the dtype of decoded images, got another one");
  }
  if (source.codec != Codec::kJpeg && source.codec != Codec::kRaw) {
    throw std::invalid_argument("codec: expected 0 (jpeg) or 1 (raw), got " +
                                std::to_string(static_cast<int32_t>(source.codec)));
  }
  if (source.codec == Codec::kJpeg && !jpeg_decoder_available()) {
    throw std::invalid_argument("this build of jaxkern has no JPEG decoder");
  }
  for (const Blob& blob : source.blobs) {
    if ((blob.data == nullptr && blob.size > 0) ||
        blob.size > static_cast<size_t>(std::numeric_limits<int64_t>::max())) {
      throw std::invalid_argument(
          "blobs: expected memory for every blob, got a null pointer or an invalid size");
    }
  }
  return (new EncodedChain(stages, std::move(source)))->abi();
}

}  // namespace jaxkern::image
