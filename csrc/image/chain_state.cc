// A plan with shares, run record by record.
#include "image/chain_state.h"

#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>

#include "core/simd_level.h"
#include "image/check.h"

namespace jaxkern::image {

ChainState::ChainState(const Plan& plan) : plan_(plan) {
  if (const char* problem = simd_problem()) throw std::invalid_argument(problem);
  if (const Problem problem = check_plan(plan); problem.argument != nullptr) {
    throw std::invalid_argument(std::string("the plan's '") + problem.argument + "' in segment " +
                                std::to_string(problem.segment) + " is out of range; wanted " +
                                problem.wanted);
  }
  const int64_t segments = plan.segments, channels = plan.channels;
  int64_t erasures = 0;
  for (int32_t s = 0; s < plan.segments; ++s) erasures += plan.segment[s].erasures;
  parameter_bytes_[kGeometry] = segments * static_cast<int64_t>(sizeof(Geometry));
  parameter_bytes_[kAffine] = segments * 2 * channels * 4;
  parameter_bytes_[kFill] = segments * channels * 4;
  parameter_bytes_[kEraseBox] = erasures * static_cast<int64_t>(sizeof(EraseBox));
  parameter_bytes_[kEraseValue] = erasures * channels * 4;
  abi_.version = JAXKERN_PRODUCER_VERSION;
  abi_.size = sizeof(JaxkernProducer);
  abi_.state = this;
  abi_.retain = [](void* self) { ++static_cast<ChainState*>(self)->shares_; };
  abi_.release = [](void* self) {
    auto* shared = static_cast<ChainState*>(self);
    if (--shared->shares_ == 0) delete shared;
  };
  abi_.output_bytes = static_cast<int64_t>(output_bytes(plan));
  abi_.operands = kChainParameters;
  abi_.operand_bytes = parameter_bytes_;
  abi_.run = &ChainState::run;
}

void ChainState::add_parameter(int64_t bytes) {
  parameter_bytes_[kChainParameters] = bytes;
  abi_.operands = kChainParameters + 1;
}

void ChainState::read_geometry(const JaxkernRecords& records, int64_t i,
                               Geometry (&out)[kMaxSegments]) const {
  std::memcpy(out, parameter<Geometry>(records, kGeometry, i),
              sizeof(Geometry) * static_cast<size_t>(plan_.segments));
}

Sample ChainState::checked_sample(const JaxkernRecords& records, int64_t i,
                                  const Geometry* geometry, int32_t height, int32_t width) const {
  Sample sample{};
  sample.height = height;
  sample.width = width;
  sample.geometry = geometry;
  sample.affine = parameter<float>(records, kAffine, i);
  sample.fill = parameter<float>(records, kFill, i);
  sample.erase_box = parameter<EraseBox>(records, kEraseBox, i);
  sample.erase_value = parameter<float>(records, kEraseValue, i);
  if (const Problem problem = check_sample(plan_, sample, i); problem.argument != nullptr) {
    throw std::invalid_argument("'" + std::string(problem.argument) + "' in segment " +
                                std::to_string(problem.segment) + " is out of range; wanted " +
                                problem.wanted);
  }
  return sample;
}

int32_t ChainState::run(void* self, const JaxkernRecords* records, char* message, size_t size) {
  const auto& state = *static_cast<const ChainState*>(self);
  for (int64_t i = 0; i < records->count; ++i) {
    try {
      state.make(*records, i, static_cast<char*>(records->output) + i * state.abi_.output_bytes);
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

}  // namespace jaxkern::image
