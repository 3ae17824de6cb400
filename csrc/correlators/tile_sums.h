// From complete states to sums over bins, by tiles of pixels in threads.
#ifndef JAXKERN_CORRELATORS_TILE_SUMS_H_
#define JAXKERN_CORRELATORS_TILE_SUMS_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "core/parallel.h"
#include "correlators/bin_sums.h"
#include "correlators/multitau.h"

namespace jaxkern::correlators {

typedef uint64_t LooseCount __attribute__((aligned(4), may_alias));
typedef double LooseReal __attribute__((aligned(4), may_alias));
typedef uint32_t LooseWord __attribute__((aligned(4), may_alias));

// Types of the sums of a pixel, and of many pixels.
struct Counts {
  using Sum = LooseCount;
  using Narrow = LooseWord;
  using Value = uint64_t;
  using Many = Wide;
};
struct Reals {
  using Sum = LooseReal;
  using Narrow = LooseReal;
  using Value = double;
  using Many = double;
};

template <typename T>
const T* row_of(const char* array, int64_t row, int64_t pitch) {
  return array == nullptr ? nullptr : reinterpret_cast<const T*>(array) + row * pitch;
}

// Returns sum c[k] c[k - t] for all delays, with the number c[k] of good frames in each of `seen`
// sums; without missing frames, the number of pairs.
inline std::vector<double> weights(const Delays& delays, int64_t seen, int64_t average,
                                   const MissingFrames& missing) {
  std::vector<double> weights;
  for (int32_t level = 0; level < delays.levels(); ++level) {
    const int64_t sums = seen >> level, full = average << level;
    const uint32_t* const lost = missing.at(level);
    for (int32_t d = 0; d < delays.at(level); ++d) {
      const int64_t t = delays.first(level) + d;
      Wide weight = 0;
      if (lost == nullptr) {
        weight = static_cast<Wide>(std::max<int64_t>(0, sums - t));
      } else {
        for (int64_t k = t; k < sums; ++k) {
          weight += static_cast<Wide>(full - lost[k]) * static_cast<Wide>(full - lost[k - t]);
        }
      }
      weights.push_back(static_cast<double>(weight));
    }
  }
  return weights;
}

// Pixels of a tile: their columns in the state, and their bins.
struct TilePixels {
  std::vector<int64_t> offset;
  std::vector<int32_t> static_bin, dynamic_bin;  // indices into `statics` and `dynamics`
  std::vector<int32_t> statics, dynamics;        // the different bins
};

// Calls visit(tau, j, G, IP, IF) for each pixel j of each delay with pairs, and done(tau) after all
// pixels of a delay.
template <typename Kind, typename Visit, typename Done>
void for_delays(const MultiTauState& state, const Delays& delays, int64_t seen, int64_t average,
                bool weighted, const std::vector<int64_t>& offset, const Visit& visit,
                const Done& done) {
  using Value = typename Kind::Value;
  using Sum = typename Kind::Sum;
  using Narrow = typename Kind::Narrow;
  const int64_t pixels = static_cast<int64_t>(offset.size()), kept = delays.kept();
  std::vector<Value> total(pixels), tail(pixels);
  for (int64_t j = 0; j < pixels; ++j) total[j] = row_of<Sum>(state.total, 0, 0)[offset[j]];
  for (int32_t level = 0; level < delays.levels(); ++level) {
    const int64_t sums = seen >> level;
    const auto last = [&](int64_t t) {  // the t-th sum from the end
      return row_of<Narrow>(state.history, level * kept + (sums - t) % kept, state.pitch);
    };
    std::fill(tail.begin(), tail.end(), Value{0});
    const int64_t first = delays.first(level);
    for (int64_t t = 1; t < first + delays.at(level) && t < sums; ++t) {
      const Narrow* const newest = last(t);
      for (int64_t j = 0; j < pixels; ++j) tail[j] += newest[offset[j]];
      if (t < first) continue;
      const int64_t tau = delays.offset(level) + t - first;
      const Sum* const g = row_of<Sum>(state.g, tau, state.pitch);
      const Narrow* const head = row_of<Narrow>(state.head, tau, state.pitch);
      const Sum* const past = row_of<Sum>(state.lost_past, tau, state.pitch);
      const Sum* const future = row_of<Sum>(state.lost_future, tau, state.pitch);
      const Value full = static_cast<Value>(average << level);
      for (int64_t j = 0; j < pixels; ++j) {
        const int64_t at = offset[j];
        Value before = total[j] - tail[j], after = total[j] - head[at];
        if (weighted) {
          before = before * full - past[at];
          after = after * full - future[at];
        }
        visit(tau, j, static_cast<Value>(g[at]), before, after);
      }
      done(tau);
    }
    if (sums % 2 != 0) {
      const Narrow* const alone = last(1);
      for (int64_t j = 0; j < pixels; ++j) total[j] -= alone[offset[j]];
    }
  }
}

template <typename Kind>
TileSums<Kind> sum_tile(const MultiTauState& state, const Delays& delays, int64_t seen,
                        int64_t average, bool weighted, const std::vector<double>& weight,
                        const TilePixels& tile) {
  using Many = typename Kind::Many;
  const int64_t pixels = static_cast<int64_t>(tile.offset.size());
  const int64_t n_static = static_cast<int64_t>(tile.statics.size());
  const int64_t n_dynamic = static_cast<int64_t>(tile.dynamics.size());
  TileSums<Kind> result;
  result.statics = tile.statics;
  result.dynamics = tile.dynamics;
  result.sums.assign(3 * delays.count * n_static, Many{0});
  result.mean.assign(delays.count * n_dynamic, 0);
  result.squares.assign(delays.count * n_dynamic, 0);
  result.counts.assign(n_dynamic, 0);
  for (const int32_t bin : tile.dynamic_bin) ++result.counts[bin];
  if constexpr (std::is_same_v<Kind, Counts>) {
    const LooseCount* const total = row_of<LooseCount>(state.total, 0, 0);
    for (int64_t j = 0; j < pixels; ++j) {
      if (total[tile.offset[j]] >= kMostCounts) result.dark = j;
    }
    if (result.dark >= 0) return result;
  }
  std::vector<double> ratio(pixels);
  const auto visit = [&](int64_t tau, int64_t j, auto g, auto before, auto after) {
    Many* const sums = result.sums.data() + tau * n_static + tile.static_bin[j];
    sums[0] += g;
    sums[delays.count * n_static] += before;
    sums[2 * delays.count * n_static] += after;
    const double norm = static_cast<double>(before) * static_cast<double>(after);
    ratio[j] = norm == 0 ? 0 : static_cast<double>(g) * weight[tau] / norm;
  };
  const auto done = [&](int64_t tau) {
    double* const mean = result.mean.data() + tau * n_dynamic;
    double* const squares = result.squares.data() + tau * n_dynamic;
    for (int64_t j = 0; j < pixels; ++j) mean[tile.dynamic_bin[j]] += ratio[j];
    for (int64_t b = 0; b < n_dynamic; ++b) mean[b] /= static_cast<double>(result.counts[b]);
    for (int64_t j = 0; j < pixels; ++j) {
      const double off = ratio[j] - mean[tile.dynamic_bin[j]];
      squares[tile.dynamic_bin[j]] += off * off;
    }
  };
  for_delays<Kind>(state, delays, seen, average, weighted, tile.offset, visit, done);
  return result;
}

// Returns the pixels of strips first .. last - 1; offset_of(s, i) is the column in the state of the
// i-th of all pixels, which is in strip s.
template <typename PlaceOf>
TilePixels tile_pixels(const BinnedPixels& pixels, const std::vector<StripPixels>& strips,
                       int64_t first, int64_t last, const PlaceOf& offset_of) {
  TilePixels tile;
  const int64_t begin = strips[first].begin, end = strips[last - 1].end;
  for (int64_t s = first; s < last; ++s) {
    for (int64_t i = strips[s].begin; i < strips[s].end; ++i) {
      tile.offset.push_back(offset_of(s, i));
    }
  }
  tile.static_bin = numbered({pixels.static_bin + begin, pixels.static_bin + end}, &tile.statics);
  tile.dynamic_bin =
      numbered({pixels.dynamic_bin + begin, pixels.dynamic_bin + end}, &tile.dynamics);
  return tile;
}

inline std::string too_many(int64_t pixel) {
  return "pixel " + std::to_string(pixel) +
         " has a negative count, or counts that sum to 2^32 - 1 or more; mask the pixel, or give "
         "the frames as float64, whose sums are exact below 2^53";
}

// Adds the sums run(first, last) of all tiles of strips in order. Tiles are computed in waves, so
// that few sums wait in memory.
template <typename Kind, typename Run>
std::string sum_tiles(const Executor& executor, const BinnedPixels& pixels,
                      const std::vector<StripPixels>& strips, const Run& run, AllSums<Kind>* all) {
  const int64_t count = static_cast<int64_t>(strips.size());
  const int64_t tiles = (count + kTileStrips - 1) / kTileStrips;
  const int64_t wave = 16 * std::max<int64_t>(1, executor.workers);
  for (int64_t first = 0; first < tiles; first += wave) {
    std::vector<TileSums<Kind>> sums(std::min(wave, tiles - first));
    parallel_for(executor, static_cast<int64_t>(sums.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t strip = (first + i) * kTileStrips;
        sums[i] = run(strip, std::min(strip + kTileStrips, count));
      }
    });
    for (size_t i = 0; i < sums.size(); ++i) {
      if (sums[i].dark >= 0) {
        const int64_t strip = (first + static_cast<int64_t>(i)) * kTileStrips;
        return too_many(pixels.pixel[strips[strip].begin + sums[i].dark]);
      }
      all->add(sums[i]);
    }
  }
  return {};
}

}  // namespace jaxkern::correlators

#endif  // JAXKERN_CORRELATORS_TILE_SUMS_H_
