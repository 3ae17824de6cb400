// The CPU handlers of the image ops: run what operands.h has checked over all samples.
#include <cstring>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>

#include "core/handler.h"
#include "core/simd_level.h"
#include "image/levels.h"
#include "image/operands.h"
#include "image/ops.h"

namespace jaxkern::image {
namespace {

// What decides which memory a sample reads, taken once: an operand can be a caller's own memory,
// which another thread writes to between a check and a use.
struct Places {
  int64_t offset = 0;
  int32_t height = 0, width = 0;
  Geometry geometry[kMaxSegments];
};

// A read that the compiler does not repeat.
template <typename T>
T read_once(const Operand& operand, int64_t i) {
  return *static_cast<const volatile T*>(operand.at<T>(i));
}

void read_places(const ChainOperands& chain, int64_t i, Places* places) {
  memcpy(places->geometry, chain.geometry.at<Geometry>(i),
         sizeof(Geometry) * static_cast<size_t>(chain.plan.segments));
  if (chain.ragged) {
    const bool wide = chain.offset.dtype == ffi::S64;
    places->offset =
        wide ? read_once<int64_t>(chain.offset, i) : read_once<int32_t>(chain.offset, i);
    places->height = read_once<int32_t>(chain.height, i);
    places->width = read_once<int32_t>(chain.width, i);
  } else {
    places->height = static_cast<int32_t>(chain.pixels.core[0]);
    places->width = static_cast<int32_t>(chain.pixels.core[1]);
  }
}

// One sample at checked places.
Sample sample_at(const ChainOperands& chain, const Places& places, int64_t i) {
  return {chain.pixels.at<char>(i) + places.offset,
          places.height,
          places.width,
          places.geometry,
          chain.affine.at<float>(i),
          chain.fill.at<float>(i),
          chain.erase_box.at<EraseBox>(i),
          chain.erase_value.at<float>(i)};
}

// What is wrong with a sample; empty where nothing is.
std::string problem_of(const ChainOperands& chain, const Places& places, int64_t i) {
  if (chain.ragged && !lies_in_buffer(places.offset, places.height, places.width,
                                      chain.plan.channels, chain.buffer_size)) {
    return "image " + std::to_string(i) + " of " + std::to_string(places.height) + " x " +
           std::to_string(places.width) + " x " + std::to_string(chain.plan.channels) +
           " bytes at offset " + std::to_string(places.offset) +
           " does not lie inside operand 'buffer' of " + std::to_string(chain.buffer_size) +
           " bytes";
  }
  const Problem problem = check_sample(chain.plan, sample_at(chain, places, i), i);
  if (problem.argument == nullptr) return {};
  return std::string("operand or attribute '") + problem.argument + "' of sample " +
         std::to_string(problem.sample) + ", segment " + std::to_string(problem.segment) +
         " is out of range; wanted " + problem.wanted;
}

// The problem of the first sample that has one; the others are run.
std::string run_chain(const ChainOperands& chain, const Executor& executor) {
  std::mutex mutex;
  int64_t first = chain.call.samples();
  std::string problem;
  parallel_for(executor, chain.call.samples(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Places places;
      read_places(chain, i, &places);
      std::string found = problem_of(chain, places, i);
      if (found.empty()) {
        run_sample(chain.plan, sample_at(chain, places, i), chain.out.at<char>(i),
                   thread_scratch<kScratchBytes>());
        continue;
      }
      const std::lock_guard<std::mutex> lock(mutex);
      if (i < first) {
        first = i;
        problem = std::move(found);
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
  advise_results(op.result);
  const Executor executor = executor_of(pool);
  if constexpr (std::is_base_of_v<ChainOperands, Op>) {
    if (const std::string problem = run_chain(op, executor); !problem.empty()) call.fail(problem);
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
JAXKERN_IMAGE_CPU_OPS(JAXKERN_ON_CPU)
