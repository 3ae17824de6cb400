// Encoded images, record by record: find the bytes, decode a part, run the chain on it.
#include "image/encoded_producer.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "image/chain_state.h"
#include "image/check.h"
#include "image/file.h"
#include "image/jpeg.h"
#include "image/levels.h"
#include "image/region.h"

namespace jaxkern::image {
namespace {

// A thread keeps buffers of at most this from one image to the next.
constexpr size_t kKeptBytes = size_t{2} << 20;

// What is wrong with an image, which zeros may stand for.
struct BadImage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What a thread keeps from one image to the next.
struct Workspace {
  Buffer file, pixels, planes;
  JpegDecoder decoder;

  void shrink() {
    for (Buffer* kept : {&file, &pixels, &planes}) {
      if (kept->size() > kKeptBytes) kept->drop();
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

// A message has room for so much of a path; its end says more than its beginning.
constexpr size_t kPathShown = 700;

std::string named(const std::string& path, const std::string& problem) {
  if (path.empty()) return problem;
  if (path.size() <= kPathShown) return path + ": " + problem;
  return "..." + path.substr(path.size() - kPathShown) + ": " + problem;
}

class EncodedChain final : public ChainState {
 public:
  EncodedChain(const Stages& stages, EncodedSource source)
      : ChainState(stages), source_(std::move(source)) {
    set_row_bytes(sizeof(Place));
    size_ = add_parameter(sizeof(Size));
  }

 private:
  struct Place {
    int64_t blob, offset, length;
  };

  void make(const JaxkernRecords& records, int64_t i, void* output) const override;
  Blob bytes_at(const Place& place, std::string* name, Workspace* workspace) const;
  void check_size(Size found, Size drawn) const;
  void run_raw(Blob bytes, Size drawn, Sample sample, void* output) const;
  void run_jpeg(Blob bytes, Size drawn, Sample sample, void* output, Workspace* workspace) const;
  void run_bands(const Region& region, const Sample& sample, void* output,
                 Workspace* workspace) const;
  void run_zeros(const Sample& sample, void* output) const;
  int32_t shrink(Size* size, Geometry* geometry) const;
  bool in_bands(const Region& region) const {
    // Mirrored rows would be read backwards.
    return plan_.segments == 1 && plan_.segment[0].padding == Padding::kFill &&
           int64_t{region.height()} * region.width() * plan_.channels / 2 > source_.band_bytes;
  }

  const EncodedSource source_;
  int64_t size_;  // which parameter
};

void EncodedChain::make(const JaxkernRecords& records, int64_t i, void* output) const {
  // Copied before the checks: the operands and rows can be a caller's own memory.
  Place place;
  std::memcpy(&place, records.rows[i], sizeof place);
  Size drawn;
  std::memcpy(&drawn, parameter<char>(records, size_, i), sizeof drawn);
  Geometry geometry[kMaxStageSegments];
  read_geometry(records, i, geometry);
  const StagesSample sample = checked_sample(records, i, geometry, drawn.height, drawn.width);
  Workspace& workspace = thread_workspace();
  std::string name;  // of the file
  const Blob bytes = bytes_at(place, &name, &workspace);
  void* const image = first_target(stages_, output);
  try {
    if (source_.codec == Codec::kRaw) {
      run_raw(bytes, drawn, sample.chain, image);
    } else {
      run_jpeg(bytes, drawn, sample.chain, image, &workspace);
    }
  } catch (const BadImage& error) {
    if (records.valid == nullptr) throw std::runtime_error(named(name, error.what()));
    records.valid[i] = 0;
    run_zeros(sample.chain, image);
  }
  run_rest(stages_, sample, image, output);
  workspace.shrink();
}

// The bytes of an image; `name` is its file's where it has one.
Blob EncodedChain::bytes_at(const Place& place, std::string* name, Workspace* workspace) const {
  const auto blobs = static_cast<int64_t>(source_.blobs.size());
  if (place.blob < 0 || place.blob >= blobs) {
    throw std::out_of_range("its place names blob " + std::to_string(place.blob) + " of " +
                            std::to_string(blobs));
  }
  const Blob& blob = source_.blobs[static_cast<size_t>(place.blob)];
  const auto size = static_cast<int64_t>(blob.size);
  if (place.offset < 0 || place.length < 0 || place.offset > size ||
      place.length > size - place.offset) {
    throw std::out_of_range("its place is " + std::to_string(place.length) + " bytes at " +
                            std::to_string(place.offset) + " of blob " +
                            std::to_string(place.blob) + ", which has " + std::to_string(size));
  }
  const Blob found = {blob.data + place.offset, static_cast<size_t>(place.length)};
  if (!source_.in_files) return found;
  const std::string path(reinterpret_cast<const char*>(found.data), found.size);
  if (path.empty() || path.find('\0') != std::string::npos) {
    throw std::runtime_error("its file's name is empty or holds a zero");
  }
  *name = path;
  size_t length = 0;
  if (const std::string wrong = read_file(path, &workspace->file, &length); !wrong.empty()) {
    throw std::runtime_error(named(path, wrong));
  }
  return {workspace->file.room(length), length};
}

void EncodedChain::check_size(Size found, Size drawn) const {
  if (found.height != drawn.height || found.width != drawn.width) {
    throw BadImage("it is " + text(found) + " and was " + text(drawn) +
                   ": it has changed since its header was read");
  }
  if (int64_t{found.height} * found.width > source_.max_pixels) {
    throw BadImage("its header says " + text(found) + " pixels; max_pixels is " +
                   std::to_string(source_.max_pixels));
  }
}

void EncodedChain::run_raw(Blob bytes, Size drawn, Sample sample, void* output) const {
  check_size(drawn, drawn);
  const uint64_t wanted = uint64_t(drawn.height) * uint64_t(drawn.width) * uint64_t(plan_.channels);
  if (bytes.size != wanted) {
    throw BadImage("it has " + std::to_string(bytes.size) + " bytes; " + text(drawn) + " x " +
                   std::to_string(plan_.channels) + " pixels take " + std::to_string(wanted));
  }
  sample.pixels = bytes.data;
  run_sample(plan_, sample, output, thread_scratch<kScratchBytes>());
}

void EncodedChain::run_jpeg(Blob bytes, Size drawn, Sample sample, void* output,
                            Workspace* workspace) const {
  JpegInfo info;
  if (const std::string wrong = read_jpeg_info(bytes.data, bytes.size, &info); !wrong.empty()) {
    throw BadImage(wrong);
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
    const std::string wrong =
        decoder.open(bytes.data, bytes.size, channels, source_.max_pixels, part, denominator);
    if (!wrong.empty()) throw BadImage(wrong);
    run_bands(region, sample, output, workspace);
    return;
  }
  uint8_t* pixels =
      workspace->pixels.room(static_cast<size_t>(part.height) * static_cast<size_t>(part.width) *
                             static_cast<size_t>(channels));
  const std::string wrong = decoder.decode(bytes.data, bytes.size, channels, source_.max_pixels,
                                           part, pixels, denominator);
  if (!wrong.empty()) throw BadImage(wrong);
  geometry[0].top -= part.top;
  geometry[0].left -= part.left;
  sample.pixels = pixels;
  sample.height = part.height;
  sample.width = part.width;
  run_sample(plan_, sample, output, thread_scratch<kScratchBytes>());
}

// The image at 1/2, 1/4 or 1/8 where the box is resampled to as little of it, or less: its size and
// the box become those of the smaller image. Returns the denominator.
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

// Output rows in bands, in the order in which the source's rows come: a window of decoded rows
// moves down the region.
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
  Range have = {region.rows.begin, region.rows.begin};  // of the source, in the window
  for (int32_t done = 0; done < height;) {
    int32_t rows = 1;
    Range band = band_at(done, rows), need = read_rows(plan_, sample.geometry, band);
    while (done + rows < height) {
      const Range longer = band_at(done, rows + 1);
      const Range more = read_rows(plan_, sample.geometry, longer);
      const int64_t apart = planes > 1 ? (rows + 1) * output_row * planes : 0;
      if (std::max((more.end - more.begin) * row_bytes, apart) > source_.band_bytes) break;
      band = longer;
      need = more;
      ++rows;
    }
    done += rows;
    const bool reads = need.end > need.begin;
    if (!reads) need = {have.end, have.end};
    uint8_t* window = workspace->pixels.room(
        static_cast<size_t>(std::max((need.end - need.begin) * row_bytes, source_.band_bytes)));
    const auto read = [&](Range wanted, uint8_t* place) {
      const std::string wrong = workspace->decoder.read(wanted.end - wanted.begin, place);
      if (!wrong.empty()) throw BadImage(wrong);
      have.end = wanted.end;
    };
    const int32_t most = static_cast<int32_t>(std::max<int64_t>(source_.band_bytes / row_bytes, 1));
    const bool overlaps = have.end > need.begin;
    while (have.end < need.begin) {  // rows between the taps of a filter that leaves some out
      read({have.end, std::min(need.begin, have.end + most)}, window);
    }
    if (overlaps) {
      std::memmove(window, window + (need.begin - have.begin) * row_bytes,
                   static_cast<size_t>((have.end - need.begin) * row_bytes));
    }
    have.begin = need.begin;
    if (need.end > have.end) {
      read({have.end, need.end}, window + (have.end - need.begin) * row_bytes);
    }
    Band part(plan_, sample, band);
    part.geometry.top -= need.begin;
    part.geometry.left -= region.columns.begin;
    Sample own = sample;
    own.pixels = window;
    own.height = std::max(need.end - need.begin, 1);
    own.width = region.width();
    own.geometry = &part.geometry;
    own.erase_box = part.erase_box;
    auto* target = static_cast<char*>(output) + band.begin * output_row;
    if (planes == 1) {
      run_sample(part.plan, own, target, thread_scratch<kScratchBytes>());
      continue;
    }
    const auto plane = static_cast<size_t>(rows * output_row);
    uint8_t* apart = workspace->planes.room(plane * static_cast<size_t>(planes));
    run_sample(part.plan, own, apart, thread_scratch<kScratchBytes>());
    for (int64_t c = 0; c < planes; ++c) {
      std::memcpy(target + c * height * output_row, apart + static_cast<size_t>(c) * plane, plane);
    }
  }
}

// The chain on an image of zeros: one pixel stands for all.
void EncodedChain::run_zeros(const Sample& given, void* output) const {
  const uint8_t zero[kMaxChannels] = {};
  Plan plan = plan_;
  plan.segment[0].filter = Filter::kNearest;
  Geometry geometry[kMaxSegments];
  std::copy_n(given.geometry, plan.segments, geometry);
  geometry[0].top = geometry[0].left = 0;
  geometry[0].box_height = geometry[0].box_width = 1;
  Sample sample = given;
  sample.pixels = zero;
  sample.height = sample.width = 1;
  sample.geometry = geometry;
  run_sample(plan, sample, output, thread_scratch<kScratchBytes>());
}

}  // namespace

const JaxkernProducer* make_encoded_producer(const Stages& stages, EncodedSource source) {
  const Plan& first = stages.stage[0].chain;
  if (first.segments == 0) {
    throw std::invalid_argument("a program is first; wanted a chain, which reads encoded images");
  }
  if (first.source_dtype != Dtype::kU8) {
    throw std::invalid_argument("decoded images are u8 and the plan takes another dtype");
  }
  if (source.codec != Codec::kJpeg && source.codec != Codec::kRaw) {
    throw std::invalid_argument("codec " + std::to_string(static_cast<int32_t>(source.codec)) +
                                "; wanted 0 (jpeg) or 1 (raw)");
  }
  if (source.codec == Codec::kJpeg && !jpeg_decoder_available()) {
    throw std::invalid_argument("this build of jaxkern has no JPEG decoder");
  }
  for (const Blob& blob : source.blobs) {
    if ((blob.data == nullptr && blob.size > 0) ||
        blob.size > static_cast<size_t>(std::numeric_limits<int64_t>::max())) {
      throw std::invalid_argument("a blob has no memory");
    }
  }
  return (new EncodedChain(stages, std::move(source)))->abi();
}

}  // namespace jaxkern::image
