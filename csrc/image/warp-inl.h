// Warps of one image: see warp.h.
//
// A row is done in tiles of columns, and those in groups of neighbouring pixels
// (warp_groups-inl.h). The points of a tile come first, without branches: its pixels wait for none
// of them then. A group none of which shows the image is filled. All others are copied or blended
// at once, from the input's first pixel where a lane cannot; those are done again one by one. Which
// are: pixels whose four are not all inside; the input's last ones, beyond which a copy or a blend
// would read; and all of an input of 2^31 values. Where a blend to u8 in float32 comes out so near
// the middle of two levels that float32 may be wrong about the side, float64 decides.
#ifndef JAXKERN_IMAGE_WARP_INL_H_
#define JAXKERN_IMAGE_WARP_INL_H_

#include "core/simd-inl.h"
#include "image/warp_groups-inl.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

// What is the same for all pixels of a warp, and one pixel, wherever its point is.
template <typename Element, int32_t kChannels, bool kNearest>
struct WarpImage {
  const Warp& warp;
  const Element* in;
  int64_t in_row;
  Element outside[kChannels];

  WarpImage(const Warp& w, const Element* input)
      : warp(w), in(input), in_row(static_cast<int64_t>(w.in_width) * kChannels) {
    const bool filled = warp.fill[0] == warp.fill[0];
    for (int32_t c = 0; c < kChannels; ++c)
      outside[c] = stored_value<Element>(filled ? warp.fill[c] : 0.0);
  }

  void put(WarpPoint point, Element* out) const {
    if constexpr (kNearest) {
      const float px = rintf(clamped_point(point.x, warp.in_width));
      const float py = rintf(clamped_point(point.y, warp.in_height));
      const int32_t x = static_cast<int32_t>(px), y = static_cast<int32_t>(py);
      const bool inside = warp_inside(x, y, warp.in_width, warp.in_height);
      const int64_t offset = inside ? y * in_row + static_cast<int64_t>(x) * kChannels : 0;
      put_pixel<Element, kChannels>(inside ? in + offset : outside, out);
    } else {
      blend_pixel<Element, kChannels>(warp, in, point, outside, out);
    }
  }
};

// Columns whose points are found before any is shown.
constexpr int32_t kWarpTile = 256;

// A group of a tile: bits of lanes.
struct WarpLanes {
  uint32_t ready;  // those that are copied or blended with the others
  uint32_t gone;   // those that do not show the image
};

struct WarpTile {
  uint32_t offset[kWarpTile];                // of the pixel, or of the first of four
  float across[kWarpTile], down[kWarpTile];  // weights of the others
  WarpLanes lanes[kWarpTile / kGroup];
};

// Points: group(column, row) of kGroup pixels from a column on, also where a row ends before, and
// one(column, row) of a pixel. Offsets from `end` on are not ready.
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
    if (lanes.ready != kWholeGroup) {
      lanes.gone = kWholeGroup & ~(lanes_below(x + second, width + second) &
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
    put_pixel<Element, kChannels>(image.outside, blank + k * kChannels);
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
        const bool whole = k + kGroup <= count;
        Element* const at = whole ? to : part;
        const uint32_t* const offset = tile.offset + k;
        const WarpLanes lanes = tile.lanes[k / kGroup];
        uint32_t again = kWholeGroup & ~(lanes.ready | lanes.gone);
        uint32_t gone = lanes.gone;
        if (!whole) again &= (1u << (count - k)) - 1;  // beyond the row there may be no points
        if (lanes.ready != 0) {
          if constexpr (kNearest) {
            copy_group<Element, kChannels>(in, offset, at);
          } else {
            blend_group<Element, kChannels>(in, image.in_row, offset, tile.across + k,
                                            tile.down + k, lanes.ready, at);
          }
        } else if (gone == kWholeGroup) {
          memcpy(at, blank, sizeof blank);
          gone = 0;
        }
        for (; gone != 0; gone &= gone - 1)
          put_pixel<Element, kChannels>(image.outside, at + __builtin_ctz(gone) * kChannels);
        for (; again != 0; again &= again - 1) {
          const int32_t lane = __builtin_ctz(again);
          image.put(points.one(first + k + lane, row), at + lane * kChannels);
        }
        if (!whole) {
          memcpy(to, part, static_cast<size_t>((count - k) * kChannels) * sizeof(Element));
        }
      }
    }
  }
}

// The points of an affine map or a perspective.
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
