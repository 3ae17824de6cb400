// Passes random values to the checks and runs every case that they accept. Nothing may crash,
// overflow or read out of bounds (build it with sanitizers). Usage: hostile_image [iterations]
// [first seed]
#include <cinttypes>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "core/simd_dispatch.h"
#include "random_chain.h"

namespace jaxkern::image::testing {
namespace {

int32_t hostile_integer(Random& random, int32_t sane) {
  static const int32_t edges[] = {
      INT_MIN,       INT_MIN + 1, -(1 << 24),    -2,          -1,     0, 1, 2, 3,
      (1 << 24) - 1, 1 << 24,     (1 << 24) + 1, INT_MAX - 1, INT_MAX};
  if (random.chance(40)) return sane;
  if (random.chance(50)) return edges[random.integer(0, 13)];
  if (random.chance(50) && sane > INT_MIN + 3 && sane < INT_MAX - 3)
    return sane + random.integer(-3, 3);
  return static_cast<int32_t>(random.engine());
}

float hostile_float(Random& random) {
  static const float edges[] = {0.f,    -0.f,   1.f, -1.f,     3e38f,
                                -3e38f, 1e-40f, NAN, INFINITY, -INFINITY};
  return edges[random.integer(0, 9)];
}

// A valid case with a few fields replaced. Most are rejected; the rest are extreme but valid.
Case hostile_case(uint64_t seed) {
  Limits limits;
  limits.size = 40;
  Case c = random_case(seed, limits);
  Random random(seed ^ 0x9e3779b97f4a7c15u);
  for (int32_t edits = random.integer(1, 3); edits > 0; --edits) {
    Geometry& g = c.geometry[static_cast<size_t>(random.integer(0, c.plan.segments - 1))];
    int32_t fields[kGeometryFields];
    std::memcpy(fields, &g, sizeof g);
    int32_t& field = fields[random.integer(0, kGeometryFields - 1)];
    if (random.chance(60)) field = hostile_integer(random, field);
    std::memcpy(&g, fields, sizeof g);
  }
  if (random.chance(20)) {
    Segment& segment = c.plan.segment[random.integer(0, c.plan.segments - 1)];
    int32_t fields[6];
    static_assert(sizeof fields == sizeof segment, "a segment is six int32");
    std::memcpy(fields, &segment, sizeof segment);
    int32_t& field = fields[random.integer(0, 5)];
    field = hostile_integer(random, field);
    std::memcpy(&segment, fields, sizeof segment);
  }
  if (random.chance(5)) c.plan.segments = hostile_integer(random, c.plan.segments);
  if (random.chance(5)) c.plan.channels = hostile_integer(random, c.plan.channels);
  for (EraseBox& box : c.erase_box) {
    if (random.chance(50)) box.top = hostile_integer(random, box.top);
    if (random.chance(50)) box.left = hostile_integer(random, box.left);
    if (random.chance(50)) box.height = hostile_integer(random, box.height);
    if (random.chance(50)) box.width = hostile_integer(random, box.width);
  }
  for (float& value : c.affine)
    if (random.chance(10)) value = hostile_float(random);
  for (float& value : c.fill)
    if (random.chance(10)) value = hostile_float(random);
  return c;
}

// Limits the work of an accepted case: outputs, and virtual images that are large.
bool affordable(const Case& c) {
  for (int32_t s = 0; s < c.plan.segments; ++s) {
    const Segment& segment = c.plan.segment[s];
    if (static_cast<int64_t>(segment.height) * segment.width > 20000) return false;
  }
  return true;
}

// The arrays of a case have the shapes of the original plan. An edited plan may need larger ones.
bool arrays_fit(const Case& c) {
  const size_t segments = static_cast<size_t>(c.plan.segments);
  const size_t channels = static_cast<size_t>(c.plan.channels);
  size_t erasures = 0;
  for (size_t s = 0; s < segments; ++s) erasures += static_cast<size_t>(c.plan.segment[s].erasures);
  return c.geometry.size() >= segments && c.affine.size() >= 2 * segments * channels &&
         c.fill.size() >= segments * channels && c.erase_box.size() >= erasures &&
         c.erase_value.size() >= erasures * channels &&
         c.pixels.size() >= static_cast<size_t>(c.height) * static_cast<size_t>(c.width) *
                                channels * dtype_size(c.plan.source_dtype);
}

}  // namespace
}  // namespace jaxkern::image::testing

int main(int argc, char** argv) {
  using namespace jaxkern;
  using namespace jaxkern::image;
  using namespace jaxkern::image::testing;
  const uint64_t iterations = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 20000;
  const uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  uint64_t rejected = 0, ran = 0;
  for (uint64_t seed = first; seed < first + iterations; ++seed) {
    const Case c = hostile_case(seed);
    if (check_plan(c.plan).argument) {
      ++rejected;
      continue;
    }
    if (!arrays_fit(c)) continue;
    if (check_sample(c.plan, c.view(), 0).argument) {
      ++rejected;
      continue;
    }
    if (!affordable(c)) continue;
    std::vector<unsigned char> output(output_bytes(c.plan));
    for (const char* const* level = available_simd_levels(); *level; ++level) {
      set_simd_level(*level);
      run_sample(c.plan, c.view(), output.data(), thread_scratch<kScratchBytes>());
    }
    ++ran;
  }
  std::printf("hostile_image: %" PRIu64 " rejected, %" PRIu64 " run, of %" PRIu64 "\n", rejected,
              ran, iterations);
  if (iterations >= 100 && (rejected == 0 || ran == 0)) {
    std::printf("hostile_image: FAILED, the cases no longer reach both sides of the checks\n");
    return 1;
  }
  return 0;
}
