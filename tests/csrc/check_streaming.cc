// Streaming stores write the bytes of normal stores, in every loop that chooses between them and at
// every SIMD level; and the size of the caches, by which they are chosen, is read from descriptions
// like those of Linux.
#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>

#include "core/simd_dispatch.h"
#include "core/streaming.h"
#include "random_chain.h"
#include "reference_chain.h"
#include "ring/gather.h"
#include "xpcs_case.h"

namespace jaxkern::testing {
namespace {

int g_failures = 0;

void expect(bool condition, const char* what, uint64_t detail) {
  if (!condition && ++g_failures < 20) std::printf("%s (%" PRIu64 ")\n", what, detail);
}

using Bytes = std::vector<unsigned char>;

// Runs write(out, streaming) both ways, at a byte offset of 0 to 60 from a cache line.
template <typename Write>
void compare(const char* what, uint64_t seed, size_t bytes, size_t item, const Write& write) {
  const size_t lead = item * (seed % 5);
  Bytes results[2];
  for (const bool streaming : {false, true}) {
    std::unique_ptr<unsigned char[]> memory(new unsigned char[lead + bytes + 64]);
    const auto line = (reinterpret_cast<uintptr_t>(memory.get()) + 63) / 64 * 64;
    auto* out = reinterpret_cast<unsigned char*>(line) + lead;
    std::fill_n(memory.get(), lead + bytes + 64, static_cast<unsigned char>(0xa5));
    write(out, streaming);
    for (unsigned char* at = memory.get(); at != memory.get() + lead + bytes + 64; ++at) {
      if ((at < out || at >= out + bytes) && *at != 0xa5) expect(false, "bytes around it", seed);
    }
    results[streaming] = Bytes(out, out + bytes);
  }
  expect(results[0] == results[1], what, seed);
}

void check_images() {
  image::testing::Limits limits;
  limits.common = true;
  limits.size = 300;
  int64_t large = 0;
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    image::testing::Case c = image::testing::random_case(seed, limits);
    const size_t bytes = image::output_bytes(c.plan);
    large += bytes >= 64 << 10;
    compare("images", seed, bytes, image::testing::dtype_size(c.plan.output_dtype),
            [&](void* out, bool streaming) {
              image::Sample sample = c.view();
              sample.streaming = streaming;
              image::run_sample(c.plan, sample, out, thread_scratch<image::kScratchBytes>());
            });
  }
  expect(large > 30, "too few images are large enough for streaming stores", large);
}

void check_matrices() {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    xpcs::testing::Case c = xpcs::testing::random_case(seed);
    const xpcs::PhaseTables tables({}, c.n, c.power, {{c.a.data(), false}}, {{c.x.data(), false}});
    const bool single = seed % 2 != 0;
    const std::vector<double> data(static_cast<size_t>(c.n * c.n), 1.25);
    for (const auto op : {xpcs::MatrixOp::kG2, xpcs::MatrixOp::kResidual}) {
      const size_t item = single ? sizeof(float) : sizeof(double);
      compare("matrices", seed, data.size() * item, item, [&](void* out, bool streaming) {
        xpcs::MatrixWork work;
        work.phases = tables[0];
        work.contrast = c.contrast;
        work.offset = c.offset;
        work.data = {data.data(), false};
        work.out = out;
        work.single = single;
        work.streaming = streaming;
        xpcs::matrix({}, op, {work});
      });
    }
  }
}

void check_rows() {
  Bytes source(6 * 5000);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<unsigned char>(i * 7 / 3);
  const int64_t records[] = {5, 0, 3, 3};
  const std::atomic<bool> stop{false};
  for (const int64_t bytes : {100, 4096, 4999, 5000}) {
    ring::Rows rows;
    rows.base = reinterpret_cast<const char*>(source.data());
    rows.stride = 5000;
    rows.bytes = bytes;
    rows.count = 6;
    compare("rows", static_cast<uint64_t>(bytes), static_cast<size_t>(4 * bytes), 1,
            [&](void* out, bool streaming) {
              ring::gather(rows, records, 4, static_cast<char*>(out), streaming, stop);
            });
  }
}

void check_sizes() {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("caches-" + std::to_string(getpid()));
  const auto describe = [&](int cpu, int index, const char* level, const char* type,
                            const char* size, const char* shared) {
    const fs::path cache =
        folder / ("cpu" + std::to_string(cpu)) / "cache" / ("index" + std::to_string(index));
    fs::create_directories(cache);
    std::ofstream(cache / "level") << level << "\n";
    std::ofstream(cache / "type") << type << "\n";
    std::ofstream(cache / "size") << size << "\n";
    std::ofstream(cache / "shared_cpu_list") << shared << "\n";
  };
  const auto bytes = [&](const std::vector<int>& cpus) {
    return static_cast<uint64_t>(last_level_cache_bytes(folder.string(), cpus));
  };
  for (const int cpu : {0, 1, 2, 8}) {
    describe(cpu, 0, "1", "Data", "32K", "0");
    describe(cpu, 1, "1", "Instruction", "64K", "0");
    describe(cpu, 2, "3", "Unified", "32768K", "0-2,8");
    describe(cpu, 3, "2", "Unified", "1M", "0");
  }
  describe(4, 0, "2", "Unified", "2M", "4,5");
  describe(5, 0, "2", "Unified", "", "");
  expect(bytes({0, 1, 2, 8}) == 32 << 20, "a whole cache", bytes({0, 1, 2, 8}));
  expect(bytes({0, 8}) == 16 << 20, "half of a cache", bytes({0, 8}));
  expect(bytes({2, 4}) == 9 << 20, "parts of two caches", bytes({2, 4}));
  expect(bytes({0, 5}) == 0, "an unknown size", bytes({0, 5}));
  expect(bytes({7}) == 0, "a CPU without a description", bytes({7}));
  fs::remove_all(folder);
  expect(largest_cached_result() > 0, "this machine", 0);
}

}  // namespace
}  // namespace jaxkern::testing

int main() {
  using namespace jaxkern::testing;
  check_sizes();
  for (const char* const* level = jaxkern::available_simd_levels(); *level; ++level) {
    jaxkern::set_simd_level(*level);
    check_images();
    check_matrices();
    check_rows();
  }
  std::printf("check_streaming: %s\n", g_failures ? "FAILED" : "passed");
  return g_failures ? 1 : 0;
}
