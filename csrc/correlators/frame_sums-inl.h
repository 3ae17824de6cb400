// Sums of a tile of frames, a type of counts each. Counts are first added up in words that a few
// frames, or the pixels of a tile, cannot overflow.
#ifndef JAXKERN_CORRELATORS_FRAME_SUMS_INL_H_
#define JAXKERN_CORRELATORS_FRAME_SUMS_INL_H_

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/simd-inl.h"
#include "correlators/frame_sums.h"

namespace jaxkern::correlators::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

// Narrow: an image of kFrames frames; Square: its sums of squares; Row: all pixels of a tile; Wide:
// anything.
template <typename T>
struct Sums {
  using Word = T;
  using Narrow = std::conditional_t<sizeof(T) == 1, uint16_t, uint32_t>;
  using Square = std::conditional_t<sizeof(T) == 1, uint32_t, uint64_t>;
  using Row = uint32_t;
  using Wide = int64_t;
  static constexpr int64_t kFrames = 257;
};
template <>
struct Sums<uint32_t> {
  using Word = uint32_t;
  using Narrow = int64_t;
  using Square = double;
  using Row = int64_t;
  using Wide = int64_t;
  static constexpr int64_t kFrames = 1 << 20;
};
template <>
struct Sums<int32_t> : Sums<uint32_t> {};
template <>
struct Sums<float> {
  using Word = uint32_t;
  using Narrow = double;
  using Square = double;
  using Row = double;
  using Wide = double;
  static constexpr int64_t kFrames = 1 << 20;
};
template <>
struct Sums<double> : Sums<float> {
  using Word = uint64_t;
};

// The sum of a row's masked pixels, in an order that does not depend on the instruction set.
template <typename T>
inline typename Sums<T>::Row masked_sum(const T* __restrict row,
                                        const typename Sums<T>::Word* __restrict mask,
                                        int64_t pixels) {
  constexpr int64_t kLanes = 16;
  typename Sums<T>::Row lanes[kLanes] = {};
  const auto value = [&](int64_t i) {
    typename Sums<T>::Word bits;
    std::memcpy(&bits, row + i, sizeof(T));
    bits &= mask[i];
    T masked;
    std::memcpy(&masked, &bits, sizeof(T));
    return static_cast<typename Sums<T>::Row>(masked);
  };
  int64_t i = 0;
  for (; i + kLanes <= pixels; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] += value(i + j);
  }
  for (int64_t j = 0; i + j < pixels; ++j) lanes[j] += value(i + j);
  typename Sums<T>::Row sum = 0;
  for (int64_t j = 0; j < kLanes; ++j) sum += lanes[j];
  return sum;
}

template <typename T>
void sum_tile(const FrameSumsTile& tile, char* scratch) {
  using Narrow = typename Sums<T>::Narrow;
  using Square = typename Sums<T>::Square;
  using Wide = typename Sums<T>::Wide;
  using Word = typename Sums<T>::Word;
  Narrow* const __restrict narrow = reinterpret_cast<Narrow*>(scratch);
  Square* const __restrict square = reinterpret_cast<Square*>(scratch + 8 * kSumTile);
  Word* masks[kMostMasks];
  for (int32_t m = 0; m < tile.masks; ++m) {
    masks[m] = reinterpret_cast<Word*>(scratch + 8 * kSumTile * (m + 2));
    for (int64_t i = 0; i < tile.pixels; ++i) masks[m][i] = tile.mask[m][i] ? ~Word{0} : Word{0};
  }
  T copy[kSumTile];
  for (int64_t begin = 0; begin < tile.count; begin += Sums<T>::kFrames) {
    const int64_t end = std::min(begin + Sums<T>::kFrames, tile.count);
    std::fill_n(narrow, tile.pixels, Narrow{0});
    if (tile.squares != nullptr) std::fill_n(square, tile.pixels, Square{0});
    for (int64_t f = begin; f < end; ++f) {
      const char* from =
          tile.frames.data + f * tile.frames.stride + tile.pixel * static_cast<int64_t>(sizeof(T));
      const T* __restrict row = reinterpret_cast<const T*>(from);
      if (reinterpret_cast<uintptr_t>(from) % alignof(T) != 0) {
        std::memcpy(copy, from, tile.pixels * sizeof(T));
        row = copy;
      }
      for (int32_t m = 0; m < tile.masks; ++m) {
        reinterpret_cast<Wide*>(tile.totals[m])[f] =
            static_cast<Wide>(masked_sum(row, masks[m], tile.pixels));
      }
      if (tile.image == nullptr || (tile.frames.bad != nullptr && tile.frames.bad[f])) continue;
      for (int64_t i = 0; i < tile.pixels; ++i) narrow[i] += static_cast<Narrow>(row[i]);
      if (tile.squares == nullptr) continue;
      for (int64_t i = 0; i < tile.pixels; ++i) {
        const auto value = static_cast<Square>(row[i]);
        square[i] += value * value;
      }
    }
    if (tile.image == nullptr) continue;
    Wide* const __restrict image = reinterpret_cast<Wide*>(tile.image);
    for (int64_t i = 0; i < tile.pixels; ++i) image[i] += static_cast<Wide>(narrow[i]);
    if (tile.squares == nullptr) continue;
    for (int64_t i = 0; i < tile.pixels; ++i) tile.squares[i] += static_cast<double>(square[i]);
  }
}

inline void sum_any_tile(const FrameSumsTile& tile, char* scratch) {
  switch (tile.frames.dtype) {
    case Dtype::kU8:
      return sum_tile<uint8_t>(tile, scratch);
    case Dtype::kU16:
      return sum_tile<uint16_t>(tile, scratch);
    case Dtype::kU32:
      return sum_tile<uint32_t>(tile, scratch);
    case Dtype::kI32:
      return sum_tile<int32_t>(tile, scratch);
    case Dtype::kF32:
      return sum_tile<float>(tile, scratch);
    case Dtype::kF64:
      return sum_tile<double>(tile, scratch);
  }
}

}  // namespace
}  // namespace jaxkern::correlators::JAXKERN_LEVEL

#endif  // JAXKERN_CORRELATORS_FRAME_SUMS_INL_H_
