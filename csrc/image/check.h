// What the arithmetic trusts about a plan and its samples. A sample's part is plain predicates,
// too: the CPU handlers turn a fault into a message, a CUDA kernel into an image of NaN.
#ifndef JAXKERN_IMAGE_CHECK_H_
#define JAXKERN_IMAGE_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/host_device.h"
#include "image/arithmetic.h"
#include "image/plan.h"

namespace jaxkern::image {

// Largest output of a segment, in pixels: byte offsets fit 64 bits, and hostile plans end in finite
// time.
constexpr int64_t kMaxPixels = int64_t{1} << 31;

enum class Fault : int32_t {
  kNone = 0,
  kSourceHeight,
  kSourceWidth,
  kBoxRows,
  kBoxColumns,
  kResampledSize,
  kWindowSize,
  kStep,
  kOffset,
};

struct SampleFault {
  Fault fault;
  int32_t segment;
};

JAXKERN_HD bool is_size(int32_t value) { return value >= 1 && value <= kMaxSize; }
JAXKERN_HD bool is_step(int32_t value) { return value == 1 || value == -1; }
JAXKERN_HD bool is_offset(int32_t value) { return value >= -kMaxOffset && value <= kMaxOffset; }

JAXKERN_HD bool fits(int32_t start, int32_t length, int32_t size) {
  return start >= 0 && length >= 1 && length <= size && start <= size - length;
}

// Returns the first fault in the sizes, boxes and steps of a sample; the plan is checked already.
JAXKERN_HD SampleFault first_fault(const Plan& plan, const Geometry* geometry, int32_t height,
                                   int32_t width) {
  if (!is_size(height)) return {Fault::kSourceHeight, 0};
  if (!is_size(width)) return {Fault::kSourceWidth, 0};
  for (int32_t s = 0; s < plan.segments; ++s) {
    const Geometry& g = geometry[s];
    if (!fits(g.top, g.box_height, height)) return {Fault::kBoxRows, s};
    if (!fits(g.left, g.box_width, width)) return {Fault::kBoxColumns, s};
    if (!is_size(g.resampled_height) || !is_size(g.resampled_width))
      return {Fault::kResampledSize, s};
    if (plan.segment[s].filter == Filter::kNone &&
        (g.resampled_height != g.box_height || g.resampled_width != g.box_width))
      return {Fault::kWindowSize, s};
    if (!is_step(g.row_step) || !is_step(g.column_step)) return {Fault::kStep, s};
    if (plan.segment[s].padding != Padding::kFill &&
        (!is_offset(g.row_offset) || !is_offset(g.column_offset)))
      return {Fault::kOffset, s};
    height = plan.segment[s].height;
    width = plan.segment[s].width;
  }
  return {Fault::kNone, 0};
}

// True if a ragged image of height x width x channels bytes is inside its buffer.
JAXKERN_HD bool is_in_buffer(int64_t offset, int32_t height, int32_t width, int32_t channels,
                             int64_t buffer_size) {
  return offset >= 0 && offset <= buffer_size && height >= 1 && width >= 1 &&
         static_cast<int64_t>(height) * width <= (buffer_size - offset) / channels;
}

// The first invalid argument of a plan or sample; `argument` is null if all are valid.
struct Problem {
  const char* argument = nullptr;  // "geometry", "height", ...
  int64_t sample = 0;
  int32_t segment = 0;
  const char* expected = nullptr;  // e.g. "a box of at least one row inside the input"; static text
  std::string got = {};

  // "expected a box ..., got rows 99 to 103 of 9", for the text after an argument's name.
  std::string text() const { return std::string("expected ") + expected + ", got " + got; }
};

// Check everything that the arithmetic relies on: the ranges of the plan, and the boxes, sizes and
// steps of one sample. They read only the plan and the sample's small arrays.
Problem check_plan(const Plan& plan);
Problem check_sample(const Plan& plan, const Sample& sample, int64_t index);

// Size of one sample's output in bytes.
size_t output_bytes(const Plan& plan);

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_CHECK_H_
