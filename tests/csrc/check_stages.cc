// Compares stages of random chains and programs with separate calls, bit for bit, at every SIMD
// level and in a thread whose buffers are fresh, so that a sanitizer detects accesses beyond.
// Invalid attributes and boxes must be errors. Usage: check_stages [rounds] [first seed]
#include <cinttypes>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "core/simd_dispatch.h"
#include "image/producer.h"
#include "image/stages.h"
#include "random_chain.h"

namespace jaxkern::image::testing {
namespace {

template <typename T>
Slice<T> list(const std::vector<T>& values) {
  return {values.data(), values.size()};
}

template <typename T>
void append(std::vector<T>* all, const std::vector<T>& more) {
  all->insert(all->end(), more.begin(), more.end());
}

// The attributes of stages, and the operands of one image.
struct StagesCase {
  std::vector<int32_t> filter, size, erasures, rounding, segments, steps, dtype;
  std::vector<int32_t> codes, interpolation, kernel;
  std::vector<float> fills;
  int32_t layout = 0, channels = 3;
  Case all;  // the source, and the operands of all chains
  std::vector<int32_t> op;
  std::vector<float> values;

  StagesAttributes attributes() const {
    return {list(filter),
            list(size),
            list(erasures),
            list(rounding),
            list(segments),
            list(steps),
            list(dtype),
            list(codes),
            list(interpolation),
            list(kernel),
            list(fills),
            layout,
            channels,
            static_cast<int32_t>(all.plan.source_dtype),
            all.height,
            all.width};
  }
  StagesSample sample() const { return {all.view(), op.data(), values.data()}; }
};

void add_program(Random& random, int32_t count, StagesCase* c) {
  static const float edges[] = {0.f, 1.f, -1.f, 8.f, 255.f, 1e-40f, 3e38f, INFINITY, NAN};
  c->steps.push_back(count);
  for (int32_t s = 0; s < count; ++s) {
    c->codes.push_back((1 << kCodes) - 1);
    c->interpolation.push_back(random.integer(0, 1));
    for (int k = 0; k < 2; ++k) c->kernel.push_back(2 * random.integer(0, 3) + 1);
    for (int32_t k = 0; k < c->channels; ++k) c->fills.push_back(random.real(0.f, 255.f));
    c->op.push_back(random.chance(90) ? random.integer(-1, kCodes - 1)
                                      : static_cast<int32_t>(random.engine()));
    for (int k = 0; k < kProgramValues; ++k) {
      c->values.push_back(random.chance(5) ? edges[random.integer(0, 8)] : random.real(-1.f, 2.f));
    }
  }
}

StagesCase random_stages(uint64_t seed) {
  Random random(seed);
  StagesCase c;
  Limits limits;
  limits.size = 40;
  const int32_t stages = random.integer(1, 4);
  int32_t height = 0, width = 0;
  Dtype dtype = Dtype::kU8;
  for (int32_t k = 0; k < stages; ++k) {
    const bool last = k == stages - 1;
    int32_t steps = random.integer(last ? 0 : 1, 4);
    Case next = random_case(random.engine(), limits);
    if (k == 0) {
      c.channels = next.plan.channels;
      c.all.plan.source_dtype = next.plan.source_dtype;
      c.all.height = next.height;
      c.all.width = next.width;
      c.all.pixels = next.pixels;
      c.all.plan.channels = c.channels;
      const bool takes =
          next.plan.source_dtype == Dtype::kU8 || next.plan.source_dtype == Dtype::kF32;
      if (takes && random.chance(20)) {  // no chain
        c.segments.push_back(0);
        height = next.height;
        width = next.width;
        dtype = next.plan.source_dtype;
        c.dtype.push_back(static_cast<int32_t>(dtype));
        add_program(random, steps + 1, &c);
        continue;
      }
      height = next.height;
      width = next.width;
    }
    // Use another seed if the channels differ, because the operands depend on them.
    while (next.plan.channels != c.channels) next = random_case(random.engine(), limits);
    // Draw the boxes of the first segment again, inside the actual source.
    Geometry& g = next.geometry[0];
    const Segment& first = next.plan.segment[0];
    random_axis(random, first.filter, height, first.height, g.top, g.box_height, g.resampled_height,
                g.row_offset, g.row_step, g.valid_top, g.valid_bottom);
    random_axis(random, first.filter, width, first.width, g.left, g.box_width, g.resampled_width,
                g.column_offset, g.column_step, g.valid_left, g.valid_right);
    Dtype out = next.plan.output_dtype;
    if (!last || steps > 0) out = random.chance(70) ? Dtype::kU8 : Dtype::kF32;
    Segment& end = next.plan.segment[next.plan.segments - 1];
    if (out == Dtype::kU8 && end.rounding == Rounding::kKeep) end.rounding = Rounding::kNearest;
    if (last && steps == 0) c.layout = static_cast<int32_t>(next.plan.layout);
    c.segments.push_back(next.plan.segments);
    c.dtype.push_back(static_cast<int32_t>(out));
    for (int32_t s = 0; s < next.plan.segments; ++s) {
      const Segment& segment = next.plan.segment[s];
      c.filter.push_back(static_cast<int32_t>(segment.filter) |
                         static_cast<int32_t>(segment.padding) << 4);
      c.size.push_back(segment.height);
      c.size.push_back(segment.width);
      c.erasures.push_back(segment.erasures);
      c.rounding.push_back(static_cast<int32_t>(segment.rounding));
    }
    append(&c.all.geometry, next.geometry);
    append(&c.all.affine, next.affine);
    append(&c.all.fill, next.fill);
    append(&c.all.erase_box, next.erase_box);
    append(&c.all.erase_value, next.erase_value);
    add_program(random, steps, &c);
    height = end.height;
    width = end.width;
    dtype = out;
  }
  return c;
}

// Runs one call after the other, each with separate memory.
std::vector<unsigned char> separate(const StagesCase& c, const Stages& stages) {
  std::vector<unsigned char> image = c.all.pixels;
  Sample at = c.all.view();
  const int32_t* op = c.op.data();
  const float* values = c.values.data();
  for (int32_t k = 0; k < stages.count; ++k) {
    Plan plan = stages.stage[k].chain;
    plan.stays_in_cache = false;
    if (plan.segments > 0) {
      std::vector<unsigned char> output(output_bytes(plan));
      at.pixels = image.data();
      run_sample(plan, at, output.data(), thread_scratch<kScratchBytes>());
      image = output;
      const Segment& last = plan.segment[plan.segments - 1];
      at.height = last.height;
      at.width = last.width;
      at.geometry += plan.segments;
      at.affine += 2 * plan.segments * plan.channels;
      at.fill += plan.segments * plan.channels;
      for (int32_t s = 0; s < plan.segments; ++s) {
        at.erase_box += plan.segment[s].erasures;
        at.erase_value += plan.segment[s].erasures * plan.channels;
      }
    }
    ProgramCall program = stages.stage[k].program;
    if (program.steps == 0) continue;
    std::vector<unsigned char> output(image.size());
    program.operands.data[kProgramImages] = image.data();
    program.operands.data[kProgramOps] = op;
    program.operands.data[kProgramStepValues] = values;
    program.output = output.data();
    run_program_samples(program, 0, 1);
    image = output;
    op += program.steps;
    values += program.steps * kProgramValues;
  }
  return image;
}

bool check_same(uint64_t seed) {
  const StagesCase c = random_stages(seed);
  Stages stages;
  if (const std::string problem = set_stages(c.attributes(), &stages); !problem.empty()) {
    std::printf("seed %" PRIu64 ": valid stages rejected: %s\n", seed, problem.c_str());
    return false;
  }
  if (const Problem problem = check_stages_sample(stages, c.all.view(), 0); problem.argument) {
    std::printf("seed %" PRIu64 ": valid sample rejected: %s of segment %d, expected %s\n", seed,
                problem.argument, problem.segment, problem.expected);
    return false;
  }
  for (const char* const* level = available_simd_levels(); *level; ++level) {
    set_simd_level(*level);
    const std::vector<unsigned char> expected = separate(c, stages);
    std::vector<unsigned char> output(static_cast<size_t>(stages.output_bytes()), 0xa5);
    std::thread([&] { run_stages(stages, c.sample(), output.data()); }).join();
    if (output != expected) {
      std::printf("seed %" PRIu64 " level %s: %d stages differ from separate calls\n", seed, *level,
                  stages.count);
      return false;
    }
  }
  return true;
}

int32_t hostile(Random& random, int32_t sane) {
  static const int32_t edges[] = {INT_MIN, -1, 0, 1, 2, 8, 9, 1 << 24, (1 << 24) + 1, INT_MAX};
  if (random.chance(60) || sane < INT_MIN + 2 || sane > INT_MAX - 2) {
    return edges[random.integer(0, 9)];
  }
  return sane + random.integer(-2, 2);
}

// Replaces a few attributes or boxes by random values, which are either errors or run without
// invalid accesses. Operands have the sizes of the original attributes, which a handler would have
// checked.
bool check_hostile(uint64_t seed, bool* rejected) {
  StagesCase c = random_stages(seed);
  Random random(seed ^ 0x9e3779b97f4a7c15u);
  std::vector<int32_t>* lists[] = {&c.filter, &c.size,  &c.erasures,      &c.rounding, &c.segments,
                                   &c.steps,  &c.dtype, &c.interpolation, &c.kernel};
  for (int32_t edits = random.integer(1, 2); edits > 0; --edits) {
    if (!c.all.geometry.empty() && random.chance(50)) {
      int32_t fields[kGeometryFields];
      Geometry& g = c.all.geometry[static_cast<size_t>(
          random.integer(0, static_cast<int64_t>(c.all.geometry.size()) - 1))];
      std::memcpy(fields, &g, sizeof g);
      int32_t& field = fields[random.integer(0, kGeometryFields - 1)];
      field = hostile(random, field);
      std::memcpy(&g, fields, sizeof g);
      continue;
    }
    std::vector<int32_t>& values = *lists[random.integer(0, 8)];
    if (random.chance(20)) {
      values.resize(static_cast<size_t>(random.integer(0, 10)), 1);
    } else if (!values.empty()) {
      int32_t& value =
          values[static_cast<size_t>(random.integer(0, static_cast<int64_t>(values.size()) - 1))];
      value = hostile(random, value);
    }
  }
  Stages stages;
  *rejected = !set_stages(c.attributes(), &stages).empty();
  if (*rejected) return true;
  const auto count = [](size_t n) { return static_cast<int32_t>(n); };
  if (stages.segments() > count(c.all.geometry.size()) || stages.steps() > count(c.op.size()) ||
      stages.erasures() > count(c.all.erase_box.size())) {
    return true;  // a handler rejects such operands
  }
  *rejected = check_stages_sample(stages, c.all.view(), 0).argument != nullptr;
  if (*rejected) return true;
  for (int32_t k = 0; k < stages.count; ++k) {
    const Plan& plan = stages.stage[k].chain;
    for (int32_t s = 0; s < plan.segments; ++s) {
      if (int64_t{plan.segment[s].height} * plan.segment[s].width > 20000) return true;
    }
  }
  std::vector<unsigned char> output(static_cast<size_t>(stages.output_bytes()));
  std::thread([&] { run_stages(stages, c.sample(), output.data()); }).join();
  return true;
}

// A producer of the same stages writes the same image of a row, also in threads that share it.
bool check_producer(uint64_t seed) {
  const StagesCase c = random_stages(seed);
  Stages stages;
  if (!set_stages(c.attributes(), &stages).empty()) return false;
  const JaxkernProducer* producer = make_chain_producer(stages, c.all.height, c.all.width);
  const void* rows[] = {c.all.pixels.data()};
  const void* operands[] = {c.all.geometry.data(),  c.all.affine.data(),      c.all.fill.data(),
                            c.all.erase_box.data(), c.all.erase_value.data(), c.op.data(),
                            c.values.data()};
  const int64_t strides[7] = {};
  const std::vector<unsigned char> expected = separate(c, stages);
  std::string problem[2];
  const auto make = [&](std::string* message) {
    std::vector<unsigned char> output(static_cast<size_t>(producer->output_bytes));
    const JaxkernRecords records{1, rows, operands, strides, output.data(), nullptr, 0};
    char text[1024] = "another image";
    const int32_t failed = producer->run(producer->state, &records, text, sizeof text);
    if (failed != 0 || output != expected) *message = text;
  };
  std::thread other(make, &problem[1]);
  make(&problem[0]);
  other.join();
  producer->release(producer->state);
  if (problem[0].empty() && problem[1].empty()) return true;
  std::printf("seed %" PRIu64 ": the producer differs: %s %s\n", seed, problem[0].c_str(),
              problem[1].c_str());
  return false;
}

}  // namespace
}  // namespace jaxkern::image::testing

int main(int argc, char** argv) {
  using namespace jaxkern::image::testing;
  const uint64_t rounds = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 400;
  const uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  uint64_t rejected = 0, failures = 0;
  for (uint64_t seed = first; seed < first + rounds && failures < 5; ++seed) {
    failures += !check_same(seed);
    failures += !check_producer(seed);
    for (uint64_t k = 0; k < 10; ++k) {
      bool was = false;
      failures += !check_hostile(seed * 1000 + k, &was);
      rejected += was;
    }
  }
  const bool reached = rounds < 100 || (rejected > rounds && rejected < 10 * rounds);
  std::printf("check_stages: %" PRIu64 " calls, %" PRIu64 " of ten times as many rejected: %s\n",
              rounds, rejected, failures || !reached ? "FAILED" : "passed");
  return failures || !reached ? 1 : 0;
}
