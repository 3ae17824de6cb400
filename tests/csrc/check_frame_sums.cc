// Sums of random frames at every instruction-set level and with threads, against sums one by one.
// Frames and sums end where their memory ends, so that a sanitizer sees the first byte beyond:
//   check_frame_sums [rounds] [seed]
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "core/simd_dispatch.h"
#include "correlators/frame_sums.h"

namespace {

using namespace jaxkern;               // NOLINT
using namespace jaxkern::correlators;  // NOLINT

struct Threads {
  explicit Threads(int64_t count) {
    executor.workers = count;
    executor.schedule = [this](std::function<void()> task) { all.emplace_back(std::move(task)); };
  }
  ~Threads() {
    for (std::thread& thread : all) thread.join();
  }
  Executor executor;
  std::vector<std::thread> all;
};

template <typename T>
bool check(Dtype dtype, std::mt19937_64& random) {
  using Wide = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % uint64_t(n)); };
  const int64_t pixels = 1 + below(below(2) == 0 ? 40 : 2 * kSumTile + 40);
  const int64_t count = 1 + below(600), gap = below(9), shift = below(int64_t{sizeof(T)});
  const int64_t stride = pixels * static_cast<int64_t>(sizeof(T)) + gap;
  const int64_t n_masks = below(kMostMasks + 1);
  const bool with_image = below(4) != 0, with_bad = below(2) != 0, largest = below(3) == 0;

  const int64_t bytes = shift + (count - 1) * stride + pixels * static_cast<int64_t>(sizeof(T));
  const std::unique_ptr<char[]> memory(new char[bytes]);
  std::vector<uint8_t> bad(count);
  std::vector<std::vector<uint8_t>> masks(n_masks, std::vector<uint8_t>(pixels));
  for (uint8_t& b : bad) b = below(5) == 0;
  for (auto& mask : masks) {
    for (uint8_t& m : mask) m = below(2) == 0 ? 0 : static_cast<uint8_t>(1 + below(255));
  }
  std::vector<Wide> image(pixels, Wide{7}), totals(n_masks * count);
  const bool with_squares = with_image && below(2) != 0;
  std::vector<double> squares(pixels, 7.0);
  for (int64_t f = 0; f < count; ++f) {
    for (int64_t p = 0; p < pixels; ++p) {
      T value;
      if constexpr (std::is_floating_point_v<T>) {
        value = static_cast<T>(below(2001) - 1000) / 4;  // sums of which are exact
      } else {
        value = largest ? std::numeric_limits<T>::max() : static_cast<T>(random());
      }
      std::memcpy(memory.get() + shift + f * stride + p * static_cast<int64_t>(sizeof(T)), &value,
                  sizeof(T));
      if (with_image && !(with_bad && bad[f])) {
        image[p] += static_cast<Wide>(value);
        squares[p] += static_cast<double>(value) * static_cast<double>(value);
      }
      for (int64_t m = 0; m < n_masks; ++m) {
        if (masks[m][p]) totals[m * count + f] += static_cast<Wide>(value);
      }
    }
  }

  FrameRows frames;
  frames.data = memory.get() + shift;
  frames.stride = stride;
  frames.dtype = dtype;
  frames.bad = with_bad ? bad.data() : nullptr;
  std::vector<const uint8_t*> given;
  for (const auto& mask : masks) given.push_back(mask.data());
  bool right = true;
  for (const char* const* level = available_simd_levels(); *level != nullptr; ++level) {
    set_simd_level(*level);
    std::vector<Wide> own_image(pixels, Wide{7}), own_totals(n_masks * count, Wide{3});
    std::vector<double> own_squares(pixels, 7.0);
    const Threads threads(1 + below(4));
    frame_sums(threads.executor, frames, count, pixels,
               with_image ? reinterpret_cast<char*>(own_image.data()) : nullptr,
               with_squares ? own_squares.data() : nullptr, given,
               reinterpret_cast<char*>(own_totals.data()));
    bool close = true;  // squares of 32 bits are rounded, in blocks of frames
    for (int64_t p = 0; p < pixels; ++p) {
      const double expected = with_squares ? squares[p] : 7.0;
      close &= std::abs(own_squares[p] - expected) <= 1e-12 * expected;
    }
    if (own_image != image || own_totals != totals || !close) {
      std::printf("%s, %d bytes a count: sums of %lld frames of %lld pixels are wrong\n", *level,
                  static_cast<int>(sizeof(T)), static_cast<long long>(count),
                  static_cast<long long>(pixels));
      right = false;
    }
  }
  set_simd_level(nullptr);
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t rounds = argc > 1 ? std::atoll(argv[1]) : 5;
  std::mt19937_64 random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
  int64_t failures = 0;
  for (int64_t i = 0; i < rounds; ++i) {
    failures += !check<uint8_t>(Dtype::kU8, random);
    failures += !check<uint16_t>(Dtype::kU16, random);
    failures += !check<uint32_t>(Dtype::kU32, random);
    failures += !check<int32_t>(Dtype::kI32, random);
    failures += !check<float>(Dtype::kF32, random);
    failures += !check<double>(Dtype::kF64, random);
  }
  std::printf("%lld rounds, %lld failures\n", static_cast<long long>(rounds),
              static_cast<long long>(failures));
  return failures == 0 ? 0 : 1;
}
