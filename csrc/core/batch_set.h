// The batch maps of all operands of a kernel. Computing all offsets of a sample together needs one
// division per axis, instead of one per axis and operand.
#ifndef JAXKERN_CORE_BATCH_SET_H_
#define JAXKERN_CORE_BATCH_SET_H_

#include <cstdint>

#include "core/batch.h"
#include "core/host_device.h"

namespace jaxkern {

// The offset of a sample in each operand, in elements.
template <int kOperands>
struct BatchOffsets {
  int64_t element[kOperands];
};

template <int kOperands>
struct BatchSet {
  int32_t rank = 0;
  int64_t size[kMaxBatchRank] = {};  // the full batch shape
  int64_t stride[kMaxBatchRank][kOperands] = {};
  const void* data[kOperands] = {};

  // All maps of a call have the same rank and sizes.
  void set(int operand, const void* values, const BatchMap& map) {
    rank = map.rank;
    for (int d = 0; d < map.rank; ++d) {
      size[d] = map.size[d];
      stride[d][operand] = map.stride[d];
    }
    data[operand] = values;
  }

  template <typename T>
  JAXKERN_HD_MEMBER const T* at(const BatchOffsets<kOperands>& offsets, int operand) const {
    return static_cast<const T*>(data[operand]) + offsets.element[operand];
  }
};

// Returns the offsets of sample `flat`.
template <int kOperands>
JAXKERN_HD BatchOffsets<kOperands> batch_offsets(const BatchSet<kOperands>& set, int64_t flat) {
  BatchOffsets<kOperands> offsets = {};
  JAXKERN_ROLLED
  for (int d = set.rank - 1; d >= 0; --d) {
    const int64_t next = d > 0 ? flat / set.size[d] : 0;
    const int64_t index = flat - next * set.size[d];
    JAXKERN_UNROLL
    for (int k = 0; k < kOperands; ++k) offsets.element[k] += index * set.stride[d][k];
    flat = next;
  }
  return offsets;
}

}  // namespace jaxkern

#endif  // JAXKERN_CORE_BATCH_SET_H_
