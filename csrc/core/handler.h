// Handlers of an op from its row in a list, its operands, and a function per platform.
//
// clang-format off
//   #define MY_OPS(OP) OP(Scale, "my.scale.v1")      // a row: the handlers' name, and the FFI target
//   MY_OPS(JAXKERN_DECLARE_HANDLERS)                 // JaxkernScaleCpu and JaxkernScaleCuda
//
//   struct Scale {                                 // the checked operands of a call
//     Call call;
//     Operand x, s, out;
//     template <class Binding>
//     static auto bind(Binding&& contexts) {
//       return std::move(contexts)
//           .template Arg<ffi::AnyBuffer>()          // x [batch..., n]
//           .template Arg<ffi::AnyBuffer>()          // s [batch...]
//           .template Ret<ffi::AnyBuffer>();         // out [batch..., n]
//     }
//     Scale(ffi::AnyBuffer x, ffi::AnyBuffer s, ffi::Result<ffi::AnyBuffer> out);  // reads, checks
//   };
//   ffi::Error scale(const Scale& op, ffi::ThreadPool pool);
//   JAXKERN_CPU_HANDLER(Scale, scale)                // at file scope: defines JaxkernScaleCpu
// clang-format on
#ifndef JAXKERN_CORE_HANDLER_H_
#define JAXKERN_CORE_HANDLER_H_

#include <type_traits>
#include <utility>

#include "core/ffi.h"

namespace jaxkern {

// XLA's tag for the type of a handler's context. A pointer is the platform's stream.
template <typename Context>
struct ContextTag {
  using Type = Context;
};
template <typename Stream>
struct ContextTag<Stream*> {
  using Type = ffi::PlatformStream<Stream*>;
};

// The function that XLA calls. It constructs an Op from operands and attributes and calls `run`
// with the op and the platform contexts that `run` takes.
template <auto run>
struct Handler;

template <typename Result, typename Op, typename... Contexts, Result (*run)(const Op&, Contexts...)>
struct Handler<run> {
  template <typename... Fields>
  Result operator()(Contexts... contexts, Fields... fields) const {
    return run(Op{std::move(fields)...}, std::move(contexts)...);
  }

  // XLA captures a call without scratch memory in a command buffer (a CUDA graph): it only enqueues
  // kernels on operands and results. A replay would use scratch memory that XLA has reused by then.
  static constexpr ffi::Traits kCudaTraits =
      (std::is_same_v<Contexts, ffi::ScratchAllocator> || ...) ? ffi::Traits{}
                                                               : ffi::Traits::kCmdBufferCompatible;

  static auto binding() { return bind(ffi::Ffi::Bind(), ContextTag<Contexts>()...); }

 private:
  template <typename Binding>
  static auto bind(Binding&& contexts) {
    return Op::bind(std::move(contexts));
  }
  template <typename Binding, typename First, typename... Rest>
  static auto bind(Binding&& contexts, First, Rest... rest) {
    return bind(std::move(contexts).template Ctx<typename First::Type>(), rest...);
  }
};

}  // namespace jaxkern

#define JAXKERN_DECLARE_HANDLERS(name, target)                      \
  extern "C" XLA_FFI_Error* Jaxkern##name##Cpu(XLA_FFI_CallFrame*); \
  extern "C" XLA_FFI_Error* Jaxkern##name##Cuda(XLA_FFI_CallFrame*);

#define JAXKERN_CPU_HANDLER(name, run)                                         \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(Jaxkern##name##Cpu, ::jaxkern::Handler<run>(), \
                                ::jaxkern::Handler<run>::binding());
#define JAXKERN_CUDA_HANDLER(name, run)                                         \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(Jaxkern##name##Cuda, ::jaxkern::Handler<run>(), \
                                ::jaxkern::Handler<run>::binding(),             \
                                {::jaxkern::Handler<run>::kCudaTraits});

#endif  // JAXKERN_CORE_HANDLER_H_
