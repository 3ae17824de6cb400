// Checks that reject every plan and sample for which the arithmetic could leave its arrays or
// overflow.
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
constexpr const char* kExpected[] = {
    nullptr,
    "a source height of 1 to 2^24",
    "a source width of 1 to 2^24",
    "a box of at least one row inside the input",
    "a box of at least one column inside the input",
    "a resampled height and width of 1 to 2^24",
    "a resampled size equal to the box's, for filter 0 (none)",
    "row and column steps of 1 or -1",
    "row and column offsets of a padding within 2^25 of 0",
};

template <typename Enum>
std::string number(Enum value) {
  return std::to_string(static_cast<int32_t>(value));
}

std::string pair_text(int32_t first, int32_t second) {
  return std::to_string(first) + " and " + std::to_string(second);
}

std::string box_text(const char* what, int32_t start, int32_t length, int32_t size) {
  return std::string(what) + " " + std::to_string(start) + " to " +
         std::to_string(int64_t{start} + length - 1) + " in an input of " + std::to_string(size);
}

// The values of a sample that cause a fault, as text.
std::string got_text(SampleFault fault, const Plan& plan, const Sample& sample) {
  if (fault.fault == Fault::kSourceHeight) return std::to_string(sample.height);
  if (fault.fault == Fault::kSourceWidth) return std::to_string(sample.width);
  const Geometry& g = sample.geometry[fault.segment];
  const Segment* const before = fault.segment > 0 ? &plan.segment[fault.segment - 1] : nullptr;
  switch (fault.fault) {
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
  if (plan.segments < 1 || plan.segments > kMaxSegments)
    return {"segments", 0, 0, "1 to 8 segments", std::to_string(plan.segments)};
  if (plan.channels != 1 && plan.channels != 3 && plan.channels != 4)
    return {"channels", 0, 0, "1, 3 or 4", std::to_string(plan.channels)};
  if (!within(plan.source_dtype, Dtype::kF32))
    return {"source_dtype", 0, 0, "0 (u8), 1 (f16), 2 (bf16) or 3 (f32)",
            number(plan.source_dtype)};
  if (!within(plan.output_dtype, Dtype::kF32))
    return {"output_dtype", 0, 0, "0 (u8), 1 (f16), 2 (bf16) or 3 (f32)",
            number(plan.output_dtype)};
  if (!within(plan.layout, Layout::kNCHW))
    return {"layout", 0, 0, "0 (NHWC) or 1 (NCHW)", number(plan.layout)};
  int32_t erasures = 0;
  for (int32_t s = 0; s < plan.segments; ++s) {
    const Segment& segment = plan.segment[s];
    if (!within(segment.filter, Filter::kBicubicAntialiasLevels))
      return {"filter", 0, s,
              "0 (none), 1 (nearest), 2 (bilinear), 3 (antialias) or 4 to 7 (bicubic)",
              number(segment.filter)};
    if (!within(segment.padding, Padding::kSymmetric))
      return {"filter", 0, s,
              "padding 0 (fill), 1 (edge), 2 (reflect) or 3 (symmetric) in its higher bits",
              number(segment.padding)};
    if (!within(segment.rounding, Rounding::kTruncate))
      return {"rounding", 0, s, "0 (keep), 1 (nearest) or 2 (truncate)", number(segment.rounding)};
    if (!is_size(segment.height))
      return {"height", 0, s, "an output height of 1 to 2^24", std::to_string(segment.height)};
    if (!is_size(segment.width))
      return {"width", 0, s, "an output width of 1 to 2^24", std::to_string(segment.width)};
    if (static_cast<int64_t>(segment.height) * segment.width > kMaxPixels)
      return {"height", 0, s, "an output of at most 2^31 pixels",
              pair_text(segment.height, segment.width)};
    if (segment.erasures < 0 || segment.erasures > kMaxErasures - erasures)
      return {"erasures", 0, s, "0 to 16 erase boxes over all segments",
              std::to_string(segment.erasures) + " after " + std::to_string(erasures)};
    erasures += segment.erasures;
  }
  if (plan.output_dtype == Dtype::kU8 &&
      plan.segment[plan.segments - 1].rounding == Rounding::kKeep)
    return {"rounding", 0, plan.segments - 1, "1 (nearest) or 2 (truncate), since the output is u8",
            "0 (keep)"};
  return {};
}

Problem check_sample(const Plan& plan, const Sample& sample, int64_t index) {
  const SampleFault fault = first_fault(plan, sample.geometry, sample.height, sample.width);
  if (fault.fault == Fault::kNone) return {};
  const char* argument = fault.fault == Fault::kSourceHeight  ? "height"
                         : fault.fault == Fault::kSourceWidth ? "width"
                                                              : "geometry";
  return {argument, index, fault.segment, kExpected[static_cast<int>(fault.fault)],
          got_text(fault, plan, sample)};
}

size_t output_bytes(const Plan& plan) {
  const Segment& last = plan.segment[plan.segments - 1];
  return static_cast<size_t>(last.height) * static_cast<size_t>(last.width) *
         static_cast<size_t>(plan.channels) * static_cast<size_t>(dtype_bytes(plan.output_dtype));
}

}  // namespace jaxkern::image
