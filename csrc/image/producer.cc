// Images of one size, run where they lie.
#include "image/producer.h"

#include <stdexcept>
#include <string>

#include "image/chain_state.h"
#include "image/check.h"

namespace jaxkern::image {
namespace {

class DenseChain final : public ChainState {
 public:
  DenseChain(const Stages& stages, int32_t height, int32_t width)
      : ChainState(stages), height_(height), width_(width) {
    set_row_bytes(int64_t{height} * width * plan_.channels * dtype_bytes(plan_.source_dtype));
  }

 private:
  void make(const JaxkernRecords& records, int64_t i, void* output) const override {
    Geometry geometry[kMaxStageSegments];
    read_geometry(records, i, geometry);
    StagesSample sample = checked_sample(records, i, geometry, height_, width_);
    sample.chain.pixels = records.rows[i];
    run_stages(stages_, sample, output);
  }

  const int32_t height_, width_;
};

}  // namespace

const JaxkernProducer* make_chain_producer(const Stages& stages, int32_t height, int32_t width) {
  if (!is_size(height) || !is_size(width)) {
    throw std::invalid_argument("the images are " + std::to_string(height) + " x " +
                                std::to_string(width) + "; wanted sides of 1 to 2^24");
  }
  const Stage& first = stages.stage[0];
  if (first.chain.segments == 0 &&
      (first.program.height != height || first.program.width != width)) {
    throw std::invalid_argument("the images are " + std::to_string(height) + " x " +
                                std::to_string(width) + " and the program is for " +
                                std::to_string(first.program.height) + " x " +
                                std::to_string(first.program.width));
  }
  return (new DenseChain(stages, height, width))->abi();
}

}  // namespace jaxkern::image
