// Weighted means of an image and of what steps made of it, as AugMix takes them. Included by
// program_levels.cc in the level's unnamed namespace.

// The images of a mean stay where they are, while a copy of the kept one is worked on elsewhere,
// until one pass over all of them takes the mean, in the kept one's place.
template <typename T>
class Mean {
 public:
  // room: for as many images of this many values as steps may keep or add.
  Mean(T* room, int64_t values) : room_(room), values_(values) {}

  // Keeps the image; it has this weight in the mean. Returns a copy.
  T* keep(T* image, float weight) {
    images_ = 0;
    return join(image, weight);
  }
  // The image has this weight in the mean. Returns the kept one again.
  T* add(T* image, float weight) { return images_ == 0 ? image : join(image, weight); }

  // Returns the mean instead of the image: truncated to levels, floats as they are.
  T* take(T* image) {
    if (images_ == 0) return image;
    int64_t first = 0;
    for (; first + kBlock <= values_; first += kBlock) take_block<kBlock>(first);
    for (; first < values_; ++first) take_block<1>(first);
    images_ = 0;
    return image_[0];
  }

 private:
  T* join(T* image, float weight) {
    image_[images_] = image;
    weight_[images_++] = weight;
    const size_t bytes = static_cast<size_t>(values_) * sizeof(T);
    T* const copy = room_;
    room_ += padded_to_line(bytes) / sizeof(T);
    memcpy(copy, image_[0], bytes);
    return copy;
  }

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
  void take_block(int64_t first) const {
    float sum[kCount];
    begin_sum<kCount>(image_[0] + first, weight_[0], sum);
    for (int32_t k = 1; k < images_; ++k) add_to_sum<kCount>(image_[k] + first, weight_[k], sum);
    end_sum<kCount>(sum, image_[0] + first);
  }

  T* room_;
  int64_t values_;
  int32_t images_ = 0;  // of the mean; 0: none is kept
  T* image_[kMaxProgramSteps];
  float weight_[kMaxProgramSteps];
};
