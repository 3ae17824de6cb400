// Batched operands without copies: an operand whose batch axis has size 1 is read with stride 0.
#ifndef JAXKERN_CORE_BATCH_H_
#define JAXKERN_CORE_BATCH_H_

#include <cstdint>

namespace jaxkern {

constexpr int kMaxBatchRank = 12;

// Maps the flat index of a sample in the full batch shape to the element offset of one operand.
struct BatchMap {
  int32_t rank = 0;
  int64_t size[kMaxBatchRank] = {};    // the full batch shape
  int64_t stride[kMaxBatchRank] = {};  // in elements of the operand; 0 where it is broadcast

#ifdef __CUDACC__
  __host__ __device__
#endif
      int64_t offset(int64_t flat) const {
    int64_t result = 0;
    for (int d = rank - 1; d > 0; --d) {
      const int64_t next = flat / size[d];
      result += (flat - next * size[d]) * stride[d];
      flat = next;
    }
    return rank > 0 ? result + flat * stride[0] : result;
  }
};

}  // namespace jaxkern

#endif  // JAXKERN_CORE_BATCH_H_
