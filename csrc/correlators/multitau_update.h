// The op that adds frames to multi-tau states: a call, its CPU function, and the body of the CUDA
// kernel as a host and device function of a flat index, so that a CPU test runs it over the grid.
#ifndef JAXKERN_CORRELATORS_MULTITAU_UPDATE_H_
#define JAXKERN_CORRELATORS_MULTITAU_UPDATE_H_

#include <cstdint>

#include "core/batch_set.h"
#include "core/host_device.h"
#include "core/parallel.h"
#include "correlators/multitau.h"

namespace jaxkern::correlators {

enum MultiTauOperand : int { kFrames, kSeen, kTotal, kG, kHead, kHistory, kMultiTauOperands };

// Every sample has frames [frames, pixels] and a state, see MultiTauState. Results may alias their
// operands. `seen` is 0 or more.
struct MultiTauCall {
  Dtype dtype = Dtype::kU8;
  Delays delays;
  int32_t levels = 1;
  int64_t frames = 0, pixels = 0, samples = 0;
  BatchSet<kMultiTauOperands> operands;
  char *total = nullptr, *g = nullptr, *head = nullptr, *history = nullptr;

  JAXKERN_HD_MEMBER int64_t items() const { return samples * pixels; }
  JAXKERN_HD_MEMBER int64_t history_rows() const { return int64_t{levels} * delays.kept(); }
};

// Runs all samples of a checked call.
void update_states(const Executor& executor, const MultiTauCall& call);

// T is the type of frames, Row that of sums of frames, Sum that of sums of their products.
template <typename T, typename Row, typename Sum>
struct MultiTauBody {
  // Adds all frames to pixel flat % pixels of sample flat / pixels.
  JAXKERN_HD void run(const MultiTauCall& call, int64_t flat) {
    const int64_t pixels = call.pixels, sample = flat / pixels, pixel = flat - sample * pixels;
    const BatchOffsets<kMultiTauOperands> at = batch_offsets(call.operands, sample);
    const T* const frames = call.operands.at<T>(at, kFrames) + pixel;
    const int32_t given = *call.operands.at<int32_t>(at, kSeen);
    const int32_t kept = call.delays.kept();
    Sum* const total = column<Sum>(call, at, kTotal, call.total, 1, sample, pixel);
    Sum* const g = column<Sum>(call, at, kG, call.g, call.delays.count, sample, pixel);
    Row* const head = column<Row>(call, at, kHead, call.head, call.delays.count, sample, pixel);
    Row* const history =
        column<Row>(call, at, kHistory, call.history, call.history_rows(), sample, pixel);
    for (int64_t f = 0; f < call.frames; ++f) {
      Row sum = count_of(frames[f * pixels]);
      *total += sum;
      // Below 2^31, because a state counts its frames in int32.
      uint32_t k = static_cast<uint32_t>(given < 0 ? 0 : given) + static_cast<uint32_t>(f);
      for (int32_t level = 0; level < call.levels; ++level) {
        Row* const ring = history + int64_t{level} * kept * pixels;
        const int32_t first = call.delays.first(level), delays = call.delays.at(level);
        const int64_t row = call.delays.offset(level);
        const int32_t own = static_cast<int32_t>(k % static_cast<uint32_t>(kept));
        for (int32_t d = 0; d < delays; ++d) {
          const int32_t t = first + d, then = own >= t ? own - t : own - t + kept;
          g[(row + d) * pixels] += static_cast<Sum>(sum) * ring[then * pixels];
          if (k < static_cast<uint32_t>(t)) head[(row + d) * pixels] += sum;
        }
        const Row before = ring[(own == 0 ? kept - 1 : own - 1) * pixels];
        ring[own * pixels] = sum;
        if (k % 2 == 0) break;
        sum += before;
        k /= 2;
      }
    }
  }

 private:
  JAXKERN_HD Row count_of(T value) {
    if constexpr (static_cast<T>(-1) < T{0} && sizeof(Row) == sizeof(uint32_t)) {
      return value < T{0} ? static_cast<Row>(kMostCounts) : static_cast<Row>(value);
    } else {
      return static_cast<Row>(value);
    }
  }

  // Returns a pixel's column of `rows` values in a result, after a copy of the operand's values.
  template <typename Value>
  JAXKERN_HD Value* column(const MultiTauCall& call, const BatchOffsets<kMultiTauOperands>& at,
                           MultiTauOperand which, char* result, int64_t rows, int64_t sample,
                           int64_t pixel) {
    Value* const to = reinterpret_cast<Value*>(result) + sample * rows * call.pixels + pixel;
    const Value* const from =
        reinterpret_cast<const Value*>(call.operands.at<uint32_t>(at, which)) + pixel;
    for (int64_t row = 0; from != to && row < rows; ++row) {
      to[row * call.pixels] = from[row * call.pixels];
    }
    return to;
  }
};

// Calls visit(body) with the body of a dtype.
template <typename Visit>
auto with_body(Dtype dtype, const Visit& visit) {
  switch (dtype) {
    case Dtype::kU8:
      return visit(MultiTauBody<uint8_t, uint32_t, uint64_t>());
    case Dtype::kU16:
      return visit(MultiTauBody<uint16_t, uint32_t, uint64_t>());
    case Dtype::kU32:
      return visit(MultiTauBody<uint32_t, uint32_t, uint64_t>());
    case Dtype::kI32:
      return visit(MultiTauBody<int32_t, uint32_t, uint64_t>());
    case Dtype::kF32:
      return visit(MultiTauBody<float, double, double>());
    case Dtype::kF64:
      break;
  }
  return visit(MultiTauBody<double, double, double>());
}

}  // namespace jaxkern::correlators

#endif  // JAXKERN_CORRELATORS_MULTITAU_UPDATE_H_
