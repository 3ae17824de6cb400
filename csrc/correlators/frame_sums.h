// Sums of dense frames over time and over pixels, for a tile of pixels at a time.
#ifndef JAXKERN_CORRELATORS_FRAME_SUMS_H_
#define JAXKERN_CORRELATORS_FRAME_SUMS_H_

#include <cstdint>
#include <vector>

#include "core/parallel.h"
#include "core/simd_dispatch.h"
#include "correlators/multitau.h"

namespace jaxkern::correlators {

constexpr int64_t kSumTile = 4096;  // pixels of a tile
constexpr int32_t kMostMasks = 2;

// Arrays of sums are int64 for integer counts, and double for others.
struct FrameSumsTile {
  FrameRows frames;  // divisors and average are ignored
  int64_t count = 0;
  int64_t pixel = 0;  // first pixel of the tile
  int64_t pixels = 0;
  char* image = nullptr;      // [pixels] to which the good frames are added, or null
  double* squares = nullptr;  // [pixels] to which their squares are added; null without an image
  int32_t masks = 0;
  const uint8_t* mask[kMostMasks] = {};  // [pixels] true for used pixels
  char* totals[kMostMasks] = {};         // [count] for each mask, written
};

// Frames are added in order.
JAXKERN_LEVEL_FUNCTION(void, frame_sums_tile, const FrameSumsTile& tile, char* scratch)

// Narrow sums and sums of squares of a tile, and masks as wide as counts.
constexpr size_t kSumScratchBytes = kSumTile * (16 + 8 * kMostMasks);

// Adds good frames of `pixels` pixels to image [pixels], int64 or double, and their squares to
// squares [pixels], unless these are null. Writes totals [masks, count] over the pixels of masks.
void frame_sums(const Executor& executor, const FrameRows& frames, int64_t count, int64_t pixels,
                char* image, double* squares, const std::vector<const uint8_t*>& masks,
                char* totals);

}  // namespace jaxkern::correlators

#endif  // JAXKERN_CORRELATORS_FRAME_SUMS_H_
