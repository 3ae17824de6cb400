// Rejects every plan and sample for which the arithmetic could leave its arrays or overflow.
#include "image/check.h"

#include <string>

#include "image/arithmetic.h"

namespace jaxkern::image {
namespace {

template <typename Enum>
bool within(Enum value, Enum last) {
  return static_cast<int32_t>(value) >= 0 &&
         static_cast<int32_t>(value) <= static_cast<int32_t>(last);
}

// In the order of Fault.
constexpr const char* kWanted[] = {
    nullptr,
    "a source height of 1 to 2^24",
    "a source width of 1 to 2^24",
    "a box of at least one row inside the input",
    "a box of at least one column inside the input",
    "a resampled height and width of 1 to 2^24",
    "a resampled size equal to the box, since nothing resamples",
    "row and column steps of 1 or -1",
    "row and column offsets of a padding within 2^25 of 0",
};

std::string pair_text(int32_t first, int32_t second) {
  return std::to_string(first) + " and " + std::to_string(second);
}

std::string box_text(const char* what, int32_t start, int32_t length, int32_t size) {
  return std::string(what) + " from " + std::to_string(start) + ", " + std::to_string(length) +
         " of them, in an input of " + std::to_string(size);
}

// What a sample has in the place of a fault.
std::string given_text(SampleFault found, const Plan& plan, const Sample& sample) {
  if (found.fault == Fault::kSourceHeight) return std::to_string(sample.height);
  if (found.fault == Fault::kSourceWidth) return std::to_string(sample.width);
  const Geometry& g = sample.geometry[found.segment];
  const Segment* const before = found.segment > 0 ? &plan.segment[found.segment - 1] : nullptr;
  switch (found.fault) {
    case Fault::kBoxRows:
      return box_text("rows", g.top, g.box_height, before ? before->height : sample.height);
    case Fault::kBoxColumns:
      return box_text("columns", g.left, g.box_width, before ? before->width : sample.width);
    case Fault::kResampledSize:
      return pair_text(g.resampled_height, g.resampled_width);
    case Fault::kWindowSize:
      return pair_text(g.resampled_height, g.resampled_width) + " for a box of " +
             pair_text(g.box_height, g.box_width);
    case Fault::kStep:
      return pair_text(g.row_step, g.column_step);
    default:
      return pair_text(g.row_offset, g.column_offset);
  }
}

}  // namespace

Problem check_plan(const Plan& plan) {
  if (plan.segments < 1 || plan.segments > kMaxSegments) return {"segments", 0, 0, "1 to 8"};
  if (plan.channels != 1 && plan.channels != 3 && plan.channels != 4)
    return {"channels", 0, 0, "1, 3 or 4"};
  if (!within(plan.source_dtype, Dtype::kF32))
    return {"source_dtype", 0, 0, "u8, f16, bf16 or f32"};
  if (!within(plan.output_dtype, Dtype::kF32))
    return {"output_dtype", 0, 0, "u8, f16, bf16 or f32"};
  if (!within(plan.layout, Layout::kNCHW)) return {"layout", 0, 0, "NHWC or NCHW"};
  int32_t erasures = 0;
  for (int32_t s = 0; s < plan.segments; ++s) {
    const Segment& segment = plan.segment[s];
    if (!within(segment.filter, Filter::kBicubicAntialiasLevels))
      return {"filter", 0, s, "none, nearest, bilinear, antialias or one of four bicubic ones"};
    if (!within(segment.padding, Padding::kSymmetric))
      return {"filter", 0, s, "a padding of fill, edge, reflect or symmetric in its higher bits"};
    if (!within(segment.rounding, Rounding::kTruncate))
      return {"rounding", 0, s, "keep, nearest or truncate"};
    if (!is_size(segment.height)) return {"height", 0, s, "an output height of 1 to 2^24"};
    if (!is_size(segment.width)) return {"width", 0, s, "an output width of 1 to 2^24"};
    if (static_cast<int64_t>(segment.height) * segment.width > kMaxPixels)
      return {"height", 0, s, "an output of at most 2^31 pixels"};
    if (segment.erasures < 0 || segment.erasures > kMaxErasures - erasures)
      return {"erasures", 0, s, "0 to 16 erase boxes over all segments"};
    erasures += segment.erasures;
  }
  if (plan.output_dtype == Dtype::kU8 &&
      plan.segment[plan.segments - 1].rounding == Rounding::kKeep)
    return {"rounding", 0, plan.segments - 1, "nearest or truncate, since the output is u8"};
  return {};
}

Problem check_sample(const Plan& plan, const Sample& sample, int64_t index) {
  const SampleFault found = first_fault(plan, sample.geometry, sample.height, sample.width);
  if (found.fault == Fault::kNone) return {};
  const char* argument = found.fault == Fault::kSourceHeight  ? "height"
                         : found.fault == Fault::kSourceWidth ? "width"
                                                              : "geometry";
  return {argument, index, found.segment, kWanted[static_cast<int>(found.fault)],
          given_text(found, plan, sample)};
}

size_t output_bytes(const Plan& plan) {
  const Segment& last = plan.segment[plan.segments - 1];
  return static_cast<size_t>(last.height) * static_cast<size_t>(last.width) *
         static_cast<size_t>(plan.channels) * static_cast<size_t>(dtype_bytes(plan.output_dtype));
}

}  // namespace jaxkern::image
