// The operands of image stages and their checks: those of a chain and of a program, for all stages.
#ifndef JAXKERN_IMAGE_STAGE_OPERANDS_H_
#define JAXKERN_IMAGE_STAGE_OPERANDS_H_

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "image/operands.h"
#include "image/stages.h"

namespace jaxkern::image {

// The operands and attributes of stages, without their pixels: S segments, K erasures and P steps
// over all stages.
struct StageParameters {
  In geometry, affine, fill, erase_box, erase_value, op, values;
  Out out;
  Integers filter, size, erasures, rounding, segments, steps, dtype;
  Integers codes, interpolation, kernel;
  FloatList warp_fill;
  int32_t layout;

  template <class Binding>
  static auto bind(Binding&& pixels) {
    return std::move(pixels)
        .template Arg<In>()                        // geometry i32 [batch..., S, 14]
        .template Arg<In>()                        // affine f32 [batch..., S, 2, C]
        .template Arg<In>()                        // fill f32 [batch..., S, C]
        .template Arg<In>()                        // erase_box i32 [batch..., K, 4]
        .template Arg<In>()                        // erase_value f32 [batch..., K, C]
        .template Arg<In>()                        // op i32 [batch..., P]
        .template Arg<In>()                        // values f32 [batch..., P, 8]
        .template Ret<In>()                        // out [batch..., h, w, C] or NCHW
        .template Attr<Integers>("filter")         // [S]
        .template Attr<Integers>("size")           // [S * 2]: height, width of each output
        .template Attr<Integers>("erasures")       // [S]
        .template Attr<Integers>("rounding")       // [S]
        .template Attr<Integers>("segments")       // [stages]: count of each
        .template Attr<Integers>("steps")          // [stages]: count of each
        .template Attr<Integers>("dtype")          // [stages]: of each one's output
        .template Attr<Integers>("codes")          // [P]: a bit for each code of a step
        .template Attr<Integers>("interpolation")  // [P]: of warps, 0 nearest, 1 bilinear
        .template Attr<Integers>("kernel")         // [P * 2]: of blurs, x and y
        .template Attr<FloatList>("warp_fill")     // [P * C]
        .template Attr<int32_t>("layout");         // scalar
  }
};

// The checked call of stages.
struct StageOperands : SourceOperands {
  Stages stages;
  Operand geometry, affine, fill, erase_box, erase_value, op, values, out;

 protected:
  StageOperands(const char* name, StageParameters in) : SourceOperands(name, *in.out) {}

  int64_t channels(const StageParameters& in) const {
    return call.ok() ? call.result_size(in.layout == 1 ? 0 : 2) : 0;
  }

  // Called after the pixels were read. `height` and `width` are 0 if images differ in size.
  void read_parameters(const StageParameters& in, Dtype source, int64_t height, int64_t width) {
    if (!call.ok()) return;
    const int64_t c = channels(in);
    const auto list = [](const auto& span) {
      return Slice<std::decay_t<decltype(*span.begin())>>{span.begin(), span.size()};
    };
    StagesAttributes attributes = {};
    attributes.filter = list(in.filter);
    attributes.size = list(in.size);
    attributes.erasures = list(in.erasures);
    attributes.rounding = list(in.rounding);
    attributes.segments = list(in.segments);
    attributes.steps = list(in.steps);
    attributes.dtype = list(in.dtype);
    attributes.codes = list(in.codes);
    attributes.interpolation = list(in.interpolation);
    attributes.kernel = list(in.kernel);
    attributes.fill = list(in.warp_fill);
    attributes.layout = in.layout;
    attributes.channels = static_cast<int32_t>(c > kMaxChannels ? 0 : c);
    attributes.source_dtype = static_cast<int32_t>(source);
    attributes.height = static_cast<int32_t>(height);
    attributes.width = static_cast<int32_t>(width);
    if (const std::string problem = set_stages(attributes, &stages); !problem.empty()) {
      call.fail(problem);
      return;
    }
    const int64_t s = stages.segments(), e = stages.erasures(), p = stages.steps();
    geometry = call.operand("geometry", in.geometry, ffi::S32, {s, kGeometryFields});
    affine = call.operand("affine", in.affine, ffi::F32, {s, 2, c});
    fill = call.operand("fill", in.fill, ffi::F32, {s, c});
    erase_box = call.operand("erase_box", in.erase_box, ffi::S32, {e, 4});
    erase_value = call.operand("erase_value", in.erase_value, ffi::F32, {e, c});
    op = call.operand("op", in.op, ffi::S32, {p});
    values = call.operand("values", in.values, ffi::F32, {p, kProgramValues});
    const ProgramCall& last = stages.last().program;
    const Dtype dtype = to_dtype(call, "result", result.element_type());
    const int64_t h = last.height, w = last.width;
    out = in.layout == 1 ? call.result("out", result, ffi::DataType::INVALID, {c, h, w})
                         : call.result("out", result, ffi::DataType::INVALID, {h, w, c});
    if (call.ok() && dtype != last.dtype) {
      call.fail("result", "the dtype of the last stage in attribute 'dtype'",
                dtype_text(result.element_type()));
    }
  }
};

struct ImageStages : StageOperands {
  template <class Binding>
  static auto bind(Binding&& contexts) {
    return StageParameters::bind(
        std::move(contexts).template Arg<In>());  // images [batch..., H, W, C]
  }

  template <typename... Rest>
  explicit ImageStages(In images, Rest... rest)
      : ImageStages(images, StageParameters{std::move(rest)...}) {}

  ImageStages(In images, const StageParameters& in) : StageOperands("jaxkern.image_stages", in) {
    const Dtype source = read_images(images, channels(in));
    read_parameters(in, source, pixels.core[0], pixels.core[1]);
  }
};

struct ImageStagesRagged : StageOperands {
  template <class Binding>
  static auto bind(Binding&& contexts) {
    return StageParameters::bind(std::move(contexts)
                                     .template Arg<In>()    // buffer u8 [1..., B]
                                     .template Arg<In>()    // offset i32 or i64 [batch...]
                                     .template Arg<In>()    // height i32 [batch...]
                                     .template Arg<In>());  // width i32 [batch...]
  }

  template <typename... Rest>
  ImageStagesRagged(In buffer, In offsets, In heights, In widths, Rest... rest)
      : ImageStagesRagged(buffer, offsets, heights, widths, StageParameters{std::move(rest)...}) {}

  ImageStagesRagged(In buffer, In offsets, In heights, In widths, const StageParameters& in)
      : StageOperands("jaxkern.image_stages_ragged", in) {
    const Dtype source = read_buffer(buffer, offsets, heights, widths);
    read_parameters(in, source, 0, 0);
  }
};

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_STAGE_OPERANDS_H_
