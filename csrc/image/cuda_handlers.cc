// The CUDA handlers of the image chain and of mixing: check what the host knows (shapes, dtypes and
// attributes), then enqueue. Values in device memory are checked there, see cuda_chain.h.
#include <optional>
#include <string>

#include "image/call.h"
#include "image/cpu.h"
#include "image/cuda.h"
#include "image/cuda_segments.h"
#include "image/ops.h"

namespace jaxkern::image {
namespace {

ffi::Error failure(const char* op, cudaError_t status) {
  return ffi::Error::Internal(std::string(op) + ": the CUDA launch failed: " +
                              cudaGetErrorName(status) + " (" + cudaGetErrorString(status) + ")");
}

void set(ChainCall& chain, ChainOperand which, const Operand& operand) {
  chain.operands.set(which, operand.data, operand.map);
}

ffi::Error run(const char* op, Call& call, const Plan& plan, const Operands& operands,
               ffi::ScratchAllocator& allocator, cudaStream_t stream) {
  if (!call.ok()) return call.error();
  if (const Problem problem = check_plan(plan); problem.argument != nullptr) {
    call.fail(std::string("attribute '") + problem.argument + "' of segment " +
              std::to_string(problem.segment) + " is out of range; wanted " + problem.wanted);
    return call.error();
  }
  ChainCall chain = {};
  chain.plan = plan;
  set(chain, kPixels, operands.pixels);
  set(chain, kGeometry, operands.geometry);
  set(chain, kAffine, operands.affine);
  set(chain, kFill, operands.fill);
  set(chain, kEraseBox, operands.erase_box);
  set(chain, kEraseValue, operands.erase_value);
  chain.ragged = operands.ragged;
  if (operands.ragged) {
    set(chain, kOffset, operands.offset);
    set(chain, kHeight, operands.height);
    set(chain, kWidth, operands.width);
    chain.wide_offset = operands.offset.dtype == ffi::S64;
    chain.buffer_size = operands.buffer_size;
  } else {
    chain.height = static_cast<int32_t>(operands.pixels.core[0]);
    chain.width = static_cast<int32_t>(operands.pixels.core[1]);
  }

  const Scratch scratch = scratch_of(plan, call.samples());
  float* buffer[2] = {};
  for (int i = 0; i < scratch.buffers; ++i) {
    const std::optional<void*> memory = allocator.Allocate(scratch.floats * sizeof(float), 256);
    if (!memory.has_value()) {
      return ffi::Error(ffi::ErrorCode::kResourceExhausted,
                        std::string(op) + ": no device memory for " +
                            std::to_string(scratch.floats * sizeof(float)) +
                            " bytes between two segments; use a smaller output or shorter chain");
    }
    buffer[i] = static_cast<float*>(*memory);
  }
  const cudaError_t status = run_segments(
      chain, call.samples(), scratch, buffer, operands.out.data, cudaSuccess,
      [stream](const ChainCall& one, Dtype source) { return launch_chain(one, source, stream); });
  return status == cudaSuccess ? ffi::Error::Success() : failure(op, status);
}

ffi::Error ChainImpl(cudaStream_t stream, ffi::ScratchAllocator scratch, ffi::AnyBuffer images,
                     ffi::AnyBuffer geometry, ffi::AnyBuffer affine, ffi::AnyBuffer fill,
                     ffi::AnyBuffer erase_box, ffi::AnyBuffer erase_value,
                     ffi::Result<ffi::AnyBuffer> out, ffi::Span<const int32_t> filter,
                     ffi::Span<const int32_t> size, ffi::Span<const int32_t> erasures,
                     ffi::Span<const int32_t> rounding, int32_t layout) {
  constexpr char kOp[] = "jaxkern.image_chain";
  Call call(kOp, *out, 3);
  Plan plan{};
  Operands operands;
  if (call.ok()) read_plan(call, {filter, size, erasures, rounding, layout}, *out, &plan);
  read_dense(call, images, &plan, &operands);
  read_parameters(call, plan, geometry, affine, fill, erase_box, erase_value, &operands);
  operands.out = call.result("out", *out, ffi::DataType::INVALID, {kAnySize, kAnySize, kAnySize});
  return run(kOp, call, plan, operands, scratch, stream);
}

ffi::Error ChainRaggedImpl(cudaStream_t stream, ffi::ScratchAllocator scratch,
                           ffi::AnyBuffer buffer, ffi::AnyBuffer offset, ffi::AnyBuffer height,
                           ffi::AnyBuffer width, ffi::AnyBuffer geometry, ffi::AnyBuffer affine,
                           ffi::AnyBuffer fill, ffi::AnyBuffer erase_box,
                           ffi::AnyBuffer erase_value, ffi::Result<ffi::AnyBuffer> out,
                           ffi::Span<const int32_t> filter, ffi::Span<const int32_t> size,
                           ffi::Span<const int32_t> erasures, ffi::Span<const int32_t> rounding,
                           int32_t layout) {
  constexpr char kOp[] = "jaxkern.image_chain_ragged";
  Call call(kOp, *out, 3);
  Plan plan{};
  Operands operands;
  if (call.ok()) read_plan(call, {filter, size, erasures, rounding, layout}, *out, &plan);
  read_ragged(call, buffer, offset, height, width, &plan, &operands);
  read_parameters(call, plan, geometry, affine, fill, erase_box, erase_value, &operands);
  operands.out = call.result("out", *out, ffi::DataType::INVALID, {kAnySize, kAnySize, kAnySize});
  return run(kOp, call, plan, operands, scratch, stream);
}

ffi::Error MixImpl(cudaStream_t stream, ffi::AnyBuffer x, ffi::AnyBuffer partner,
                   ffi::AnyBuffer lam, ffi::AnyBuffer box, ffi::Result<ffi::AnyBuffer> out,
                   int32_t layout) {
  constexpr char kOp[] = "jaxkern.image_mix";
  Call call(kOp, *out, 3);
  const MixOperands operands = read_mix(call, x, partner, lam, box, *out, layout);
  if (!call.ok()) return call.error();
  MixCall mix = {};
  mix.dtype = operands.dtype;
  mix.layout = operands.layout;
  mix.height = operands.height;
  mix.width = operands.width;
  mix.channels = operands.channels;
  mix.operands.set(kX, operands.x.data, operands.x.map);
  mix.operands.set(kPartner, operands.partner.data, operands.partner.map);
  mix.operands.set(kLambda, operands.lam.data, operands.lam.map);
  mix.operands.set(kBox, operands.box.data, operands.box.map);
  mix.output = operands.out.data;
  mix.samples = call.samples();
  const cudaError_t status = launch_mix(mix, stream);
  return status == cudaSuccess ? ffi::Error::Success() : failure(kOp, status);
}

}  // namespace
}  // namespace jaxkern::image

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernImageChainCuda, jaxkern::image::ChainImpl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Ctx<ffi::ScratchAllocator>()
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

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernImageChainRaggedCuda, jaxkern::image::ChainRaggedImpl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Ctx<ffi::ScratchAllocator>()
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

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernImageMixCuda, jaxkern::image::MixImpl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()      // x [batch..., h, w, C] or NCHW
                                  .Arg<ffi::AnyBuffer>()      // partner, as x
                                  .Arg<ffi::AnyBuffer>()      // lam f32 [batch...]
                                  .Arg<ffi::AnyBuffer>()      // box i32 [batch..., 4]
                                  .Ret<ffi::AnyBuffer>()      // out, as x
                                  .Attr<int32_t>("layout"));  // scalar
