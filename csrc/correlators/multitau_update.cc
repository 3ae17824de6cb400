// The op that adds frames to multi-tau states, on the CPU.
#include "correlators/multitau_update.h"

#include <algorithm>
#include <cstring>

namespace jaxkern::correlators {
namespace {

constexpr int64_t kCopied = int64_t{1} << 20;  // bytes per task

struct StateArray {
  MultiTauOperand which;
  char* result;
  int64_t bytes;  // per sample
};

void copy_states(const Executor& executor, const MultiTauCall& call, const StateArray& array) {
  const int64_t pieces = (array.bytes + kCopied - 1) / kCopied;
  parallel_for(executor, pieces * call.samples, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t sample = i / pieces, at = (i - sample * pieces) * kCopied;
      const char* const from = reinterpret_cast<const char*>(
          call.operands.at<uint32_t>(batch_offsets(call.operands, sample), array.which));
      char* const to = array.result + sample * array.bytes;
      if (from == to) continue;
      std::memcpy(to + at, from + at, static_cast<size_t>(std::min(kCopied, array.bytes - at)));
    }
  });
}

}  // namespace

void update_states(const Executor& executor, const MultiTauCall& call) {
  if (call.items() == 0) return;
  const bool real = is_real(call.dtype);
  const int64_t narrow = real ? 8 : 4, row = call.pixels;
  const StateArray arrays[] = {{kTotal, call.total, 8 * row},
                               {kG, call.g, 8 * row * call.delays.count},
                               {kHead, call.head, narrow * row * call.delays.count},
                               {kHistory, call.history, narrow * row * call.history_rows()}};
  for (const StateArray& array : arrays) copy_states(executor, call, array);
  // Process several strips of a sample together, since they share cache lines of the frames.
  constexpr int64_t kTogether = 16;
  const int64_t strips = (call.pixels + kStrip - 1) / kStrip;
  const int64_t parts = (strips + kTogether - 1) / kTogether;
  parallel_for(executor, parts * call.samples, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t sample = i / parts, first = (i - sample * parts) * kTogether;
      const BatchOffsets<kMultiTauOperands> at = batch_offsets(call.operands, sample);
      FrameRows frames;
      frames.data =
          call.operands.at<char>({}, kFrames) + at.element[kFrames] * dtype_bytes(call.dtype);
      frames.stride = call.pixels * dtype_bytes(call.dtype);
      frames.dtype = call.dtype;
      MultiTauState state;
      state.total = arrays[0].result + sample * arrays[0].bytes;
      state.g = arrays[1].result + sample * arrays[1].bytes;
      state.head = arrays[2].result + sample * arrays[2].bytes;
      state.history = arrays[3].result + sample * arrays[3].bytes;
      state.pitch = call.pixels;
      state.real = real;
      // Read once, since another thread may write to the caller's memory.
      const int32_t seen =
          *static_cast<const volatile int32_t*>(call.operands.at<int32_t>(at, kSeen));
      update_strips(frames, call.pixels, call.frames, std::max(seen, 0), call.delays, {}, state,
                    first, std::min(first + kTogether, strips));
    }
  });
}

}  // namespace jaxkern::correlators
