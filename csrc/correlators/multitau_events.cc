// From events to sums of pixels and of bins, in the tiles and the order of dense frames.
#include "correlators/multitau_events.h"

#include <memory>
#include <utility>
#include <vector>

#include "correlators/bin_sums.h"
#include "correlators/event_levels.h"

namespace jaxkern::correlators {
namespace {

constexpr int64_t kTilePixels = kTileStrips * kStrip;
static_assert(kTilePixels == int64_t{1} << kLeastBucketShift, "a bucket holds whole tiles");
static_assert(kStrip == 32, "the pixels of StripRanks");

struct EventCounts {
  using Many = Wide;
};

// Ranks of pixels: the pixels of each used strip have consecutive ranks.
struct Ranks {
  Ranks(const BinnedPixels& pixels, int64_t n_pixels) : strips(strips_of(pixels)) {
    count = static_cast<int64_t>(strips.size()) * kStrip;
    of_strip.resize((n_pixels + kStrip - 1) / kStrip);
    position.assign(count, 0);
    for (size_t s = 0; s < strips.size(); ++s) {
      StripRanks& ranks = of_strip[strips[s].pixel / kStrip];
      ranks.first = static_cast<uint32_t>(s * kStrip);
      for (int64_t i = strips[s].begin; i < strips[s].end; ++i) {
        const int64_t own = pixels.pixel[i] - strips[s].pixel;
        ranks.used |= uint32_t{1} << own;
        position[ranks.first + own] = static_cast<int32_t>(i);
      }
    }
  }
  std::vector<StripPixels> strips;
  int64_t count;
  std::vector<StripRanks> of_strip;
  std::vector<int32_t> position;  // of a rank in the list of pixels
};

// Adds the pixels of a tile with counts in ascending order, and returns the tile's sums.
class Tile {
 public:
  Tile(const DelayPlan& plan, const BinnedPixels& pixels, const Ranks& ranks)
      : delays_(plan.n_delays),
        plan_(plan),
        pixels_(pixels),
        ranks_(ranks),
        products_(plan),
        ratios_(kTilePixels * plan.n_delays),
        lit_(kTilePixels) {}

  void begin(int64_t tile) {
    const auto& strips = ranks_.strips;
    const int64_t last = std::min<int64_t>((tile + 1) * kTileStrips, strips.size());
    first_ = strips[tile * kTileStrips].begin;
    count_ = strips[last - 1].end - first_;
    sums_ = {};
    const int32_t *statics = pixels_.static_bin + first_, *dynamics = pixels_.dynamic_bin + first_;
    static_bin_ = numbered({statics, statics + count_}, &sums_.statics);
    dynamic_bin_ = numbered({dynamics, dynamics + count_}, &sums_.dynamics);
    n_static_ = static_cast<int64_t>(sums_.statics.size());
    n_dynamic_ = static_cast<int64_t>(sums_.dynamics.size());
    sums_.counts.assign(n_dynamic_, 0);
    for (const int32_t bin : dynamic_bin_) ++sums_.counts[bin];
    sums_.sums.assign(3 * delays_ * n_static_, Wide{0});
    sums_.mean.assign(delays_ * n_dynamic_, 0);
    sums_.squares.assign(delays_ * n_dynamic_, 0);
    narrow_.assign(3 * delays_ * n_static_, 0);
    means_.assign(delays_ * n_dynamic_, 0);
    std::fill(lit_.begin(), lit_.end(), uint8_t{0});
    counts_ = 0;
  }

  void add(const PixelCounts& pixel) {
    products_.compute(pixel);
    // While the counts sum to less than 2^32, no sum of products exceeds 64 bits.
    if ((counts_ += pixel.total) >> 32 != 0) {
      widen();
      counts_ = pixel.total;
    }
    const int64_t j = ranks_.position[pixel.rank] - first_;
    lit_[j] = 1;
    double* ratios = ratios_.data() + j * delays_;
    pixel_ratios(products_.G(), delays_, plan_.pairs.data(),
                 narrow_.data() + static_bin_[j] * 3 * delays_, ratios);
    double* mean = means_.data() + dynamic_bin_[j] * delays_;
    for (int64_t tau = 0; tau < delays_; ++tau) mean[tau] += ratios[tau];
  }

  TileSums<EventCounts> finish() {
    widen();
    std::vector<double> squares(delays_ * n_dynamic_, 0), dark(delays_, 0);
    for (int64_t b = 0; b < n_dynamic_; ++b) {
      for (int64_t tau = 0; tau < delays_; ++tau) {
        means_[b * delays_ + tau] /= static_cast<double>(sums_.counts[b]);
      }
    }
    for (int64_t j = 0; j < count_; ++j) {
      const double* ratios = lit_[j] ? ratios_.data() + j * delays_ : dark.data();
      const double* mean = means_.data() + dynamic_bin_[j] * delays_;
      double* own = squares.data() + dynamic_bin_[j] * delays_;
      for (int64_t tau = 0; tau < delays_; ++tau) {
        const double off = ratios[tau] - mean[tau];
        own[tau] += off * off;
      }
    }
    for (int64_t b = 0; b < n_dynamic_; ++b) {
      for (int64_t tau = 0; tau < delays_; ++tau) {
        sums_.mean[tau * n_dynamic_ + b] = means_[b * delays_ + tau];
        sums_.squares[tau * n_dynamic_ + b] = squares[b * delays_ + tau];
      }
    }
    return std::move(sums_);
  }

 private:
  void widen() {
    for (int64_t s = 0; s < n_static_; ++s) {
      for (int64_t row = 0; row < 3 * delays_; ++row) {
        uint64_t& own = narrow_[s * 3 * delays_ + row];
        sums_.sums[row * n_static_ + s] += own;
        own = 0;
      }
    }
  }

  int64_t delays_, first_ = 0, count_ = 0, n_static_ = 0, n_dynamic_ = 0;
  const DelayPlan& plan_;
  const BinnedPixels& pixels_;
  const Ranks& ranks_;
  PixelProducts products_;
  std::vector<int32_t> static_bin_, dynamic_bin_;
  std::vector<uint64_t> narrow_;  // [n_static, 3, delays]
  std::vector<double> means_;     // [n_dynamic, delays]
  std::vector<double> ratios_;    // [pixels, delays] of pixels with counts
  std::vector<uint8_t> lit_;      // [pixels]
  uint64_t counts_ = 0;           // in narrow_
  TileSums<EventCounts> sums_;
};

// Working memory of a thread.
struct Worker {
  Worker(const DelayPlan& plan, const BinnedPixels& pixels, const Ranks& ranks)
      : tile(plan, pixels, ranks) {}
  Tile tile;
  EventSort::Scratch scratch;
};

// A pool of workers, which are created on demand.
class Workers {
 public:
  Workers(const DelayPlan& plan, const BinnedPixels& pixels, const Ranks& ranks)
      : plan_(plan), pixels_(pixels), ranks_(ranks) {}
  std::unique_ptr<Worker> take() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!free_.empty()) {
        std::unique_ptr<Worker> one = std::move(free_.back());
        free_.pop_back();
        return one;
      }
    }
    return std::make_unique<Worker>(plan_, pixels_, ranks_);
  }
  void give(std::unique_ptr<Worker> one) {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(one));
  }

 private:
  const DelayPlan& plan_;
  const BinnedPixels& pixels_;
  const Ranks& ranks_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Worker>> free_;
};

}  // namespace

void correlate_events(const Executor& executor, const EventInput& input, const EventFrames& frames,
                      int64_t n_pixels, int32_t dpl, const BinnedPixels& pixels, double bytes,
                      const Progress& progress, BinSums* result) {
  const Ranks ranks(pixels, n_pixels);
  const DelayPlan plan(frames.n_sums, dpl, frames.good);
  EventMap map;
  map.n_pixels = n_pixels;
  map.strips = ranks.of_strip.data();
  map.n_ranks = ranks.count;
  map.n_frames = frames.n_frames;
  map.n_sums = frames.n_sums;
  map.sum = frames.sum;
  map.first_frame = frames.first_frame;
  EventSort sort(executor, input, map, bytes);
  AllSums<EventCounts> all(Delays{dpl, plan.n_delays}, pixels);
  Workers workers(plan, pixels, ranks);
  const int64_t n_tiles = (ranks.count + kTilePixels - 1) / kTilePixels;
  const int64_t bucket_tiles = (int64_t{1} << sort.bucket_shift()) / kTilePixels;
  const int64_t wave = 16 * std::max<int64_t>(1, executor.workers);
  for (int64_t part = 0; part < sort.parts() && !progress.stopped(); ++part) {
    sort.load(executor, part);
    for (int64_t first = sort.first_bucket(); first < sort.last_bucket(); first += wave) {
      const int64_t buckets = std::min(wave, sort.last_bucket() - first);
      std::vector<TileSums<EventCounts>> sums(
          std::min(buckets * bucket_tiles, n_tiles - first * bucket_tiles));
      parallel_for(executor, buckets, 1, [&](int64_t i, int64_t) {
        if (progress.stopped()) return;
        std::unique_ptr<Worker> worker = workers.take();
        Tile& tile = worker->tile;
        const int64_t begin = (first + i) * bucket_tiles;
        const int64_t end = std::min(begin + bucket_tiles, n_tiles);
        int64_t now = begin;
        tile.begin(now);
        const auto finish_before = [&](int64_t next) {
          while (now < next) {
            sums[now - first * bucket_tiles] = tile.finish();
            if (++now < end) tile.begin(now);
          }
        };
        sort.pixels(first + i, worker->scratch, [&](const PixelCounts& pixel) {
          finish_before(pixel.rank / kTilePixels);
          tile.add(pixel);
        });
        finish_before(end);
        progress.add(sort.bucket_events(first + i));
        workers.give(std::move(worker));
      });
      if (progress.stopped()) return;
      for (const TileSums<EventCounts>& one : sums) all.add(one);
    }
  }
  all.give(plan.pairs, result);
}

}  // namespace jaxkern::correlators
