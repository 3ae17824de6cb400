// Measures the cost of passing a small batch from one thread to another through the ring:
//   bench_ring [--json FILE]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "ring/ring.h"

namespace {

using jaxkern::ring::Batch;
using jaxkern::ring::kNextIndex;
using jaxkern::ring::kNoDeadline;
using jaxkern::ring::Options;
using jaxkern::ring::Ring;
using jaxkern::ring::Slot;

constexpr int64_t kBatches = 20000;
constexpr int64_t kFloats = 256;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Returns microseconds per batch. The consumer checks the batches.
double hand_over(int64_t capacity, bool* right) {
  Options options;
  options.capacity = capacity;
  const auto ring = Ring::create({jaxkern::ring::leaf_spec("float32", 4, {kFloats})}, options);
  const double begin = seconds_now();
  std::thread producer([&] {
    for (int64_t i = 0; i < kBatches; ++i) {
      Slot slot;
      if (!ring->acquire(kNextIndex, kNoDeadline, &slot).ok()) return;
      auto* values = reinterpret_cast<float*>(slot.leaf(0));
      for (int64_t k = 0; k < kFloats; ++k) values[k] = static_cast<float>(i);
      ring->commit(std::move(slot));
    }
    ring->finish();
  });
  Batch batch;
  int64_t next = 0;
  *right = true;
  while (ring->take(kNoDeadline, &batch).ok()) {
    *right = *right && reinterpret_cast<const float*>(batch.leaf(0))[0] == static_cast<float>(next);
    ++next;
  }
  producer.join();
  *right = *right && next == kBatches;
  return (seconds_now() - begin) / kBatches * 1e6;
}

}  // namespace

int main(int argc, char** argv) {
  std::string rows;
  for (const int64_t capacity : {1, 4, 16, 64}) {
    std::vector<double> found;
    for (int round = 0; round < 7; ++round) {
      bool right = false;
      found.push_back(hand_over(capacity, &right));
      if (!right) {
        std::printf("bench_ring: a batch is wrong\n");
        return 1;
      }
    }
    std::sort(found.begin(), found.end());
    const double median = found[found.size() / 2];
    std::printf("capacity %3d: %6.2f us a batch (%.2f to %.2f)\n", static_cast<int>(capacity),
                median, found.front(), found.back());
    rows += std::string(rows.empty() ? "" : ",") +
            "\n  {\"capacity\": " + std::to_string(capacity) +
            ", \"us\": " + std::to_string(median) + "}";
  }
  if (argc == 3 && std::strcmp(argv[1], "--json") == 0) {
    std::FILE* file = std::fopen(argv[2], "w");
    if (file == nullptr) return 1;
    std::fprintf(file, "{\"rows\": [%s\n]}\n", rows.c_str());
    std::fclose(file);
  }
  return 0;
}
