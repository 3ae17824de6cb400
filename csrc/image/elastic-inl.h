// Elastic warps: each output pixel shows a point beside its own. Included by program_levels.cc in
// the level's namespace.
//
// The points' distances are a field of random numbers, uniform from -1 to 1 at each pixel, blurred
// with the kernels of torchvision's ElasticTransform (one for x and one for y, both as
// gaussian_blur has it) in float64, times alpha / 2. What a point shows is warp.h's business.

namespace {

struct Elastic {
  NoiseKey key;
  int32_t kernel_x, kernel_y;  // of the distances along x and along y
  float alpha_x, alpha_y;
  float sigma_x, sigma_y;
};

// The blurred numbers [height, width] of both axes, which lie in `memory` then.
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

// `in` and `out` are [height, width, C] and do not overlap.
template <typename Element, int32_t kChannels>
void elastic_image(const Warp& warp, const Elastic& elastic, const Element* in, char* blur_scratch,
                   char* memory, Element* out) {
  const double *field_x, *field_y;
  elastic_field(warp, elastic, blur_scratch, memory, &field_x, &field_y);
  const bool nearest = warp.filter == Filter::kNearest;
  const double alpha_x = static_cast<double>(elastic.alpha_x) / warp.width;
  const double alpha_y = static_cast<double>(elastic.alpha_y) / warp.height;
  const int32_t width = warp.in_width, height = warp.in_height;
  const int64_t in_row = static_cast<int64_t>(width) * kChannels;
  Element outside[kChannels];
  for (int32_t c = 0; c < kChannels; ++c)
    outside[c] = stored_value<Element>(warp.fill[0] == warp.fill[0] ? warp.fill[c] : 0.0);
  for (int32_t row = 0; row < warp.height; ++row) {
    for (int32_t column = 0; column < warp.width; ++column) {
      const int64_t at = static_cast<int64_t>(row) * warp.width + column;
      Element* const to = out + at * kChannels;
      const WarpPoint point = {elastic_point(column, warp.width, alpha_x * field_x[at]),
                               elastic_point(row, warp.height, alpha_y * field_y[at])};
      const float px = clamped_point(point.x, width), py = clamped_point(point.y, height);
      const float fx = nearest ? rintf(px) : floorf(px), fy = nearest ? rintf(py) : floorf(py);
      const int32_t x = static_cast<int32_t>(fx), y = static_cast<int32_t>(fy);
      const int32_t last_x = nearest ? width : width - 1, last_y = nearest ? height : height - 1;
      if (!warp_inside(x, y, last_x, last_y)) {
        if (nearest) {
          put_pixel<Element, kChannels>(outside, to);
        } else {
          blend_pixel<Element, kChannels>(warp, in, point, outside, to);
        }
        continue;
      }
      const Element* const upper = in + y * in_row + static_cast<int64_t>(x) * kChannels;
      if (nearest) {
        put_pixel<Element, kChannels>(upper, to);
      } else if (!blend_inside<Element, kChannels>(upper, upper + in_row, px - fx, py - fy, to)) {
        blend_pixel<Element, kChannels>(warp, in, point, outside, to);
      }
    }
  }
}

}  // namespace
