// Compares the loops of the machine probes with plain loops, at every SIMD level, and checks their
// bounds. A measurement on several threads must end with finite rates.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "performance/levels.h"
#include "performance/probe.h"

namespace jaxkern::performance::testing {
namespace {

int g_failures = 0;

void expect(bool condition, const char* what, double detail) {
  if (condition) return;
  if (++g_failures < 20) std::printf("check_probe: %s (%.17g)\n", what, detail);
}

// Blocks of memory between canaries, in an allocation of the exact size, so that a sanitizer
// detects accesses outside.
class Guarded {
 public:
  explicit Guarded(int64_t bytes)
      : bytes_(static_cast<size_t>(bytes)),
        memory_(static_cast<char*>(std::aligned_alloc(64, 128 + bytes_))) {
    std::memset(memory_, kCanary, 128 + bytes_);
  }
  ~Guarded() { std::free(memory_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  char* data() const { return memory_ + 64; }
  bool intact() const {
    for (size_t i = 0; i < 64; ++i) {
      if (memory_[i] != kCanary || memory_[64 + bytes_ + i] != kCanary) return false;
    }
    return true;
  }

 private:
  static constexpr char kCanary = 0x5a;
  size_t bytes_;
  char* memory_;
};

void check_level(SimdLevel level) {
  const auto load = load_bytes.at(level);
  const auto store = store_bytes.at(level);
  const auto copy = copy_bytes.at(level);
  const auto f32 = multiply_add_f32.at(level);
  const auto f64 = multiply_add_f64.at(level);
  for (const int64_t blocks : {1, 2, 3, 17}) {
    const int64_t bytes = blocks * kBlockBytes;
    Guarded from(bytes), to(bytes);
    uint64_t* const words = reinterpret_cast<uint64_t*>(from.data());
    uint64_t sum = 0, state = 88172645463325252u;
    for (int64_t i = 0; i < bytes / 8; ++i) {
      state ^= state << 13, state ^= state >> 7, state ^= state << 17;
      words[i] = state;
      sum += state;
    }
    expect(load(from.data(), bytes) == sum, "the sum of what was read", double(blocks));
    for (const bool streaming : {false, true}) {
      std::memset(to.data(), 0, static_cast<size_t>(bytes));
      copy(from.data(), to.data(), bytes, streaming);
      expect(std::memcmp(from.data(), to.data(), static_cast<size_t>(bytes)) == 0, "a copy",
             double(blocks));
      store(to.data(), bytes, 7, streaming);
      expect(load(to.data(), bytes) == static_cast<uint64_t>(bytes / 8 * 7), "a store",
             double(blocks));
    }
    expect(from.intact() && to.intact(), "a write out of bounds", double(blocks));
  }
  // x -> x / 2 + 1 halves the distance from 2 in every round; chain k of n begins at start + k.
  for (const int64_t rounds : {0, 1, 5}) {
    const double chains32 = f32(0, 0) * 2 + 1, chains64 = f64(0, 0) * 2 + 1;
    const double shrink = std::ldexp(1.0, -static_cast<int>(rounds));
    expect(std::abs(f32(rounds, 3) - (2 + shrink * (1 + (chains32 - 1) / 2))) < 1e-5, "f32 chains",
           double(rounds));
    expect(std::abs(f64(rounds, 3) - (2 + shrink * (1 + (chains64 - 1) / 2))) < 1e-12, "f64 chains",
           double(rounds));
  }
}

void check_rates(SimdLevel level) {
  for (const int64_t threads : {1, 3}) {
    const Rates memory = measure_memory(level, threads, 100000, 0);
    const Rates compute = measure_compute(level, threads, 0);
    expect(memory.size() == 5 && compute.size() == 2, "the number of rates", double(threads));
    for (const Rates& rates : {memory, compute}) {
      for (const auto& [name, rate] : rates) {
        expect(std::isfinite(rate) && rate > 0, name.c_str(), rate);
      }
    }
  }
}

template <typename Call>
void refused(Call call, const char* what) {
  try {
    call();
    expect(false, what, 0);
  } catch (const std::invalid_argument&) {
  }
}

}  // namespace
}  // namespace jaxkern::performance::testing

int main() {
  using jaxkern::SimdLevel;
  using namespace jaxkern::performance;
  for (int i = 0; i < jaxkern::kSimdLevels; ++i) {
    const SimdLevel level = static_cast<SimdLevel>(i);
    if (!jaxkern::simd_level_available(level)) continue;
    testing::check_level(level);
    testing::check_rates(level);
  }
  const SimdLevel portable = SimdLevel::kPortable;
  testing::refused([&] { measure_memory(portable, 0, 1000, 0); }, "no threads");
  testing::refused([&] { measure_memory(portable, 1, 0, 0); }, "no bytes");
  testing::refused([&] { measure_memory(portable, 1, 1000, std::nan("")); }, "no time");
  testing::refused([&] { measure_compute(portable, -1, 0); }, "no threads to compute");
  const auto missing = static_cast<SimdLevel>(jaxkern::kSimdLevels);
  testing::refused([&] { measure_compute(missing, 1, 0); }, "a level that is not there");
  if (testing::g_failures != 0) {
    std::printf("check_probe: %d failures\n", testing::g_failures);
    return 1;
  }
  std::printf("check_probe: ok\n");
  return 0;
}
