// Functions that are compiled once per SIMD level, and the choice of the level. The headers of a
// domain declare such functions, and its levels.cc defines them in the namespace of the level that
// it is compiled for.
#ifndef JAXKERN_CORE_SIMD_DISPATCH_H_
#define JAXKERN_CORE_SIMD_DISPATCH_H_

#include <cstddef>
#include <memory>
#include <new>

namespace jaxkern {

// kPortable is plain C++ for the compiler's baseline and is always available. The others are the
// x86-64 psABI levels, or NEON on aarch64.
#if defined(__aarch64__)
enum class SimdLevel : int { kPortable = 0, kNeon = 1 };
constexpr int kSimdLevels = 2;
#else
enum class SimdLevel : int { kPortable = 0, kV2 = 1, kV3 = 2, kV4 = 3 };
constexpr int kSimdLevels = 4;
#endif

// The level in use: the best available one, or the one that the environment variable JAXKERN_SIMD
// (read at first use) or set_simd_level names.
SimdLevel simd_level();

// "portable", "v2", "v3", "v4" or "neon".
const char* simd_level_name(SimdLevel level);

// True if this build has the level and this machine can run it.
bool simd_level_available(SimdLevel level);

// The names of the available levels, ascending, ended by a null.
const char* const* available_simd_levels();

// Null, or an error message for an invalid JAXKERN_SIMD. Then simd_level() is the best available
// level, and callers should return the error instead of running.
const char* simd_problem();

// Forces a level by name, for tests; null restores the environment's choice. Returns false and
// changes nothing if the level is unknown or unavailable. Must not run concurrently with kernels.
bool set_simd_level(const char* name);

template <typename Function>
class LevelFunction;

// A function at every level of this build. A call uses the level in use.
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

// Returns kBytes of memory of this thread, aligned to 64, for the next kernel that it runs. The
// thread keeps the block until it ends, because a fresh block would cause page faults at every
// call. Untouched pages use no memory, so a thread holds as much as its largest call used, at most
// 12 MiB over all kernels. Throws std::bad_alloc; the next call tries again.
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
// portable::norm, v2::norm ..., and `norm` itself, which calls the one for the level in use.
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
#elif defined(__aarch64__)
#define JAXKERN_LEVEL_FUNCTION(result, name, ...) \
  namespace portable {                            \
  result name(__VA_ARGS__);                       \
  }                                               \
  namespace neon {                                \
  result name(__VA_ARGS__);                       \
  }                                               \
  inline constexpr ::jaxkern::LevelFunction<result(__VA_ARGS__)> name(portable::name, neon::name);
#else
#define JAXKERN_LEVEL_FUNCTION(result, name, ...) \
  namespace portable {                            \
  result name(__VA_ARGS__);                       \
  }                                               \
  inline constexpr ::jaxkern::LevelFunction<result(__VA_ARGS__)> name(portable::name);
#endif

#endif  // JAXKERN_CORE_SIMD_DISPATCH_H_
