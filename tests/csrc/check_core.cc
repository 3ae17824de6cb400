// Conversions of half types against exact arithmetic, and the choice of the SIMD level.
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "core/half.h"
#include "core/simd_dispatch.h"
#include "random_chain.h"
#include "reference_chain.h"

namespace jaxkern::image::testing {
namespace {

int g_failures = 0;

void expect(bool condition, const char* what, double detail) {
  if (condition) return;
  if (++g_failures < 20) std::printf("check_core: %s (%.17g)\n", what, detail);
}

// Every half value is unchanged by a round trip. Midpoints between neighbours round to even, and
// the floats next to a midpoint to the nearest.
template <typename ToHalf, typename ToFloat>
void check_half(Dtype dtype, uint16_t infinity, ToHalf to_half, ToFloat to_float) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    if ((half & 0x7fff) > infinity) {
      expect(std::isnan(to_float(half)) && std::isnan(to_float(to_half(to_float(half)))),
             "a NaN became a number", bits);
      continue;
    }
    if ((half & 0x7fff) == infinity) {
      expect(std::isinf(to_float(half)) && to_half(to_float(half)) == half, "infinity", bits);
      continue;
    }
    expect(to_float(half) == half_value(dtype, half), "half to float", bits);
    expect(to_half(to_float(half)) == half, "round trip", bits);
    if ((half & 0x7fff) + 1 >= infinity) continue;
    const double low = half_value(dtype, half);
    const double high = half_value(dtype, static_cast<uint16_t>(half + 1));
    const float middle = static_cast<float>((low + high) / 2);
    if (static_cast<double>(middle) != (low + high) / 2) continue;  // below the subnormals of float
    const float toward_low = std::nextafter(middle, static_cast<float>(low));
    const float toward_high = std::nextafter(middle, static_cast<float>(high));
    expect(to_half(middle) == (half & 1 ? half + 1 : half), "ties to even", middle);
    expect(to_half(toward_low) == half, "below the middle", middle);
    expect(to_half(toward_high) == half + 1, "above the middle", middle);
  }
}

void check_levels() {
  expect(simd_problem() == nullptr, "an error without JAXKERN_SIMD", 0);
  expect(!set_simd_level("v9"), "an unknown level was accepted", 0);
  expect(set_simd_level("portable") && simd_level() == SimdLevel::kPortable, "portable", 0);
  expect(set_simd_level(nullptr) && simd_level_available(simd_level()), "the default level", 0);
}

// The vector rounding of bfloat16 outputs at ties and their neighbours, which a scale makes the
// values of level 1.
void check_bfloat16_ties() {
  constexpr int32_t kWidth = 67;  // whole vectors, pairs of them and a remainder
  std::vector<uint8_t> pixels(kWidth);
  for (int32_t i = 0; i < kWidth; ++i) pixels[static_cast<size_t>(i)] = i % 2 == 0;
  Plan plan = {1,
               {{Filter::kNone, 1, kWidth, 0, Rounding::kKeep}},
               1,
               Dtype::kU8,
               Dtype::kBF16,
               Layout::kNHWC};
  const Geometry geometry = {0, 0, 1, kWidth, 1, kWidth, 0, 0, 1, kWidth, 0, 1, 0, 1};
  const float fill = 0.f;
  for (const char* const* level = available_simd_levels(); *level; ++level) {
    set_simd_level(*level);
    for (uint32_t high : {0x0000u, 0x0001u, 0x007fu, 0x3f80u, 0x3f81u, 0x40ffu, 0x7f7fu, 0x8000u,
                          0x8001u, 0xbf80u, 0xbf81u, 0xff7fu})
      for (uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
        const float value = float_from_bits(high << 16 | low);
        const float affine[2] = {value, -0.f};  // a bias of -0 keeps the sign of -0
        const Sample sample = {pixels.data(), 1,     kWidth,  &geometry,
                               affine,        &fill, nullptr, nullptr};
        uint16_t out[kWidth];
        run_sample(plan, sample, out, thread_scratch<kScratchBytes>());
        for (int32_t i = 0; i < kWidth; i += 2)
          expect(out[i] == float_to_bfloat16(value), "bfloat16 of a tie or its neighbour",
                 static_cast<double>(value));
      }
  }
  set_simd_level(nullptr);
}

}  // namespace
}  // namespace jaxkern::image::testing

int main(int argc, char** argv) {
  using namespace jaxkern;
  using namespace jaxkern::image::testing;
  // With an argument: print the level in JAXKERN_SIMD or its error, which the caller compares.
  if (argc > 1 && std::string(argv[1]) == "level") {
    const char* problem = simd_problem();
    std::printf("%s\n", problem ? problem : simd_level_name(simd_level()));
    return problem ? 1 : 0;
  }
  if (std::getenv("JAXKERN_SIMD") == nullptr) check_levels();
  check_half(
      jaxkern::image::Dtype::kF16, 0x7c00, [](float v) { return float_to_float16(v); },
      [](uint16_t h) { return float16_to_float(h); });
  check_half(
      jaxkern::image::Dtype::kBF16, 0x7f80, [](float v) { return float_to_bfloat16(v); },
      [](uint16_t h) { return bfloat16_to_float(h); });
  check_bfloat16_ties();
  std::printf("check_core: %s\n", g_failures ? "FAILED" : "passed");
  return g_failures ? 1 : 0;
}
