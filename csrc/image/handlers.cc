// The CPU handlers of the image chain and of mixing: check everything, then run sample by sample.
#include "image/handlers.h"

#include <string>

#include "core/simd_level.h"
#include "image/call.h"
#include "image/check.h"
#include "image/cpu.h"

namespace jaxkern::image {
namespace {

int64_t offset_of(const Operands& operands, int64_t i) {
  return operands.offset.dtype == ffi::S64 ? *operands.offset.at<int64_t>(i)
                                           : *operands.offset.at<int32_t>(i);
}

// One sample's view of the operands; a ragged image is yet to be checked by `lies_inside`.
Sample sample_at(const Operands& operands, int64_t i) {
  Sample sample;
  sample.geometry = operands.geometry.at<Geometry>(i);
  sample.affine = operands.affine.at<float>(i);
  sample.fill = operands.fill.at<float>(i);
  sample.erase_box = operands.erase_box.at<EraseBox>(i);
  sample.erase_value = operands.erase_value.at<float>(i);
  if (operands.ragged) {
    sample.pixels = operands.pixels.at<uint8_t>(i) + offset_of(operands, i);
    sample.height = *operands.height.at<int32_t>(i);
    sample.width = *operands.width.at<int32_t>(i);
  } else {
    sample.pixels = operands.pixels.at<char>(i);
    sample.height = static_cast<int32_t>(operands.pixels.core[0]);
    sample.width = static_cast<int32_t>(operands.pixels.core[1]);
  }
  return sample;
}

// Whether a ragged image lies inside its buffer; leaves a status in `call` where it does not.
bool lies_inside(Call& call, const Operands& operands, const Plan& plan, int64_t i) {
  if (!operands.ragged) return true;
  const int64_t offset = offset_of(operands, i);
  const int32_t height = *operands.height.at<int32_t>(i), width = *operands.width.at<int32_t>(i);
  if (lies_in_buffer(offset, height, width, plan.channels, operands.buffer_size)) return true;
  call.fail("image " + std::to_string(i) + " of " + std::to_string(height) + " x " +
            std::to_string(width) + " x " + std::to_string(plan.channels) + " bytes at offset " +
            std::to_string(offset) + " does not lie inside operand 'buffer' of " +
            std::to_string(operands.buffer_size) + " bytes");
  return false;
}

std::string text_of(const Problem& problem) {
  return std::string("operand or attribute '") + problem.argument + "' of sample " +
         std::to_string(problem.sample) + ", segment " + std::to_string(problem.segment) +
         " is out of range; wanted " + problem.wanted;
}

ffi::Error run(Call& call, const Plan& plan, const Operands& operands, ffi::ThreadPool& pool) {
  if (const char* problem = simd_problem()) call.fail(problem);
  if (!call.ok()) return call.error();
  if (const Problem problem = check_plan(plan); problem.argument != nullptr) {
    call.fail(std::string("attribute '") + problem.argument + "' of segment " +
              std::to_string(problem.segment) + " is out of range; wanted " + problem.wanted);
    return call.error();
  }
  for (int64_t i = 0; i < call.samples(); ++i) {
    if (!lies_inside(call, operands, plan, i)) return call.error();
    const Problem problem = check_sample(plan, sample_at(operands, i), i);
    if (problem.argument != nullptr) {
      call.fail(text_of(problem));
      return call.error();
    }
  }
  parallel_for(executor_of(pool), call.samples(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      run_sample(plan, sample_at(operands, i), operands.out.at<char>(i));
    }
  });
  return ffi::Error::Success();
}

ffi::Error ChainImpl(ffi::ThreadPool pool, ffi::AnyBuffer images, ffi::AnyBuffer geometry,
                     ffi::AnyBuffer affine, ffi::AnyBuffer fill, ffi::AnyBuffer erase_box,
                     ffi::AnyBuffer erase_value, ffi::Result<ffi::AnyBuffer> out,
                     ffi::Span<const int32_t> filter, ffi::Span<const int32_t> size,
                     ffi::Span<const int32_t> erasures, ffi::Span<const int32_t> rounding,
                     int32_t layout) {
  Call call("jaxkern.image_chain", *out, 3);
  Plan plan{};
  Operands operands;
  if (call.ok()) read_plan(call, {filter, size, erasures, rounding, layout}, *out, &plan);
  read_dense(call, images, &plan, &operands);
  read_parameters(call, plan, geometry, affine, fill, erase_box, erase_value, &operands);
  operands.out = call.result("out", *out, ffi::DataType::INVALID, {kAnySize, kAnySize, kAnySize});
  advise_results(*out);
  return run(call, plan, operands, pool);
}

ffi::Error ChainRaggedImpl(ffi::ThreadPool pool, ffi::AnyBuffer buffer, ffi::AnyBuffer offset,
                           ffi::AnyBuffer height, ffi::AnyBuffer width, ffi::AnyBuffer geometry,
                           ffi::AnyBuffer affine, ffi::AnyBuffer fill, ffi::AnyBuffer erase_box,
                           ffi::AnyBuffer erase_value, ffi::Result<ffi::AnyBuffer> out,
                           ffi::Span<const int32_t> filter, ffi::Span<const int32_t> size,
                           ffi::Span<const int32_t> erasures, ffi::Span<const int32_t> rounding,
                           int32_t layout) {
  Call call("jaxkern.image_chain_ragged", *out, 3);
  Plan plan{};
  Operands operands;
  if (call.ok()) read_plan(call, {filter, size, erasures, rounding, layout}, *out, &plan);
  read_ragged(call, buffer, offset, height, width, &plan, &operands);
  read_parameters(call, plan, geometry, affine, fill, erase_box, erase_value, &operands);
  operands.out = call.result("out", *out, ffi::DataType::INVALID, {kAnySize, kAnySize, kAnySize});
  advise_results(*out);
  return run(call, plan, operands, pool);
}

ffi::Error MixImpl(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer partner,
                   ffi::AnyBuffer lam, ffi::AnyBuffer box, ffi::Result<ffi::AnyBuffer> out,
                   int32_t layout) {
  Call call("jaxkern.image_mix", *out, 3);
  const MixOperands mix = read_mix(call, x, partner, lam, box, *out, layout);
  if (const char* problem = simd_problem()) call.fail(problem);
  if (!call.ok()) return call.error();
  const bool empty = mix.height == 0 || mix.width == 0 || mix.channels == 0;
  if (empty) return ffi::Error::Success();  // however many samples
  advise_results(*out);
  parallel_for(executor_of(pool), call.samples(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      mix_sample(mix.dtype, mix.layout, mix.height, mix.width, mix.channels, mix.x.at<char>(i),
                 mix.partner.at<char>(i), *mix.lam.at<float>(i), *mix.box.at<EraseBox>(i),
                 mix.out.at<char>(i));
    }
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jaxkern::image

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernImageChainCpu, jaxkern::image::ChainImpl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()  // images [batch..., H, W, C]
                                  .Arg<ffi::AnyBuffer>()  // geometry i32 [batch..., S, 14]
                                  .Arg<ffi::AnyBuffer>()  // affine f32 [batch..., S, 2, C]
                                  .Arg<ffi::AnyBuffer>()  // fill f32 [batch..., S, C]
                                  .Arg<ffi::AnyBuffer>()  // erase_box i32 [batch..., K, 4]
                                  .Arg<ffi::AnyBuffer>()  // erase_value f32 [batch..., K, C]
                                  .Ret<ffi::AnyBuffer>()  // out [batch..., h, w, C] or NCHW
                                  .Attr<ffi::Span<const int32_t>>("filter")    // [S]
                                  .Attr<ffi::Span<const int32_t>>("size")      // [S * 2]
                                  .Attr<ffi::Span<const int32_t>>("erasures")  // [S]
                                  .Attr<ffi::Span<const int32_t>>("rounding")  // [S]
                                  .Attr<int32_t>("layout"));                   // scalar

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernImageChainRaggedCpu, jaxkern::image::ChainRaggedImpl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()  // buffer u8 [1..., B]
                                  .Arg<ffi::AnyBuffer>()  // offset i32 or i64 [batch...]
                                  .Arg<ffi::AnyBuffer>()  // height i32 [batch...]
                                  .Arg<ffi::AnyBuffer>()  // width i32 [batch...]
                                  .Arg<ffi::AnyBuffer>()  // geometry i32 [batch..., S, 14]
                                  .Arg<ffi::AnyBuffer>()  // affine f32 [batch..., S, 2, C]
                                  .Arg<ffi::AnyBuffer>()  // fill f32 [batch..., S, C]
                                  .Arg<ffi::AnyBuffer>()  // erase_box i32 [batch..., K, 4]
                                  .Arg<ffi::AnyBuffer>()  // erase_value f32 [batch..., K, C]
                                  .Ret<ffi::AnyBuffer>()  // out [batch..., h, w, C] or NCHW
                                  .Attr<ffi::Span<const int32_t>>("filter")    // [S]
                                  .Attr<ffi::Span<const int32_t>>("size")      // [S * 2]
                                  .Attr<ffi::Span<const int32_t>>("erasures")  // [S]
                                  .Attr<ffi::Span<const int32_t>>("rounding")  // [S]
                                  .Attr<int32_t>("layout"));                   // scalar

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernImageMixCpu, jaxkern::image::MixImpl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()      // x [batch..., h, w, C] or NCHW
                                  .Arg<ffi::AnyBuffer>()      // partner, as x
                                  .Arg<ffi::AnyBuffer>()      // lam f32 [batch...]
                                  .Arg<ffi::AnyBuffer>()      // box i32 [batch..., 4]
                                  .Ret<ffi::AnyBuffer>()      // out, as x
                                  .Attr<int32_t>("layout"));  // scalar
