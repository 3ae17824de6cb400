// Runs random chains at every available SIMD level and compares them with the reference. Usage:
// check_image [iterations] [first seed] [common]. `common` draws only single-segment u8 chains,
// which use the fast path.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "core/simd_dispatch.h"
#include "image/region.h"
#include "random_chain.h"
#include "reference_chain.h"

namespace jaxkern::image::testing {
namespace {

constexpr double kTolerance = 2e-4 * 255;  // levels

struct Expected {
  Image image;       // before the last rounding
  double tolerance;  // in levels
};

Expected expect(const Case& c) {
  const Plan& plan = c.plan;
  Image image = {c.height, c.width, plan.channels, {}};
  for (size_t i = 0; i < static_cast<size_t>(c.height) * c.width * plan.channels; ++i)
    image.values.push_back(element(plan.source_dtype, c.pixels.data(), i));
  double tolerance = 0;
  int32_t erasures = 0;
  for (int32_t s = 0; s < plan.segments; ++s) {
    const Segment& segment = plan.segment[s];
    const float* affine = c.affine.data() + 2 * s * plan.channels;
    image = reference_segment(image, segment, c.geometry[s], affine,
                              c.fill.data() + s * plan.channels, c.erase_box.data() + erasures,
                              c.erase_value.data() + erasures * plan.channels);
    erasures += segment.erasures;
    double scale = 0;
    bool exact = true;
    for (int32_t k = 0; k < plan.channels; ++k) {
      scale = std::max(scale, std::abs(static_cast<double>(affine[k])));
      exact = exact && affine[k] == 1.f && affine[plan.channels + k] == 0.f;
    }
    const bool lookup = segment.filter == Filter::kNone || segment.filter == Filter::kNearest;
    // Negative weights make the sum of the positive ones exceed 1, by up to a half in two passes.
    const double gain = segment.filter >= Filter::kBicubic ? 1.6 : 1.;
    tolerance = tolerance * scale * gain + (!lookup ? kTolerance * scale * gain + 1e-4
                                            : exact ? 0.
                                                    : 1e-4);
    if (s == plan.segments - 1 || segment.rounding == Rounding::kKeep) continue;
    for (double& value : image.values) value = reference_round(segment.rounding, value);
    if (tolerance > 0) tolerance += 1;
  }
  return {image, tolerance};
}

// Returns half the spacing of the output dtype at `value`.
double cast_error(Dtype dtype, double value) {
  const double relative = dtype == Dtype::kF16 ? 0x1p-11 : dtype == Dtype::kBF16 ? 0x1p-8 : 0x1p-24;
  return std::abs(value) * relative * 1.01 + (dtype == Dtype::kF16 ? 0x1p-25 : 1e-30);
}

bool compare(const Case& c, const Expected& expected, const unsigned char* output,
             const char* level, uint64_t seed) {
  const Plan& plan = c.plan;
  const Segment& last = plan.segment[plan.segments - 1];
  for (int32_t y = 0; y < last.height; ++y)
    for (int32_t x = 0; x < last.width; ++x)
      for (int32_t k = 0; k < plan.channels; ++k) {
        const size_t index = plan.layout == Layout::kNHWC
                                 ? (static_cast<size_t>(y) * last.width + x) * plan.channels + k
                                 : (static_cast<size_t>(k) * last.height + y) * last.width + x;
        const double got = element(plan.output_dtype, output, index);
        const double value = expected.image.at(y, x, k);
        double low = reference_round(last.rounding, value - expected.tolerance);
        double high = reference_round(last.rounding, value + expected.tolerance);
        if (plan.output_dtype != Dtype::kU8) {
          low -= cast_error(plan.output_dtype, low);
          high += cast_error(plan.output_dtype, high);
        }
        if (got >= low && got <= high) continue;
        std::printf(
            "seed %" PRIu64
            " level %s: output (%d, %d, %d) is %.6f, expected %.6f to %.6f\n"
            "  %d segments, %d channels, source %dx%d dtype %d, output %dx%d dtype %d layout %d\n",
            seed, level, y, x, k, got, low, high, plan.segments, plan.channels, c.height, c.width,
            static_cast<int>(plan.source_dtype), last.height, last.width,
            static_cast<int>(plan.output_dtype), static_cast<int>(plan.layout));
        for (int32_t s = 0; s < plan.segments; ++s) {
          const Geometry& g = c.geometry[s];
          std::printf(
              "  filter %d padding %d rounding %d erasures %d: box %d,%d %dx%d -> %dx%d valid "
              "%d,%d..%d,%d"
              " rows %d%+d columns %d%+d\n",
              static_cast<int>(plan.segment[s].filter), static_cast<int>(plan.segment[s].padding),
              static_cast<int>(plan.segment[s].rounding), plan.segment[s].erasures, g.top, g.left,
              g.box_height, g.box_width, g.resampled_height, g.resampled_width, g.valid_top,
              g.valid_left, g.valid_bottom, g.valid_right, g.row_offset, g.row_step,
              g.column_offset, g.column_step);
        }
        return false;
      }
  return true;
}

// Runs the case with heap blocks of the exact size of the arrays, at any alignment.
bool check(const Case& original, uint64_t seed) {
  const Case& c = original;
  const Problem plan_problem = check_plan(c.plan);
  Sample sample = c.view();
  const Problem problem = plan_problem.argument ? plan_problem : check_sample(c.plan, sample, 0);
  if (problem.argument) {
    std::printf("seed %" PRIu64 ": valid case rejected: %s: expected %s\n", seed, problem.argument,
                problem.expected);
    return false;
  }
  const Expected expected = expect(c);
  const size_t item = dtype_size(c.plan.source_dtype), result = dtype_size(c.plan.output_dtype);
  const size_t lead = item * (seed % 7), output_lead = result * (seed % 5);
  const size_t bytes = output_bytes(c.plan);
  std::unique_ptr<unsigned char[]> pixels(new unsigned char[lead + c.pixels.size()]);
  std::memcpy(pixels.get() + lead, c.pixels.data(), c.pixels.size());
  sample.pixels = pixels.get() + lead;
  for (const char* const* level = available_simd_levels(); *level; ++level) {
    set_simd_level(*level);
    std::unique_ptr<unsigned char[]> output(new unsigned char[output_lead + bytes]);
    std::memset(output.get(), 0xa5, output_lead + bytes);
    run_sample(c.plan, sample, output.get() + output_lead, thread_scratch<kScratchBytes>());
    for (size_t i = 0; i < output_lead; ++i)
      if (output[i] != 0xa5) {
        std::printf("seed %" PRIu64 " level %s: wrote before the output\n", seed, *level);
        return false;
      }
    if (!compare(c, expected, output.get() + output_lead, *level, seed)) return false;
  }
  return true;
}

// For every small axis, the range of region.h contains all indices that a padding shows, and none
// outside the image.
bool check_shown_ranges() {
  for (const Padding padding : {Padding::kEdge, Padding::kReflect, Padding::kSymmetric})
    for (int32_t count = 1; count <= 5; ++count)
      for (int32_t offset = -16; offset <= 16; ++offset)
        for (int32_t outputs = 1; outputs <= 16; ++outputs)
          for (const int32_t step : {1, -1}) {
            const Range said = shown_range(padding, offset, step, count, {0, outputs});
            bool holds = said.begin >= 0 && said.end <= count;
            for (int32_t y = 0; y < outputs; ++y) {
              const int64_t shown = reference_index(padding, offset + step * y, count);
              holds = holds && shown >= said.begin && shown < said.end;
            }
            if (holds) continue;
            std::printf("padding %d of %d from %d by %d, %d times: not all in %d to %d\n",
                        static_cast<int>(padding), count, offset, step, outputs, said.begin,
                        said.end);
            return false;
          }
  return true;
}

}  // namespace
}  // namespace jaxkern::image::testing

int main(int argc, char** argv) {
  using namespace jaxkern::image::testing;
  const uint64_t iterations = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 2000;
  const uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  Limits limits;
  limits.common = argc > 3 && std::strcmp(argv[3], "common") == 0;
  int failures = !check_shown_ranges();
  for (uint64_t seed = first; seed < first + iterations && failures < 5; ++seed) {
    limits.size = seed % 50 == 0 ? 300 : seed % 3 == 0 ? 20 : 90;
    // Some images are wider than a column tile of the general path.
    limits.width = seed % 40 == 7 ? 3500 : 0;
    if (limits.width) limits.size = 6;
    failures += !check(random_case(seed, limits), seed);
  }
  std::printf("check_image: %" PRIu64 " chains from seed %" PRIu64 " on levels", iterations, first);
  for (const char* const* level = jaxkern::available_simd_levels(); *level; ++level)
    std::printf(" %s", *level);
  std::printf(": %s\n", failures ? "FAILED" : "passed");
  return failures ? 1 : 0;
}
