// Multi-tau correlation of events, with sums over bins that are bit-identical to dense frames.
#ifndef JAXKERN_CORRELATORS_MULTITAU_EVENTS_H_
#define JAXKERN_CORRELATORS_MULTITAU_EVENTS_H_

#include <cstdint>

#include "core/parallel.h"
#include "correlators/event_sums.h"
#include "correlators/events.h"
#include "correlators/multitau.h"

namespace jaxkern::correlators {

// The frames that are correlated, see EventMap, and the numbers of good frames.
struct EventFrames {
  int64_t n_frames = 0, n_sums = 0, first_frame = 0;
  const int32_t* sum = nullptr;
  const uint32_t* good = nullptr;  // [n_sums], or null if all numbers are equal
};

// `bytes` limits the memory of sorted events, without the working memory of threads. Progress
// counts each event once.
void correlate_events(const Executor& executor, const EventInput& input, const EventFrames& frames,
                      int64_t n_pixels, int32_t dpl, const BinnedPixels& pixels, double bytes,
                      const Progress& progress, BinSums* result);

}  // namespace jaxkern::correlators

#endif  // JAXKERN_CORRELATORS_MULTITAU_EVENTS_H_
