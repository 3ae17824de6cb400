// Warps of one image: affine and perspective maps, by nearest or bilinear interpolation.
//
// An affine map relates the centres of output and input, in pixels: the output pixel at (x, y) from
// the centre shows the input at (c0 x + c1 y + c2, c3 x + c4 y + c5). A perspective map relates the
// corners: (x, y) = (column + 1/2, row + 1/2) shows ((c0 x + c1 y + c2) / d, (c3 x + c4 y + c5) /
// d) with d = c6 x + c7 y + 1.
//
// Points are computed like torchvision's, in float32 with every step rounded, in units of half the
// input's sides w and h, about its centre:
//
//    affine       u = (x (c0 / (w/2)) + y (c1 / (w/2))) + c2 / (w/2)
//    perspective  u = ((x (c0 / (w/2)) + y (c1 / (w/2))) + c2 / (w/2)) / ((x c6 + y c7) + 1) - 1
//    column       (u + 1) (w/2) - 1/2, where 0 is the centre of the first pixel
//
// and rows with c3 to c5 and h. On noise, u8 levels equal torchvision's only with this order:
// another order moves a point by 1e-5 pixels, which changes the level of one pixel in 1,000. The
// following steps are accurate to float64, so every implementation gives the same u8.
//
//    nearest   the pixel with the nearest centre, ties to even; fill outside
//    bilinear  v = sum of weight * pixel over the up to four adjacent pixels that exist, m = sum of
//              their weights: m (v - fill) + fill, as in torchvision, or v if there is no fill;
//              pixels of weight 0 are ignored, even if they are NaN
//    u8        rounded half to even, and clamped
//
// Points that are NaN or infinite, which coefficients can cause, are outside.
#ifndef JAXKERN_IMAGE_WARP_H_
#define JAXKERN_IMAGE_WARP_H_

#include <cstdint>

#include "core/simd_dispatch.h"
#include "image/plan.h"

namespace jaxkern::image {

constexpr int kWarpCoefficients = 8;

// The parameters of a warp that are equal for all images. Sides are from 1 to kMaxSize of
// arithmetic.h.
struct Warp {
  Dtype dtype;       // kU8 or kF32, of both images
  int32_t channels;  // 1, 3 or 4
  int32_t in_height, in_width;
  int32_t height, width;     // of the output
  Filter filter;             // kNearest or kBilinear
  bool perspective;          // else affine, which uses the first six coefficients
  float fill[kMaxChannels];  // fill[0] NaN: no fill, and 0 outside
};

// Warps an image. `in` is [in_height, in_width, C] and `out` [height, width, C]; they do not
// overlap. `coefficients` is [8].
JAXKERN_LEVEL_FUNCTION(void, warp_image, const Warp& warp, const void* in,
                       const float* coefficients, void* out)

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_WARP_H_
