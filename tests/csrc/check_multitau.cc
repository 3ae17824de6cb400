// Runs random multi-tau correlations at every available instruction-set level and the body of the
// CUDA kernel over its whole grid, and compares both with the definition in 128-bit integers;
// catches a wrong sum at any split of frames or pixels, and with sanitizers any access outside the
// frames or the state: usage: check_multitau [iterations] [first seed]
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "core/simd_dispatch.h"
#include "correlators/multitau_update.h"

namespace jaxkern::correlators::testing {
namespace {

using Wide = unsigned __int128;

// Memory of exactly this size, so that a sanitizer detects an access to the next byte.
struct Memory {
  std::unique_ptr<char[]> bytes;
  size_t size = 0;
  explicit Memory(int64_t count) : bytes(new char[static_cast<size_t>(count)]()), size(count) {}
  char* data() const { return bytes.get(); }
  bool operator==(const Memory& other) const {
    return size == other.size && std::memcmp(data(), other.data(), size) == 0;
  }
};

struct Case {
  Dtype dtype;
  Delays delays;
  int64_t frames, pixels, samples;
  std::vector<double> counts;  // [samples, frames, pixels], whole numbers or eighths
  Memory memory;
  std::vector<int64_t> blocks;

  explicit Case(uint64_t seed) : memory(0) {
    std::mt19937_64 random(seed);
    const auto draw = [&](int64_t least, int64_t most) {
      return std::uniform_int_distribution<int64_t>(least, most)(random);
    };
    dtype = static_cast<Dtype>(draw(0, 5));
    samples = draw(1, 3);
    pixels = draw(1, 70);
    frames = draw(0, 600);
    delays = Delays::of(draw(1, 600), static_cast<int32_t>(draw(1, 9)));
    const double largest[] = {255, 65535, 1e7, 1e7, 800, 800};
    const int64_t most = draw(0, 1) == 0 ? int64_t{1} << draw(0, 7)
                                         : static_cast<int64_t>(largest[static_cast<int>(dtype)]);
    const double scale = is_real(dtype) ? 0.125 : 1;
    for (int64_t i = 0; i < samples * frames * pixels; ++i) {
      counts.push_back(static_cast<double>(draw(0, most)) * scale);
    }
    memory = Memory(static_cast<int64_t>(counts.size()) * dtype_bytes(dtype));
    for (size_t i = 0; i < counts.size(); ++i) store(i);
    for (int64_t left = frames; left > 0; left -= blocks.back()) {
      blocks.push_back(std::min(left, draw(1, draw(0, 1) == 0 ? 9 : 300)));
    }
  }

  void store(size_t i) {
    const auto put = [&](auto value) {
      std::memcpy(memory.data() + i * sizeof(value), &value, sizeof(value));
    };
    const double count = counts[i];
    if (dtype == Dtype::kU8) put(static_cast<uint8_t>(count));
    if (dtype == Dtype::kU16) put(static_cast<uint16_t>(count));
    if (dtype == Dtype::kU32) put(static_cast<uint32_t>(count));
    if (dtype == Dtype::kI32) put(static_cast<int32_t>(count));
    if (dtype == Dtype::kF32) put(static_cast<float>(count));
    if (dtype == Dtype::kF64) put(count);
  }

  // In units of the counts' eighths for reals, else whole.
  int64_t whole(int64_t sample, int64_t frame, int64_t pixel) const {
    const double count = counts[static_cast<size_t>((sample * frames + frame) * pixels + pixel)];
    return static_cast<int64_t>(is_real(dtype) ? count * 8 : count);
  }
};

struct States {
  Memory total, g, head, history;
  States(const Case& c)
      : total(8 * c.samples * c.pixels),
        g(8 * c.samples * c.pixels * c.delays.count),
        head((is_real(c.dtype) ? 8 : 4) * c.samples * c.pixels * c.delays.count),
        history((is_real(c.dtype) ? 8 : 4) * c.samples * c.pixels * c.delays.levels() *
                c.delays.kept()) {}
  bool operator==(const States& other) const {
    return total == other.total && g == other.g && head == other.head && history == other.history;
  }
};

// All frames, block after block, from one states' memory to another's and back, or in place.
template <typename Run>
States run_blocks(const Case& c, bool in_place, const Run& run) {
  States one(c), two(c);
  States *from = &one, *to = in_place ? &one : &two;
  int64_t seen = 0;
  for (const int64_t block : c.blocks) {
    MultiTauCall call;
    call.dtype = c.dtype;
    call.delays = c.delays;
    call.levels = c.delays.levels();
    call.frames = block;
    call.pixels = c.pixels;
    call.samples = c.samples;
    const std::vector<int32_t> sums = {static_cast<int32_t>(seen)};
    // The frames of the block for each sample in sequence, in memory of exactly this size.
    const int64_t row = c.pixels * dtype_bytes(c.dtype);
    Memory frames(c.samples * block * row);
    for (int64_t s = 0; s < c.samples; ++s) {
      std::memcpy(frames.data() + s * block * row, c.memory.data() + (s * c.frames + seen) * row,
                  static_cast<size_t>(block * row));
    }
    const auto set = [&](int operand, const void* data, int64_t stride) {
      BatchMap map;
      map.rank = 1;
      map.size[0] = c.samples;
      map.stride[0] = stride;
      call.operands.set(operand, data, map);
    };
    const int64_t words = is_real(c.dtype) ? 2 : 1;
    set(kFrames, frames.data(), block * c.pixels);
    set(kSeen, sums.data(), 0);
    set(kTotal, from->total.data(), 2 * c.pixels);
    set(kG, from->g.data(), 2 * c.pixels * c.delays.count);
    set(kHead, from->head.data(), words * c.pixels * c.delays.count);
    set(kHistory, from->history.data(), words * c.pixels * call.history_rows());
    call.total = to->total.data();
    call.g = to->g.data();
    call.head = to->head.data();
    call.history = to->history.data();
    run(call);
    seen += block;
    std::swap(from, to);
  }
  return std::move(*from);
}

// G and the first sums of each delay by the definition.
bool is_right(const Case& c, const States& states, const char* what) {
  const double unit = is_real(c.dtype) ? 0.125 : 1;
  for (int64_t s = 0; s < c.samples; ++s) {
    for (int64_t p = 0; p < c.pixels; ++p) {
      for (int32_t level = 0; level < c.delays.levels(); ++level) {
        std::vector<Wide> sums(static_cast<size_t>(c.frames >> level), 0);
        for (size_t k = 0; k < sums.size(); ++k) {
          for (int64_t i = 0; i < int64_t{1} << level; ++i) {
            sums[k] += static_cast<Wide>(c.whole(s, (static_cast<int64_t>(k) << level) + i, p));
          }
        }
        for (int32_t d = 0; d < c.delays.at(level); ++d) {
          const size_t t = static_cast<size_t>(c.delays.first(level) + d);
          Wide g = 0, head = 0;
          for (size_t k = t; k < sums.size(); ++k) g += sums[k] * sums[k - t];
          for (size_t k = 0; k < std::min(t, sums.size()); ++k) head += sums[k];
          const int64_t at = (s * c.delays.count + c.delays.offset(level) + d) * c.pixels + p;
          bool same;
          if (is_real(c.dtype)) {
            same = reinterpret_cast<const double*>(states.g.data())[at] ==
                       static_cast<double>(g) * unit * unit &&
                   reinterpret_cast<const double*>(states.head.data())[at] ==
                       static_cast<double>(head) * unit;
          } else {
            same = reinterpret_cast<const uint64_t*>(states.g.data())[at] == g &&
                   reinterpret_cast<const uint32_t*>(states.head.data())[at] == head;
          }
          if (same) continue;
          std::printf("%s: sample %" PRId64 " pixel %" PRId64 " level %d delay %zu is wrong\n",
                      what, s, p, level, t);
          return false;
        }
      }
    }
  }
  return true;
}

Executor threads(int64_t count) {
  Executor executor;
  executor.workers = count;
  executor.schedule = [](std::function<void()> task) { std::thread(std::move(task)).detach(); };
  return executor;
}

// Whole frames of the first sample, of every other pixel, all in one bin: G of the first delay.
bool check_run(const Case& c) {
  std::vector<int32_t> pixel, bin;
  for (int32_t p = 0; p < c.pixels; p += 2) pixel.push_back(p);
  bin.assign(pixel.size(), 0);
  FrameRows rows;
  rows.data = c.memory.data();
  rows.stride = c.pixels * dtype_bytes(c.dtype);
  rows.dtype = c.dtype;
  const BinnedPixels pixels = {
      pixel.data(), bin.data(), bin.data(), static_cast<int64_t>(bin.size()), 1, 1};
  BinSums one, many;
  std::string problem = correlate({}, rows, c.pixels, c.frames, c.delays.dpl, pixels, {}, &one);
  problem += correlate(threads(7), rows, c.pixels, c.frames, c.delays.dpl, pixels, {}, &many);
  Wide g = 0;
  for (const int32_t p : pixel) {
    for (int64_t k = 1; k < c.frames; ++k) {
      g += static_cast<Wide>(c.whole(0, k, p)) * static_cast<Wide>(c.whole(0, k - 1, p));
    }
  }
  const double unit = is_real(c.dtype) ? 0.125 : 1;
  if (problem.empty() && one.sums == many.sums && one.mean == many.mean &&
      one.squares == many.squares &&
      (c.frames < 2 || one.sums[0] == static_cast<double>(g) * unit * unit)) {
    return true;
  }
  std::printf("a run of frames: %s\n", problem.c_str());
  return false;
}

bool check(uint64_t seed) {
  const Case c(seed);
  bool right = true;
  const States body = run_blocks(c, seed % 2 == 0, [](const MultiTauCall& call) {
    with_body(call.dtype, [&](auto one) {
      for (int64_t flat = call.items(); flat-- > 0;) decltype(one)::run(call, flat);
    });
  });
  right = is_right(c, body, "the CUDA body") && right;
  for (const char* const* level = available_simd_levels(); *level; ++level) {
    set_simd_level(*level);
    const Executor executor = seed % 3 == 0 ? threads(5) : Executor{};
    const States cpu = run_blocks(c, seed % 2 != 0,
                                  [&](const MultiTauCall& call) { update_states(executor, call); });
    right = is_right(c, cpu, *level) && right;
    if (!(cpu == body)) {
      std::printf("%s: the states differ from those of the CUDA body\n", *level);
      right = false;
    }
    right = check_run(c) && right;
  }
  set_simd_level(nullptr);
  if (!right) {
    std::printf("seed %" PRIu64 ": dtype %d, %" PRId64 " x %" PRId64 " x %" PRId64
                ", dpl %d, %" PRId64 " delays, %zu blocks\n",
                seed, static_cast<int>(c.dtype), c.samples, c.frames, c.pixels, c.delays.dpl,
                c.delays.count, c.blocks.size());
  }
  return right;
}

}  // namespace
}  // namespace jaxkern::correlators::testing

int main(int argc, char** argv) {
  const int64_t iterations = argc > 1 ? std::atoll(argv[1]) : 40;
  const uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  int64_t failures = 0;
  for (int64_t i = 0; i < iterations; ++i) {
    failures += !jaxkern::correlators::testing::check(first + static_cast<uint64_t>(i));
  }
  std::printf("%" PRId64 " cases, %" PRId64 " failures\n", iterations, failures);
  return failures == 0 ? 0 : 1;
}
