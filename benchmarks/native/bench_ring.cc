// Measures the cost of passing a small batch from one thread to another through the ring.
#include <algorithm>
#include <chrono>
#include <cstdio>
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

int main() {
  std::printf("| slots | us a batch between two native threads | least to most |\n|--:|--:|--:|\n");
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
    std::printf("| %d | %.2f | %.2f to %.2f |\n", static_cast<int>(capacity),
                found[found.size() / 2], found.front(), found.back());
  }
  return 0;
}
