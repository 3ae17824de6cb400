// A leaf of a delivered batch as a DLPack tensor. Its deleter may run in any thread without the
// GIL. The structures are DLPack's ABI before version 1: https://dmlc.github.io/dlpack
#ifndef JAXKERN_RING_DLPACK_H_
#define JAXKERN_RING_DLPACK_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ring/ring.h"

namespace jaxkern::ring {

struct DlDevice {
  int32_t type, id;
};

struct DlType {
  uint8_t code, bits;
  uint16_t lanes;
};

struct DlTensor {
  void* data;
  DlDevice device;
  int32_t rank;
  DlType type;
  int64_t* shape;
  int64_t* strides;  // null: row-major
  uint64_t byte_offset;
};

struct DlManagedTensor {
  DlTensor tensor;
  void* owner;
  void (*deleter)(DlManagedTensor* self);
};

// The tensor together with the lease that keeps its memory alive.
class LeafTensor {
 public:
  static DlManagedTensor* make(std::unique_ptr<Lease> lease, DlType type) {
    auto* self = new LeafTensor(std::move(lease));
    constexpr int32_t kCpu = 1;
    self->managed_.tensor = {self->lease_->data(),
                             {kCpu, 0},
                             static_cast<int32_t>(self->shape_.size()),
                             type,
                             self->shape_.data(),
                             nullptr,
                             0};
    self->managed_.owner = self;
    self->managed_.deleter = [](DlManagedTensor* tensor) {
      delete static_cast<LeafTensor*>(tensor->owner);
    };
    return &self->managed_;
  }

 private:
  explicit LeafTensor(std::unique_ptr<Lease> lease)
      : lease_(std::move(lease)), shape_(lease_->spec().shape) {}
  std::unique_ptr<Lease> lease_;
  std::vector<int64_t> shape_;
  DlManagedTensor managed_ = {};
};

}  // namespace jaxkern::ring

#endif  // JAXKERN_RING_DLPACK_H_
