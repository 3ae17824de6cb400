// Multi-tau correlation of events: the sums of bins that those of dense frames would be, bit by
// bit.
#ifndef JAXKERN_CORRELATORS_MULTITAU_EVENTS_H_
#define JAXKERN_CORRELATORS_MULTITAU_EVENTS_H_

#include <cstdint>

#include "core/parallel.h"
#include "correlators/event_sums.h"
#include "correlators/events.h"
#include "correlators/multitau.h"

namespace jaxkern::correlators {

// Which frames are correlated, as `EventMap` has them, and with how many of them good.
struct EventFrames {
  int64_t n_frames = 0, n_sums = 0, first_frame = 0;
  const int32_t* sum = nullptr;
  const uint32_t* good = nullptr;  // [n_sums], or null where all sums hold the same
};

// `bytes`: for sorted events, beside some memory a thread. Progress counts events, once.
void correlate_events(const Executor& executor, const EventInput& input, const EventFrames& frames,
                      int64_t n_pixels, int32_t dpl, const BinnedPixels& pixels, double bytes,
                      const Progress& progress, BinSums* result);

}  // namespace jaxkern::correlators

#endif  // JAXKERN_CORRELATORS_MULTITAU_EVENTS_H_
