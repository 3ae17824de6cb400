// Nearest warps of one image: see warp.h. Included by program_levels.cc in the level's namespace.
//
// Where the pixels of a tile of a row come from is found first, in float64 and without branches;
// then they are copied, eight at once where all of them are inside.

namespace {

constexpr int32_t kNearestTile = 128;  // a multiple of kDoubles

// The first elements of the pixels that the columns from `first` on show, for `count` of them
// rounded up to whole vectors: negative outside.
template <int32_t kChannels, bool kPerspective>
void nearest_offsets(const Warp& warp, const double* c, int32_t row, int32_t first, int32_t count,
                     int64_t* offset) {
  // Adding it rounds to a whole number, of two the even one, whose bits are those behind its own.
  // What is too large for that, infinite or NaN has other bits than any number of pixels.
  constexpr double kRound = 0x1.8p52;
  const Bits round_bits = (Bits)splat(kRound);
  const double y = row + 0.5;
  const double x_start = c[1] * y + c[2], y_start = c[4] * y + c[5], d_start = c[7] * y + 1.0;
  const double in_row = static_cast<double>(warp.in_width) * kChannels;
  const uint64_t last_column = static_cast<uint64_t>(warp.in_width - 1);
  const uint64_t last_row = static_cast<uint64_t>(warp.in_height - 1);
  Doubles lane = {};
  for (int32_t k = 0; k < kDoubles; ++k) lane[k] = k;
  for (int32_t k = 0; k < count; k += kDoubles) {
    const Doubles x = (first + k + 0.5) + lane;
    Doubles across = c[0] * x + x_start, down = c[3] * x + y_start;
    if constexpr (kPerspective) {
      const Doubles near = 1.0 / (c[6] * x + d_start);
      across = across * near;
      down = down * near;
    }
    const Doubles column = (across - 0.5) + kRound, line = (down - 0.5) + kRound;
    const Bits at_column = (Bits)column - round_bits, at_line = (Bits)line - round_bits;
    const Doubles at = (line - kRound) * in_row + (column - kRound) * kChannels;
    const Bits outside = at_column | (last_column - at_column) | at_line | (last_row - at_line);
    const Bits found = ((Bits)(at + kRound) - round_bits) | (outside & uint64_t{1} << 63);
    memcpy(offset + k, &found, sizeof found);
  }
}

// Eight pixels that lie inside. Those of three bytes are copied as four, of which the next one
// writes over the last; but for the input's last pixel, whose fourth byte is nobody's.
template <typename Element, int32_t kChannels>
inline void put_eight(const Element* in, const int64_t* offset, int64_t last, Element* out) {
  constexpr bool kThreeBytes = kChannels * sizeof(Element) == 3;
  for (int32_t k = 0; k < 8; ++k) {
    const Element* const from = in + offset[k];
    if (kThreeBytes && k < 7 && offset[k] != last) {
      memcpy(out + k * kChannels, from, 4);
    } else {
      put_pixel<Element, kChannels>(from, out + k * kChannels);
    }
  }
}

template <typename Element, int32_t kChannels, bool kPerspective>
void nearest_rows(const Warp& warp, const Element* in, const double* c, const Element* outside,
                  Element* out) {
  // Of shears along rows and of translations by whole pixels, neighbours come from neighbours.
  const bool straight = !kPerspective && c[0] == 1.0 && c[3] == 0.0;
  const int64_t last = (static_cast<int64_t>(warp.in_height) * warp.in_width - 1) * kChannels;
  int64_t offset[kNearestTile];
  for (int32_t row = 0; row < warp.height; ++row) {
    for (int32_t first = 0; first < warp.width; first += kNearestTile) {
      const int32_t count = warp.width - first < kNearestTile ? warp.width - first : kNearestTile;
      nearest_offsets<kChannels, kPerspective>(warp, c, row, first, count, offset);
      Element* const to = out + (static_cast<int64_t>(row) * warp.width + first) * kChannels;
      if (straight && offset[0] >= 0 && offset[count - 1] >= 0) {
        int64_t steps = 0;
        for (int32_t k = 1; k < count; ++k) steps |= offset[k] - offset[0] - k * kChannels;
        if (steps == 0) {
          memcpy(to, in + offset[0], static_cast<size_t>(count) * kChannels * sizeof(Element));
          continue;
        }
      }
      for (int32_t k = 0; k < count;) {
        const int32_t end = k + 8 < count ? k + 8 : count;
        int64_t signs = 0;
        for (int32_t i = k; i < end; ++i) signs |= offset[i];
        if (end == k + 8 && signs >= 0) {
          put_eight<Element, kChannels>(in, offset + k, last, to + k * kChannels);
        } else {
          for (int32_t i = k; i < end; ++i)
            put_pixel<Element, kChannels>(offset[i] < 0 ? outside : in + offset[i],
                                          to + i * kChannels);
        }
        k = end;
      }
    }
  }
}

}  // namespace
