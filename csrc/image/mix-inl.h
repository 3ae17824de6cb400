// MixUp and CutMix of one sample with its partner.
//
// Included by levels.cc inside the level's namespace.

// Mixes elements [begin, end) where all arrays share one index.
template <Dtype dtype>
void mix_range(const void* x, const void* partner, float lambda, int64_t begin, int64_t end,
               void* output) {
  for (int64_t i = begin; i < end; ++i) {
    float value = mix_value(load_value<dtype>(x, i), load_value<dtype>(partner, i), lambda);
    if (dtype == Dtype::kU8) value = round_value(Rounding::kNearest, value);
    store_value<dtype>(output, i, value);
  }
}

template <Dtype dtype>
void mix_planes(int32_t planes, int32_t height, int32_t width, int32_t channels, const void* x,
                const void* partner, float lambda, EraseBox box, void* output) {
  const Range rows = erased_range(box.top, box.height, height);
  const Range columns = erased_range(box.left, box.width, width);
  for (int32_t p = 0; p < planes; ++p) {
    for (int32_t y = 0; y < height; ++y) {
      const int64_t row = (static_cast<int64_t>(p) * height + y) * width * channels;
      const int64_t row_end = row + static_cast<int64_t>(width) * channels;
      if (!inside(rows, y) || columns.begin == columns.end) {
        mix_range<dtype>(x, partner, lambda, row, row_end, output);
        continue;
      }
      const int64_t cut = row + static_cast<int64_t>(columns.begin) * channels;
      const int64_t cut_end = row + static_cast<int64_t>(columns.end) * channels;
      mix_range<dtype>(x, partner, lambda, row, cut, output);
      mix_range<dtype>(partner, partner, 1.f, cut, cut_end, output);
      mix_range<dtype>(x, partner, lambda, cut_end, row_end, output);
    }
  }
}
