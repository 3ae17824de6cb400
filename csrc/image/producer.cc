// A plan with shares, run record by record.
#include "image/producer.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>

#include "core/simd_level.h"
#include "image/check.h"
#include "image/levels.h"

namespace jaxkern::image {
namespace {

enum Parameter { kGeometry, kAffine, kFill, kEraseBox, kEraseValue, kParameters };

struct ChainState {
  std::atomic<int64_t> shares{1};
  Plan plan{};
  int32_t height = 0, width = 0;
  int64_t parameter_bytes[kParameters] = {};
  JaxkernProducer abi{};
};

template <typename T>
const T* parameter(const JaxkernRecords& records, Parameter which, int64_t record) {
  return reinterpret_cast<const T*>(static_cast<const char*>(records.operands[which]) +
                                    record * records.operand_strides[which]);
}

void run_records(const ChainState& state, const JaxkernRecords& records) {
  for (int64_t i = 0; i < records.count; ++i) {
    Sample sample{};
    sample.pixels = records.rows[i];
    sample.height = state.height;
    sample.width = state.width;
    // Copied before the check: the operands can be a caller's own memory.
    Geometry geometry[kMaxSegments];
    memcpy(geometry, parameter<Geometry>(records, kGeometry, i),
           sizeof(Geometry) * static_cast<size_t>(state.plan.segments));
    sample.geometry = geometry;
    sample.affine = parameter<float>(records, kAffine, i);
    sample.fill = parameter<float>(records, kFill, i);
    sample.erase_box = parameter<EraseBox>(records, kEraseBox, i);
    sample.erase_value = parameter<float>(records, kEraseValue, i);
    if (const Problem problem = check_sample(state.plan, sample, i); problem.argument != nullptr) {
      throw std::invalid_argument("'" + std::string(problem.argument) +
                                  "' of the record at place " + std::to_string(i) + ", segment " +
                                  std::to_string(problem.segment) + " is out of range; wanted " +
                                  problem.wanted);
    }
    run_sample(state.plan, sample, static_cast<char*>(records.output) + i * state.abi.output_bytes,
               thread_scratch<kScratchBytes>());
  }
}

int32_t run(void* state, const JaxkernRecords* records, char* message, size_t message_size) {
  try {
    run_records(*static_cast<const ChainState*>(state), *records);
    return 0;
  } catch (const std::exception& error) {
    std::snprintf(message, message_size, "image chain: %s", error.what());
  } catch (...) {
    std::snprintf(message, message_size, "image chain: an unknown exception");
  }
  return 1;
}

int64_t item_bytes(Dtype dtype) { return dtype == Dtype::kU8 ? 1 : dtype == Dtype::kF32 ? 4 : 2; }

}  // namespace

const JaxkernProducer* make_chain_producer(const Plan& plan, int32_t height, int32_t width) {
  if (const char* problem = simd_problem()) throw std::invalid_argument(problem);
  if (const Problem problem = check_plan(plan); problem.argument != nullptr) {
    throw std::invalid_argument(std::string("the plan's '") + problem.argument + "' in segment " +
                                std::to_string(problem.segment) + " is out of range; wanted " +
                                problem.wanted);
  }
  if (!is_size(height) || !is_size(width)) {
    throw std::invalid_argument("the images are " + std::to_string(height) + " x " +
                                std::to_string(width) + "; wanted sides of 1 to 2^24");
  }
  auto* state = new ChainState;
  state->plan = plan;
  state->height = height;
  state->width = width;
  const int64_t segments = plan.segments, channels = plan.channels;
  int64_t erasures = 0;
  for (int32_t s = 0; s < plan.segments; ++s) erasures += plan.segment[s].erasures;
  state->parameter_bytes[kGeometry] = segments * static_cast<int64_t>(sizeof(Geometry));
  state->parameter_bytes[kAffine] = segments * 2 * channels * 4;
  state->parameter_bytes[kFill] = segments * channels * 4;
  state->parameter_bytes[kEraseBox] = erasures * static_cast<int64_t>(sizeof(EraseBox));
  state->parameter_bytes[kEraseValue] = erasures * channels * 4;
  JaxkernProducer& abi = state->abi;
  abi.version = JAXKERN_PRODUCER_VERSION;
  abi.size = sizeof(JaxkernProducer);
  abi.state = state;
  abi.retain = [](void* self) { ++static_cast<ChainState*>(self)->shares; };
  abi.release = [](void* self) {
    auto* shared = static_cast<ChainState*>(self);
    if (--shared->shares == 0) delete shared;
  };
  abi.row_bytes = int64_t{height} * width * channels * item_bytes(plan.source_dtype);
  abi.output_bytes = static_cast<int64_t>(output_bytes(plan));
  abi.operands = kParameters;
  abi.operand_bytes = state->parameter_bytes;
  abi.run = &run;
  return &abi;
}

}  // namespace jaxkern::image
