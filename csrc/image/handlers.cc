// The CPU handlers of the image ops: they run the calls that operands.h has checked over all
// samples.
#include <cstring>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>

#include "core/handler.h"
#include "core/simd_dispatch.h"
#include "core/streaming.h"
#include "image/levels.h"
#include "image/operands.h"
#include "image/ops.h"

namespace jaxkern::image {
namespace {

// The values that determine which memory a sample reads. They are copied before the check, because
// another thread can write to the memory of an operand between a check and a use.
struct SampleLayout {
  int64_t offset = 0;
  int32_t height = 0, width = 0;
  Geometry geometry[kMaxStageSegments];
};

// Reads a value once; the compiler does not repeat the load.
template <typename T>
T read_once(const Operand& operand, int64_t i) {
  return *static_cast<const volatile T*>(operand.at<T>(i));
}

int32_t segments_of(const ChainOperands& op) { return op.plan.segments; }
int32_t segments_of(const StageOperands& op) { return op.stages.segments(); }

template <typename Op>
void read_layout(const Op& op, int64_t i, SampleLayout* layout) {
  if (segments_of(op) > 0) {
    memcpy(layout->geometry, op.geometry.template at<Geometry>(i),
           sizeof(Geometry) * static_cast<size_t>(segments_of(op)));
  }
  if (op.ragged) {
    const bool wide = op.offset.dtype == ffi::S64;
    layout->offset = wide ? read_once<int64_t>(op.offset, i) : read_once<int32_t>(op.offset, i);
    layout->height = read_once<int32_t>(op.height, i);
    layout->width = read_once<int32_t>(op.width, i);
  } else {
    layout->height = static_cast<int32_t>(op.pixels.core[0]);
    layout->width = static_cast<int32_t>(op.pixels.core[1]);
  }
}

// Returns the operands of one sample.
template <typename Op>
Sample sample_at(const Op& op, const SampleLayout& layout, int64_t i) {
  return {op.pixels.template at<char>(i) + layout.offset,
          layout.height,
          layout.width,
          layout.geometry,
          op.affine.template at<float>(i),
          op.fill.template at<float>(i),
          op.erase_box.template at<EraseBox>(i),
          op.erase_value.template at<float>(i)};
}

Problem check(const ChainOperands& op, const Sample& sample, int64_t i) {
  return check_sample(op.plan, sample, i);
}
Problem check(const StageOperands& op, const Sample& sample, int64_t i) {
  return check_stages_sample(op.stages, sample, i);
}

int32_t channels_of(const ChainOperands& op) { return op.plan.channels; }
int32_t channels_of(const StageOperands& op) { return op.stages.last().chain.channels; }

// Returns the problem of a sample, or an empty string.
template <typename Op>
std::string problem_of(const Op& op, const SampleLayout& layout, int64_t i) {
  if (op.ragged &&
      !is_in_buffer(layout.offset, layout.height, layout.width, channels_of(op), op.buffer_size)) {
    return "image " + std::to_string(i) + ": expected an image inside operand 'buffer' of " +
           std::to_string(op.buffer_size) + " bytes, got " + std::to_string(layout.height) + " x " +
           std::to_string(layout.width) + " x " + std::to_string(channels_of(op)) +
           " bytes at offset " + std::to_string(layout.offset);
  }
  const Problem problem = check(op, sample_at(op, layout, i), i);
  if (problem.argument == nullptr) return {};
  return std::string("operand or attribute '") + problem.argument + "' of sample " +
         std::to_string(problem.sample) + ", segment " + std::to_string(problem.segment) + ": " +
         problem.text();
}

void run(const ChainOperands& op, const Sample& sample, int64_t i) {
  run_sample(op.plan, sample, op.out.at<char>(i), thread_scratch<kScratchBytes>());
}
void run(const StageOperands& op, const Sample& sample, int64_t i) {
  run_stages(op.stages, {sample, op.op.at<int32_t>(i), op.values.at<float>(i)}, op.out.at<char>(i));
}

// Runs all valid samples. Returns the problem of the first invalid one, or an empty string.
template <typename Op>
std::string run_checked(const Op& op, const Executor& executor, bool streaming) {
  std::mutex mutex;
  int64_t first = op.call.samples();
  std::string problem;
  parallel_for(executor, op.call.samples(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      SampleLayout layout;
      read_layout(op, i, &layout);
      std::string message = problem_of(op, layout, i);
      if (message.empty()) {
        Sample sample = sample_at(op, layout, i);
        sample.streaming = streaming;
        run(op, sample, i);
        continue;
      }
      const std::lock_guard<std::mutex> lock(mutex);
      if (i < first) {
        first = i;
        problem = std::move(message);
      }
    }
  });
  return problem;
}

template <typename Op>
ffi::Error on_cpu(const Op& op, ffi::ThreadPool pool) {
  Call call = op.call;
  if (const char* problem = simd_problem()) call.fail(problem);
  if (!call.ok()) return call.error();
  const size_t bytes = op.result.size_bytes();
  // The system clears a fresh page through the caches, so its lines are there already, and
  // streaming stores would write them to memory twice.
  const bool resident = advise_huge_pages(op.result.untyped_data(), bytes);
  const bool streaming = resident && bytes > static_cast<size_t>(largest_cached_result());
  const Executor executor = executor_of(pool);
  if constexpr (std::is_base_of_v<SourceOperands, Op>) {
    if (const std::string problem = run_checked(op, executor, streaming); !problem.empty())
      call.fail(problem);
  } else if (op.result.element_count() != 0) {
    parallel_for(executor, call.samples(), 1,
                 [&](int64_t begin, int64_t end) { op.run_samples(begin, end); });
  }
  return call.error();
}

}  // namespace
}  // namespace jaxkern::image

#define JAXKERN_ON_CPU(name, target) \
  JAXKERN_CPU_HANDLER(name, jaxkern::image::on_cpu<jaxkern::image::name>)
JAXKERN_IMAGE_OPS(JAXKERN_ON_CPU)
JAXKERN_IMAGE_STAGE_OPS(JAXKERN_ON_CPU)
