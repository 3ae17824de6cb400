// Sums of dense frames over time and over pixels, by tiles in threads.
#include "correlators/frame_sums.h"

#include <algorithm>

namespace jaxkern::correlators {
namespace {

template <typename Wide>
void add_tiles(const Executor& executor, const FrameRows& frames, int64_t count, int64_t pixels,
               char* image, double* squares, const std::vector<const uint8_t*>& masks,
               char* totals) {
  const int64_t tiles = (pixels + kSumTile - 1) / kSumTile;
  const auto n_masks = static_cast<int64_t>(masks.size());
  std::vector<Wide> of_tiles(tiles * n_masks * count);
  parallel_for(executor, tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      FrameSumsTile tile;
      tile.frames = frames;
      tile.count = count;
      tile.pixel = t * kSumTile;
      tile.pixels = std::min(kSumTile, pixels - tile.pixel);
      if (image != nullptr) {
        tile.image = image + tile.pixel * static_cast<int64_t>(sizeof(Wide));
      }
      if (squares != nullptr) tile.squares = squares + tile.pixel;
      tile.masks = static_cast<int32_t>(n_masks);
      for (int64_t m = 0; m < n_masks; ++m) {
        tile.mask[m] = masks[m] + tile.pixel;
        tile.totals[m] = reinterpret_cast<char*>(of_tiles.data() + (t * n_masks + m) * count);
      }
      frame_sums_tile(tile, thread_scratch<kSumScratchBytes>());
    }
  });
  Wide* const sums = reinterpret_cast<Wide*>(totals);
  std::fill_n(sums, n_masks * count, Wide{0});
  for (int64_t t = 0; t < tiles; ++t) {
    for (int64_t i = 0; i < n_masks * count; ++i) sums[i] += of_tiles[t * n_masks * count + i];
  }
}

}  // namespace

void frame_sums(const Executor& executor, const FrameRows& frames, int64_t count, int64_t pixels,
                char* image, double* squares, const std::vector<const uint8_t*>& masks,
                char* totals) {
  const auto add = is_real(frames.dtype) ? &add_tiles<double> : &add_tiles<int64_t>;
  add(executor, frames, count, pixels, image, squares, masks, totals);
}

}  // namespace jaxkern::correlators
