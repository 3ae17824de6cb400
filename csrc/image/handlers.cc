// The CPU handlers of the image chain and of mixing: check everything, then run sample by sample.
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "core/simd_level.h"
#include "image/call.h"
#include "image/check.h"
#include "image/cpu.h"
#include "image/ops.h"

namespace jaxkern::image {
namespace {

// What decides which memory a sample reads, taken once: an operand can be a caller's own memory,
// which another thread writes to between a check and a use.
struct Places {
  int64_t offset = 0;
  int32_t height = 0, width = 0;
  Geometry geometry[kMaxSegments];
};

// A read that the compiler does not repeat.
template <typename T>
T read_once(const Operand& operand, int64_t i) {
  return *static_cast<const volatile T*>(operand.at<T>(i));
}

void read_places(const Operands& operands, const Plan& plan, int64_t i, Places* places) {
  memcpy(places->geometry, operands.geometry.at<Geometry>(i),
         sizeof(Geometry) * static_cast<size_t>(plan.segments));
  if (operands.ragged) {
    const bool wide = operands.offset.dtype == ffi::S64;
    places->offset =
        wide ? read_once<int64_t>(operands.offset, i) : read_once<int32_t>(operands.offset, i);
    places->height = read_once<int32_t>(operands.height, i);
    places->width = read_once<int32_t>(operands.width, i);
  } else {
    places->height = static_cast<int32_t>(operands.pixels.core[0]);
    places->width = static_cast<int32_t>(operands.pixels.core[1]);
  }
}

// One sample at checked places.
Sample sample_at(const Operands& operands, const Places& places, int64_t i) {
  Sample sample;
  sample.geometry = places.geometry;
  sample.affine = operands.affine.at<float>(i);
  sample.fill = operands.fill.at<float>(i);
  sample.erase_box = operands.erase_box.at<EraseBox>(i);
  sample.erase_value = operands.erase_value.at<float>(i);
  sample.pixels = operands.pixels.at<char>(i) + places.offset;
  sample.height = places.height;
  sample.width = places.width;
  return sample;
}

// What is wrong with a sample; empty where nothing is.
std::string problem_of(const Operands& operands, const Plan& plan, const Places& places,
                       int64_t i) {
  if (operands.ragged && !lies_in_buffer(places.offset, places.height, places.width, plan.channels,
                                         operands.buffer_size)) {
    return "image " + std::to_string(i) + " of " + std::to_string(places.height) + " x " +
           std::to_string(places.width) + " x " + std::to_string(plan.channels) +
           " bytes at offset " + std::to_string(places.offset) +
           " does not lie inside operand 'buffer' of " + std::to_string(operands.buffer_size) +
           " bytes";
  }
  const Problem problem = check_sample(plan, sample_at(operands, places, i), i);
  if (problem.argument == nullptr) return {};
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
  std::mutex mutex;
  int64_t first = call.samples();  // of the samples with a problem
  std::string problem;
  parallel_for(executor_of(pool), call.samples(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Places places;
      read_places(operands, plan, i, &places);
      std::string found = problem_of(operands, plan, places, i);
      if (found.empty()) {
        run_sample(plan, sample_at(operands, places, i), operands.out.at<char>(i));
        continue;
      }
      const std::lock_guard<std::mutex> lock(mutex);
      if (i < first) {
        first = i;
        problem = std::move(found);
      }
    }
  });
  if (!problem.empty()) call.fail(problem);
  return call.ok() ? ffi::Error::Success() : call.error();
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
