// Elastic warps: each output pixel shows a point that is displaced at random.
//
// The displacements are a field of random numbers, uniform from -1 to 1 at each pixel, blurred in
// float64 with the kernels of torchvision's ElasticTransform (one for x and one for y, each used
// along both axes), times alpha / 2. warp.h defines the value at a point.
#ifndef JAXKERN_IMAGE_ELASTIC_INL_H_
#define JAXKERN_IMAGE_ELASTIC_INL_H_

#include "core/simd-inl.h"
#include "image/blur-inl.h"
#include "image/noise-inl.h"
#include "image/warp-inl.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

struct Elastic {
  NoiseKey key;
  int32_t kernel_x, kernel_y;  // of the displacements along x and along y
  float alpha_x, alpha_y;
  float sigma_x, sigma_y;
};

// Computes the blurred numbers [height, width] of both axes in `memory`.
inline void elastic_field(const Warp& warp, const Elastic& elastic, char* blur_scratch,
                          char* memory, const double** field_x, const double** field_y) {
  const int64_t pixels = static_cast<int64_t>(warp.height) * warp.width;
  const size_t plane = padded_to_line(static_cast<size_t>(pixels) * sizeof(float));
  const size_t blurred = padded_to_line(static_cast<size_t>(pixels) * sizeof(double));
  float* const uniform[2] = {reinterpret_cast<float*>(memory),
                             reinterpret_cast<float*>(memory + plane)};
  double* const field[2] = {reinterpret_cast<double*>(memory + 2 * plane),
                            reinterpret_cast<double*>(memory + 2 * plane + blurred)};
  uint32_t word[2][kCounterBlock];
  for (int64_t first = 0; first < pixels; first += kCounterBlock) {
    random_block(elastic.key, first, word[0], word[1]);
    const int64_t left = pixels - first, count = left < kCounterBlock ? left : kCounterBlock;
    for (int32_t axis = 0; axis < 2; ++axis) {
      for (int64_t k = 0; k < count; ++k) uniform[axis][first + k] = uniform_number(word[axis][k]);
    }
  }
  for (int32_t axis = 0; axis < 2; ++axis) {
    const int32_t kernel = axis == 0 ? elastic.kernel_x : elastic.kernel_y;
    const Blur blur = {Dtype::kF32, 1, warp.height, warp.width, kernel, kernel};
    blur_rows(blur, uniform[axis], elastic.sigma_x, elastic.sigma_y,
              reinterpret_cast<double*>(blur_scratch), field[axis]);
  }
  *field_x = field[0];
  *field_y = field[1];
}

// The displaced points of the pixels of an image [height, width].
struct ElasticPoints {
  int32_t height, width;
  double alpha_x, alpha_y;  // divided by width and height
  const double *field_x, *field_y;

  WarpPoint one(int32_t column, int32_t row) const {
    const int64_t at = static_cast<int64_t>(row) * width + column;
    return {elastic_point(column, width, alpha_x * field_x[at]),
            elastic_point(row, height, alpha_y * field_y[at])};
  }
  PointOf<GroupFloat> group(int32_t column, int32_t row) const {
    float x[kGroup], y[kGroup];
    for (int32_t k = 0; k < kGroup; ++k) {
      const WarpPoint point = one(column + k < width ? column + k : width - 1, row);
      x[k] = point.x;
      y[k] = point.y;
    }
    PointOf<GroupFloat> points;
    memcpy(&points.x, x, sizeof x);
    memcpy(&points.y, y, sizeof y);
    return points;
  }
};

// `in` and `out` are [height, width, C] and do not overlap.
template <typename Element, int32_t kChannels>
void elastic_image(const Warp& warp, const Elastic& elastic, const Element* in, char* blur_scratch,
                   char* memory, Element* out) {
  ElasticPoints points = {warp.height,
                          warp.width,
                          static_cast<double>(elastic.alpha_x) / warp.width,
                          static_cast<double>(elastic.alpha_y) / warp.height,
                          nullptr,
                          nullptr};
  elastic_field(warp, elastic, blur_scratch, memory, &points.field_x, &points.field_y);
  warp_through<Element, kChannels>(warp, in, points, out);
}

}  // namespace

}  // namespace jaxkern::image::JAXKERN_LEVEL

#endif  // JAXKERN_IMAGE_ELASTIC_INL_H_
