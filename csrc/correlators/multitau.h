// Multi-tau correlation of dense frames: what a state is, a block of frames added to a strip of
// pixels, and the CPU's entries over whole frames.
//
// Level L works on sums s[k] of 2^L neighbouring frames. For each of its delays t a pixel has
//   G = sum s[k] s[k - t]     over all k >= t that are there
// and from the total of all frames, the first and the last t sums follow IP = sum s[k - t] and
// IF = sum s[k] over the same k. Sums of whole counts are exact: a pixel's counts together stay
// below 2^32, which is checked at the end, so that sums s fit 32 bits and G, being at most
// (sum s)^2 / 4, fits 62.
#ifndef JAXKERN_CORRELATORS_MULTITAU_H_
#define JAXKERN_CORRELATORS_MULTITAU_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/host_device.h"
#include "core/parallel.h"
#include "core/simd_dispatch.h"

namespace jaxkern::correlators {

enum class Dtype : int32_t { kU8, kU16, kU32, kI32, kF32, kF64 };

inline int64_t dtype_bytes(Dtype dtype) {
  constexpr int64_t bytes[] = {1, 2, 4, 4, 4, 8};
  return bytes[static_cast<int>(dtype)];
}

constexpr bool is_real(Dtype dtype) { return dtype == Dtype::kF32 || dtype == Dtype::kF64; }

// A count that is negative, or a sum of counts that needs more than 32 bits, becomes this value;
// a total that is not below it is an error of the result.
constexpr uint64_t kMostCounts = 0xffffffff;

constexpr int32_t kMostDelays = 64;  // a level
constexpr int32_t kStrip = 32;       // pixels that are taken through a block of frames together
constexpr int64_t kBlock = 128;      // sums of level 0 in such a block
constexpr int32_t kMostLevels = 40;

// The list of delays: level 0 has t = 1 .. 2 dpl, level L >= 1 has dpl + 1 .. 2 dpl, in units of
// 2^L; `count` of them in all, which may end inside a level.
struct Delays {
  int32_t dpl = 4;
  int64_t count = 0;

  // Those of `frames` frames: all delays t 2^L with t < frames >> L, up to the first that is not.
  static Delays of(int64_t frames, int32_t dpl) {
    Delays delays = {dpl, 0};
    for (int32_t level = 0;; ++level) {
      for (int64_t t = delays.first(level); t <= 2 * dpl; ++t) {
        if (t >= frames >> level) return delays;
        ++delays.count;
      }
    }
  }

  JAXKERN_HD_MEMBER int32_t kept() const {
    return 2 * dpl;
  }  // the last sums of a level, which later ones need
  JAXKERN_HD_MEMBER int32_t first(int32_t level) const { return level == 0 ? 1 : dpl + 1; }
  JAXKERN_HD_MEMBER int64_t offset(int32_t level) const {
    return level == 0 ? 0 : int64_t{dpl} * (level + 1);
  }
  JAXKERN_HD_MEMBER int32_t at(int32_t level) const {
    const int64_t full = level == 0 ? 2 * dpl : dpl, left = count - offset(level);
    return static_cast<int32_t>(left < 0 ? 0 : left < full ? left : full);
  }
  int32_t levels() const {
    int32_t levels = 1;
    while (at(levels) > 0) ++levels;
    return levels;
  }
};

// Frames in memory. Sum k of level 0 holds the frames k * average .. (k + 1) * average - 1, but for
// bad ones. With divisors every value is divided by its frame's.
struct FrameRows {
  const char* data = nullptr;
  int64_t stride = 0;  // bytes from a frame to the next
  Dtype dtype = Dtype::kU8;
  int64_t average = 1;
  const uint8_t* bad = nullptr;     // a frame each, or null
  const double* divisor = nullptr;  // a frame each, or null

  bool real() const { return is_real(dtype) || divisor != nullptr; }
};

// What a run of frames left, rows of `pitch` pixels. Whole counts: uint64 in g, total and lost_*,
// uint32 in head and history; reals: all are double. Nothing need be aligned to more than 4 bytes.
struct MultiTauState {
  char* total = nullptr;    // [pitch] of all frames
  char* g = nullptr;        // [delays, pitch]
  char* head = nullptr;     // [delays, pitch] the first t sums of the level together
  char* history = nullptr;  // [levels * 2 dpl, pitch] sum k of a level in its row k mod 2 dpl
  // Where frames are missing, with m[k] their number in a sum: sum s[k - t] m[k] and
  // sum s[k] m[k - t], [delays, pitch].
  char* lost_past = nullptr;
  char* lost_future = nullptr;
  int64_t pitch = 0;
  bool real = false;

  int64_t narrow_bytes() const { return real ? 8 : 4; }
  MultiTauState from_pixel(int64_t pixel) const;
};

// Arrays of a state, each once: their rows and bytes a value.
template <typename Visit>
void for_arrays(const Delays& delays, bool real, bool weighted, const Visit& visit) {
  const int64_t narrow = real ? 8 : 4;
  visit(&MultiTauState::total, 1, 8);
  visit(&MultiTauState::g, delays.count, 8);
  visit(&MultiTauState::head, delays.count, narrow);
  visit(&MultiTauState::history, delays.levels() * delays.kept(), narrow);
  if (weighted) {
    visit(&MultiTauState::lost_past, delays.count, 8);
    visit(&MultiTauState::lost_future, delays.count, 8);
  }
}

// How many frames are missing in the sums of each level, or nothing.
class MissingFrames {
 public:
  MissingFrames() = default;
  // missing[k]: of level 0, `sums` of them.
  MissingFrames(const uint32_t* missing, int64_t sums);
  bool any() const { return !levels_.empty(); }
  const uint32_t* at(int32_t level) const {
    return level < static_cast<int32_t>(levels_.size()) ? levels_[level].data() : nullptr;
  }

 private:
  std::vector<std::vector<uint32_t>> levels_;
};

// Sums seen .. seen + sums - 1 of level 0 for the kStrip pixels of one strip. `frames` begins with
// the first of them.
struct MultiTauStrip {
  Delays delays;
  FrameRows frames;
  int64_t sums = 0;   // at most kBlock
  int64_t seen = 0;   // sums of level 0 before these
  int64_t pixel = 0;  // the strip's first in `frames`
  const MissingFrames* missing = nullptr;
  MultiTauState state;  // from the strip's first pixel on
};

// Working memory of one thread, aligned to 64.
constexpr size_t kScratchBytes =
    ((2 * kMostDelays + kBlock + 1) * kStrip * (2 * sizeof(double) + sizeof(uint32_t)) + 63) / 64 *
    64;

JAXKERN_LEVEL_FUNCTION(void, multitau_strip, const MultiTauStrip& strip, char* scratch)

// ---------------------------------------------------------------- whole frames

// Counts what is done, and stops early when asked to; both may be read and written meanwhile.
struct Progress {
  int64_t* done = nullptr;  // sums of strips, or null
  const int64_t* stop = nullptr;

  void add(int64_t count) const {
    if (done != nullptr) __atomic_fetch_add(done, count, __ATOMIC_RELAXED);
  }
  bool stopped() const { return stop != nullptr && __atomic_load_n(stop, __ATOMIC_RELAXED) != 0; }
};

// Pixels that are correlated, ascending, and their bins from 0.
struct BinnedPixels {
  const int32_t* pixel = nullptr;
  const int32_t* static_bin = nullptr;
  const int32_t* dynamic_bin = nullptr;
  int64_t count = 0;
  int32_t n_static = 0, n_dynamic = 0;
};

// What bins have together. Divided by weight[tau] and the number of pixels, the sums are <G>, <IP>
// and <IF>; the ratio of a pixel is G weight / (IP IF), 0 without light.
struct BinSums {
  std::vector<double> weight;              // [delays] the pairs, or sum c[k] c[k - t]
  std::vector<double> sums;                // [3, delays, n_static] of G, IP and IF, rounded once
  std::vector<double> mean, squares;       // [delays, n_dynamic] of the ratio, and of the squares
                                           // of its differences from the mean, summed
  std::vector<int64_t> pixels_of_dynamic;  // [n_dynamic]
};

// What bins have of the pixels so far, zeros at first: sums of further pixels go on from there.
struct CarriedSums {
  char* sums = nullptr;       // [3, delays, n_static] of 16 bytes, or double of reals
  double* mean = nullptr;     // [delays, n_dynamic]
  double* squares = nullptr;  // [delays, n_dynamic]
  int64_t* counts = nullptr;  // [n_dynamic]
};

// The sums of `sums` sums of frames. Empty, or what is wrong. The result depends neither on the
// number of threads nor on what else runs.
std::string correlate(const Executor& executor, const FrameRows& frames, int64_t frame_pixels,
                      int64_t sums, int32_t dpl, const BinnedPixels& pixels,
                      const Progress& progress, BinSums* result);

// Adds `sums` sums of `frames` to a state of frame_pixels pixels that has `seen`: to its strips
// begin .. end - 1, or to all.
void update_strips(const FrameRows& frames, int64_t frame_pixels, int64_t sums, int64_t seen,
                   const Delays& delays, const MissingFrames& missing, const MultiTauState& state,
                   int64_t begin, int64_t end);
void update(const Executor& executor, const FrameRows& frames, int64_t frame_pixels, int64_t sums,
            int64_t seen, const Delays& delays, const MissingFrames& missing,
            const MultiTauState& state);

// The sums of a state that has `seen` sums of `average` frames each; delays that were not reached
// have a weight of 0, and zeros. place[i] is where the state has the i-th of the pixels. States of
// whole tiles of pixels, one after the other with the same `carried` (or null), give the bits of
// one state of all.
std::string reduce(const Executor& executor, const MultiTauState& state, const Delays& delays,
                   int64_t seen, int64_t average, const MissingFrames& missing,
                   const BinnedPixels& pixels, const int32_t* place, const CarriedSums* carried,
                   BinSums* result);

}  // namespace jaxkern::correlators

#endif  // JAXKERN_CORRELATORS_MULTITAU_H_
