// Multi-tau correlation of frames on the CPU: adds blocks of frames to the states of tiles of
// pixels.
#include "correlators/multitau.h"

#include <cstring>
#include <memory>
#include <type_traits>

#include "correlators/tile_sums.h"

namespace jaxkern::correlators {
namespace {

// A state of a few pixels that owns its memory, initially zero.
class OwnState {
 public:
  OwnState(const Delays& delays, bool real, bool weighted, int64_t pitch)
      : delays_(delays), weighted_(weighted) {
    state_.real = real;
    state_.pitch = pitch;
    size_t bytes = 0;
    for_arrays(delays, real, weighted, [&](auto, int64_t rows, int64_t item) {
      bytes += static_cast<size_t>(rows * item * pitch);
    });
    memory_.assign(bytes, 0);
    char* at = memory_.data();
    for_arrays(delays, real, weighted, [&](auto array, int64_t rows, int64_t item) {
      state_.*array = at;
      at += rows * item * pitch;
    });
  }
  const MultiTauState& state() const { return state_; }

  void clear() { std::fill(memory_.begin(), memory_.end(), 0); }
  bool fits(const Delays& delays, bool real, bool weighted) const {
    return delays.dpl == delays_.dpl && delays.count == delays_.count && real == state_.real &&
           weighted == weighted_;
  }

  // Copies the rows of the first `pixels` of another state that sums seen .. seen + sums - 1 use
  // (take), and copies them back (put).
  void take(const MultiTauState& from, int64_t pixels, int64_t seen, int64_t sums) {
    for_rows(seen, sums, [&](auto array, int64_t row, int64_t item) {
      char* const to = state_.*array + row * item * state_.pitch;
      std::memcpy(to, from.*array + row * item * from.pitch, static_cast<size_t>(item * pixels));
      std::fill(to + item * pixels, to + item * state_.pitch, 0);
    });
  }
  void put(const MultiTauState& to, int64_t pixels, int64_t seen, int64_t sums) const {
    for_rows(seen, sums, [&](auto array, int64_t row, int64_t item) {
      std::memcpy(to.*array + row * item * to.pitch, state_.*array + row * item * state_.pitch,
                  static_cast<size_t>(item * pixels));
    });
  }

 private:
  // The rows of levels that get a sum; of `head` those that do not have all of theirs yet.
  template <typename Visit>
  void for_rows(int64_t seen, int64_t sums, const Visit& visit) const {
    int32_t levels = 0, full = 0;
    while (levels < delays_.levels() && (seen + sums) >> levels > seen >> levels) ++levels;
    while (full < levels && seen >> full >= delays_.kept()) ++full;
    const int64_t delays = std::min(delays_.count, delays_.offset(levels));
    for_arrays(delays_, state_.real, weighted_, [&](auto array, int64_t rows, int64_t item) {
      int64_t first = 0, last = delays;
      if (array == &MultiTauState::total) last = rows;
      if (array == &MultiTauState::head) first = std::min(delays, delays_.offset(full));
      if (array == &MultiTauState::history) last = int64_t{levels} * delays_.kept();
      for (int64_t row = first; row < last; ++row) visit(array, row, item);
    });
  }

  Delays delays_;
  bool weighted_;
  MultiTauState state_;
  std::vector<char> memory_;
};

// The state of a tile that a thread reuses.
OwnState& thread_state(const Delays& delays, bool real, bool weighted) {
  thread_local std::unique_ptr<OwnState> own;
  if (!own || !own->fits(delays, real, weighted)) {
    own = std::make_unique<OwnState>(delays, real, weighted, kTileStrips * kStrip);
  }
  return *own;
}

// Packed frames of the pixels of a tile, strip by strip, with zero padding. Rows of the original
// frames are pages apart; with a stride of a power of two they would share few cache lines.
class TileFrames {
 public:
  // pixel: the first one of each strip.
  TileFrames(const FrameRows& frames, int64_t frame_pixels, const std::vector<int64_t>& pixel)
      : frames_(frames), item_(dtype_bytes(frames.dtype)) {
    for (const int64_t first : pixel) {
      const int64_t width = std::min<int64_t>(kStrip, frame_pixels - first);
      if (!runs_.empty() && runs_.back().first + runs_.back().width == first) {
        runs_.back().width += width;
      } else {
        runs_.push_back({first, width, pitch_});
      }
      pitch_ += kStrip;
    }
  }

  // Frames first .. first + count - 1; good until the next call of a thread.
  FrameRows rows(int64_t first, int64_t count) const {
    thread_local std::vector<char> memory;
    const int64_t row = pitch_ * item_;
    if (static_cast<int64_t>(memory.size()) < count * row) memory.resize(count * row);
    for (int64_t f = 0; f < count; ++f) {
      const char* const from = frames_.data + (first + f) * frames_.stride;
      char* const to = memory.data() + f * row;
      std::fill(to + row - kStrip * item_, to + row, 0);
      for (const Run& run : runs_) {
        if (f + kAhead < count) ask(from + kAhead * frames_.stride, run);
        std::memcpy(to + run.offset * item_, from + run.first * item_,
                    static_cast<size_t>(run.width * item_));
      }
    }
    FrameRows packed = frames_;
    packed.data = memory.data();
    packed.stride = row;
    if (packed.bad != nullptr) packed.bad += first;
    if (packed.divisor != nullptr) packed.divisor += first;
    return packed;
  }

 private:
  static constexpr int64_t kAhead = 8;  // frames
  struct Run {
    int64_t first, width, offset;  // pixels
  };

  void ask(const char* frame, const Run& run) const {
    for (int64_t at = 0; at < run.width * item_; at += 64) {
      __builtin_prefetch(frame + run.first * item_ + at);
    }
  }

  FrameRows frames_;
  int64_t item_, pitch_ = 0;
  std::vector<Run> runs_;
};

// Sums of level 0 that are made of a tile's frames at a time.
int64_t block_sums(int64_t average) {
  return std::max<int64_t>(1, kBlock / std::min(average, kBlock));
}

// Adds sums first .. first + sums - 1 of a tile's frames to its state, which has `seen`.
void add_block(const MultiTauState& state, const Delays& delays, const TileFrames& frames,
               int64_t first, int64_t sums, int64_t seen, int64_t average,
               const MissingFrames& missing, int64_t strips) {
  MultiTauStrip strip;
  strip.delays = delays;
  strip.frames = frames.rows(first * average, sums * average);
  strip.sums = sums;
  strip.seen = seen;
  strip.missing = &missing;
  for (int64_t s = 0; s < strips; ++s) {
    strip.pixel = s * kStrip;
    strip.state = state.from_pixel(strip.pixel);
    multitau_strip(strip, thread_scratch<kScratchBytes>());
  }
}

template <typename Kind>
std::string correlate(const Executor& executor, const FrameRows& frames, int64_t frame_pixels,
                      int64_t sums, const Delays& delays, const MissingFrames& missing,
                      const BinnedPixels& pixels, const Progress& progress, BinSums* result) {
  const std::vector<StripPixels> strips = strips_of(pixels);
  std::vector<double> weight = weights(delays, sums, frames.average, missing);
  AllSums<Kind> all(delays, pixels);
  const auto run = [&](int64_t first, int64_t last) {
    OwnState& own = thread_state(delays, std::is_same_v<Kind, Reals>, missing.any());
    own.clear();
    std::vector<int64_t> pixel;
    for (int64_t s = first; s < last; ++s) pixel.push_back(strips[s].pixel);
    const TileFrames tile_frames(frames, frame_pixels, pixel);
    const int64_t block = block_sums(frames.average);
    for (int64_t k = 0; k < sums && !progress.stopped(); k += block) {
      add_block(own.state(), delays, tile_frames, k, std::min(block, sums - k), k, frames.average,
                missing, last - first);
      progress.add(std::min(block, sums - k) * (last - first));
    }
    const TilePixels tile = tile_pixels(pixels, strips, first, last, [&](int64_t s, int64_t i) {
      return (s - first) * kStrip + pixels.pixel[i] - strips[s].pixel;
    });
    return sum_tile<Kind>(own.state(), delays, sums, frames.average, missing.any(), weight, tile);
  };
  std::string problem = sum_tiles<Kind>(executor, pixels, strips, run, &all);
  if (problem.empty()) all.give(std::move(weight), result);
  return problem;
}

}  // namespace

MultiTauState MultiTauState::from_pixel(int64_t pixel) const {
  MultiTauState moved = *this;
  moved.total += 8 * pixel;
  moved.g += 8 * pixel;
  moved.head += narrow_bytes() * pixel;
  moved.history += narrow_bytes() * pixel;
  if (lost_past != nullptr) {
    moved.lost_past += 8 * pixel;
    moved.lost_future += 8 * pixel;
  }
  return moved;
}

MissingFrames::MissingFrames(const uint32_t* missing, int64_t sums) {
  levels_.emplace_back(missing, missing + sums);
  while (levels_.back().size() > 1) {
    const std::vector<uint32_t>& below = levels_.back();
    std::vector<uint32_t> level(below.size() / 2);
    for (size_t k = 0; k < level.size(); ++k) level[k] = below[2 * k] + below[2 * k + 1];
    levels_.push_back(std::move(level));
  }
}

std::string correlate(const Executor& executor, const FrameRows& frames, int64_t frame_pixels,
                      int64_t sums, int32_t dpl, const BinnedPixels& pixels,
                      const Progress& progress, BinSums* result) {
  const Delays delays = Delays::of(sums, dpl);
  MissingFrames missing;
  if (frames.bad != nullptr) {
    std::vector<uint32_t> lost(static_cast<size_t>(sums), 0);
    for (int64_t f = 0; f < sums * frames.average; ++f) lost[f / frames.average] += frames.bad[f];
    missing = MissingFrames(lost.data(), sums);
  }
  const auto run = frames.real() ? &correlate<Reals> : &correlate<Counts>;
  return run(executor, frames, frame_pixels, sums, delays, missing, pixels, progress, result);
}

void update_strips(const FrameRows& frames, int64_t frame_pixels, int64_t sums, int64_t seen,
                   const Delays& delays, const MissingFrames& missing, const MultiTauState& state,
                   int64_t begin, int64_t end) {
  OwnState& own = thread_state(delays, state.real, state.lost_past != nullptr);
  const int64_t block = block_sums(frames.average);
  for (int64_t tile = begin; tile < end; tile += kTileStrips) {
    const int64_t last = std::min(tile + kTileStrips, end);
    const int64_t pixels = std::min(last * kStrip, frame_pixels) - tile * kStrip;
    std::vector<int64_t> pixel;
    for (int64_t s = tile; s < last; ++s) pixel.push_back(s * kStrip);
    const TileFrames tile_frames(frames, frame_pixels, pixel);
    // Rows of a large state are pages apart, too.
    const MultiTauState given = state.from_pixel(tile * kStrip);
    own.take(given, pixels, seen, sums);
    for (int64_t k = 0; k < sums; k += block) {
      add_block(own.state(), delays, tile_frames, k, std::min(block, sums - k), seen + k,
                frames.average, missing, last - tile);
    }
    own.put(given, pixels, seen, sums);
  }
}

void update(const Executor& executor, const FrameRows& frames, int64_t frame_pixels, int64_t sums,
            int64_t seen, const Delays& delays, const MissingFrames& missing,
            const MultiTauState& state) {
  const int64_t strips = (frame_pixels + kStrip - 1) / kStrip;
  parallel_for(executor, strips, kTileStrips, [&](int64_t begin, int64_t end) {
    update_strips(frames, frame_pixels, sums, seen, delays, missing, state, begin, end);
  });
}

std::string reduce(const Executor& executor, const MultiTauState& state, const Delays& delays,
                   int64_t seen, int64_t average, const MissingFrames& missing,
                   const BinnedPixels& pixels, const int32_t* offset, const CarriedSums* carried,
                   BinSums* result) {
  const auto as = [&](auto kind) {
    using Kind = decltype(kind);
    const std::vector<StripPixels> strips = strips_of(pixels);
    std::vector<double> weight = weights(delays, seen, average, missing);
    AllSums<Kind> all(delays, pixels);
    if (carried != nullptr) all.load(*carried);
    const auto run = [&](int64_t first, int64_t last) {
      const TilePixels tile = tile_pixels(pixels, strips, first, last,
                                          [&](int64_t, int64_t i) { return int64_t{offset[i]}; });
      return sum_tile<Kind>(state, delays, seen, average, missing.any(), weight, tile);
    };
    std::string problem = sum_tiles<Kind>(executor, pixels, strips, run, &all);
    if (!problem.empty()) return problem;
    if (carried != nullptr) all.store(*carried);
    all.give(std::move(weight), result);
    return problem;
  };
  return state.real ? as(Reals{}) : as(Counts{});
}

}  // namespace jaxkern::correlators
