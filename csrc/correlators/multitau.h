// Multi-tau correlation of dense frames: the state, adding a block of frames to a strip of pixels,
// and the functions for frames on the CPU.
//
// Level L uses sums s[k] of 2^L neighbouring frames. For each of its delays t a pixel has
//   G = sum s[k] s[k - t]     over all existing k >= t,
// and IP = sum s[k - t] and IF = sum s[k] over the same k follow from the total of all frames and
// the first and the last t sums. Sums of integer counts are exact: the counts of a pixel must sum
// to less than 2^32, which is checked at the end. Sums s then fit into 32 bits, and G, which is at
// most (sum s)^2 / 4, into 62.
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

// Negative counts, and sums of counts that need more than 32 bits, become this value. A total that
// is not less is an error.
constexpr uint64_t kMostCounts = 0xffffffff;

constexpr int32_t kMostDelays = 64;  // per level
constexpr int32_t kStrip = 32;       // pixels that are processed together
constexpr int64_t kBlock = 256;      // sums of level 0 in a block of frames
constexpr int32_t kMostLevels = 40;

// The list of delays: level 0 has t = 1 .. 2 dpl, level L >= 1 has dpl + 1 .. 2 dpl, in units of
// 2^L; `count` of them in all, which may end inside a level.
struct Delays {
  int32_t dpl = 4;
  int64_t count = 0;

  // Returns the delays of `frames` frames: t 2^L up to the first with t >= frames >> L.
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

// Frames in memory. Sum k of level 0 is over the frames k * average .. (k + 1) * average - 1 except
// bad ones. With divisors, every value is divided by the divisor of its frame.
struct FrameRows {
  const char* data = nullptr;
  int64_t stride = 0;  // bytes from a frame to the next
  Dtype dtype = Dtype::kU8;
  int64_t average = 1;
  const uint8_t* bad = nullptr;     // one per frame, or null
  const double* divisor = nullptr;  // one per frame, or null

  bool real() const { return is_real(dtype) || divisor != nullptr; }
};

// Running sums, in rows of `pitch` pixels. For integer counts, g, total and lost_* are uint64, head
// and history uint32; for floating-point counts, all are double. The alignment is at least 4 bytes.
struct MultiTauState {
  char* total = nullptr;    // [pitch] sum of all frames
  char* g = nullptr;        // [delays, pitch]
  char* head = nullptr;     // [delays, pitch] the sum of the first t sums of the level
  char* history = nullptr;  // [levels * 2 dpl, pitch] sum k of a level in its row k mod 2 dpl
  // With the number m[k] of missing frames in a sum: sum s[k - t] m[k] and sum s[k] m[k - t],
  // [delays, pitch]; null if no frame is missing.
  char* lost_past = nullptr;
  char* lost_future = nullptr;
  int64_t pitch = 0;
  bool real = false;

  int64_t narrow_bytes() const { return real ? 8 : 4; }
  MultiTauState from_pixel(int64_t pixel) const;
};

// Visits each array of a state with its number of rows and bytes per value.
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

// Numbers of missing frames in the sums of each level; empty if no frame is missing.
class MissingFrames {
 public:
  MissingFrames() = default;
  // missing[k]: number of missing frames in sum k < sums of level 0.
  MissingFrames(const uint32_t* missing, int64_t sums);
  bool any() const { return !levels_.empty(); }
  const uint32_t* at(int32_t level) const {
    return level < static_cast<int32_t>(levels_.size()) ? levels_[level].data() : nullptr;
  }

 private:
  std::vector<std::vector<uint32_t>> levels_;
};

// Sums seen .. seen + sums - 1 of level 0 for the kStrip pixels of one strip. `frames` begins with
// sum `seen`.
struct MultiTauStrip {
  Delays delays;
  FrameRows frames;
  int64_t sums = 0;   // at most kBlock
  int64_t seen = 0;   // sums of level 0 before these
  int64_t pixel = 0;  // the first pixel of the strip in `frames`
  const MissingFrames* missing = nullptr;
  MultiTauState state;  // from the strip's first pixel on
};

// Working memory of one thread, aligned to 64.
constexpr size_t kScratchBytes =
    ((2 * kMostDelays + kBlock + 1) * kStrip * (2 * sizeof(double) + sizeof(uint32_t)) + 63) / 64 *
    64;

JAXKERN_LEVEL_FUNCTION(void, multitau_strip, const MultiTauStrip& strip, char* scratch)

// ---------------------------------------------------------------- whole frames

// Counts completed work, and stops early on request; other threads may access both numbers.
struct Progress {
  int64_t* done = nullptr;  // sums of strips, or null
  const int64_t* stop = nullptr;

  void add(int64_t count) const {
    if (done != nullptr) __atomic_fetch_add(done, count, __ATOMIC_RELAXED);
  }
  bool stopped() const { return stop != nullptr && __atomic_load_n(stop, __ATOMIC_RELAXED) != 0; }
};

// Ascending pixels, and their bins from 0.
struct BinnedPixels {
  const int32_t* pixel = nullptr;
  const int32_t* static_bin = nullptr;
  const int32_t* dynamic_bin = nullptr;
  int64_t count = 0;
  int32_t n_static = 0, n_dynamic = 0;
};

// Sums over the pixels of bins. Divided by weight[tau] and the number of pixels, the sums are <G>,
// <IP> and <IF>. The ratio of a pixel is G weight / (IP IF), or 0 without counts.
struct BinSums {
  std::vector<double> weight;              // [delays] the pairs, or sum c[k] c[k - t]
  std::vector<double> sums;                // [3, delays, n_static] of G, IP and IF, rounded once
  std::vector<double> mean, squares;       // [delays, n_dynamic] of the ratio, and of the squares
                                           // of its differences from the mean, summed
  std::vector<int64_t> pixels_of_dynamic;  // [n_dynamic]
};

// Sums over the pixels so far, initially zero, to which further pixels are added.
struct CarriedSums {
  char* sums = nullptr;       // [3, delays, n_static] of 16 bytes, or double
  double* mean = nullptr;     // [delays, n_dynamic]
  double* squares = nullptr;  // [delays, n_dynamic]
  int64_t* counts = nullptr;  // [n_dynamic]
};

// Computes the sums over bins of `sums` sums of frames. Returns an error message, or "". The result
// does not depend on the number of threads.
std::string correlate(const Executor& executor, const FrameRows& frames, int64_t frame_pixels,
                      int64_t sums, int32_t dpl, const BinnedPixels& pixels,
                      const Progress& progress, BinSums* result);

// Adds `sums` sums of `frames` to a state of frame_pixels pixels after `seen` sums: to its strips
// begin .. end - 1, or to all strips.
void update_strips(const FrameRows& frames, int64_t frame_pixels, int64_t sums, int64_t seen,
                   const Delays& delays, const MissingFrames& missing, const MultiTauState& state,
                   int64_t begin, int64_t end);
void update(const Executor& executor, const FrameRows& frames, int64_t frame_pixels, int64_t sums,
            int64_t seen, const Delays& delays, const MissingFrames& missing,
            const MultiTauState& state);

// Computes the sums over bins of a state after `seen` sums of `average` frames each. Delays without
// pairs have a weight of 0, and zeros. offset[i] is the column of the i-th pixel in the state.
// Calls with states of whole tiles of pixels, in order and with the same `carried`, give the same
// bits as one call with all pixels. Returns an error message, or "".
std::string reduce(const Executor& executor, const MultiTauState& state, const Delays& delays,
                   int64_t seen, int64_t average, const MissingFrames& missing,
                   const BinnedPixels& pixels, const int32_t* offset, const CarriedSums* carried,
                   BinSums* result);

}  // namespace jaxkern::correlators

#endif  // JAXKERN_CORRELATORS_MULTITAU_H_
