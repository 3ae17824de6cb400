// What producers of a chain's records have in common: stages with shares, and the parameters of a
// record as `ChainProducer` (jaxkern/image) draws them.
#ifndef JAXKERN_IMAGE_CHAIN_STATE_H_
#define JAXKERN_IMAGE_CHAIN_STATE_H_

#include <atomic>
#include <cstdint>

#include "core/producer.h"
#include "image/stages.h"

namespace jaxkern::image {

// Per record: geometry i32 [S, 14], affine f32 [S, 2, C], fill f32 [S, C], erase_box i32 [K, 4],
// erase_value f32 [K, C]; of more than a chain op i32 [P] and values f32 [P, 8]; and what a
// producer adds.
enum Parameter { kGeometry, kAffine, kFill, kEraseBox, kEraseValue, kOps, kValues, kParameters };

class ChainState {
 public:
  // Throws std::invalid_argument for a plan that the kernels refuse.
  explicit ChainState(const Stages& stages);
  virtual ~ChainState() = default;
  ChainState(const ChainState&) = delete;
  ChainState& operator=(const ChainState&) = delete;

  const JaxkernProducer* abi() const { return &abi_; }

 protected:
  // Writes record i of `records` to `output`; throws what is wrong with it.
  virtual void make(const JaxkernRecords& records, int64_t i, void* output) const = 0;

  void set_row_bytes(int64_t bytes) { abi_.row_bytes = bytes; }
  // One more array of parameters, behind the chain's: its place.
  int64_t add_parameter(int64_t bytes);

  template <typename T>
  static const T* parameter(const JaxkernRecords& records, int64_t which, int64_t i) {
    return reinterpret_cast<const T*>(static_cast<const char*>(records.operands[which]) +
                                      i * records.operand_strides[which]);
  }

  // Copies the geometry, which is checked next: the operands can be a caller's own memory.
  void read_geometry(const JaxkernRecords& records, int64_t i,
                     Geometry (&out)[kMaxStageSegments]) const;
  // The sample of an image of this size with the parameters of record i. Throws where they do not
  // fit it.
  StagesSample checked_sample(const JaxkernRecords& records, int64_t i, const Geometry* geometry,
                              int32_t height, int32_t width) const;

  const Stages stages_;
  const Plan& plan_ = stages_.stage[0].chain;

 private:
  static int32_t run(void* self, const JaxkernRecords* records, char* message, size_t size);

  std::atomic<int64_t> shares_{1};
  int64_t parameter_bytes_[kParameters + 1] = {};
  JaxkernProducer abi_{};
};

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_CHAIN_STATE_H_
