// The order of launches that runs a whole chain: a chunk of samples at a time, segment by segment
// through two float32 buffers, so that intermediate images stay in the device's cache.
#ifndef JAXKERN_IMAGE_CUDA_SEGMENTS_H_
#define JAXKERN_IMAGE_CUDA_SEGMENTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "image/cuda_chain.h"
#include "image/plan.h"

namespace jaxkern::image {

// Target size of both buffers: half of the L2 cache of an H100 (50 MB).
constexpr size_t kScratchTarget = size_t{24} << 20;

struct Scratch {
  int64_t chunk;  // samples that go through the chain together, at least 1
  size_t floats;  // of one buffer
  int buffers;    // 0 for one segment, 1 for two, else 2
};

inline Scratch scratch_of(const Plan& plan, int64_t samples) {
  Scratch scratch = {};
  scratch.buffers = static_cast<int>(std::min<int32_t>(plan.segments - 1, 2));
  size_t largest = 0;
  for (int32_t s = 0; s + 1 < plan.segments; ++s)
    largest = std::max(largest, static_cast<size_t>(plan.segment[s].height) *
                                    static_cast<size_t>(plan.segment[s].width) *
                                    static_cast<size_t>(plan.channels));
  scratch.chunk = std::max<int64_t>(samples, 1);
  if (largest > 0) {
    const size_t each = largest * sizeof(float) * static_cast<size_t>(scratch.buffers);
    scratch.chunk =
        std::min(scratch.chunk, static_cast<int64_t>(std::max<size_t>(kScratchTarget / each, 1)));
  }
  scratch.floats = largest * static_cast<size_t>(scratch.chunk);
  return scratch;
}

// Calls launch(call, dtype of what it reads) in order and stops at the first result that is not
// `success`. `call` holds plan and operands; `out` is the result of all samples.
template <typename Launch, typename Status>
Status run_segments(ChainCall call, int64_t samples, const Scratch& scratch, float* const buffer[2],
                    void* out, Status success, Launch launch) {
  const Plan& plan = call.plan;
  const Segment& final = plan.segment[plan.segments - 1];
  const int64_t out_bytes = static_cast<int64_t>(final.height) * final.width * plan.channels *
                            dtype_bytes(plan.output_dtype);
  for (int64_t first = 0; first < samples; first += scratch.chunk) {
    call.first = first;
    call.count = std::min(scratch.chunk, samples - first);
    call.erasures_before = 0;
    for (int32_t s = 0; s < plan.segments; ++s) {
      const bool last = s == plan.segments - 1;
      call.segment = s;
      call.input = s == 0 ? nullptr : buffer[(s - 1) % 2];
      call.output =
          last ? static_cast<char*>(out) + first * out_bytes : static_cast<void*>(buffer[s % 2]);
      call.output_dtype = last ? plan.output_dtype : Dtype::kF32;
      call.layout = last ? plan.layout : Layout::kNHWC;
      call.tiling = tiling_of(plan.segment[s].height, plan.segment[s].width);
      const Status status = launch(call, s == 0 ? plan.source_dtype : Dtype::kF32);
      if (status != success) return status;
      call.erasures_before += plan.segment[s].erasures;
    }
  }
  return success;
}

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_CUDA_SEGMENTS_H_
