// Gaussian blur of one image, as torchvision's gaussian_blur defines it.
//
// The weights are exp(-t^2 / (2 sigma^2)) at integers t from -(k - 1) / 2 to (k - 1) / 2,
// normalized, along columns and rows. Beyond an edge the image is reflected without repeating the
// edge, as often as needed. The blur is computed in float64, and u8 is rounded once, half to even,
// so that every implementation gives the same u8 (float32 is used where its rounding is certain).
// Weights below 2^-60 of the central one are 0, and values of weight 0 are ignored, even if they
// are NaN. If sigma is not above 0, or NaN, its axis is not blurred.
#ifndef JAXKERN_IMAGE_BLUR_H_
#define JAXKERN_IMAGE_BLUR_H_

#include <cstddef>
#include <cstdint>

#include "core/simd_dispatch.h"
#include "image/plan.h"

namespace jaxkern::image {

// The parameters of a blur that are equal for all images. Kernel sizes are odd, from 1 to
// kMaxBlurKernel.
struct Blur {
  Dtype dtype;       // kU8 or kF32, of both images
  int32_t channels;  // 1, 3 or 4
  int32_t height, width;
  int32_t kernel_x, kernel_y;
};

constexpr int32_t kMaxBlurReach = 511;
constexpr int32_t kMaxBlurKernel = 2 * kMaxBlurReach + 1;
constexpr int32_t kBlurSpan = 512;                   // columns that are processed together
constexpr size_t kBlurRingBytes = size_t{32} << 10;  // rows of float32 sums, in the L1 cache

// Scratch of gaussian_blur: float32 sums, the weights of both axes, a span with its reach, and a
// span.
constexpr size_t kBlurScratchBytes =
    kBlurRingBytes + sizeof(double) * (2 * (kMaxBlurReach + 1) +
                                       (2 * kBlurSpan + 2 * kMaxBlurReach) * size_t{kMaxChannels});

// Blurs an image. `in` and `out` are [height, width, C] and do not overlap; `scratch` has
// kBlurScratchBytes and is aligned as a double.
JAXKERN_LEVEL_FUNCTION(void, gaussian_blur, const Blur& blur, const void* in, float sigma_x,
                       float sigma_y, void* scratch, void* out)

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_BLUR_H_
