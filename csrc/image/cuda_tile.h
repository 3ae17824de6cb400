// The division of an output into tiles by the CUDA kernels, and the layout of a pass of a tile in
// shared memory, from where it is stored in 16-byte pieces. Host and device code, so that a CPU
// test can run it.
//
// A tile has kTileRows output rows of at most kMaxThreads columns, and a thread computes one
// column. Rows are computed in passes of kPassRows. A pass is staged as float32 in the order of the
// output, then written as runs that are contiguous in the output.
#ifndef JAXKERN_IMAGE_CUDA_TILE_H_
#define JAXKERN_IMAGE_CUDA_TILE_H_

#include <cstdint>

#include "core/host_device.h"
#include "image/arithmetic.h"
#include "image/plan.h"

namespace jaxkern::image {

constexpr int32_t kMaxThreads = 256;
constexpr int32_t kTileRows = 16;
constexpr int32_t kPassRows = 8;
constexpr int32_t kStoreBytes = 16;
static_assert(kTileRows % kPassRows == 0);

struct Tiling {
  int32_t columns;  // of a tile; the last one of a row may have fewer
  int32_t across;   // tiles in a row
  int32_t each;     // tiles in an image: below 2^31, since an output has at most 2^31 pixels
  int32_t threads;  // in a block: `columns` rounded up to whole warps
};

inline Tiling tiling_of(int32_t height, int32_t width) {
  Tiling tiling;
  tiling.across = (width + kMaxThreads - 1) / kMaxThreads;
  tiling.columns = (width + tiling.across - 1) / tiling.across;
  tiling.each = tiling.across * ((height + kTileRows - 1) / kTileRows);
  tiling.threads = (tiling.columns + 31) / 32 * 32;
  return tiling;
}

struct Tile {
  int64_t image;
  int32_t row, rows, column, columns;
};

JAXKERN_HD Tile tile_at(const Tiling& tiling, int32_t height, int32_t width, int64_t flat) {
  Tile tile;
  tile.image = flat / tiling.each;
  const int32_t within = static_cast<int32_t>(flat - tile.image * tiling.each);
  const int32_t down = within / tiling.across;
  tile.row = down * kTileRows;
  tile.rows = static_cast<int32_t>(smaller(kTileRows, height - tile.row));
  tile.column = (within - down * tiling.across) * tiling.columns;
  tile.columns = static_cast<int32_t>(smaller(tiling.columns, width - tile.column));
  return tile;
}

// The layout of a pass in shared memory: channel c of its pixel (row, column) is float
// lead + row * row_pitch + column * column_pitch + c * channel_pitch of the stage. With these
// pitches the index in the stage and the address in the output agree modulo 16-byte vectors
// everywhere.
struct Staging {
  int64_t first;  // the element of the image that float `lead` holds
  int32_t rows;
  int32_t lead, row_pitch, column_pitch, channel_pitch;
};

JAXKERN_HD int32_t vector_elements(Dtype dtype) { return kStoreBytes / dtype_bytes(dtype); }

// Returns the smallest number >= `length` that equals `stride` modulo `vector`, a power of two.
JAXKERN_HD int32_t congruent_pitch(int32_t length, int64_t stride, int32_t vector) {
  return length + static_cast<int32_t>((stride - length) & (vector - 1));
}

JAXKERN_HD Staging staging_of(const Tile& tile, int32_t pass, int32_t height, int32_t width,
                              int32_t channels, Layout layout, Dtype dtype, const void* image) {
  Staging staging;
  const int32_t vector = vector_elements(dtype);
  const bool planes = layout == Layout::kNCHW;
  const int32_t row = tile.row + pass * kPassRows;
  staging.rows = static_cast<int32_t>(smaller(kPassRows, tile.rows - pass * kPassRows));
  staging.column_pitch = planes ? 1 : channels;
  staging.first = (static_cast<int64_t>(row) * width + tile.column) * staging.column_pitch;
  staging.lead = static_cast<int32_t>(
      (static_cast<int64_t>(reinterpret_cast<uintptr_t>(image) % kStoreBytes) / dtype_bytes(dtype) +
       staging.first) &
      (vector - 1));
  staging.row_pitch = congruent_pitch(tile.columns * staging.column_pitch,
                                      static_cast<int64_t>(width) * staging.column_pitch, vector);
  staging.channel_pitch = planes ? congruent_pitch(staging.rows * staging.row_pitch,
                                                   static_cast<int64_t>(height) * width, vector)
                                 : 1;
  return staging;
}

// Number of floats of shared memory for the largest pass.
constexpr int32_t stage_floats(const Tiling& tiling, int32_t channels) {
  constexpr int32_t kVector = kStoreBytes;  // of u8, the longest
  return channels * (kPassRows * (tiling.columns + kVector) + kVector) + kVector;
}

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_CUDA_TILE_H_
