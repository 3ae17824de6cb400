// Weighted means of an image and of what steps made of it, as AugMix takes them. Included by
// program_levels.cc in the level's unnamed namespace.

// What an image had when it was kept, and the mean so far.
template <typename T>
struct Mean {
  const T* source;  // an image that nothing writes to, which is kept where it is; or null
  T* memory;        // of another
  float* sum;
  int64_t values;
  const T* kept = nullptr;
  bool begun = false;

  // Keeps the image; it has this weight in the mean.
  void keep(const T* image, float weight) {
    kept = image == source ? source : memory;
    if (image != kept) memcpy(memory, image, static_cast<size_t>(values) * sizeof(T));
    for (int64_t i = 0; i < values; ++i) sum[i] = static_cast<float>(image[i]) * weight;
    begun = true;
  }
  // The image has this weight in the mean.
  void add(const T* image, float weight) {
    for (int64_t i = 0; i < values; ++i) sum[i] += static_cast<float>(image[i]) * weight;
  }
  // The image becomes the mean: truncated to levels, floats as they are.
  void take(T* image) {
    for (int64_t i = 0; i < values; ++i) {
      image[i] = static_cast<T>(sizeof(T) == 1 ? level_of(sum[i]) : sum[i]);
    }
    begun = false;
  }
};
