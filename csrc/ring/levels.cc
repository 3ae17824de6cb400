// A Feistel network on a rectangle a x b that just covers the values, with cycle walking; see
// jaxkern/pipeline/order.py. Several values are evaluated at once: the operations of one value
// depend on each other, and those of several fit into vectors. Compiled once per instruction-set
// level.
#include "ring/permutation.h"

namespace jaxkern::ring::JAXKERN_LEVEL {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

inline uint64_t smaller(uint64_t x, uint64_t y) { return x < y ? x : y; }

// Stafford's mix 13.
inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// Hashes x to [0, limit), limit below 2^32. Vectors have a fast product of the low halves of words.
inline uint64_t reduce(uint64_t x, uint64_t key, uint64_t limit) {
  const uint64_t high = mix(mix(x ^ key) + key) >> 32;
  return ((high & 0xFFFFFFFF) * (limit & 0xFFFFFFFF)) >> 32;
}

// Returns x modulo limit for x below 2 limit, without a branch: a negative difference is large.
inline uint64_t wrap(uint64_t x, uint64_t limit) { return smaller(x, x - limit); }

void step(const Permutation& p, bool inverse, uint64_t* values) {
  uint64_t left[kLanes], right[kLanes];
  const double reciprocal = 1.0 / static_cast<double>(p.b);
  for (int k = 0; k < kLanes; ++k) {
    // Faster than a division. The quotient is below 2^32, so it is wrong by at most 1.
    const double quotient = static_cast<double>(static_cast<int64_t>(values[k])) * reciprocal;
    const uint64_t q = static_cast<uint64_t>(static_cast<int64_t>(quotient));
    const uint64_t r = values[k] - q * p.b;
    const uint64_t low = r >> 63, high = (1 - low) & static_cast<uint64_t>(r >= p.b);
    left[k] = q - low + high;
    right[k] = r + (low - high) * p.b;
  }
  for (int round = 0; round < kPermutationRounds; round += 2) {
    if (inverse) {
      const uint64_t* key = p.keys + kPermutationRounds - 2 - round;
      for (int k = 0; k < kLanes; ++k) {
        right[k] = wrap(right[k] + p.b - reduce(left[k], key[1], p.b), p.b);
        left[k] = wrap(left[k] + p.a - reduce(right[k], key[0], p.a), p.a);
      }
    } else {
      const uint64_t* key = p.keys + round;
      for (int k = 0; k < kLanes; ++k) {
        left[k] = wrap(left[k] + reduce(right[k], key[0], p.a), p.a);
        right[k] = wrap(right[k] + reduce(left[k], key[1], p.b), p.b);
      }
    }
  }
  for (int k = 0; k < kLanes; ++k) values[k] = left[k] * p.b + right[k];
}

}  // namespace

void permute(const Permutation& p, bool inverse, int64_t* values, int64_t size) {
  for (int64_t first = 0; first < size; first += kLanes) {
    const int lanes = static_cast<int>(size - first < kLanes ? size - first : kLanes);
    uint64_t walked[kLanes] = {};
    for (int k = 0; k < lanes; ++k) walked[k] = static_cast<uint64_t>(values[first + k]);
    step(p, inverse, walked);
    for (int k = 0; k < lanes; ++k) {
      while (walked[k] >= p.count) {  // rare
        uint64_t one[kLanes] = {walked[k]};
        step(p, inverse, one);
        walked[k] = one[0];
      }
      values[first + k] = static_cast<int64_t>(walked[k]);
    }
  }
}

}  // namespace jaxkern::ring::JAXKERN_LEVEL
