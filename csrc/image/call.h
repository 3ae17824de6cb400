// From an FFI call to a checked plan and its samples; the same for the CPU and the CUDA handlers.
#ifndef JAXKERN_IMAGE_CALL_H_
#define JAXKERN_IMAGE_CALL_H_

#include <cstdint>
#include <limits>
#include <string>

#include "core/ffi.h"
#include "image/plan.h"

namespace jaxkern::image {

// The attributes of a chain: structure only. Everything per sample is an operand.
struct Attributes {
  ffi::Span<const int32_t> filter;    // [S]
  ffi::Span<const int32_t> size;      // [S, 2]: height, width of each segment's output
  ffi::Span<const int32_t> erasures;  // [S]
  ffi::Span<const int32_t> rounding;  // [S]
  int32_t layout;
};

// The checked operands of a chain. `pixels` is either dense [batch..., H, W, C], or, for ragged
// images, one flat buffer [1..., B] with a place and a size for each sample.
struct Operands {
  Operand pixels, offset, height, width;
  Operand geometry, affine, fill, erase_box, erase_value, out;
  bool ragged = false;
  int64_t buffer_size = 0;  // of a ragged buffer
};

inline bool to_dtype(ffi::DataType from, Dtype* to) {
  switch (from) {
    case ffi::U8:
      *to = Dtype::kU8;
      return true;
    case ffi::F16:
      *to = Dtype::kF16;
      return true;
    case ffi::BF16:
      *to = Dtype::kBF16;
      return true;
    case ffi::F32:
      *to = Dtype::kF32;
      return true;
    default:
      return false;
  }
}

// Fills `plan` from attributes and shapes; ranges of the values are check_plan's business.
inline void read_plan(Call& call, const Attributes& attributes, ffi::AnyBuffer out, Plan* plan) {
  const size_t segments = attributes.filter.size();
  if (segments < 1 || segments > static_cast<size_t>(kMaxSegments) ||
      attributes.size.size() != 2 * segments || attributes.erasures.size() != segments ||
      attributes.rounding.size() != segments) {
    call.fail("attributes describe " + std::to_string(segments) + " segments with " +
              std::to_string(attributes.size.size()) + " sizes, " +
              std::to_string(attributes.erasures.size()) + " erasure counts and " +
              std::to_string(attributes.rounding.size()) + " roundings; wanted 1 to " +
              std::to_string(kMaxSegments) + " segments, two sizes each and one of the rest");
    return;
  }
  plan->segments = static_cast<int32_t>(segments);
  for (size_t s = 0; s < segments; ++s) {
    Segment& segment = plan->segment[s];
    segment.filter = static_cast<Filter>(attributes.filter[s]);
    segment.height = attributes.size[2 * s];
    segment.width = attributes.size[2 * s + 1];
    segment.erasures = attributes.erasures[s];
    segment.rounding = static_cast<Rounding>(attributes.rounding[s]);
  }
  plan->layout = static_cast<Layout>(attributes.layout);
  if (plan->layout != Layout::kNHWC && plan->layout != Layout::kNCHW) {
    call.fail("attribute 'layout' is " + std::to_string(attributes.layout) +
              "; wanted 0 (NHWC) or 1 (NCHW)");
    return;
  }
  if (!to_dtype(out.element_type(), &plan->output_dtype)) {
    call.fail(std::string("the result has dtype ") + dtype_text(out.element_type()) +
              "; wanted uint8, float16, bfloat16 or float32");
    return;
  }
  const bool nchw = plan->layout == Layout::kNCHW;
  const Segment& last = plan->segment[segments - 1];
  const int64_t channels = call.result_size(nchw ? 0 : 2);
  if (channels < 1 || channels > kMaxChannels || call.result_size(nchw ? 1 : 0) != last.height ||
      call.result_size(nchw ? 2 : 1) != last.width) {
    call.fail("the result has shape " + shape_text(out.dimensions()) + "; wanted height " +
              std::to_string(last.height) + ", width " + std::to_string(last.width) +
              " and 1, 3 or 4 channels in the order of attribute 'layout'");
    return;
  }
  plan->channels = static_cast<int32_t>(channels);
}

// The operands after the pixels: their sizes follow from the plan.
inline void read_parameters(Call& call, const Plan& plan, ffi::AnyBuffer geometry,
                            ffi::AnyBuffer affine, ffi::AnyBuffer fill, ffi::AnyBuffer erase_box,
                            ffi::AnyBuffer erase_value, Operands* operands) {
  if (!call.ok()) return;
  int64_t erasures = 0;
  for (int32_t s = 0; s < plan.segments; ++s) {
    const int32_t count = plan.segment[s].erasures;
    if (count < 0 || count > kMaxErasures) {
      call.fail("attribute 'erasures' holds " + std::to_string(count) + "; wanted 0 to " +
                std::to_string(kMaxErasures));
      return;
    }
    erasures += count;
  }
  const int64_t s = plan.segments, c = plan.channels;
  operands->geometry = call.operand("geometry", geometry, ffi::S32, {s, kGeometryFields});
  operands->affine = call.operand("affine", affine, ffi::F32, {s, 2, c});
  operands->fill = call.operand("fill", fill, ffi::F32, {s, c});
  operands->erase_box = call.operand("erase_box", erase_box, ffi::S32, {erasures, 4});
  operands->erase_value = call.operand("erase_value", erase_value, ffi::F32, {erasures, c});
}

inline void read_dense(Call& call, ffi::AnyBuffer images, Plan* plan, Operands* operands) {
  if (!call.ok()) return;
  operands->pixels =
      call.operand("images", images, ffi::DataType::INVALID, {kAnySize, kAnySize, plan->channels});
  if (call.ok() && !to_dtype(images.element_type(), &plan->source_dtype)) {
    call.fail(std::string("operand 'images' has dtype ") + dtype_text(images.element_type()) +
              "; wanted uint8, float16, bfloat16 or float32");
  }
  for (int axis = 0; call.ok() && axis < 2; ++axis) {
    if (operands->pixels.core[axis] > std::numeric_limits<int32_t>::max()) {
      call.fail("operand 'images' has shape " + shape_text(images.dimensions()) +
                "; wanted a height and width below 2^31");
    }
  }
}

inline void read_ragged(Call& call, ffi::AnyBuffer buffer, ffi::AnyBuffer offset,
                        ffi::AnyBuffer height, ffi::AnyBuffer width, Plan* plan,
                        Operands* operands) {
  if (!call.ok()) return;
  operands->ragged = true;
  plan->source_dtype = Dtype::kU8;
  operands->pixels = call.operand("buffer", buffer, ffi::U8, {kAnySize});
  operands->buffer_size = operands->pixels.core[0];
  const bool wide = offset.element_type() == ffi::S64;
  operands->offset = call.operand("offset", offset, wide ? ffi::S64 : ffi::S32, {});
  operands->height = call.operand("height", height, ffi::S32, {});
  operands->width = call.operand("width", width, ffi::S32, {});
}

// The checked operands of mixing, all but `lam` and `box` of `dtype`.
struct MixOperands {
  Operand x, partner, lam, box, out;
  Dtype dtype{};
  Layout layout{};
  int32_t height = 0, width = 0, channels = 0;
};

inline MixOperands read_mix(Call& call, ffi::AnyBuffer x, ffi::AnyBuffer partner,
                            ffi::AnyBuffer lam, ffi::AnyBuffer box, ffi::AnyBuffer out,
                            int32_t layout) {
  MixOperands mix;
  const int64_t a = call.result_size(0), b = call.result_size(1), c = call.result_size(2);
  const ffi::DataType type = out.element_type();
  mix.x = call.operand("x", x, type, {a, b, c});
  mix.partner = call.operand("partner", partner, type, {a, b, c});
  mix.lam = call.operand("lam", lam, ffi::F32, {});
  mix.box = call.operand("box", box, ffi::S32, {4});
  mix.out = call.result("out", out, type, {a, b, c});
  if (call.ok() && !to_dtype(type, &mix.dtype)) {
    call.fail(std::string("operand 'x' has dtype ") + dtype_text(type) +
              "; wanted uint8, float16, bfloat16 or float32");
  }
  if (layout != 0 && layout != 1) {
    call.fail("attribute 'layout' is " + std::to_string(layout) + "; wanted 0 (NHWC) or 1 (NCHW)");
  }
  const int64_t height = layout == 1 ? b : a, width = layout == 1 ? c : b,
                channels = layout == 1 ? a : c;
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
  if (call.ok() && (height > kLimit || width > kLimit || channels > kMaxChannels)) {
    call.fail("operand 'x' has shape " + shape_text(x.dimensions()) +
              "; wanted at most 4 channels, and a height and width below 2^31");
  }
  if (!call.ok()) return mix;
  mix.layout = static_cast<Layout>(layout);
  mix.height = static_cast<int32_t>(height);
  mix.width = static_cast<int32_t>(width);
  mix.channels = static_cast<int32_t>(channels);
  return mix;
}

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_CALL_H_
