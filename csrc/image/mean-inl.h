// Weighted means of an image and of what steps made of it, as AugMix takes them.
#ifndef JAXKERN_IMAGE_MEAN_INL_H_
#define JAXKERN_IMAGE_MEAN_INL_H_

#include "core/simd-inl.h"
#include "image/pixel.h"
#include "image/program.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

// The images of a mean stay where they are, while others are made of the kept one elsewhere, until
// one pass over all of them takes the mean.
template <typename T>
class Mean {
 public:
  // room: for as many images of this many values as steps may keep or add.
  Mean(T* room, int64_t values) : room_(room), values_(values) {}

  bool begun() const { return images_ > 0; }
  // Keeps the image, which has this weight in the mean. If it is where the next step writes,
  // `place` gets other memory. Returns the kept image, which nothing may write to.
  const T* keep(const T* image, float weight, T** place) {
    images_ = 0;
    return add(image, weight, place);
  }
  // The same of another image of the mean.
  const T* add(const T* image, float weight, T** place) {
    image_[images_] = image;
    weight_[images_++] = weight;
    if (image == *place) {
      *place = room_;
      room_ += padded_to_line(static_cast<size_t>(values_) * sizeof(T)) / sizeof(T);
    }
    return image_[0];
  }
  // Writes the mean, truncated to levels, floats as they are; `to` may be one of its images.
  void take(T* to) {
    int64_t first = 0;
    for (; first + kBlock <= values_; first += kBlock) take_block<kBlock>(first, to);
    for (; first < values_; ++first) take_block<1>(first, to);
    images_ = 0;
  }

 private:
  static constexpr int64_t kBlock = 256;

  // Called, not inlined: compilers find vectors in each, and not in all of them together.
  template <int64_t kCount>
  JAXKERN_HD_APART void begin_sum(const T* from, float weight, float* sum) {
    for (int64_t i = 0; i < kCount; ++i) sum[i] = static_cast<float>(from[i]) * weight;
  }
  template <int64_t kCount>
  JAXKERN_HD_APART void add_to_sum(const T* from, float weight, float* sum) {
    for (int64_t i = 0; i < kCount; ++i) sum[i] += static_cast<float>(from[i]) * weight;
  }
  template <int64_t kCount>
  JAXKERN_HD_APART void end_sum(const float* sum, T* to) {
    if constexpr (sizeof(T) == 1) {
      for (int64_t i = 0; i < kCount; ++i) {
        // As level_of, which the conversion truncates.
        const float positive = sum[i] > 0.f ? sum[i] : 0.f;
        to[i] = static_cast<T>(static_cast<int32_t>(positive < 255.f ? positive : 255.f));
      }
    } else {
      memcpy(to, sum, kCount * sizeof(T));
    }
  }

  template <int64_t kCount>
  void take_block(int64_t first, T* to) const {
    float sum[kCount];
    begin_sum<kCount>(image_[0] + first, weight_[0], sum);
    for (int32_t k = 1; k < images_; ++k) add_to_sum<kCount>(image_[k] + first, weight_[k], sum);
    end_sum<kCount>(sum, to + first);
  }

  T* room_;
  int64_t values_;
  int32_t images_ = 0;  // of the mean; 0: none is kept
  const T* image_[kMaxProgramSteps];
  float weight_[kMaxProgramSteps];
};

}  // namespace
}  // namespace jaxkern::image::JAXKERN_LEVEL

#endif  // JAXKERN_IMAGE_MEAN_INL_H_
