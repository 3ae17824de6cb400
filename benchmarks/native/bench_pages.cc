// Measures the savings of advised huge pages on the first write of fresh memory, by size, and the
// cost of the advice where it has no effect:
//
//   bench_pages [rounds]
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/huge_pages.h"
#include "measure.h"

namespace jaxkern::benchmarks {
namespace {

// Returns the seconds of the first write of a fresh mapping, with `data` at the offset that malloc
// uses for large blocks.
double first_write(size_t bytes, bool advised) {
  const size_t mapped = bytes + 4096;
  char* base = static_cast<char*>(
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (base == MAP_FAILED) std::abort();
  const double start = now(false, 1);
  if (advised) advise_huge_pages(base + 64, bytes);
  std::memset(base + 64, 1, bytes);
  const double seconds = now(false, 1) - start;
  munmap(base, mapped);
  return seconds;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void report(int rounds) {
  std::printf("first write of fresh memory, us\n%10s %12s %12s\n", "KiB", "small pages", "advised");
  for (size_t kib : {1024, 2048, 2560, 3072, 4096, 6144, 8192, 16384, 37632, 65536}) {
    std::vector<double> small, advised;
    for (int i = 0; i < rounds; ++i) {
      small.push_back(first_write(kib << 10, false));
      advised.push_back(first_write(kib << 10, true));
    }
    std::printf("%10zu %12.0f %12.0f\n", kib, 1e6 * median(small), 1e6 * median(advised));
  }
  const size_t bytes = size_t{37632} << 10;
  Block warm = block(bytes);
  const auto cost = [&](size_t size) {
    constexpr int kCalls = 100000;
    const double start = now(true, 1);  // CPU time, which excludes other processes
    for (int i = 0; i < kCalls; ++i) advise_huge_pages(warm.get(), size);
    return 1e6 * (now(true, 1) - start) / kCalls;
  };
  std::printf("a call on memory in use: %.3f us; on less than 2 MiB: %.4f us\n", cost(bytes),
              cost(kHugePage - 1));
}

}  // namespace
}  // namespace jaxkern::benchmarks

int main(int argc, char** argv) {
  jaxkern::benchmarks::report(argc > 1 ? std::atoi(argv[1]) : 25);
  return 0;
}
