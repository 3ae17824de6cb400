// Random plans and samples for the image drivers, in heap blocks of the exact size.
#ifndef JAXKERN_TESTS_RANDOM_CHAIN_H_
#define JAXKERN_TESTS_RANDOM_CHAIN_H_

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "image/check.h"
#include "image/levels.h"
#include "image/plan.h"

namespace jaxkern::image::testing {

struct Random {
  std::mt19937_64 engine;
  explicit Random(uint64_t seed) : engine(seed) {}
  // Uniform in [low, high].
  int32_t integer(int64_t low, int64_t high) {
    return static_cast<int32_t>(
        low + static_cast<int64_t>(engine() % static_cast<uint64_t>(high - low + 1)));
  }
  bool chance(int32_t percent) { return integer(1, 100) <= percent; }
  float real(float low, float high) {
    return low + (high - low) * static_cast<float>(engine() >> 40) * 0x1p-24f;
  }
};

// A chain and one sample's operands; `view` points into the vectors.
struct Case {
  Plan plan = {};
  int32_t height = 0, width = 0;
  std::vector<unsigned char> pixels;
  std::vector<Geometry> geometry;
  std::vector<float> affine, fill, erase_value;
  std::vector<EraseBox> erase_box;

  Sample view() const {
    return {pixels.data(),
            height,
            width,
            geometry.data(),
            affine.data(),
            fill.data(),
            erase_box.data(),
            erase_value.data()};
  }
};

inline size_t dtype_size(Dtype dtype) {
  return dtype == Dtype::kU8 ? 1 : dtype == Dtype::kF32 ? 4 : 2;
}

// Values of the source are levels in [0, 255] for every dtype, so that tolerances are in levels.
inline void fill_pixels(Random& random, Case& c) {
  const size_t count = static_cast<size_t>(c.height) * static_cast<size_t>(c.width) *
                       static_cast<size_t>(c.plan.channels);
  c.pixels.resize(count * dtype_size(c.plan.source_dtype));
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = random.engine();
    if (c.plan.source_dtype == Dtype::kU8) {
      c.pixels[i] = static_cast<unsigned char>(bits);
    } else if (c.plan.source_dtype == Dtype::kF32) {
      const float value = static_cast<float>(bits >> 40) * 0x1p-24f * 255.f;
      std::memcpy(&c.pixels[i * 4], &value, 4);
    } else {
      // Any pattern whose exponent keeps the value within [0, 255]: 0x0000 to 0x5bf8 (f16, 255) or
      // to 0x437f (bf16, 255).
      const uint16_t limit = c.plan.source_dtype == Dtype::kF16 ? 0x5bf8 : 0x437f;
      const uint16_t half = static_cast<uint16_t>(bits % (limit + 1u));
      std::memcpy(&c.pixels[i * 2], &half, 2);
    }
  }
}

inline int32_t some_size(Random& random, int32_t high) {
  return random.chance(15) ? random.integer(1, 3) : random.integer(1, high);
}

inline void random_axis(Random& random, Filter filter, int32_t input, int32_t output,
                        int32_t& start, int32_t& box, int32_t& resampled, int32_t& offset,
                        int32_t& step, int32_t& valid_begin, int32_t& valid_end) {
  box = random.chance(10) ? 1 : random.chance(20) ? input : random.integer(1, input);
  start = random.chance(30) ? input - box : random.chance(30) ? 0 : random.integer(0, input - box);
  if (filter == Filter::kNone)
    resampled = box;
  else if (random.chance(60))
    resampled = output;
  else if (random.chance(20))
    resampled = box;
  else
    resampled = random.integer(1, output * 2);
  step = random.chance(50) ? 1 : -1;
  offset = step > 0 ? 0 : resampled - 1;
  if (random.chance(30)) offset += random.integer(-output, output);
  valid_begin = 0;
  valid_end = output;
  if (random.chance(20)) {
    valid_begin = random.integer(-2, output);
    valid_end = random.integer(valid_begin, output + 2);
  }
}

struct Limits {
  int32_t width = 0;    // largest width where it differs
  int32_t size = 90;    // largest side of sources and outputs
  bool common = false;  // only chains of the fast path
};

inline Case random_case(uint64_t seed, const Limits& limits) {
  Random random(seed);
  Case c;
  const bool common = limits.common || random.chance(40);
  c.plan.segments = common ? 1 : random.integer(1, 3);
  c.plan.channels = random.chance(60) ? 3 : random.chance(50) ? 1 : 4;
  c.plan.source_dtype = common ? Dtype::kU8 : static_cast<Dtype>(random.integer(0, 3));
  c.plan.output_dtype = static_cast<Dtype>(random.integer(0, 3));
  c.plan.layout = static_cast<Layout>(random.integer(0, 1));
  c.height = some_size(random, limits.size);
  c.width = some_size(random, limits.width ? limits.width : limits.size);
  int32_t height = c.height, width = c.width;
  for (int32_t s = 0; s < c.plan.segments; ++s) {
    Segment& segment = c.plan.segment[s];
    const bool last = s == c.plan.segments - 1;
    segment.filter = static_cast<Filter>(random.integer(0, 7));
    segment.padding =
        random.chance(70) ? Padding::kFill : static_cast<Padding>(random.integer(1, 3));
    segment.height = some_size(random, limits.size);
    segment.width = some_size(random, limits.width ? limits.width : limits.size);
    segment.erasures = random.chance(70) ? 0 : random.integer(1, 3);
    segment.rounding = last && c.plan.output_dtype == Dtype::kU8
                           ? static_cast<Rounding>(random.integer(1, 2))
                       : random.chance(70) ? Rounding::kKeep
                                           : static_cast<Rounding>(random.integer(0, 2));
    Geometry g = {};
    random_axis(random, segment.filter, height, segment.height, g.top, g.box_height,
                g.resampled_height, g.row_offset, g.row_step, g.valid_top, g.valid_bottom);
    random_axis(random, segment.filter, width, segment.width, g.left, g.box_width,
                g.resampled_width, g.column_offset, g.column_step, g.valid_left, g.valid_right);
    c.geometry.push_back(g);
    // Scales of at most 1 keep every stage in levels.
    const bool identity = random.chance(30);
    for (int32_t k = 0; k < 2 * c.plan.channels; ++k)
      c.affine.push_back(k < c.plan.channels ? (identity ? 1.f : random.real(-1.f, 1.f))
                                             : (identity ? 0.f : random.real(0.f, 100.f)));
    for (int32_t k = 0; k < c.plan.channels; ++k) c.fill.push_back(random.real(0.f, 255.f));
    for (int32_t k = 0; k < segment.erasures; ++k) {
      c.erase_box.push_back({random.integer(-5, segment.height), random.integer(-5, segment.width),
                             random.integer(-2, segment.height),
                             random.integer(-2, segment.width)});
      for (int32_t v = 0; v < c.plan.channels; ++v)
        c.erase_value.push_back(random.real(0.f, 255.f));
    }
    height = segment.height;
    width = segment.width;
  }
  fill_pixels(random, c);
  return c;
}

}  // namespace jaxkern::image::testing

#endif  // JAXKERN_TESTS_RANDOM_CHAIN_H_
