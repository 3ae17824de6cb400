// The base class of producers, and the producer of images in memory.
#include "image/producer.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>

#include "core/simd_dispatch.h"
#include "image/check.h"

namespace jaxkern::image {

ChainState::ChainState(const Stages& stages) : stages_(stages) {
  if (const char* problem = simd_problem()) throw std::invalid_argument(problem);
  for (int32_t k = 0; k < stages.count; ++k) {
    const Stage& stage = stages.stage[k];
    if (stage.chain.segments == 0 && stage.program.steps > 0) continue;
    const Problem problem = check_plan(stage.chain);
    if (problem.argument == nullptr) continue;
    throw std::invalid_argument(std::string("plan: '") + problem.argument + "' of segment " +
                                std::to_string(stage.first_segment + problem.segment) + ": " +
                                problem.text());
  }
  const int64_t segments = stages.segments(), channels = plan_.channels;
  const int64_t erasures = stages.erasures();
  parameter_bytes_[kGeometry] = segments * static_cast<int64_t>(sizeof(Geometry));
  parameter_bytes_[kAffine] = segments * 2 * channels * 4;
  parameter_bytes_[kFill] = segments * channels * 4;
  parameter_bytes_[kEraseBox] = erasures * static_cast<int64_t>(sizeof(EraseBox));
  parameter_bytes_[kEraseValue] = erasures * channels * 4;
  parameter_bytes_[kOps] = int64_t{stages.steps()} * 4;
  parameter_bytes_[kValues] = int64_t{stages.steps()} * kProgramValues * 4;
  abi_.version = JAXKERN_PRODUCER_VERSION;
  abi_.size = sizeof(JaxkernProducer);
  abi_.state = this;
  abi_.retain = [](void* self) { ++static_cast<ChainState*>(self)->references_; };
  abi_.release = [](void* self) {
    auto* shared = static_cast<ChainState*>(self);
    if (--shared->references_ == 0) delete shared;
  };
  abi_.output_bytes = stages.output_bytes();
  abi_.operands = stages.is_chain() ? kOps : kParameters;
  abi_.operand_bytes = parameter_bytes_;
  abi_.run = &ChainState::run;
}

int64_t ChainState::add_parameter(int64_t bytes) {
  const int64_t index = abi_.operands++;
  parameter_bytes_[index] = bytes;
  return index;
}

void ChainState::read_geometry(const JaxkernRecords& records, int64_t i,
                               Geometry (&out)[kMaxStageSegments]) const {
  if (stages_.segments() == 0) return;  // the array may be null
  std::memcpy(out, parameter<Geometry>(records, kGeometry, i),
              sizeof(Geometry) * static_cast<size_t>(stages_.segments()));
}

StagesSample ChainState::checked_sample(const JaxkernRecords& records, int64_t i,
                                        const Geometry* geometry, int32_t height,
                                        int32_t width) const {
  StagesSample all{};
  Sample& sample = all.chain;
  sample.height = height;
  sample.width = width;
  sample.geometry = geometry;
  sample.affine = parameter<float>(records, kAffine, i);
  sample.fill = parameter<float>(records, kFill, i);
  sample.erase_box = parameter<EraseBox>(records, kEraseBox, i);
  sample.erase_value = parameter<float>(records, kEraseValue, i);
  sample.streaming = records.streaming != 0;
  if (!stages_.is_chain()) {
    all.op = parameter<int32_t>(records, kOps, i);
    all.values = parameter<float>(records, kValues, i);
  }
  if (const Problem problem = check_stages_sample(stages_, sample, i);
      problem.argument != nullptr) {
    throw std::invalid_argument("'" + std::string(problem.argument) + "' of segment " +
                                std::to_string(problem.segment) + ": " + problem.text());
  }
  return all;
}

int32_t ChainState::run(void* self, const JaxkernRecords* records, char* message, size_t size) {
  const auto& state = *static_cast<const ChainState*>(self);
  for (int64_t i = 0; i < records->count; ++i) {
    try {
      state.write(*records, i, static_cast<char*>(records->output) + i * state.abi_.output_bytes);
      continue;
    } catch (const std::exception& error) {
      std::snprintf(message, size, "%s", error.what());
    } catch (...) {
      std::snprintf(message, size, "an unknown exception");
    }
    return static_cast<int32_t>(i + 1);
  }
  return 0;
}

namespace {

// Bytes of the next image that are prefetched: images are in random order, and the hardware
// prefetcher follows the rest of a large one.
constexpr int64_t kPrefetchBytes = 4096;

class DenseChain final : public ChainState {
 public:
  DenseChain(const Stages& stages, int32_t height, int32_t width)
      : ChainState(stages), height_(height), width_(width) {
    const int64_t bytes =
        int64_t{height} * width * plan_.channels * dtype_bytes(plan_.source_dtype);
    set_row_bytes(bytes);
    prefetched_ = std::min(bytes, kPrefetchBytes);
  }

 private:
  void write(const JaxkernRecords& records, int64_t i, void* output) const override {
    if (i + 1 < records.count) {
      const char* next = static_cast<const char*>(records.rows[i + 1]);
      for (int64_t k = 0; k < prefetched_; k += 64) __builtin_prefetch(next + k);
    }
    Geometry geometry[kMaxStageSegments];
    read_geometry(records, i, geometry);
    StagesSample sample = checked_sample(records, i, geometry, height_, width_);
    sample.chain.pixels = records.rows[i];
    run_stages(stages_, sample, output);
  }

  const int32_t height_, width_;
  int64_t prefetched_;
};

}  // namespace

const JaxkernProducer* make_chain_producer(const Stages& stages, int32_t height, int32_t width) {
  if (!is_size(height) || !is_size(width)) {
    throw std::invalid_argument("images: expected sides of 1 to 2^24, got " +
                                std::to_string(height) + " x " + std::to_string(width));
  }
  const Stage& first = stages.stage[0];
  if (first.chain.segments == 0 &&
      (first.program.height != height || first.program.width != width)) {
    throw std::invalid_argument("images: expected " + std::to_string(first.program.height) + " x " +
                                std::to_string(first.program.width) +
                                ", the size of the program, got " + std::to_string(height) + " x " +
                                std::to_string(width));
  }
  return (new DenseChain(stages, height, width))->abi();
}

}  // namespace jaxkern::image
