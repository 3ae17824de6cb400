// Operands of the correlators' ops for CPU and CUDA: the FFI binding of each op after the context
// of the platform, and its constructor, which checks a call. `call` stores the first error.
#ifndef JAXKERN_CORRELATORS_OPERANDS_H_
#define JAXKERN_CORRELATORS_OPERANDS_H_

#include <string>
#include <utility>
#include <vector>

#include "core/ffi.h"
#include "correlators/multitau_update.h"

namespace jaxkern::correlators {

using In = ffi::AnyBuffer;
using Out = ffi::Result<ffi::AnyBuffer>;

inline Dtype to_dtype(Call& call, ffi::DataType from) {
  switch (from) {
    case ffi::U8:
      return Dtype::kU8;
    case ffi::U16:
      return Dtype::kU16;
    case ffi::U32:
      return Dtype::kU32;
    case ffi::S32:
      return Dtype::kI32;
    case ffi::F32:
      return Dtype::kF32;
    case ffi::F64:
      return Dtype::kF64;
    default:
      call.fail(
          std::string("operand 'frames': expected dtype uint8, uint16, uint32, int32, float32 or "
                      "float64, got ") +
          dtype_text(from));
      return Dtype::kU8;
  }
}

// Wide sums are pairs of u32, low word first: integers, or the bits of float64.
struct MultiTauUpdate {
  Call call;
  std::vector<ffi::AnyBuffer> results;
  MultiTauCall work = {};
  Operand seen;

  template <class Binding>
  static auto bind(Binding&& contexts) {
    return std::move(contexts)
        .template Arg<In>()              // frames [batch..., T, P]
        .template Arg<In>()              // seen i32 [batch...]
        .template Arg<In>()              // total u32 [batch..., P, 2]
        .template Arg<In>()              // g u32 [batch..., n_tau, P, 2]
        .template Arg<In>()              // head u32 [batch..., n_tau, P], of reals [..., 2]
        .template Arg<In>()              // history u32 [batch..., levels * 2 dpl, P], as head
        .template Ret<In>()              // total, as the operand
        .template Ret<In>()              // g, as the operand
        .template Ret<In>()              // head, as the operand
        .template Ret<In>()              // history, as the operand
        .template Attr<int32_t>("dpl");  // scalar
  }

  MultiTauUpdate(In frames, In seen_sums, In total, In g, In head, In history, Out total_out,
                 Out g_out, Out head_out, Out history_out, int32_t dpl)
      : call("jaxkern.multitau_update", *total_out, 2),
        results{*total_out, *g_out, *head_out, *history_out} {
    const int64_t pixels = call.ok() ? call.result_size(0) : 0;
    if (dpl < 1 || dpl > kMostDelays) {
      call.fail("attribute 'dpl': expected 1 to " + std::to_string(kMostDelays) + ", got " +
                std::to_string(dpl));
    }
    work.dtype = to_dtype(call, frames.element_type());
    const Operand given[] = {
        call.operand("frames", frames, ffi::DataType::INVALID, {kAnySize, pixels}),
        call.operand("seen", seen_sums, ffi::S32, {}),
        call.operand("total", total, ffi::U32, {pixels, 2}),
        call.operand("g", g, ffi::U32, {kAnySize, pixels, 2})};
    if (!call.ok()) return;
    work.delays = {dpl, given[kG].core[0]};
    if (work.delays.count > int64_t{dpl} * (kMostLevels + 1)) {
      call.fail("operand 'g': expected at most " + std::to_string(kMostLevels + 1) +
                " times dpl delays, got " + std::to_string(work.delays.count));
      return;
    }
    work.levels = work.delays.levels();
    const Operand heads = rows("head", head, work.delays.count, pixels, false);
    const Operand histories = rows("history", history, work.history_rows(), pixels, false);
    work.total = call.result("total", *total_out, ffi::U32, {pixels, 2}).data;
    work.g = call.result("g", *g_out, ffi::U32, {work.delays.count, pixels, 2}).data;
    work.head = rows("head", *head_out, work.delays.count, pixels, true).data;
    work.history = rows("history", *history_out, work.history_rows(), pixels, true).data;
    if (!call.ok()) return;
    for (int k = 0; k <= kG; ++k) work.operands.set(k, given[k].data, given[k].map);
    work.operands.set(kHead, heads.data, heads.map);
    work.operands.set(kHistory, histories.data, histories.map);
    seen = given[kSeen];
    work.frames = given[kFrames].core[0];
    work.pixels = pixels;
    work.samples = call.samples();
  }

 private:
  Operand rows(const char* name, ffi::AnyBuffer buffer, int64_t count, int64_t pixels,
               bool is_result) {
    const auto checked = [&](std::initializer_list<int64_t> core) {
      return is_result ? call.result(name, buffer, ffi::U32, core)
                       : call.operand(name, buffer, ffi::U32, core);
    };
    return is_real(work.dtype) ? checked({count, pixels, 2}) : checked({count, pixels});
  }
};

}  // namespace jaxkern::correlators

#endif  // JAXKERN_CORRELATORS_OPERANDS_H_
