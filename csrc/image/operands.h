// The operands of the image ops, shared by the CPU and CUDA handlers. Each op is a struct with its
// FFI binding, which follows a platform's contexts, and a constructor that checks a call. `call`
// records the first problem. Values in buffers are checked later, in the memory where they are.
#ifndef JAXKERN_IMAGE_OPERANDS_H_
#define JAXKERN_IMAGE_OPERANDS_H_

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "core/ffi.h"
#include "image/check.h"
#include "image/mix.h"
#include "image/plan.h"
#include "image/stages.h"

namespace jaxkern::image {

using In = ffi::AnyBuffer;
using Out = ffi::Result<ffi::AnyBuffer>;
using Integers = ffi::Span<const int32_t>;

inline Dtype to_dtype(Call& call, const std::string& name, ffi::DataType from) {
  switch (from) {
    case ffi::U8:
      return Dtype::kU8;
    case ffi::F16:
      return Dtype::kF16;
    case ffi::BF16:
      return Dtype::kBF16;
    case ffi::F32:
      return Dtype::kF32;
    default:
      call.fail(name, "dtype uint8, float16, bfloat16 or float32", dtype_text(from));
      return Dtype::kU8;
  }
}

inline Layout to_layout(Call& call, int32_t layout) {
  if (layout != 0 && layout != 1) {
    call.fail("attribute 'layout'", "0 (NHWC) or 1 (NCHW)", std::to_string(layout));
  }
  return static_cast<Layout>(layout);
}

// The operands and attributes of a chain, without its pixels. The attributes are its structure.
struct ChainParameters {
  In geometry, affine, fill, erase_box, erase_value;
  Out out;
  Integers filter, size, erasures, rounding;
  int32_t layout;

  template <class Binding>
  static auto bind(Binding&& pixels) {
    return std::move(pixels)
        .template Arg<In>()                   // geometry i32 [batch..., S, 14]
        .template Arg<In>()                   // affine f32 [batch..., S, 2, C]
        .template Arg<In>()                   // fill f32 [batch..., S, C]
        .template Arg<In>()                   // erase_box i32 [batch..., K, 4]
        .template Arg<In>()                   // erase_value f32 [batch..., K, C]
        .template Ret<In>()                   // out [batch..., h, w, C] or NCHW
        .template Attr<Integers>("filter")    // [S]
        .template Attr<Integers>("size")      // [S * 2]: height, width of each segment's output
        .template Attr<Integers>("erasures")  // [S]
        .template Attr<Integers>("rounding")  // [S]
        .template Attr<int32_t>("layout");    // scalar
  }
};

// The images of a call: `pixels` is either dense [batch..., H, W, C] or, for ragged images, a flat
// buffer [1..., B] with an offset and a size for each sample.
struct SourceOperands {
  Call call;
  ffi::AnyBuffer result;
  Operand pixels, offset, height, width;
  bool ragged = false;
  int64_t buffer_size = 0;  // of a ragged buffer

 protected:
  SourceOperands(const char* op, ffi::AnyBuffer out) : call(op, out, 3), result(out) {}

  Dtype read_images(In images, int64_t channels) {
    pixels = call.operand("images", images, ffi::DataType::INVALID, {kAnySize, kAnySize, channels});
    const Dtype dtype = to_dtype(call, "operand 'images'", images.element_type());
    constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
    if (pixels.core[0] > kLimit || pixels.core[1] > kLimit) {
      call.fail("operand 'images'", "a height and width below 2^31",
                "shape " + shape_text(images.dimensions()));
    }
    return dtype;
  }

  Dtype read_buffer(In buffer, In offsets, In heights, In widths) {
    ragged = true;
    pixels = call.operand("buffer", buffer, ffi::U8, {kAnySize});
    buffer_size = pixels.core[0];
    const bool wide = offsets.element_type() == ffi::S64;
    offset = call.operand("offset", offsets, wide ? ffi::S64 : ffi::S32, {});
    height = call.operand("height", heights, ffi::S32, {});
    width = call.operand("width", widths, ffi::S32, {});
    return Dtype::kU8;
  }
};

// The checked call of a chain.
struct ChainOperands : SourceOperands {
  Plan plan = {};
  Operand geometry, affine, fill, erase_box, erase_value, out;

 protected:
  ChainOperands(const char* op, ChainParameters in) : SourceOperands(op, *in.out) {
    if (call.ok()) read_plan(in);
  }

  // Called after the pixels were read. The expected shapes follow from the plan.
  void read_parameters(const ChainParameters& in) {
    if (!call.ok()) return;
    int64_t erasures = 0;
    for (int32_t s = 0; s < plan.segments; ++s) {
      const int32_t count = plan.segment[s].erasures;
      if (count < 0 || count > kMaxErasures) {
        call.fail("attribute 'erasures'", "counts of 0 to " + std::to_string(kMaxErasures),
                  std::to_string(count));
        return;
      }
      erasures += count;
    }
    const int64_t s = plan.segments, c = plan.channels;
    geometry = call.operand("geometry", in.geometry, ffi::S32, {s, kGeometryFields});
    affine = call.operand("affine", in.affine, ffi::F32, {s, 2, c});
    fill = call.operand("fill", in.fill, ffi::F32, {s, c});
    erase_box = call.operand("erase_box", in.erase_box, ffi::S32, {erasures, 4});
    erase_value = call.operand("erase_value", in.erase_value, ffi::F32, {erasures, c});
    out = call.result("out", result, ffi::DataType::INVALID, {kAnySize, kAnySize, kAnySize});
    const Problem problem = check_plan(plan);
    if (call.ok() && problem.argument != nullptr) {
      call.fail(std::string("attribute '") + problem.argument + "' of segment " +
                std::to_string(problem.segment) + ": " + problem.text());
    }
  }

 private:
  // Fills the plan from the attributes and the result's shape. check_plan checks the ranges later.
  void read_plan(const ChainParameters& in) {
    if (!set_segments(in.filter, in.size, in.erasures, in.rounding, &plan)) {
      call.fail("attributes 'filter', 'size', 'erasures' and 'rounding'",
                "lengths S, 2 S, S and S with S from 1 to " + std::to_string(kMaxSegments),
                std::to_string(in.filter.size()) + ", " + std::to_string(in.size.size()) + ", " +
                    std::to_string(in.erasures.size()) + " and " +
                    std::to_string(in.rounding.size()));
      return;
    }
    plan.layout = to_layout(call, in.layout);
    plan.output_dtype = to_dtype(call, "result", result.element_type());
    if (!call.ok()) return;
    const bool nchw = plan.layout == Layout::kNCHW;
    const Segment& last = plan.segment[plan.segments - 1];
    const int64_t channels = call.result_size(nchw ? 0 : 2);
    if (channels < 1 || channels > kMaxChannels || call.result_size(nchw ? 1 : 0) != last.height ||
        call.result_size(nchw ? 2 : 1) != last.width) {
      call.fail("result",
                "height " + std::to_string(last.height) + ", width " + std::to_string(last.width) +
                    " and 1, 3 or 4 channels in the order of attribute 'layout'",
                "shape " + shape_text(result.dimensions()));
      return;
    }
    plan.channels = static_cast<int32_t>(channels);
  }
};

struct ImageChain : ChainOperands {
  template <class Binding>
  static auto bind(Binding&& contexts) {
    return ChainParameters::bind(
        std::move(contexts).template Arg<In>());  // images [batch..., H, W, C]
  }

  template <typename... Rest>
  explicit ImageChain(In images, Rest... rest)
      : ImageChain(images, ChainParameters{std::move(rest)...}) {}

  ImageChain(In images, const ChainParameters& in) : ChainOperands("jaxkern.image_chain", in) {
    plan.source_dtype = read_images(images, plan.channels);
    read_parameters(in);
  }
};

struct ImageChainRagged : ChainOperands {
  template <class Binding>
  static auto bind(Binding&& contexts) {
    return ChainParameters::bind(std::move(contexts)
                                     .template Arg<In>()    // buffer u8 [1..., B]
                                     .template Arg<In>()    // offset i32 or i64 [batch...]
                                     .template Arg<In>()    // height i32 [batch...]
                                     .template Arg<In>());  // width i32 [batch...]
  }

  template <typename... Rest>
  ImageChainRagged(In buffer, In offsets, In heights, In widths, Rest... rest)
      : ImageChainRagged(buffer, offsets, heights, widths, ChainParameters{std::move(rest)...}) {}

  ImageChainRagged(In buffer, In offsets, In heights, In widths, const ChainParameters& in)
      : ChainOperands("jaxkern.image_chain_ragged", in) {
    plan.source_dtype = read_buffer(buffer, offsets, heights, widths);
    read_parameters(in);
  }
};

// An op whose kernels take one call for all samples; see `run` in handlers.cc and cuda_handlers.cc.
struct ImageMix {
  Call call;
  ffi::AnyBuffer result;
  MixCall work = {};

  template <class Binding>
  static auto bind(Binding&& contexts) {
    return std::move(contexts)
        .template Arg<In>()                 // x [batch..., h, w, C] or NCHW
        .template Arg<In>()                 // partner, as x
        .template Arg<In>()                 // lam f32 [batch...]
        .template Arg<In>()                 // box i32 [batch..., 4]
        .template Ret<In>()                 // out, as x
        .template Attr<int32_t>("layout");  // scalar
  }

  ImageMix(In x, In partner, In lam, In box, Out out, int32_t layout)
      : call("jaxkern.image_mix", *out, 3), result(*out) {
    const int64_t a = call.result_size(0), b = call.result_size(1), c = call.result_size(2);
    const ffi::DataType type = out->element_type();
    const Operand operands[] = {
        call.operand("x", x, type, {a, b, c}), call.operand("partner", partner, type, {a, b, c}),
        call.operand("lam", lam, ffi::F32, {}), call.operand("box", box, ffi::S32, {4})};
    work.output = call.result("out", *out, type, {a, b, c}).data;
    work.dtype = to_dtype(call, "operand 'x'", type);
    work.layout = to_layout(call, layout);
    const bool nchw = work.layout == Layout::kNCHW;
    const int64_t height = nchw ? b : a, width = nchw ? c : b, channels = nchw ? a : c;
    constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
    if (height > kLimit || width > kLimit || channels > kMaxChannels) {
      call.fail("operand 'x'", "at most 4 channels, and a height and width below 2^31",
                "shape " + shape_text(x.dimensions()));
    }
    if (!call.ok()) return;
    for (int k = 0; k < kMixOperands; ++k) {
      work.operands.set(k, operands[k].data, operands[k].map);
    }
    work.height = static_cast<int32_t>(height);
    work.width = static_cast<int32_t>(width);
    work.channels = static_cast<int32_t>(channels);
    work.samples = call.samples();
  }

  void run_samples(int64_t begin, int64_t end) const { mix_samples(work, begin, end); }
};

using FloatList = ffi::Span<const float>;

struct ImageProgram {
  Call call;
  ffi::AnyBuffer result;
  ProgramCall work = {};

  template <class Binding>
  static auto bind(Binding&& contexts) {
    return std::move(contexts)
        .template Arg<In>()                        // images [batch..., H, W, C] u8 or f32
        .template Arg<In>()                        // op i32 [batch..., S]
        .template Arg<In>()                        // values f32 [batch..., S, 8]
        .template Ret<In>()                        // out, as images
        .template Attr<Integers>("codes")          // [S]: a bit for each code of a step
        .template Attr<Integers>("interpolation")  // [S]: of warps, 0 nearest, 1 bilinear
        .template Attr<Integers>("kernel")         // [S * 2]: of blurs, x and y
        .template Attr<FloatList>("fill");         // [S * C]: of warps
  }

  ImageProgram(In images, In op, In values, Out out, Integers codes, Integers interpolation,
               Integers kernel, FloatList fill)
      : call("jaxkern.image_program", *out, 3), result(*out) {
    const int64_t h = call.result_size(0), w = call.result_size(1), c = call.result_size(2);
    const ffi::DataType type = out->element_type();
    const int64_t steps = static_cast<int64_t>(codes.size());
    if (c != 1 && c != 3 && c != 4) {
      call.fail("result", "1, 3 or 4 channels on the last axis",
                "shape " + shape_text(result.dimensions()));
    }
    if (type != ffi::U8 && type != ffi::F32) {
      call.fail("result", "dtype uint8 or float32", dtype_text(type));
    }
    if (h > kMaxSize || w > kMaxSize) {
      call.fail("result", "a height and width of at most 2^24",
                "shape " + shape_text(result.dimensions()));
    }
    if (steps > kMaxProgramSteps || interpolation.size() != codes.size() ||
        kernel.size() != 2 * codes.size() ||
        static_cast<int64_t>(fill.size()) != steps * (call.ok() ? c : 0)) {
      call.fail(
          "attributes 'codes', 'interpolation', 'kernel' and 'fill'",
          "lengths P, P, 2 P and P * channels with P at most " + std::to_string(kMaxProgramSteps),
          std::to_string(steps) + ", " + std::to_string(interpolation.size()) + ", " +
              std::to_string(kernel.size()) + " and " + std::to_string(fill.size()));
    }
    const Operand operands[] = {call.operand("images", images, type, {h, w, c}),
                                call.operand("op", op, ffi::S32, {steps}),
                                call.operand("values", values, ffi::F32, {steps, kProgramValues})};
    work.output = call.result("out", *out, type, {h, w, c}).data;
    if (!call.ok()) return;
    work.dtype = type == ffi::U8 ? Dtype::kU8 : Dtype::kF32;
    work.height = static_cast<int32_t>(h);
    work.width = static_cast<int32_t>(w);
    work.channels = static_cast<int32_t>(c);
    work.samples = call.samples();
    for (int k = 0; k < kProgramOperands; ++k) {
      work.operands.set(k, operands[k].data, operands[k].map);
    }
    if (const std::string problem = set_steps(codes, interpolation, kernel, fill, &work);
        !problem.empty()) {
      call.fail("attribute " + problem);
    }
  }

  void run_samples(int64_t begin, int64_t end) const { run_program_samples(work, begin, end); }
};

// ---------------------------------------------------------------- stages

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

#endif  // JAXKERN_IMAGE_OPERANDS_H_
