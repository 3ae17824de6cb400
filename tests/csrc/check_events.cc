// Events at random, some of which cannot be, at every instruction-set level and with threads,
// against sums over frames; and events that change while they are sorted:
//   check_events [rounds] [seed]
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/simd_dispatch.h"
#include "correlators/event_pairs.h"
#include "correlators/multitau_events.h"

namespace {

using namespace jaxkern;               // NOLINT
using namespace jaxkern::correlators;  // NOLINT

int g_failures = 0;

void expect(bool condition, const std::string& what) {
  if (condition) return;
  std::printf("check_events: %s\n", what.c_str());
  ++g_failures;
}

class Threads {
 public:
  explicit Threads(int64_t count) {
    executor.workers = count;
    executor.schedule = [this](std::function<void()> task) {
      threads_.emplace_back(std::move(task));
    };
  }
  ~Threads() {
    for (std::thread& thread : threads_) thread.join();
  }
  Executor executor;

 private:
  std::vector<std::thread> threads_;
};

// Events in memory that ends where they end, so that a sanitizer sees the first byte beyond.
struct Case {
  std::mt19937_64 random;
  int64_t n_pixels, n_frames, n_sums, average, size;
  int32_t dpl;
  std::vector<int64_t> pixel, frame, count;
  std::vector<char> bytes[3], words;
  EventInput input;
  std::vector<int32_t> sum, used, static_bin, dynamic_bin;
  std::vector<uint32_t> good;
  bool missing = false;

  int64_t below(int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); }

  explicit Case(uint64_t seed) : random(seed) {
    n_pixels = 1 + below(below(4) == 0 ? 3000 : 60);
    n_frames = 1 + below(below(4) == 0 ? 2000 : 70);
    average = 1 + below(3);
    n_sums = n_frames / average;
    dpl = static_cast<int32_t>(1 + below(6));
    const int64_t most = int64_t{1} << below(26);
    size = below(4000);
    const bool hot = below(3) == 0;  // most events are of one pixel
    // All light may come at once, or at the end, where sums are not full.
    const int64_t lit = below(3) == 0 ? 1 + below(std::min<int64_t>(n_frames, 100)) : n_frames;
    const int64_t dark = below(2) == 0 ? n_frames - lit : below(n_frames - lit + 1);
    if (lit < n_frames && below(2) == 0) size = below(8 * n_pixels);
    for (int64_t i = 0; i < size; ++i) {
      pixel.push_back(hot && below(4) != 0 ? n_pixels / 2 : below(n_pixels));
      frame.push_back(dark + below(lit));
      count.push_back(below(std::min<int64_t>(most, (int64_t{1} << 32) / (size + 1))));
    }
    if (below(2) == 0) std::sort(frame.begin(), frame.end());
    sum.assign(n_frames, -1);
    good.assign(n_sums, 0);
    for (int64_t f = 0; f < n_sums * average; ++f) {
      if (below(40) == 0) continue;  // a bad frame
      sum[f] = static_cast<int32_t>(f / average);
      ++good[f / average];
    }
    for (const uint32_t g : good) missing = missing || g != average;
    for (int32_t p = 0; p < n_pixels; ++p) {
      if (below(6) == 0) continue;
      used.push_back(p);
      static_bin.push_back(static_cast<int32_t>(below(4)));
      dynamic_bin.push_back(static_bin.back() / 2);
    }
    pack();
  }

  template <typename T>
  Column column(const std::vector<int64_t>& values, std::vector<char>* memory, ColumnKind kind) {
    const int64_t stride = static_cast<int64_t>(sizeof(T)) * (1 + below(2));
    memory->assign(values.empty() ? 0 : (values.size() - 1) * stride + sizeof(T), 0);
    for (size_t i = 0; i < values.size(); ++i) {
      const T value = static_cast<T>(values[i]);
      std::memcpy(memory->data() + i * stride, &value, sizeof(T));
    }
    return {memory->data(), stride, kind};
  }

  void pack() {
    input = {};
    input.size = size;
    const int64_t most = size == 0 ? 0 : *std::max_element(count.begin(), count.end());
    if (most < 4096 && below(2) == 0) {
      input.pixel_base = below(2) << 20;
      words.resize(8 * size);
      for (int64_t i = 0; i < size; ++i) {
        const uint64_t word = static_cast<uint64_t>(count[i]) |
                              static_cast<uint64_t>(pixel[i] + input.pixel_base) << 16 |
                              static_cast<uint64_t>(frame[i]) << 40;
        std::memcpy(words.data() + 8 * i, &word, 8);
      }
      static const char kNothing = 0;
      input.words = size == 0 ? &kNothing : words.data();
      return;
    }
    input.pixel = below(2) == 0 ? column<int32_t>(pixel, &bytes[0], ColumnKind::kI32)
                                : column<uint16_t>(pixel, &bytes[0], ColumnKind::kU16);
    input.frame = below(2) == 0 ? column<uint64_t>(frame, &bytes[1], ColumnKind::kU64)
                                : column<int16_t>(frame, &bytes[1], ColumnKind::kI16);
    input.count = below(2) == 0 ? column<int64_t>(count, &bytes[2], ColumnKind::kI64)
                                : column<uint32_t>(count, &bytes[2], ColumnKind::kU32);
  }

  EventFrames frames() const {
    return {n_frames, n_sums, 0, sum.data(), missing ? good.data() : nullptr};
  }
  BinnedPixels pixels() const {
    return {used.data(),
            static_bin.data(),
            dynamic_bin.data(),
            static_cast<int64_t>(used.size()),
            4,
            2};
  }
  BinSums run(int64_t threads, double memory) {
    Threads own(threads);
    BinSums sums;
    correlate_events(own.executor, input, frames(), n_pixels, dpl, pixels(), memory, {}, &sums);
    return sums;
  }
  // [n_pixels, n_sums]
  std::vector<uint64_t> dense() const {
    std::vector<uint64_t> made(n_pixels * n_sums, 0);
    for (int64_t i = 0; i < size; ++i) {
      if (sum[frame[i]] >= 0) made[pixel[i] * n_sums + sum[frame[i]]] += count[i];
    }
    return made;
  }
};

void check_multitau(Case* c, const BinSums& found) {
  const std::vector<uint64_t> dense = c->dense();
  const Delays delays = Delays::of(c->n_sums, c->dpl);
  const auto n = static_cast<size_t>(delays.count);
  expect(found.weight.size() == n && found.sums.size() == 12 * n, "other delays");
  for (int32_t level = 0; level < delays.levels(); ++level) {
    for (int32_t d = 0; d < delays.at(level); ++d) {
      const int64_t t = delays.first(level) + d, tau = delays.offset(level) + d;
      unsigned __int128 wanted[3][4] = {};
      for (size_t i = 0; i < c->used.size(); ++i) {
        const uint64_t* own = dense.data() + c->used[i] * c->n_sums;
        for (int64_t k = 0; k + t < c->n_sums >> level; ++k) {
          unsigned __int128 s[2] = {0, 0}, g[2] = {0, 0};
          for (int64_t j = 0; j < int64_t{1} << level; ++j) {
            for (int side = 0; side < 2; ++side) {
              const int64_t at = ((k + side * t) << level) + j;
              s[side] += own[at];
              g[side] += c->good[at];
            }
          }
          wanted[0][c->static_bin[i]] += s[0] * s[1];
          wanted[1][c->static_bin[i]] += s[0] * (c->missing ? g[1] : 1);
          wanted[2][c->static_bin[i]] += s[1] * (c->missing ? g[0] : 1);
        }
      }
      for (int kind = 0; kind < 3; ++kind) {
        for (int bin = 0; bin < 4; ++bin) {
          expect(found.sums[(kind * n + tau) * 4 + bin] == static_cast<double>(wanted[kind][bin]),
                 "a sum differs");
        }
      }
    }
  }
}

void check_pairs(Case* c, int64_t threads) {
  if (c->n_sums > 200 || c->n_sums == 0) return;
  Threads own(threads);
  EventMap map;
  map.n_pixels = c->n_pixels;
  map.n_frames = c->n_frames;
  map.n_sums = c->n_sums;
  map.sum = c->sum.data();
  const auto count = static_cast<int64_t>(c->used.size());
  const std::vector<int64_t> ends = {count / 3, count / 3, count};
  EventPairs pairs(own.executor, c->input, map, c->used.data(), ends);
  const std::vector<uint64_t> dense = c->dense();
  const int64_t n = c->n_sums;
  const std::vector<double> ones(3 * n, 1.0);
  std::vector<double> matrix(n * n, 0);
  for (int64_t row = 0; row < n;) {
    const int64_t rows = std::min(1 + c->below(n), n - row);
    std::vector<double> out(rows * (n - row), -1.0);
    pairs.rows(own.executor, 0, 3, ones.data(), ones.data(), 1.0, row, rows, out.data());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t k = r; k < n - row; ++k) {
        uint64_t wanted = 0;
        for (const int32_t p : c->used) {
          wanted += dense[p * n + row + r] * dense[p * n + row + k];
        }
        const double got = out[r * (n - row) + k], right = static_cast<double>(wanted);
        // Sums of three groups are added in double.
        expect(got == right || (wanted >> 53 != 0 && std::abs(got / right - 1) < 1e-15),
               "a sum of products of two sums differs");
      }
    }
    row += c->below(5) == 0 ? 0 : rows;  // some rows twice
  }
}

void check_hostile(Case* c) {
  if (c->size == 0) return;
  const int64_t at = c->below(c->size), which = c->below(3);
  const int64_t values[] = {-1, INT64_MIN, INT64_MAX, int64_t{1} << 32, c->n_pixels, c->n_frames};
  std::vector<int64_t>& column = which == 0 ? c->pixel : which == 1 ? c->frame : c->count;
  int64_t value = values[c->below(6)];
  if (which == 2 && value >= 0 && value < 0xffffffff) value = 0xffffffff;
  if (which < 2 && value >= 0) {
    value = std::max(value, std::max(c->n_pixels, c->n_frames));
  }
  column[at] = value;
  const ColumnKind kind = ColumnKind::kI64;
  c->input = {};
  c->input.size = c->size;
  c->input.pixel = c->column<int64_t>(c->pixel, &c->bytes[0], kind);
  c->input.frame = c->column<int64_t>(c->frame, &c->bytes[1], kind);
  c->input.count = c->column<int64_t>(c->count, &c->bytes[2], kind);
  try {
    c->run(2, 1e9);
    expect(false, "an event that cannot be was taken");
  } catch (const std::invalid_argument& error) {
    expect(std::string(error.what()).find("event " + std::to_string(at)) == 0,
           "another event is named: " + std::string(error.what()));
  }
}

// What changes the events while they are read must find no way out of bounds.
void check_changing(uint64_t seed) {
#if !defined(__SANITIZE_THREAD__)
  Case c(seed);
  if (c.input.words == nullptr || c.size == 0) return;
  std::atomic<bool> done{false};
  std::thread changing([&] {
    std::mt19937_64 random(seed);
    while (!done) {
      const uint64_t word = random() >> (random() % 64);
      std::memcpy(c.words.data() + 8 * (random() % c.size), &word, 8);
    }
  });
  for (int i = 0; i < 3; ++i) {
    try {
      c.run(2, i == 0 ? 1e9 : 1000.0);
    } catch (const std::exception&) {
    }
  }
  done = true;
  changing.join();
#else
  (void)seed;
#endif
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 60;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  for (int round = 0; round < rounds && g_failures < 10; ++round) {
    Case c(seed + round);
    BinSums first;
    for (const char* const* level = available_simd_levels(); *level != nullptr; ++level) {
      set_simd_level(*level);
      const BinSums found = c.run(1 + c.below(4), c.below(2) == 0 ? 1e9 : 3000.0);
      if (first.weight.empty()) {
        first = found;
        check_multitau(&c, found);
      }
      expect(found.sums == first.sums && found.mean == first.mean && found.squares == first.squares,
             "a level, threads or memory change a bit");
      check_pairs(&c, 1 + c.below(4));
    }
    set_simd_level(nullptr);
    check_changing(seed + round);
    check_hostile(&c);
  }
  if (g_failures == 0) std::printf("check_events: %d rounds\n", rounds);
  return g_failures == 0 ? 0 : 1;
}
