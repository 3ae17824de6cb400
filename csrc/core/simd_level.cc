// Detection of the SIMD level by CPUID, which the environment variable JAXKERN_SIMD overrides.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "core/simd_dispatch.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace jaxkern {
namespace {

#if defined(__aarch64__)
constexpr const char* kNames[kSimdLevels] = {"portable", "neon"};
#else
constexpr const char* kNames[kSimdLevels] = {"portable", "v2", "v3", "v4"};
#endif

#if defined(__x86_64__)
bool has(uint32_t value, uint32_t mask) { return (value & mask) == mask; }

// The highest level whose instructions the CPU has and whose registers the operating system saves.
SimdLevel detect() {
  uint32_t eax, ebx, ecx, edx;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return SimdLevel::kPortable;
  if (!has(ecx, bit_SSE3 | bit_SSSE3 | bit_SSE4_1 | bit_SSE4_2 | bit_POPCNT | bit_CMPXCHG16B))
    return SimdLevel::kPortable;
  if (!has(ecx, bit_AVX | bit_FMA | bit_F16C | bit_MOVBE | bit_OSXSAVE)) return SimdLevel::kV2;
  uint32_t saved, saved_high;
  __asm__("xgetbv" : "=a"(saved), "=d"(saved_high) : "c"(0));
  if (!has(saved, 0x6)) return SimdLevel::kV2;  // XMM and upper YMM
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return SimdLevel::kV2;
  const uint32_t extended = ebx;
  if (!has(extended, bit_AVX2 | bit_BMI | bit_BMI2)) return SimdLevel::kV2;
  if (!__get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx) || !has(ecx, bit_LZCNT))
    return SimdLevel::kV2;
  if (!has(extended, bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL) ||
      !has(saved, 0xe6))  // and opmask, upper ZMM, high ZMM
    return SimdLevel::kV3;
  return SimdLevel::kV4;
}
#elif defined(__aarch64__)
SimdLevel detect() { return SimdLevel::kNeon; }  // part of the architecture
#else
SimdLevel detect() { return SimdLevel::kPortable; }
#endif

int level_named(const char* name) {
  for (int i = 0; i < kSimdLevels; ++i)
    if (std::strcmp(name, kNames[i]) == 0) return i;
  return -1;
}

struct Choice {
  SimdLevel best, chosen;
  const char* available[kSimdLevels + 1] = {};
  std::string problem;

  Choice() : best(detect()), chosen(best) {
    for (int i = 0; i <= static_cast<int>(best); ++i) available[i] = kNames[i];
    const char* forced = std::getenv("JAXKERN_SIMD");
    if (forced == nullptr || *forced == '\0') return;
    const int level = level_named(forced);
    if (level >= 0 && level <= static_cast<int>(best)) {
      chosen = static_cast<SimdLevel>(level);
      return;
    }
    problem = std::string("JAXKERN_SIMD: expected a SIMD level of this CPU and build, got '") +
              forced + "'" + (level < 0 ? "" : ", which is not available") +
              "; unset it or set it to one of:";
    for (int i = 0; available[i]; ++i) problem += std::string(" ") + available[i];
  }
};

const Choice& environment_choice() {
  static const Choice choice;
  return choice;
}

std::atomic<int> g_forced{-1};

}  // namespace

SimdLevel simd_level() {
  const int forced = g_forced.load(std::memory_order_relaxed);
  return forced >= 0 ? static_cast<SimdLevel>(forced) : environment_choice().chosen;
}

const char* simd_level_name(SimdLevel level) { return kNames[static_cast<int>(level)]; }

bool simd_level_available(SimdLevel level) { return level <= environment_choice().best; }

const char* const* available_simd_levels() { return environment_choice().available; }

const char* simd_problem() {
  const std::string& problem = environment_choice().problem;
  return problem.empty() ? nullptr : problem.c_str();
}

bool set_simd_level(const char* name) {
  const int level = name == nullptr ? -1 : level_named(name);
  if (name != nullptr && (level < 0 || !simd_level_available(static_cast<SimdLevel>(level))))
    return false;
  g_forced.store(level, std::memory_order_relaxed);
  return true;
}

}  // namespace jaxkern
