// Functions that are compiled once per instruction-set level. A domain's headers list them,
// and its levels.cc defines each in the namespace of the level it is compiled for.
#ifndef JAXKERN_CORE_SIMD_DISPATCH_H_
#define JAXKERN_CORE_SIMD_DISPATCH_H_

#include <cstddef>
#include <memory>
#include <new>

#include "core/simd_level.h"

namespace jaxkern {

template <typename Function>
class LevelFunction;

// One function at every level of this build; a call takes the level in use.
template <typename Result, typename... Parameters>
class LevelFunction<Result(Parameters...)> {
 public:
  using Function = Result (*)(Parameters...);
  template <typename... Levels>
  constexpr explicit LevelFunction(Levels... levels) : levels_{levels...} {}

  constexpr Function at(SimdLevel level) const { return levels_[static_cast<int>(level)]; }
  Result operator()(Parameters... parameters) const {
    return at(simd_level())(static_cast<Parameters>(parameters)...);
  }

 private:
  Function levels_[kSimdLevels];
};

// kBytes of memory of this thread, aligned to 64, for the kernel that it runs next. Kept until the
// thread ends: a fresh block would cost page faults at every call. Pages that nothing has touched
// take no memory, so that a thread keeps what its largest call used, at most 12 MiB over all
// kernels. Throws std::bad_alloc; the next call tries again.
template <size_t kBytes>
char* thread_scratch() {
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(char* memory) const { ::operator delete(memory, kAlignment); }
  };
  thread_local std::unique_ptr<char, Free> scratch;
  if (!scratch) scratch.reset(static_cast<char*>(::operator new(kBytes, kAlignment)));
  return scratch.get();
}

}  // namespace jaxkern

// JAXKERN_LEVEL_FUNCTION(double, norm, const double* x, int64_t n) in a namespace declares
// portable::norm, v2::norm ..., and `norm` itself, which calls the one of the level in use.
#if defined(__x86_64__)
#define JAXKERN_LEVEL_FUNCTION(result, name, ...)                                               \
  namespace portable {                                                                          \
  result name(__VA_ARGS__);                                                                     \
  }                                                                                             \
  namespace v2 {                                                                                \
  result name(__VA_ARGS__);                                                                     \
  }                                                                                             \
  namespace v3 {                                                                                \
  result name(__VA_ARGS__);                                                                     \
  }                                                                                             \
  namespace v4 {                                                                                \
  result name(__VA_ARGS__);                                                                     \
  }                                                                                             \
  inline constexpr ::jaxkern::LevelFunction<result(__VA_ARGS__)> name(portable::name, v2::name, \
                                                                      v3::name, v4::name);
#else
#define JAXKERN_LEVEL_FUNCTION(result, name, ...) \
  namespace portable {                            \
  result name(__VA_ARGS__);                       \
  }                                               \
  inline constexpr ::jaxkern::LevelFunction<result(__VA_ARGS__)> name(portable::name);
#endif

#endif  // JAXKERN_CORE_SIMD_DISPATCH_H_
