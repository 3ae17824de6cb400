// Warps of one image: see warp.h. Included by program_levels.cc in the level's namespace.
//
// A row is done in tiles of columns. The points of a tile come first, in a loop without branches;
// the columns whose pixels all lie inside are a span, but for perspectives across
// their horizon, and need no test of a pixel. Blends to u8 are made in float32 there; where one
// comes out so near the middle of two levels that float32 may be wrong about the side, the pixel is
// done again in float64.

namespace {

constexpr int32_t kWarpTile = 128;

struct WarpTile {
  int32_t x[kWarpTile], y[kWarpTile];        // the pixel, or the first of two
  float across[kWarpTile], down[kWarpTile];  // the second's weight
};

// The columns of a tile whose pixels are all inside: a span, or none where they are no span.
struct WarpSpan {
  int32_t begin, end;
};

#if defined(__AVX2__) && defined(__FMA__)
// Pixels and weights of eight points along one axis, as the loop of fill_tile has them; and which
// of them lie in [0, inside).
template <bool kNearest>
inline __m256 eight_points(__m256 point, int32_t side, int32_t inside, int32_t* pixel,
                           float* weight) {
  // Of NaN and another the maximum is the other.
  point = _mm256_max_ps(point, _mm256_set1_ps(-2.f));
  point = _mm256_min_ps(point, _mm256_set1_ps(static_cast<float>(side) + 1.f));
  const __m256 whole = _mm256_round_ps(
      point, (kNearest ? _MM_FROUND_TO_NEAREST_INT : _MM_FROUND_TO_NEG_INF) | _MM_FROUND_NO_EXC);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(pixel), _mm256_cvttps_epi32(whole));
  if constexpr (!kNearest) _mm256_storeu_ps(weight, _mm256_sub_ps(point, whole));
  const __m256 last = _mm256_set1_ps(static_cast<float>(inside - 1));
  return _mm256_and_ps(_mm256_cmp_ps(whole, _mm256_setzero_ps(), _CMP_GE_OQ),
                       _mm256_cmp_ps(whole, last, _CMP_LE_OQ));
}
#endif

// The points of columns [first, first + count) of one row.
template <bool kPerspective, bool kNearest>
WarpSpan fill_tile(const Warp& warp, const WarpMap& map, int32_t row, int32_t first, int32_t count,
                   WarpTile* tile) {
  const int32_t in_width = warp.in_width, in_height = warp.in_height;
  // The first of two pixels has its second beside it.
  const int32_t inside_width = kNearest ? in_width : in_width - 1;
  const int32_t inside_height = kNearest ? in_height : in_height - 1;
  int32_t inside = 0, k = 0;
#if defined(__AVX2__) && defined(__FMA__)
  const __m256 one = _mm256_set1_ps(1.f);
  const float y = static_cast<float>(row) + map.first_y;
  const auto line = [&](const float* c, __m256 start) {
    return [=](__m256 x) {
      const __m256 sum =
          _mm256_add_ps(_mm256_mul_ps(_mm256_set1_ps(c[0]), x), _mm256_set1_ps(c[1] * y));
      return _mm256_add_ps(sum, start);
    };
  };
  const auto across = line(map.c, _mm256_set1_ps(map.c[2]));
  const auto down = line(map.c + 3, _mm256_set1_ps(map.c[5]));
  const auto depth = line(map.c + 6, one);
  const auto in_pixels = [&](__m256 unit, float half) {
    return _mm256_sub_ps(_mm256_mul_ps(_mm256_add_ps(unit, one), _mm256_set1_ps(half)),
                         _mm256_set1_ps(0.5f));
  };
  for (; k + 8 <= count; k += 8) {
    const __m256 column = _mm256_add_ps(_mm256_set1_ps(static_cast<float>(first + k)),
                                        _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7));
    const __m256 x = _mm256_add_ps(column, _mm256_set1_ps(map.first_x));
    __m256 u = across(x), v = down(x);
    if constexpr (kPerspective) {
      const __m256 d = depth(x);
      u = _mm256_sub_ps(_mm256_div_ps(u, d), one);
      v = _mm256_sub_ps(_mm256_div_ps(v, d), one);
    }
    const __m256 in_x = eight_points<kNearest>(in_pixels(u, map.half_width), in_width, inside_width,
                                               tile->x + k, tile->across + k);
    const __m256 in_y = eight_points<kNearest>(in_pixels(v, map.half_height), in_height,
                                               inside_height, tile->y + k, tile->down + k);
    const int32_t lanes = _mm256_movemask_ps(_mm256_and_ps(in_x, in_y));
    inside += __builtin_popcount(static_cast<uint32_t>(lanes));
  }
#endif
  for (; k < count; ++k) {
    const WarpPoint at = warp_point<kPerspective>(map, first + k, row);
    const float px = clamped_point(at.x, in_width), py = clamped_point(at.y, in_height);
    const float fx = kNearest ? rintf(px) : floorf(px), fy = kNearest ? rintf(py) : floorf(py);
    tile->x[k] = static_cast<int32_t>(fx);
    tile->y[k] = static_cast<int32_t>(fy);
    if constexpr (!kNearest) {
      tile->across[k] = px - fx;
      tile->down[k] = py - fy;
    }
    inside += warp_inside(tile->x[k], tile->y[k], inside_width, inside_height);
  }
  if (inside == 0) return {0, 0};
  const auto is_inside = [&](int32_t k) {
    return warp_inside(tile->x[k], tile->y[k], inside_width, inside_height);
  };
  int32_t begin = 0, end = count;
  while (!is_inside(begin)) ++begin;
  while (!is_inside(end - 1)) --end;
  if (end - begin != inside) return {0, 0};
  return {begin, end};
}

#if defined(__AVX2__) && defined(__FMA__)
inline __m256i four_bytes_each(const uint8_t* const* at, int64_t beyond) {
  int32_t bytes[8];
  for (int32_t k = 0; k < 8; ++k) memcpy(&bytes[k], at[k] + beyond, 4);
  return _mm256_setr_epi32(bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6],
                           bytes[7]);
}

// Byte `place` of each four.
template <int32_t place>
inline __m256 byte_of(__m256i fours) {
  const __m256i shifted = place == 0 ? fours : _mm256_srli_epi32(fours, 8 * place);
  return _mm256_cvtepi32_ps(place == 3 ? shifted
                                       : _mm256_and_si256(shifted, _mm256_set1_epi32(255)));
}

inline __m256 blend(__m256 a, __m256 b, __m256 weight) {
  return _mm256_fmadd_ps(weight, _mm256_sub_ps(b, a), a);
}

// Adds the levels of channel kAt to `levels`, and to `doubts` where float32 does not tell them.
// Two neighbouring pixels are in `first`, from its first byte, and in `second`, to its last.
template <int32_t kChannels, int32_t kAt>
inline void blend_channel(const __m256i first[2], const __m256i second[2], __m256 across,
                          __m256 down, __m256i* levels, __m256* doubts) {
  constexpr int32_t kSecond = kAt + 4 - kChannels;
  const __m256 high = blend(byte_of<kAt>(first[0]), byte_of<kSecond>(second[0]), across);
  const __m256 low = blend(byte_of<kAt>(first[1]), byte_of<kSecond>(second[1]), across);
  const __m256 value = blend(high, low, down);
  const __m256i level = _mm256_cvtps_epi32(value);
  const __m256 off = _mm256_sub_ps(value, _mm256_cvtepi32_ps(level));
  const __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.f), off);
  const __m256 doubt = _mm256_cmp_ps(size, _mm256_set1_ps(0.5f - kBlendError), _CMP_GE_OQ);
  *doubts = _mm256_or_ps(*doubts, doubt);
  *levels = _mm256_or_si256(*levels, kAt == 0 ? level : _mm256_slli_epi32(level, 8 * kAt));
}

// Eight pixels of three or four bytes at once: a bit for each that is in doubt.
template <int32_t kChannels>
inline int32_t blend_eight(const uint8_t* const* upper, int64_t in_row, const float* across,
                           const float* down, uint8_t* out) {
  constexpr int64_t kBeyond = 2 * kChannels - 4;
  const __m256i first[2] = {four_bytes_each(upper, 0), four_bytes_each(upper, in_row)};
  const __m256i second[2] = {four_bytes_each(upper, kBeyond),
                             four_bytes_each(upper, in_row + kBeyond)};
  const __m256 right = _mm256_loadu_ps(across), below = _mm256_loadu_ps(down);
  __m256i levels = _mm256_setzero_si256();
  __m256 doubts = _mm256_setzero_ps();
  blend_channel<kChannels, 0>(first, second, right, below, &levels, &doubts);
  blend_channel<kChannels, 1>(first, second, right, below, &levels, &doubts);
  blend_channel<kChannels, 2>(first, second, right, below, &levels, &doubts);
  if constexpr (kChannels == 4) {
    blend_channel<4, 3>(first, second, right, below, &levels, &doubts);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), levels);
  } else {
    const __m256i together =
        _mm256_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1, 0, 1, 2, 4, 5, 6,
                         8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    const __m256i packed = _mm256_shuffle_epi8(levels, together);
    const __m128i low = _mm256_castsi256_si128(packed);
    const __m128i high = _mm256_extracti128_si256(packed, 1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), low);  // the last four are written again
    _mm_storeu_si64(out + 12, high);
    const int32_t last = _mm_extract_epi32(high, 2);
    memcpy(out + 20, &last, 4);
  }
  return _mm256_movemask_ps(doubts);
}
#endif

// Whether the columns of a row follow each other: those of shears along it and of translations.
inline bool neighbours(const int32_t* column, int32_t count) {
  int32_t steps = 0;
  for (int32_t k = 1; k < count; ++k) steps |= column[k] - column[0] - k;
  return count > 0 && steps == 0;
}

// Eight pixels. Those of three bytes are copied as four, of which the next one writes over the
// last; but for `last`, the input's, whose fourth byte is nobody's.
template <typename Element, int32_t kChannels>
inline void put_eight(const Element* const* from, const Element* last, Element* out) {
  constexpr bool kThreeBytes = kChannels * sizeof(Element) == 3;
  for (int32_t k = 0; k < 8; ++k) {
    if (kThreeBytes && k < 7 && from[k] != last) {
      memcpy(out + k * kChannels, from[k], 4);
    } else {
      put_pixel<Element, kChannels>(from[k], out + k * kChannels);
    }
  }
}

template <typename Element, int32_t kChannels, bool kPerspective, bool kNearest>
void warp_rows(const Warp& warp, const Element* in, const WarpMap& map, Element* out) {
  const int64_t in_row = static_cast<int64_t>(warp.in_width) * kChannels;
  Element outside[kChannels];
  for (int32_t k = 0; k < kChannels; ++k) {
    const bool filled = warp.fill[0] == warp.fill[0];
    outside[k] = stored_value<Element>(filled ? warp.fill[k] : 0.0);
  }
  const Element* const last = in + warp.in_height * in_row - kChannels;
  WarpTile tile;
  for (int32_t row = 0; row < warp.height; ++row) {
    for (int32_t first = 0; first < warp.width; first += kWarpTile) {
      const int32_t count = warp.width - first < kWarpTile ? warp.width - first : kWarpTile;
      const WarpSpan span = fill_tile<kPerspective, kNearest>(warp, map, row, first, count, &tile);
      Element* const to = out + (static_cast<int64_t>(row) * warp.width + first) * kChannels;
      const auto pixel = [&](int32_t k) {
        return in + tile.y[k] * in_row + static_cast<int64_t>(tile.x[k]) * kChannels;
      };
      const auto anywhere = [&](int32_t k) {
        Element* const at = to + static_cast<int64_t>(k) * kChannels;
        if (kNearest ? !warp_inside(tile.x[k], tile.y[k], warp.in_width, warp.in_height)
                     : !warp_inside(tile.x[k] + 1, tile.y[k] + 1, warp.in_width + 1,
                                    warp.in_height + 1)) {
          put_pixel<Element, kChannels>(outside, at);
        } else if constexpr (kNearest) {
          put_pixel<Element, kChannels>(pixel(k), at);
        } else {
          const WarpPoint point = warp_point<kPerspective>(map, first + k, row);
          blend_pixel<Element, kChannels>(warp, in, point, outside, at);
        }
      };
      int32_t k = 0;
      for (; k < span.begin; ++k) anywhere(k);
      if constexpr (kNearest) {
        if (!kPerspective && map.c[3] == 0.f && neighbours(tile.x + k, span.end - k)) {
          const size_t values = static_cast<size_t>(span.end - k) * kChannels;
          memcpy(to + k * kChannels, pixel(k), values * sizeof(Element));
          k = span.end;
        }
        for (; k + 8 <= span.end; k += 8) {
          const Element* from[8];
          for (int32_t i = 0; i < 8; ++i) from[i] = pixel(k + i);
          put_eight<Element, kChannels>(from, last, to + k * kChannels);
        }
      }
#if defined(__AVX2__) && defined(__FMA__)
      if constexpr (sizeof(Element) == 1 && kChannels >= 3 && !kNearest) {
        for (; k + 8 <= span.end; k += 8) {
          const uint8_t* upper[8];
          for (int32_t i = 0; i < 8; ++i) upper[i] = pixel(k + i);
          const int32_t doubts = blend_eight<kChannels>(upper, in_row, tile.across + k,
                                                        tile.down + k, to + k * kChannels);
          if (doubts == 0) continue;
          for (int32_t i = 0; i < 8; ++i) {
            if ((doubts >> i) & 1) anywhere(k + i);
          }
        }
      }
#endif
      for (; k < span.end; ++k) {
        Element* const at = to + static_cast<int64_t>(k) * kChannels;
        const Element* const upper = pixel(k);
        if constexpr (kNearest) {
          put_pixel<Element, kChannels>(upper, at);
        } else {
          if (!blend_inside<Element, kChannels>(upper, upper + in_row, tile.across[k], tile.down[k],
                                                at)) {
            anywhere(k);
          }
        }
      }
      for (; k < count; ++k) anywhere(k);
    }
  }
}

template <typename Element, int32_t kChannels>
void warp_of(const Warp& warp, const void* in, const WarpMap& map, void* out) {
  const Element* const from = static_cast<const Element*>(in);
  Element* const to = static_cast<Element*>(out);
  if (warp.filter == Filter::kNearest) {
    if (warp.perspective) return warp_rows<Element, kChannels, true, true>(warp, from, map, to);
    return warp_rows<Element, kChannels, false, true>(warp, from, map, to);
  }
  if (warp.perspective) return warp_rows<Element, kChannels, true, false>(warp, from, map, to);
  warp_rows<Element, kChannels, false, false>(warp, from, map, to);
}

}  // namespace

void warp_image(const Warp& warp, const void* in, const float* coefficients, void* out) {
  const WarpMap map = warp_map(warp, coefficients);
  const bool bytes = warp.dtype == Dtype::kU8;
  if (warp.channels == 1)
    return (bytes ? warp_of<uint8_t, 1> : warp_of<float, 1>)(warp, in, map, out);
  if (warp.channels == 3)
    return (bytes ? warp_of<uint8_t, 3> : warp_of<float, 3>)(warp, in, map, out);
  (bytes ? warp_of<uint8_t, 4> : warp_of<float, 4>)(warp, in, map, out);
}
