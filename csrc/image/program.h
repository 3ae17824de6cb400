// The image program: a few colour and warp operations on each image of a batch. Operands choose the
// operations and their values. This header defines a call and the CPU entry point.
//
// Images are processed one by one, step after step, in cache, and only the drawn operation of a
// step runs. A step changes nothing if its code is not one of those that it declares, or if one of
// its values is not finite. Bytes are rounded after every operation, as in torchvision, and floats
// are images of values from 0 to 1. Colour operations do not change alpha, the fourth channel;
// blurs and warps move it with the others.
//
// Results are bit-identical at every SIMD level and in the reference implementation
// (program_twin.py): program_levels.cc is compiled without contraction of products and sums, and
// fused() is used where torchvision's kernels fuse them.
#ifndef JAXKERN_IMAGE_PROGRAM_H_
#define JAXKERN_IMAGE_PROGRAM_H_

#include <cstddef>
#include <cstdint>

#include "core/batch_set.h"
#include "core/host_device.h"
#include "core/simd_dispatch.h"
#include "image/blur.h"
#include "image/plan.h"
#include "image/warp.h"

namespace jaxkern::image {

// The operations, numbered as in program.py, with their values. Blends take both the factor and
// 1 - factor, because torchvision rounds the two separately.
enum class Code : int32_t {
  kNone = -1,
  kBrightness = 0,  // factor
  kContrast = 1,    // factor, 1 - factor
  kSaturation = 2,  // factor, 1 - factor
  kHue = 3,         // shift, in turns
  kSharpness = 4,   // factor, 1 - factor
  kPosterize = 5,   // bits
  kSolarize =
      6,  // threshold as a fraction of the largest value or, if the second is not 0, a level
  kAutocontrast = 7,
  kEqualize = 8,
  kInvert = 9,
  kGrayscale = 10,
  kPermute = 11,  // the source of each of three channels
  kBlur = 12,     // sigma along x and y
  kWarp = 13,     // c0 to c5 of an affine map
  // A weighted mean of several branches of steps that start from one image.
  kKeep = 14,         // weight: keep the image, and start a mean with it
  kAdd = 15,          // weight: add the image to the mean, and restore the kept image
  kMean = 16,         // replace the image by the mean
  kPerspective = 17,  // c0 to c7
  // Random operations end with their key: 64 bits in four integers below 2^16, low bits first.
  kNoise = 18,    // mean, sigma, clip; key
  kErase = 19,    // top, left, height, width; key
  kElastic = 20,  // alpha along x and y, sigma along x and y; key
  kTurn = 21,     // c0 to c5, width and height of the image in the top left corner of its buffer
};
constexpr int kCodes = 22;
constexpr int kProgramValues = 8;
constexpr int kMaxProgramSteps = 64;
constexpr float kMaxFactor = 1024.f;  // larger factors have the same effect

// The parameters of a step that are equal for all samples; see warp.h and blur.h.
struct ProgramStep {
  int32_t codes;               // bit k: code k may be drawn
  int32_t interpolation;       // of warps: 0 nearest, 1 bilinear
  int32_t kernel_x, kernel_y;  // of blurs, and of the x and y fields of elastic warps; odd
  float fill[kMaxChannels];    // of warps and erased boxes; fill[0] NaN: no fill, or noise
};

enum ProgramOperand : int { kProgramImages, kProgramOps, kProgramStepValues, kProgramOperands };

struct ProgramCall {
  Dtype dtype;  // u8 or f32
  int32_t height, width, channels, steps;
  ProgramStep step[kMaxProgramSteps];
  BatchSet<kProgramOperands> operands;
  void* output;  // may be the images themselves
  int64_t samples;

  JAXKERN_HD_MEMBER int64_t elements() const {
    return static_cast<int64_t>(height) * width * channels;
  }
  JAXKERN_HD_MEMBER int64_t image_bytes() const {
    return elements() * (dtype == Dtype::kU8 ? 1 : 4);
  }

  // True if a step declares the code.
  JAXKERN_HD_MEMBER bool may_draw(Code code) const {
    int32_t codes = 0;
    for (int32_t s = 0; s < steps; ++s) codes |= step[s].codes;
    return (codes >> static_cast<int32_t>(code) & 1) != 0;
  }
  JAXKERN_HD_MEMBER bool has_means() const { return may_draw(Code::kKeep); }
  JAXKERN_HD_MEMBER bool has_fields() const { return may_draw(Code::kElastic); }
};

// Runs samples [begin, end) of a checked call. `scratch`: program_scratch_bytes(call), aligned
// to 64.
JAXKERN_LEVEL_FUNCTION(void, program_samples, const ProgramCall& call, int64_t begin, int64_t end,
                       char* scratch)

inline size_t padded_to_line(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Bytes of a second image, for operations that cannot work in place, and of a few rows or the
// scratch of a blur.
inline size_t program_work_bytes(const ProgramCall& call) {
  const size_t row = static_cast<size_t>(call.width) * static_cast<size_t>(call.channels) * 4;
  const size_t rows = 4 * padded_to_line(row);
  return padded_to_line(static_cast<size_t>(call.image_bytes())) +
         padded_to_line(rows > kBlurScratchBytes ? rows : kBlurScratchBytes);
}

// Bytes of the stored images of means: one for each step that may draw kKeep or kAdd.
inline size_t program_mean_bytes(const ProgramCall& call) {
  if (!call.has_means()) return 0;
  constexpr int32_t kJoins =
      1 << static_cast<int32_t>(Code::kKeep) | 1 << static_cast<int32_t>(Code::kAdd);
  size_t images = 0;
  for (int32_t s = 0; s < call.steps; ++s) images += (call.step[s].codes & kJoins) != 0;
  return images * padded_to_line(static_cast<size_t>(call.image_bytes()));
}

// Total bytes, including the random numbers and the field of an elastic warp.
inline size_t program_scratch_bytes(const ProgramCall& call) {
  const size_t pixels = static_cast<size_t>(call.height) * static_cast<size_t>(call.width);
  const size_t field = 2 * padded_to_line(pixels * 4) + 2 * padded_to_line(pixels * 8);
  return program_work_bytes(call) + program_mean_bytes(call) + (call.has_fields() ? field : 0);
}

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_PROGRAM_H_
