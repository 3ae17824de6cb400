// Compares warps and blurs of random images at every SIMD level with their formulas in long double,
// also with hostile coefficients. Images end at the end of their memory, so that a sanitizer
// detects accesses beyond. Usage: check_warp [rounds] [seed]
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <type_traits>
#include <vector>

#include "core/simd_dispatch.h"
#include "image/blur.h"
#include "image/warp.h"

namespace {

using namespace jaxkern;         // NOLINT
using namespace jaxkern::image;  // NOLINT
using Real = long double;

struct Random {
  std::mt19937_64 bits;
  int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }
  double within(double low, double high) {
    return low + (high - low) * (static_cast<double>(bits() >> 11) * 0x1p-53);
  }
};

// True if the level nearest to `value` may depend on the last bits of float64.
constexpr Real kUndecided = 1e-9L;

template <typename T>
bool agrees(T got, Real expected) {
  if constexpr (std::is_same_v<T, uint8_t>) {
    const Real clamped = expected > 0 ? (expected < 255 ? expected : 255) : 0;
    const Real level = std::rint(clamped), off = std::fabs(clamped - level);
    if (static_cast<Real>(got) == level) return true;
    return off > 0.5L - kUndecided &&
           std::fabs(static_cast<Real>(got) - clamped) < 0.5L + kUndecided;
  } else {
    if (std::isnan(expected) || std::isnan(got)) return std::isnan(expected) && std::isnan(got);
    if (std::isinf(expected) || std::isinf(got)) return expected == static_cast<Real>(got);
    return std::fabs(static_cast<Real>(got) - expected) <= 4e-6L * (1 + std::fabs(expected));
  }
}

template <typename T>
struct Picture {
  int32_t height, width, channels;
  std::unique_ptr<T[]> values;
  Picture(int32_t h, int32_t w, int32_t c)
      : height(h), width(w), channels(c), values(new T[static_cast<size_t>(h) * w * c]) {}
  size_t size() const { return static_cast<size_t>(height) * width * channels; }
  T& at(int32_t y, int32_t x, int32_t c) const {
    return values[(static_cast<size_t>(y) * width + x) * channels + c];
  }
};

template <typename T>
Picture<T> random_picture(Random& random, int32_t height, int32_t width, int32_t channels) {
  Picture<T> picture(height, width, channels);
  const bool flat = random.below(8) == 0, special = !flat && random.below(6) == 0;
  for (size_t i = 0; i < picture.size(); ++i) {
    if constexpr (std::is_same_v<T, uint8_t>) {
      picture.values[i] = flat ? 200 : static_cast<uint8_t>(random.below(256));
    } else {
      picture.values[i] = static_cast<float>(flat ? 0.25 : random.within(-1, 2));
      if (special && random.below(9) == 0)
        picture.values[i] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  return picture;
}

Real expected_warp_value(const Real tap[4], const bool exists[4], Real across, Real down,
                         const float* fill, int32_t channel) {
  Real value = 0, mask = 0;
  for (int k = 0; k < 4; ++k) {
    const Real weight = (k & 1 ? across : 1 - across) * (k >> 1 ? down : 1 - down);
    if (!exists[k] || !(weight > 0)) continue;
    value += weight * tap[k];
    mask += weight;
  }
  if (std::isnan(fill[0]) || mask == 1) return value;
  if (mask == 0) return fill[channel];
  return mask * (value - fill[channel]) + fill[channel];
}

// Rounds to float32, even if the compiler would contract or keep a wider value.
float rounded(float value) {
  volatile float stored = value;
  return stored;
}

// The point of an output pixel in the input, computed step by step as in warp.h.
void wanted_point(const Warp& warp, const float* c, int32_t column, int32_t row, Real* px,
                  Real* py) {
  const float start_x = warp.perspective ? 0.5f : static_cast<float>(1 - warp.width) / 2;
  const float start_y = warp.perspective ? 0.5f : static_cast<float>(1 - warp.height) / 2;
  const float x = static_cast<float>(column) + start_x, y = static_cast<float>(row) + start_y;
  const auto line = [&](float a, float b, float last) {
    return rounded(rounded(rounded(a * x) + rounded(b * y)) + last);
  };
  const float depth = line(c[6], c[7], 1);
  const auto along = [&](const float* coefficients, int32_t side) {
    const float half = 0.5f * static_cast<float>(side);
    float unit = line(rounded(coefficients[0] / half), rounded(coefficients[1] / half),
                      rounded(coefficients[2] / half));
    if (warp.perspective) unit = rounded(rounded(unit / depth) - 1);
    return rounded(rounded(rounded(unit + 1) * half) - 0.5f);
  };
  *px = along(c, warp.in_width);
  *py = along(c + 3, warp.in_height);
}

template <typename T>
bool check_warp(Random& random) {
  const int32_t channels = (const int32_t[]){1, 3, 4}[random.below(3)];
  const auto side = [&] {
    return static_cast<int32_t>(1 + random.below(random.below(3) ? 24 : 300));
  };
  const int32_t height = side(),
                width = height > 24 ? static_cast<int32_t>(1 + random.below(24)) : side();
  const Picture<T> in = random_picture<T>(random, height, width, channels);
  Warp warp = {};
  warp.dtype = std::is_same_v<T, uint8_t> ? Dtype::kU8 : Dtype::kF32;
  warp.channels = channels;
  warp.in_height = in.height, warp.in_width = in.width;
  const bool same = random.below(2) == 0;
  warp.height = same ? in.height : static_cast<int32_t>(1 + random.below(20));
  warp.width = same ? in.width : static_cast<int32_t>(1 + random.below(300));
  warp.filter = random.below(2) == 0 ? Filter::kNearest : Filter::kBilinear;
  for (float& f : warp.fill) f = static_cast<float>(random.below(2) ? random.within(-3, 260) : 0);
  if (random.below(3) == 0) warp.fill[0] = std::numeric_limits<float>::quiet_NaN();
  if (random.below(8) == 0) warp.fill[random.below(4)] = std::numeric_limits<float>::infinity();

  float c[kWarpCoefficients];
  const double angle = random.within(-3.2, 3.2), scale = random.within(0.2, 2.5);
  const bool plain = random.below(5) == 0;  // moves by multiples of half a pixel: ties
  c[0] = static_cast<float>(plain ? 1 : scale * std::cos(angle));
  c[1] = static_cast<float>(plain ? 0 : -scale * std::sin(angle));
  c[3] = static_cast<float>(plain ? 0 : scale * std::sin(angle));
  c[4] = static_cast<float>(plain ? 1 : scale * std::cos(angle));
  c[2] = static_cast<float>(plain ? 0.5 * static_cast<double>(random.below(9) - 4)
                                  : random.within(-1.0, 1.5) * in.width);
  c[5] = static_cast<float>(plain ? 0.5 * static_cast<double>(random.below(9) - 4)
                                  : random.within(-1.0, 1.5) * in.height);
  warp.perspective = random.below(2) == 0;
  const double tilt = random.below(4) == 0 ? 0 : random.below(3) == 0 ? 1 : 0.01;
  c[6] = static_cast<float>(random.within(-tilt, tilt)),
  c[7] = static_cast<float>(random.within(-tilt, tilt));
  const bool hostile = random.below(6) == 0;
  if (hostile) {
    const float bad[] = {std::numeric_limits<float>::quiet_NaN(),
                         std::numeric_limits<float>::infinity(),
                         -std::numeric_limits<float>::infinity(),
                         3e38f,
                         -3e38f,
                         1e-45f,
                         0.f};
    for (float& value : c)
      if (random.below(4) == 0) value = bad[random.below(7)];
  }

  for (const char* const* level = available_simd_levels(); *level; ++level) {
    set_simd_level(*level);
    const Picture<T> out(warp.height, warp.width, channels);
    warp_image(warp, in.values.get(), c, out.values.get());
    if (hostile) continue;  // only checks for invalid accesses and conversions
    for (int32_t row = 0; row < warp.height; ++row) {
      for (int32_t column = 0; column < warp.width; ++column) {
        Real px, py;
        wanted_point(warp, c, column, row, &px, &py);
        if (!(std::fabs(px) < 1e8L) || !(std::fabs(py) < 1e8L)) px = py = -9;  // outside
        const bool nearest = warp.filter == Filter::kNearest;
        const Real fx = nearest ? std::rint(px) : std::floor(px);
        const Real fy = nearest ? std::rint(py) : std::floor(py);
        const auto exists = [&](int64_t tx, int64_t ty) {
          return tx >= 0 && tx < in.width && ty >= 0 && ty < in.height;
        };
        for (int32_t k = 0; k < channels; ++k) {
          Real expected;
          const int64_t ix = static_cast<int64_t>(fx), iy = static_cast<int64_t>(fy);
          const auto value = [&](int64_t tx, int64_t ty) {
            return static_cast<Real>(in.at(static_cast<int32_t>(ty), static_cast<int32_t>(tx), k));
          };
          if (nearest) {
            const Real outside = std::isnan(warp.fill[0]) ? 0 : warp.fill[k];
            expected = exists(ix, iy) ? value(ix, iy) : outside;
          } else {
            Real tap[4];
            bool inside[4];
            for (int n = 0; n < 4; ++n) {
              inside[n] = exists(ix + (n & 1), iy + (n >> 1));
              tap[n] = inside[n] ? value(ix + (n & 1), iy + (n >> 1)) : 0;
            }
            expected = expected_warp_value(tap, inside, px - fx, py - fy, warp.fill, k);
          }
          if (agrees(out.at(row, column, k), expected)) continue;
          std::printf(
              "%s: warp %s of %dx%dx%d to %dx%d at (%d, %d, %d): %.9g, expected %.12Lg\n  point "
              "(%.12Lg, %.12Lg) fill %g by %g %g %g %g %g %g %g %g\n",
              *level, nearest ? "nearest" : "bilinear", in.height, in.width, channels, warp.height,
              warp.width, row, column, k, static_cast<double>(out.at(row, column, k)), expected, px,
              py, static_cast<double>(warp.fill[0]), c[0], c[1], c[2], c[3], c[4], c[5], c[6],
              c[7]);
          return false;
        }
      }
    }
  }
  return true;
}

int32_t reflect(int32_t i, int32_t size) {
  if (size == 1) return 0;
  while (i < 0 || i >= size) i = i < 0 ? -i : 2 * (size - 1) - i;
  return i;
}

std::vector<Real> kernel(int32_t size, float sigma) {
  std::vector<Real> weight(size);
  Real all = 0;
  for (int32_t k = 0; k < size; ++k) {
    const int32_t t = k - size / 2;
    weight[k] = t == 0 ? 1 : 0;
    if (sigma > 0 && t != 0) weight[k] = std::exp(-Real(t) * t / (2 * Real(sigma) * Real(sigma)));
    if (weight[k] < 0x1p-60L) weight[k] = 0;
    all += weight[k];
  }
  for (Real& w : weight) w /= all;
  return weight;
}

// Blurs in Real, down the columns and along the rows.
template <typename T>
std::vector<Real> blurred(const Picture<T>& in, const std::vector<Real>& wx,
                          const std::vector<Real>& wy) {
  const int32_t reach_x = static_cast<int32_t>(wx.size() / 2);
  const int32_t reach_y = static_cast<int32_t>(wy.size() / 2);
  std::vector<Real> columns(in.size()), all(in.size());
  const auto index = [&](int32_t y, int32_t x, int32_t k) {
    return (static_cast<size_t>(y) * in.width + x) * in.channels + k;
  };
  for (int32_t y = 0; y < in.height; ++y) {
    for (int32_t v = -reach_y; v <= reach_y; ++v) {
      const Real weight = wy[v + reach_y];
      if (weight == 0) continue;
      for (int32_t i = 0; i < in.width * in.channels; ++i)
        columns[index(y, 0, i)] += weight * in.at(reflect(y + v, in.height), 0, i);
    }
    for (int32_t x = 0; x < in.width; ++x) {
      for (int32_t u = -reach_x; u <= reach_x; ++u) {
        const Real weight = wx[u + reach_x];
        if (weight == 0) continue;
        for (int32_t k = 0; k < in.channels; ++k)
          all[index(y, x, k)] += weight * columns[index(y, reflect(x + u, in.width), k)];
      }
    }
  }
  return all;
}

template <typename T>
bool check_blur(Random& random) {
  constexpr bool kBytes = std::is_same_v<T, uint8_t>;
  const int32_t channels = (const int32_t[]){1, 3, 4}[random.below(3)];
  const bool wide = random.below(12) == 0;
  const int32_t height = static_cast<int32_t>(1 + random.below(wide ? 3 : 30));
  const int32_t width = static_cast<int32_t>(1 + random.below(wide ? 1200 : 40));
  const Picture<T> in = random_picture<T>(random, height, width, channels);
  // A chessboard of two neighbouring levels. Its blur is so close to the middle that float32 is
  // uncertain and float64 is not. It covers the whole image, or starts at some row.
  const bool middle = kBytes && random.below(3) == 0;
  const int64_t from = random.below(2) * random.below(height);
  for (int64_t i = from * width * channels; middle && i < static_cast<int64_t>(in.size()); ++i) {
    const int64_t pixel = i / channels;
    in.values[i] = static_cast<T>(117 + (pixel / width + pixel % width) % 2);
  }
  const auto odd = [&] {
    return static_cast<int32_t>(middle ? 23 : 1 + 2 * random.below(random.below(4) ? 5 : 40));
  };
  const Blur blur = {kBytes ? Dtype::kU8 : Dtype::kF32, channels, height, width, odd(), odd()};
  const auto sigma = [&] {
    const float other[] = {0.f,    -1.f,  std::numeric_limits<float>::quiet_NaN(),
                           1e-30f, 3e38f, std::numeric_limits<float>::infinity()};
    if (middle) return static_cast<float>(random.within(1.1, 1.5));
    return random.below(6) == 0 ? other[random.below(6)]
                                : static_cast<float>(random.within(0.05, 6));
  };
  const float sigma_x = sigma(), sigma_y = sigma();
  const std::vector<Real> expected =
      blurred(in, kernel(blur.kernel_x, sigma_x), kernel(blur.kernel_y, sigma_y));
  std::unique_ptr<double[]> scratch(new double[kBlurScratchBytes / sizeof(double)]);
  for (const char* const* level = available_simd_levels(); *level; ++level) {
    set_simd_level(*level);
    const Picture<T> out(height, width, channels);
    gaussian_blur(blur, in.values.get(), sigma_x, sigma_y, scratch.get(), out.values.get());
    for (size_t i = 0; i < in.size(); ++i) {
      if (agrees(out.values[i], expected[i])) continue;
      std::printf("%s: blur %dx%d sigma %g, %g of %dx%dx%d at value %zu: %.9g, expected %.12Lg\n",
                  *level, blur.kernel_x, blur.kernel_y, sigma_x, sigma_y, height, width, channels,
                  i, static_cast<double>(out.values[i]), expected[i]);
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t rounds = argc > 1 ? std::atoll(argv[1]) : 400;
  Random random{std::mt19937_64(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1)};
  int64_t failures = 0;
  for (int64_t round = 0; round < rounds && failures < 5; ++round) {
    failures += !check_warp<uint8_t>(random) + !check_warp<float>(random);
    failures += !check_blur<uint8_t>(random) + !check_blur<float>(random);
  }
  std::printf("check_warp: %lld rounds: %s\n", static_cast<long long>(rounds),
              failures ? "FAILED" : "passed");
  return failures ? 1 : 0;
}
