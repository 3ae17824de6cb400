// Runs image programs with random codes and values at every SIMD level, and the body of the CUDA
// kernel thread by thread. All of them must write the same bytes. Images end at the end of their
// memory, so that a sanitizer detects accesses beyond. Usage: check_program [rounds] [seed]
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "core/simd_dispatch.h"
#include "image/cuda_program.h"
#include "image/program.h"

namespace {

using namespace jaxkern;         // NOLINT
using namespace jaxkern::image;  // NOLINT

struct Random {
  std::mt19937_64 bits;
  int32_t below(int32_t n) { return static_cast<int32_t>(bits() % static_cast<uint64_t>(n)); }
  float within(double low, double high) {
    return static_cast<float>(low + (high - low) * (static_cast<double>(bits() >> 11) * 0x1p-53));
  }
};

float hostile_value(Random& random) {
  static const float edges[] = {0.f,    -0.f,  1.f,    2.f,      -1.f,      8.f, 255.f,
                                1e-40f, 3e38f, -3e38f, INFINITY, -INFINITY, NAN};
  if (random.below(6) == 0) return edges[random.below(13)];
  return random.below(3) == 0 ? random.within(-40, 300) : random.within(-1, 2);
}

int32_t hostile_code(Random& random) {
  if (random.below(8) == 0) return static_cast<int32_t>(Code::kElastic);  // uses a field
  if (random.below(8) != 0) return random.below(kCodes);
  return static_cast<int32_t>(random.bits());
}

struct Free {
  void operator()(char* memory) const { std::free(memory); }
};

// A group of blocks whose threads run one after the other, in either order, which detects a thread
// that depends on another one before the next barrier.
struct HostBlock {
  int32_t threads, width;
  bool forward;
  std::vector<uint32_t> memory = std::vector<uint32_t>(
      static_cast<size_t>((threads + width - 1) / width * 3 * 256), 0xffffffffu);
  uint32_t* counts(int32_t thread) { return memory.data() + thread / width * 3 * 256; }
  template <typename Body>
  void run(const Body& body) {
    for (int32_t k = 0; k < threads; ++k) body(forward ? k : threads - 1 - k);
  }
  template <typename Number>
  void add(Number* where, Number value) {
    *where += value;
  }
};

template <typename T, int C>
void run_block(const ProgramCall& call, int32_t width, int32_t threads) {
  // As on the device, a block's memory is uninitialized.
  const ProgramMemory memory = program_memory(call, threads);
  const size_t bytes = static_cast<size_t>(memory.bytes);
  const std::unique_ptr<char, Free> scratch(static_cast<char*>(std::aligned_alloc(256, bytes)));
  const std::unique_ptr<ProgramShared> shared(new ProgramShared);
  memset(scratch.get(), 0xff, bytes);
  memset(static_cast<void*>(shared.get()), 0xff, sizeof(ProgramShared));
  HostBlock block = {threads, width, width % 2 == 0};
  ProgramBody<T, C, HostBlock> body = {call, memory, *shared, block, scratch.get()};
  for (int64_t i = 0; i < call.samples; ++i) body.run(i);
}

template <typename T>
void run_blocks(const ProgramCall& call, int32_t width, int32_t threads) {
  if (call.channels == 1) run_block<T, 1>(call, width, threads);
  if (call.channels == 3) run_block<T, 3>(call, width, threads);
  if (call.channels == 4) run_block<T, 4>(call, width, threads);
}

struct Case {
  ProgramCall call = {};
  std::vector<int32_t> ops;
  std::vector<float> values;
  std::unique_ptr<char[]> images;
  size_t bytes;

  explicit Case(Random& random) {
    static const int32_t sides[][2] = {{1, 1}, {1, 7}, {2, 2}, {3, 1}, {2000, 3}, {2, 900}};
    static const int32_t channels[] = {1, 3, 4};
    const int32_t shape = random.below(12);
    call.dtype = random.below(2) != 0 ? Dtype::kU8 : Dtype::kF32;
    call.height = shape < 6 ? sides[shape][0] : 1 + random.below(30);
    call.width = shape < 6 ? sides[shape][1] : 1 + random.below(300);
    call.channels = channels[random.below(3)];
    call.steps = random.below(6);
    call.samples = 1 + random.below(3);
    for (int32_t s = 0; s < call.steps; ++s) {
      ProgramStep& step = call.step[s];
      step.codes = random.below(4) != 0 ? (1 << kCodes) - 1 : static_cast<int32_t>(random.bits());
      step.interpolation = random.below(2);
      step.kernel_x = 2 * random.below(12) + 1;
      step.kernel_y = 2 * random.below(12) + 1;
      for (float& fill : step.fill) fill = hostile_value(random);
    }
    const size_t steps = static_cast<size_t>(call.samples * call.steps);
    for (size_t k = 0; k < steps; ++k) ops.push_back(hostile_code(random));
    for (size_t k = 0; k < kProgramValues * steps; ++k) values.push_back(hostile_value(random));
    bytes = static_cast<size_t>(call.image_bytes() * call.samples);
    images = std::unique_ptr<char[]>(new char[bytes]);
    for (size_t k = 0; k < bytes; ++k) images[k] = static_cast<char>(random.bits());
    if (call.dtype == Dtype::kF32) {
      for (size_t k = 0; k < bytes; k += 4) {
        const float value = random.below(50) == 0 ? hostile_value(random) : random.within(0, 1);
        memcpy(&images[k], &value, 4);
      }
    }
    BatchMap map;
    map.rank = 1;
    map.size[0] = call.samples;
    map.stride[0] = call.elements();
    call.operands.set(kProgramImages, images.get(), map);
    map.stride[0] = call.steps;
    call.operands.set(kProgramOps, ops.data(), map);
    map.stride[0] = call.steps * kProgramValues;
    call.operands.set(kProgramStepValues, values.data(), map);
  }

  std::unique_ptr<char[]> run(SimdLevel level) {
    std::unique_ptr<char[]> output(new char[bytes]);
    const std::unique_ptr<char, Free> scratch(
        static_cast<char*>(std::aligned_alloc(64, program_scratch_bytes(call))));
    call.output = output.get();
    program_samples.at(level)(call, 0, call.samples, scratch.get());
    return output;
  }

  std::unique_ptr<char[]> run_cuda(int32_t width, int32_t blocks) {
    std::unique_ptr<char[]> output(new char[bytes]);
    call.output = output.get();
    (call.dtype == Dtype::kU8 ? run_blocks<uint8_t> : run_blocks<float>)(call, width,
                                                                         width * blocks);
    return output;
  }
};

// True if the result depends on the order of additions: the mean of an image where huge values
// cancel.
bool order_decides(const Case& c) {
  if (c.call.dtype == Dtype::kU8) return false;
  bool contrast = false, huge = false;
  for (const int32_t op : c.ops) contrast |= op == static_cast<int32_t>(Code::kContrast);
  for (size_t k = 0; k < c.bytes; k += 4) {
    float x;
    memcpy(&x, &c.images[k], 4);
    huge |= !(std::fabs(x) < 1e6f);
  }
  return contrast && huge;
}

bool same(const Case& c, const char* a, const char* b) {
  if (c.call.dtype == Dtype::kU8) return memcmp(a, b, c.bytes) == 0;
  for (size_t k = 0; k < c.bytes; k += 4) {
    float x, y;
    memcpy(&x, a + k, 4);
    memcpy(&y, b + k, 4);
    if (std::isfinite(x) != std::isfinite(y)) return false;
    if (std::isfinite(x) && std::fabs(x - y) > 2e-4f * (1 + std::fabs(x))) return false;
  }
  return true;
}

// All blocks of groups that wait for each other are resident, and every image has a group.
bool check_grids() {
  for (const int64_t samples :
       {int64_t{1}, int64_t{63}, int64_t{64}, int64_t{264}, int64_t{70000}, int64_t{1} << 40}) {
    for (const int64_t resident : {0, 1, 2, 80, 264, 1584}) {
      for (const int32_t side : {1, 32, 224, 30000}) {
        ProgramCall call = {};
        call.samples = samples;
        call.height = call.width = side;
        const ProgramGrid grid = program_grid(call, resident);
        const bool fits = grid.groups * grid.blocks <= std::max<int64_t>(resident, 1);
        const bool whole = grid.groups >= 1 && grid.groups <= samples && grid.blocks >= 1;
        const bool used = side < 224 || samples > resident || grid.blocks == kMaxProgramGroup ||
                          2 * grid.groups * grid.blocks > resident;
        if (fits && whole && used && (side > 32 || grid.blocks == 1)) continue;
        std::printf("%lld images of side %d on %lld blocks: %lld groups of %lld\n",
                    static_cast<long long>(samples), side, static_cast<long long>(resident),
                    static_cast<long long>(grid.groups), static_cast<long long>(grid.blocks));
        return false;
      }
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (!check_grids()) return 1;

  const int rounds = argc > 1 ? std::atoi(argv[1]) : 400;
  const unsigned seed = argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1;
  for (int round = 0; round < rounds; ++round) {
    Random random{std::mt19937_64(seed + static_cast<unsigned>(round))};
    Case c(random);
    const std::unique_ptr<char[]> expected = c.run(SimdLevel::kPortable);
    for (int level = 1; level < kSimdLevels; ++level) {
      if (!simd_level_available(static_cast<SimdLevel>(level))) continue;
      const std::unique_ptr<char[]> got = c.run(static_cast<SimdLevel>(level));
      if (!same(c, got.get(), expected.get())) {
        std::printf("seed %u: level %s differs from the portable one\n",
                    seed + static_cast<unsigned>(round),
                    simd_level_name(static_cast<SimdLevel>(level)));
        return 1;
      }
    }
    const int32_t width = kProgramValues + random.below(kProgramThreads - kProgramValues + 1);
    const int32_t blocks = 1 + random.below(4);
    if (const std::unique_ptr<char[]> got = c.run_cuda(width, blocks);
        !order_decides(c) && !same(c, got.get(), expected.get())) {
      std::printf("seed %u: the body of the CUDA kernel differs with %d blocks of %d threads\n",
                  seed + static_cast<unsigned>(round), blocks, width);
      return 1;
    }
  }
  std::printf("%d programs agree\n", rounds);
  return 0;
}
