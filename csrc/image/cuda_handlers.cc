// The CUDA handlers of the image ops: they enqueue the calls whose shapes, dtypes and attributes
// operands.h has checked. Values in device memory are checked on the device, see cuda_chain.h and
// cuda_program.h.
#include <optional>
#include <string>
#include <type_traits>

#include "core/handler.h"
#include "image/cuda.h"
#include "image/cuda_program.h"
#include "image/cuda_segments.h"
#include "image/operands.h"
#include "image/ops.h"

namespace jaxkern::image {
namespace {

ffi::Error status_of(const Call& call, cudaError_t status) {
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(call.op() + ": the CUDA launch failed: " + cudaGetErrorName(status) +
                              " (" + cudaGetErrorString(status) + ")");
}

ffi::Error run_chain(const ChainOperands& operands, cudaStream_t stream,
                     ffi::ScratchAllocator& allocator) {
  const Call& call = operands.call;
  ChainCall chain = {};
  const auto set = [&chain](ChainOperand which, const Operand& operand) {
    chain.operands.set(which, operand.data, operand.map);
  };
  chain.plan = operands.plan;
  set(kPixels, operands.pixels);
  set(kGeometry, operands.geometry);
  set(kAffine, operands.affine);
  set(kFill, operands.fill);
  set(kEraseBox, operands.erase_box);
  set(kEraseValue, operands.erase_value);
  chain.ragged = operands.ragged;
  if (operands.ragged) {
    set(kOffset, operands.offset);
    set(kHeight, operands.height);
    set(kWidth, operands.width);
    chain.wide_offset = operands.offset.dtype == ffi::S64;
    chain.buffer_size = operands.buffer_size;
  } else {
    chain.height = static_cast<int32_t>(operands.pixels.core[0]);
    chain.width = static_cast<int32_t>(operands.pixels.core[1]);
  }

  const Scratch scratch = scratch_of(chain.plan, call.samples());
  float* buffer[2] = {};
  for (int i = 0; i < scratch.buffers; ++i) {
    const std::optional<void*> memory =
        allocator.Allocate(scratch.floats * sizeof(float), kScratchAlignment);
    if (!memory.has_value()) {
      return ffi::Error(ffi::ErrorCode::kResourceExhausted,
                        call.op() + ": no device memory for " +
                            std::to_string(scratch.floats * sizeof(float)) +
                            " bytes between two segments; use a smaller output or shorter chain");
    }
    buffer[i] = static_cast<float*>(*memory);
  }
  return status_of(call, run_segments(chain, call.samples(), scratch, buffer, operands.out.data,
                                      cudaSuccess, [stream](const ChainCall& one, Dtype source) {
                                        return launch_chain(one, source, stream);
                                      }));
}

ffi::Error run_program(const ImageProgram& op, cudaStream_t stream,
                       ffi::ScratchAllocator& allocator) {
  const ProgramCall& work = op.work;
  if (work.samples == 0 || work.elements() == 0) return ffi::Error::Success();
  ProgramGrid grid;
  if (const cudaError_t status = program_grid(work, &grid); status != cudaSuccess) {
    return status_of(op.call, status);
  }
  const size_t bytes = static_cast<size_t>(program_scratch(work, grid));
  const std::optional<void*> memory = allocator.Allocate(bytes, kScratchAlignment);
  if (!memory.has_value()) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted,
                      op.call.op() + ": no device memory for " + std::to_string(bytes) +
                          " bytes of scratch; use smaller images or a smaller batch");
  }
  return status_of(op.call, launch_program(work, grid, static_cast<char*>(*memory), stream));
}

template <typename Op>
ffi::Error with_scratch(const Op& op, cudaStream_t stream, ffi::ScratchAllocator allocator) {
  if (!op.call.ok()) return op.call.error();
  if constexpr (std::is_same_v<ImageProgram, Op>) {
    return run_program(op, stream, allocator);
  } else {
    return run_chain(op, stream, allocator);
  }
}

template <typename Op>
ffi::Error without_scratch(const Op& op, cudaStream_t stream) {
  return op.call.ok() ? status_of(op.call, launch(op.work, stream)) : op.call.error();
}

template <typename Op>
constexpr auto runner() {
  if constexpr (std::is_same_v<ImageMix, Op>) {
    return &without_scratch<Op>;
  } else {
    return &with_scratch<Op>;
  }
}

}  // namespace
}  // namespace jaxkern::image

#define JAXKERN_ON_CUDA(name, target) \
  JAXKERN_CUDA_HANDLER(name, jaxkern::image::runner<jaxkern::image::name>())
JAXKERN_IMAGE_OPS(JAXKERN_ON_CUDA)
