// Which of the compiled instruction-set levels the CPU kernels use, chosen once at run time.
#ifndef JAXKERN_CORE_SIMD_LEVEL_H_
#define JAXKERN_CORE_SIMD_LEVEL_H_

namespace jaxkern {

// kPortable is plain C++ for the compiler's baseline and exists everywhere; the others are the
// x86-64 psABI levels.
enum class SimdLevel : int { kPortable = 0, kV2 = 1, kV3 = 2, kV4 = 3 };
constexpr int kSimdLevels = 4;

// The level in use: the best available one, or the one that the environment variable JAXKERN_SIMD
// (read at first use) or set_simd_level names.
SimdLevel simd_level();

// "portable", "v2", "v3" or "v4".
const char* simd_level_name(SimdLevel level);

// Whether this build has the level and this machine can run it.
bool simd_level_available(SimdLevel level);

// The names of the available levels, ascending, ended by a null.
const char* const* available_simd_levels();

// Null, or what is wrong with JAXKERN_SIMD and what to do. While there is a problem simd_level() is
// the best available level, and callers should refuse to run.
const char* simd_problem();

// Forces a level by name, for tests; null returns to the environment's choice. False when the level
// is unknown or unavailable: nothing changes then. Not meant to race with running kernels.
bool set_simd_level(const char* name);

}  // namespace jaxkern

#endif  // JAXKERN_CORE_SIMD_LEVEL_H_
