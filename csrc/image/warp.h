// One image seen through a matrix: affine maps and perspectives, by nearest or bilinear.
//
// An affine map goes from the middle of the output to the middle of the input, in pixels: the
// output's pixel (x, y) from there shows the input at (c0 x + c1 y + c2, c3 x + c4 y + c5). A
// perspective goes from corner to corner: (x, y) = (column + 1/2, row + 1/2) shows
// ((c0 x + c1 y + c2) / d, (c3 x + c4 y + c5) / d), d = c6 x + c7 y + 1.
//
// Points are made as torchvision makes them, in float32, every step rounded, in units of half the
// input's sides w and h, about its middle:
//
//   affine       u = (x (c0 / (w/2)) + y (c1 / (w/2))) + c2 / (w/2)
//   perspective  u = ((x (c0 / (w/2)) + y (c1 / (w/2))) + c2 / (w/2)) / ((x c6 + y c7) + 1) - 1
//   column       (u + 1) (w/2) - 1/2, of which 0 is the centre of the first
//
// and rows with c3 to c5 and h. On noise this is what u8 levels need to be torchvision's: another
// order moves a point by 1e-5 pixels, and one pixel of 1,000 to another level. What follows is
// right to float64, so that every implementation of this finds the same u8.
//
//   nearest   the pixel whose centre is next, of two the even one; fill outside
//   bilinear  v = sum of weight * pixel over the up to four next pixels that exist, m = sum of
//   their
//             weights: m (v - fill) + fill, as torchvision has it, or v alone where there is no
//             fill; pixels of weight 0 take no part, be they NaN
//   u8        rounded to the nearest, of two the even one, and clamped
//
// Points that are NaN or infinite (coefficients may be anything) are outside.
#ifndef JAXKERN_IMAGE_WARP_H_
#define JAXKERN_IMAGE_WARP_H_

#include <cstdint>

#include "core/simd_dispatch.h"
#include "image/plan.h"

namespace jaxkern::image {

constexpr int kWarpCoefficients = 8;

// What is the same for every image of a call. Sides are from 1 to kMaxSize of arithmetic.h.
struct Warp {
  Dtype dtype;       // kU8 or kF32, of both images
  int32_t channels;  // 1, 3 or 4
  int32_t in_height, in_width;
  int32_t height, width;     // of the output
  Filter filter;             // kNearest or kBilinear
  bool perspective;          // or affine, which takes the first six coefficients
  float fill[kMaxChannels];  // fill[0] NaN: no fill, which is 0 outside
};

// `in` is [in_height, in_width, C], `out` [height, width, C], which do not overlap; coefficients
// [8]. Needs no scratch.
JAXKERN_LEVEL_FUNCTION(void, warp_image, const Warp& warp, const void* in,
                       const float* coefficients, void* out)

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_WARP_H_
