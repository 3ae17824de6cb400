// A keyed permutation of [0, count), evaluated at any values: the order of an epoch.
#ifndef JAXKERN_RING_PERMUTATION_H_
#define JAXKERN_RING_PERMUTATION_H_

#include <cstdint>

#include "core/simd_dispatch.h"

namespace jaxkern::ring {

constexpr int kPermutationRounds = 8;

// The parameters of `Permutation` in jaxkern/pipeline/order.py, which is the reference.
struct Permutation {
  uint64_t count, a, b;  // count <= a b; count is at most 2^62, a and b are below 2^32
  uint64_t keys[kPermutationRounds];
};

// Replaces `values` [size], all below `count`, by their images, or by their preimages.
JAXKERN_LEVEL_FUNCTION(void, permute, const Permutation& permutation, bool inverse, int64_t* values,
                       int64_t size)

}  // namespace jaxkern::ring

#endif  // JAXKERN_RING_PERMUTATION_H_
