// From sums of pixels to sums over bins, by tiles of pixels that are added in order. Dense frames
// and events share this code, so that both give the same bits.
#ifndef JAXKERN_CORRELATORS_BIN_SUMS_H_
#define JAXKERN_CORRELATORS_BIN_SUMS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "correlators/multitau.h"

namespace jaxkern::correlators {

using Wide = unsigned __int128;

// Number of strips with pixels in a tile, so that its state fits into the L2 cache.
constexpr int64_t kTileStrips = 16;

// Sums over the pixels of a tile, for its bins.
template <typename Kind>
struct TileSums {
  std::vector<int32_t> statics, dynamics;
  std::vector<int64_t> counts;            // number of pixels of each of `dynamics`
  std::vector<typename Kind::Many> sums;  // [3, delays, statics]
  std::vector<double> mean, squares;      // [delays, dynamics]
  int64_t dark = -1;                      // index of a pixel with too many counts, or -1
};

// Returns the index of each bin among the different bins, which are stored in ascending order.
inline std::vector<int32_t> numbered(const std::vector<int32_t>& bins,
                                     std::vector<int32_t>* different) {
  std::vector<int32_t> numbers;
  std::vector<int32_t> sorted = bins;
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  for (const int32_t bin : bins) {
    const auto at = std::lower_bound(sorted.begin(), sorted.end(), bin);
    numbers.push_back(static_cast<int32_t>(at - sorted.begin()));
  }
  *different = std::move(sorted);
  return numbers;
}

// Sums of all tiles, which are added in order.
template <typename Kind>
class AllSums {
 public:
  AllSums(const Delays& delays, const BinnedPixels& pixels)
      : delays_(delays.count),
        n_static_(pixels.n_static),
        n_dynamic_(pixels.n_dynamic),
        sums_(3 * delays_ * n_static_, typename Kind::Many{0}),
        mean_(delays_ * n_dynamic_, 0),
        squares_(delays_ * n_dynamic_, 0),
        counts_(n_dynamic_, 0) {}

  void add(const TileSums<Kind>& tile) {
    const int64_t statics = static_cast<int64_t>(tile.statics.size());
    const int64_t dynamics = static_cast<int64_t>(tile.dynamics.size());
    for (int64_t row = 0; row < 3 * delays_; ++row) {
      for (int64_t b = 0; b < statics; ++b) {
        sums_[row * n_static_ + tile.statics[b]] += tile.sums[row * statics + b];
      }
    }
    // Combine the means and squares of two groups (Chan, Golub and LeVeque, 1983).
    for (int64_t b = 0; b < dynamics; ++b) {
      const int64_t bin = tile.dynamics[b];
      const double own = static_cast<double>(tile.counts[b]);
      const double earlier = static_cast<double>(counts_[bin]), all = earlier + own;
      for (int64_t tau = 0; tau < delays_; ++tau) {
        double& mean = mean_[tau * n_dynamic_ + bin];
        const double apart = tile.mean[tau * dynamics + b] - mean;
        mean += apart * (own / all);
        squares_[tau * n_dynamic_ + bin] +=
            tile.squares[tau * dynamics + b] + apart * apart * (earlier * own / all);
      }
      counts_[bin] += tile.counts[b];
    }
  }

  void load(const CarriedSums& carried) {
    for_carried(carried, [](auto& own, void* other, size_t bytes) {
      if (bytes > 0) std::memcpy(own.data(), other, bytes);
    });
  }
  void store(const CarriedSums& carried) {
    for_carried(carried, [](auto& own, void* other, size_t bytes) {
      if (bytes > 0) std::memcpy(other, own.data(), bytes);
    });
  }

  void give(std::vector<double> weight, BinSums* result) const {
    result->weight = std::move(weight);
    result->sums.resize(sums_.size());
    for (size_t i = 0; i < sums_.size(); ++i) result->sums[i] = static_cast<double>(sums_[i]);
    result->mean = mean_;
    result->squares = squares_;
    result->pixels_of_dynamic = counts_;
  }

 private:
  template <typename Visit>
  void for_carried(const CarriedSums& carried, const Visit& visit) {
    visit(sums_, carried.sums, sums_.size() * sizeof(sums_[0]));
    visit(mean_, carried.mean, mean_.size() * sizeof(mean_[0]));
    visit(squares_, carried.squares, squares_.size() * sizeof(squares_[0]));
    visit(counts_, carried.counts, counts_.size() * sizeof(counts_[0]));
  }

  int64_t delays_, n_static_, n_dynamic_;
  std::vector<typename Kind::Many> sums_;
  std::vector<double> mean_, squares_;
  std::vector<int64_t> counts_;
};

// The used pixels begin .. end - 1 of the list that are in a strip.
struct StripPixels {
  int64_t pixel;
  int64_t begin, end;
};

inline std::vector<StripPixels> strips_of(const BinnedPixels& pixels) {
  std::vector<StripPixels> strips;
  for (int64_t i = 0; i < pixels.count; ++i) {
    const int64_t first = pixels.pixel[i] / kStrip * kStrip;
    if (strips.empty() || strips.back().pixel != first) strips.push_back({first, i, i});
    strips.back().end = i + 1;
  }
  return strips;
}

}  // namespace jaxkern::correlators

#endif  // JAXKERN_CORRELATORS_BIN_SUMS_H_
