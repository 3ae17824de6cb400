// Warps of one image; warp.h defines the operation.
//
// A row is processed in tiles of kWarpTile columns, and a tile in groups of kGroup neighbouring
// pixels, one lane of a register each (warp_groups-inl.h):
//
// - fill_tile maps all pixels of a tile to points of the input, without branches, so that no pixel
//   waits for the memory of another. It stores for each pixel the offset of the input pixel, or of
//   the upper left one of four, and for each group two bit masks of lanes:
//
//    ready     the pixel, or all four, are inside the input, and loads may read a few bytes more
//    outside   no input pixel contributes: the output is the fill
//
// - warp_rows then processes each group:
//
//    all lanes outside        store the fill
//    some lanes ready         copy or blend all lanes at once; lanes that are not ready load the
//                             first pixel of the input, and their results are overwritten
//    lanes in neither mask    recompute one by one (WarpImage::put): some of their four pixels are
//                             outside, or are the last of the input, where a load would read beyond
//
// Inputs of 2^31 values or more have no ready lanes. Bilinear u8 results are computed in float32.
// If one is so close to the middle between two levels that float32 may round to the wrong side, it
// is recomputed in float64; kBlendError in pixel.h bounds the error. Every SIMD level and CUDA
// therefore give the u8 results of the float64 definition in warp.h.
#ifndef JAXKERN_IMAGE_WARP_INL_H_
#define JAXKERN_IMAGE_WARP_INL_H_

#include "core/simd-inl.h"
#include "image/warp_groups-inl.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

// The constants of a warp, and `put`, which computes one pixel whose point may be anywhere.
template <typename Element, int32_t kChannels, bool kNearest>
struct WarpImage {
  const Warp& warp;
  const Element* in;
  int64_t in_row;
  Element fill[kChannels];

  WarpImage(const Warp& w, const Element* input)
      : warp(w), in(input), in_row(static_cast<int64_t>(w.in_width) * kChannels) {
    const bool filled = warp.fill[0] == warp.fill[0];
    for (int32_t c = 0; c < kChannels; ++c)
      fill[c] = stored_value<Element>(filled ? warp.fill[c] : 0.0);
  }

  void put(WarpPoint point, Element* out) const {
    if constexpr (kNearest) {
      const float px = rintf(clamped_point(point.x, warp.in_width));
      const float py = rintf(clamped_point(point.y, warp.in_height));
      const int32_t x = static_cast<int32_t>(px), y = static_cast<int32_t>(py);
      const bool inside = warp_inside(x, y, warp.in_width, warp.in_height);
      const int64_t offset = inside ? y * in_row + static_cast<int64_t>(x) * kChannels : 0;
      put_pixel<Element, kChannels>(inside ? in + offset : fill, out);
    } else {
      blend_pixel<Element, kChannels>(warp, in, point, fill, out);
    }
  }
};

// Columns whose points are computed before any pixel is read.
constexpr int32_t kWarpTile = 256;

// Bit masks of the lanes of a group.
struct WarpLanes {
  uint32_t ready;    // copied or blended at once
  uint32_t outside;  // filled
};

struct WarpTile {
  uint32_t offset[kWarpTile];                // of the input pixel, or of the upper left of four
  float across[kWarpTile], down[kWarpTile];  // weights of the right and of the lower pixels
  WarpLanes lanes[kWarpTile / kGroup];
};

// Points has two functions: group(column, row) returns the points of kGroup pixels, which may
// extend beyond the end of the row, and one(column, row) the point of one pixel. Offsets >= `end`
// are not ready.
template <int32_t kChannels, bool kNearest, typename Points>
void fill_tile(const Warp& warp, const Points& points, int32_t row, int32_t first, int32_t count,
               int32_t end, WarpTile* tile) {
  const int32_t second = kNearest ? 0 : 1, width = warp.in_width, height = warp.in_height;
  const uint32_t in_row = static_cast<uint32_t>(width) * static_cast<uint32_t>(kChannels);
  for (int32_t k = 0; k < count; k += kGroup) {
    const PointOf<GroupFloat> point = points.group(first + k, row);
    GroupFloat across, down;
    const GroupInt x = shown_pixels<kNearest>(point.x, width, &across);
    const GroupInt y = shown_pixels<kNearest>(point.y, height, &down);
    GroupInt offset = (GroupInt)((GroupBits)y * in_row + (GroupBits)x * uint32_t{kChannels});
    WarpLanes lanes = {
        lanes_below(x, width - second) & lanes_below(y, height - second) & lanes_below(offset, end),
        0};
    if (lanes.ready != kAllLanes) {
      lanes.outside = kAllLanes & ~(lanes_below(x + second, width + second) &
                                    lanes_below(y + second, height + second));
      const GroupInt bit = 1 << lane_numbers();
      offset = (static_cast<int32_t>(lanes.ready) & bit) != 0 ? offset : GroupInt{};
    }
    tile->lanes[k / kGroup] = lanes;
    memcpy(tile->offset + k, &offset, sizeof offset);
    if constexpr (!kNearest) {
      memcpy(tile->across + k, &across, sizeof across);
      memcpy(tile->down + k, &down, sizeof down);
    }
  }
}

template <typename Element, int32_t kChannels, bool kNearest, typename Points>
void warp_rows(const Warp& warp, const Element* in, const Points& points, Element* out) {
  using Kind = WarpKind<Element, kChannels>;
  const WarpImage<Element, kChannels, kNearest> image(warp, in);
  Element blank[kGroup * kChannels], part[kGroup * kChannels];
  for (int32_t k = 0; k < kGroup; ++k)
    put_pixel<Element, kChannels>(image.fill, blank + k * kChannels);
  const int64_t values = warp.in_height * image.in_row;
  const int64_t read = kNearest ? Kind::kCopied : image.in_row + Kind::kBlended;
  const int32_t end =
      values <= INT32_MAX && values >= read ? static_cast<int32_t>(values - read + 1) : 0;
  WarpTile tile;
  for (int32_t row = 0; row < warp.height; ++row) {
    for (int32_t first = 0; first < warp.width; first += kWarpTile) {
      const int32_t count = warp.width - first < kWarpTile ? warp.width - first : kWarpTile;
      fill_tile<kChannels, kNearest>(warp, points, row, first, count, end, &tile);
      Element* to = out + (static_cast<int64_t>(row) * warp.width + first) * kChannels;
      for (int32_t k = 0; k < count; k += kGroup, to += kGroup * kChannels) {
        const bool complete = k + kGroup <= count;
        Element* const at = complete ? to : part;
        const uint32_t* const offset = tile.offset + k;
        const WarpLanes lanes = tile.lanes[k / kGroup];
        uint32_t single = kAllLanes & ~(lanes.ready | lanes.outside);
        uint32_t outside = lanes.outside;
        if (!complete) single &= (1u << (count - k)) - 1;  // lanes beyond the row have no point
        if (lanes.ready != 0) {
          if constexpr (kNearest) {
            copy_group<Element, kChannels>(in, offset, at);
          } else {
            blend_group<Element, kChannels>(in, image.in_row, offset, tile.across + k,
                                            tile.down + k, lanes.ready, at);
          }
        } else if (outside == kAllLanes) {
          memcpy(at, blank, sizeof blank);
          outside = 0;
        }
        for (; outside != 0; outside &= outside - 1)
          put_pixel<Element, kChannels>(image.fill, at + __builtin_ctz(outside) * kChannels);
        for (; single != 0; single &= single - 1) {
          const int32_t lane = __builtin_ctz(single);
          image.put(points.one(first + k + lane, row), at + lane * kChannels);
        }
        if (!complete) {
          memcpy(to, part, static_cast<size_t>((count - k) * kChannels) * sizeof(Element));
        }
      }
    }
  }
}

// The points of an affine or perspective map.
template <bool kPerspective>
struct MapPoints {
  const WarpMap& map;

  PointOf<GroupFloat> group(int32_t column, int32_t row) const {
    const GroupFloat lane = __builtin_convertvector(lane_numbers(), GroupFloat);
    return mapped_point<kPerspective>(map, static_cast<float>(column) + lane,
                                      static_cast<float>(row));
  }
  WarpPoint one(int32_t column, int32_t row) const {
    return warp_point<kPerspective>(map, column, row);
  }
};

template <typename Element, int32_t kChannels, typename Points>
void warp_through(const Warp& warp, const void* in, const Points& points, void* out) {
  const Element* const from = static_cast<const Element*>(in);
  Element* const to = static_cast<Element*>(out);
  if (warp.filter == Filter::kNearest)
    return warp_rows<Element, kChannels, true>(warp, from, points, to);
  warp_rows<Element, kChannels, false>(warp, from, points, to);
}

template <typename Element, int32_t kChannels>
void warp_of(const Warp& warp, const void* in, const WarpMap& map, void* out) {
  if (warp.perspective)
    return warp_through<Element, kChannels>(warp, in, MapPoints<true>{map}, out);
  warp_through<Element, kChannels>(warp, in, MapPoints<false>{map}, out);
}

}  // namespace

void warp_image(const Warp& warp, const void* in, const float* coefficients, void* out) {
  const WarpMap map = warp_map(warp, coefficients);
  const bool bytes = warp.dtype == Dtype::kU8;
  if (warp.channels == 1)
    return (bytes ? warp_of<uint8_t, 1> : warp_of<float, 1>)(warp, in, map, out);
  if (warp.channels == 3)
    return (bytes ? warp_of<uint8_t, 3> : warp_of<float, 3>)(warp, in, map, out);
  (bytes ? warp_of<uint8_t, 4> : warp_of<float, 4>)(warp, in, map, out);
}

}  // namespace jaxkern::image::JAXKERN_LEVEL

#endif  // JAXKERN_IMAGE_WARP_INL_H_
