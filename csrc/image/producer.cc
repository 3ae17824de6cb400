// Images of one size, run where they lie.
#include "image/producer.h"

#include <stdexcept>
#include <string>

#include "image/chain_state.h"
#include "image/check.h"
#include "image/levels.h"

namespace jaxkern::image {
namespace {

class DenseChain final : public ChainState {
 public:
  DenseChain(const Plan& plan, int32_t height, int32_t width)
      : ChainState(plan), height_(height), width_(width) {
    set_row_bytes(int64_t{height} * width * plan.channels * dtype_bytes(plan.source_dtype));
  }

 private:
  void make(const JaxkernRecords& records, int64_t i, void* output) const override {
    Geometry geometry[kMaxSegments];
    read_geometry(records, i, geometry);
    Sample sample = checked_sample(records, i, geometry, height_, width_);
    sample.pixels = records.rows[i];
    run_sample(plan_, sample, output, thread_scratch<kScratchBytes>());
  }

  const int32_t height_, width_;
};

}  // namespace

const JaxkernProducer* make_chain_producer(const Plan& plan, int32_t height, int32_t width) {
  if (!is_size(height) || !is_size(width)) {
    throw std::invalid_argument("the images are " + std::to_string(height) + " x " +
                                std::to_string(width) + "; wanted sides of 1 to 2^24");
  }
  return (new DenseChain(plan, height, width))->abi();
}

}  // namespace jaxkern::image
