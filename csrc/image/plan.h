// The definition of the fused image chain: what a call computes, independent of CPU, CUDA and FFI.
//
// A chain is a short list of segments. Segment s reads a virtual image (the source for s = 0, else
// the output of segment s - 1) and produces a [height, width, C] image in these steps, per sample:
//
//    1. crop       the box (top, left, box_height, box_width) of its input; the box is inside it
//    2. resample   the box to (resampled_height, resampled_width); filter taps never leave the box
//    3. map        output row y shows resampled row  row_offset + row_step * y,  row_step 1 or -1;
//                  columns likewise. `padding` maps an index outside the resampled image to one
//                  inside; with Padding::kFill such an index has no pixel. A pixel is VALID if both
//                  of its indices have a pixel and it is inside the rectangle
//                  [valid_top, valid_bottom) x [valid_left, valid_right)
//    4. affine     value = scale[c] * value + bias[c] on valid pixels; every other pixel is fill[c]
//    5. erase      for each erase box k in order: pixels inside it become erase_value[k][c]
//    6. round      see Rounding
//
// Steps run in float32 or better, and nothing is rounded between segments unless `rounding`
// requires it. The last segment's output is cast to the output dtype (u8: already rounded by
// `rounding`).
#ifndef JAXKERN_IMAGE_PLAN_H_
#define JAXKERN_IMAGE_PLAN_H_

#include <cstddef>
#include <cstdint>

namespace jaxkern::image {

enum class Dtype : int32_t { kU8 = 0, kF16 = 1, kBF16 = 2, kF32 = 3 };

enum class Layout : int32_t { kNHWC = 0, kNCHW = 1 };

enum class Filter : int32_t {
  kNone = 0,      // resampled size == box size: a plain window
  kNearest = 1,   // index = floor((2 i + 1) * box / (2 * resampled)): torchvision's nearest-exact
  kBilinear = 2,  // two taps at max((2 i + 1) * box / (2 * resampled) - 1/2, 0), the second clamped
  kAntialias = 3,  // triangle of half-width max(box / resampled, 1), weights normalized in the box
  // Cubic convolution. Weights can be negative, so outputs can exceed the range of the inputs.
  kBicubic = 4,           // a = -3/4, four taps; the border of the box is repeated
  kBicubicAntialias = 5,  // a = -1/2, half-width 2 max(box / resampled, 1), normalized in the box
  // The same for levels: columns are resampled first, and each pass is clamped to [0, 255].
  kBicubicLevels = 6,
  kBicubicAntialiasLevels = 7,
};

// The treatment of an index outside the resampled image, named as in numpy.pad. Except with kFill,
// offsets are limited to kMaxOffset.
enum class Padding : int32_t {
  kFill = 0,       // the pixel is `fill`
  kEdge = 1,       // the edge is repeated: a a | a b c | c c
  kReflect = 2,    // mirrored without repeating the edge: c b | a b c | b a
  kSymmetric = 3,  // mirrored with the edge repeated: b a | a b c | c b
};

enum class Rounding : int32_t {
  kKeep = 0,      // not rounded
  kNearest = 1,   // clamp to [0, 255], round half to even: u8 images in units of levels
  kTruncate = 2,  // clamp to [0, 255.999], truncate: float to u8 with a scale of 255.999
};

constexpr int kMaxSegments = 8;
constexpr int kMaxErasures = 16;  // over all segments of a chain
constexpr int kMaxChannels = 4;
constexpr int32_t kMaxOffset = 1 << 25;

// The parameters of a segment that are equal for all samples.
struct Segment {
  Filter filter;
  int32_t height, width;  // of the output
  int32_t erasures;       // number of erase boxes
  Rounding rounding;
  Padding padding = Padding::kFill;
};

struct Plan {
  int32_t segments;
  Segment segment[kMaxSegments];
  int32_t channels;  // 1, 3 or 4
  Dtype source_dtype, output_dtype;
  Layout layout;                // of the output; sources are always [H, W, C]
  bool stays_in_cache = false;  // the next stage reads the output: no streaming stores
};

// Sets the segments from the arrays of an op's attributes: filter, erasures and rounding [S], and
// size [S * 2], the height and width of each output. The lower four bits of `filter` are the
// filter, and the bits above are the padding. Returns false if the lengths do not match.
template <typename Integers>
bool set_segments(const Integers& filter, const Integers& size, const Integers& erasures,
                  const Integers& rounding, Plan* plan) {
  const size_t segments = filter.size();
  if (segments < 1 || segments > kMaxSegments || size.size() != 2 * segments ||
      erasures.size() != segments || rounding.size() != segments) {
    return false;
  }
  plan->segments = static_cast<int32_t>(segments);
  for (size_t s = 0; s < segments; ++s) {
    plan->segment[s] = {static_cast<Filter>(filter[s] & 15),
                        size[2 * s],
                        size[2 * s + 1],
                        erasures[s],
                        static_cast<Rounding>(rounding[s]),
                        static_cast<Padding>(filter[s] >> 4)};
  }
  return true;
}

// The geometry of a segment of a sample: kGeometryFields int32 in this order.
struct Geometry {
  int32_t top, left, box_height, box_width;
  int32_t resampled_height, resampled_width;
  int32_t valid_top, valid_left, valid_bottom, valid_right;
  int32_t row_offset, row_step, column_offset, column_step;
};
constexpr int kGeometryFields = 14;
static_assert(sizeof(Geometry) == kGeometryFields * sizeof(int32_t));

// An erase box of a sample: 4 int32. A height or width <= 0 erases nothing, and parts outside the
// output are ignored.
struct EraseBox {
  int32_t top, left, height, width;
};

// The operands of a sample, as dense arrays over S segments, K erase boxes in total and C channels.
// On the CPU the pixels can be a region of the source that includes everything that the chain reads
// (region.h). Then, after the check, the region's origin is subtracted from that of the first box.
struct Sample {
  const void* pixels;         // [height, width, C] of source_dtype
  int32_t height, width;      // of the source image
  const Geometry* geometry;   // [S]
  const float* affine;        // [S, 2, C]: scale, then bias
  const float* fill;          // [S, C]
  const EraseBox* erase_box;  // [K]
  const float* erase_value;   // [K, C]
  bool streaming = false;     // the output leaves the caches before it is read (core/streaming.h)
};

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_PLAN_H_
