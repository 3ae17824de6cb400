// Python bindings of the correlators of frames, which run without the interpreter's lock.
#include "bind/correlators.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bind/objects.h"
#include "bind/unlocked.h"
#include "core/simd_dispatch.h"
#include "correlators/bin_sums.h"
#include "correlators/frame_sums.h"
#include "correlators/multitau.h"

namespace nb = nanobind;

namespace jaxkern::correlators {
namespace {

using Frames = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;
using Marks = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Missing = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using StateArray = nb::ndarray<nb::c_contig, nb::device::cpu>;
using StateRead = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

Dtype dtype_of(const nb::dlpack::dtype& dtype) {
  const auto code = static_cast<nb::dlpack::dtype_code>(dtype.code);
  if (dtype.lanes == 1 && code == nb::dlpack::dtype_code::UInt) {
    if (dtype.bits == 8) return Dtype::kU8;
    if (dtype.bits == 16) return Dtype::kU16;
    if (dtype.bits == 32) return Dtype::kU32;
  }
  if (dtype.lanes == 1 && code == nb::dlpack::dtype_code::Int && dtype.bits == 32) {
    return Dtype::kI32;
  }
  if (dtype.lanes == 1 && code == nb::dlpack::dtype_code::Float) {
    if (dtype.bits == 32) return Dtype::kF32;
    if (dtype.bits == 64) return Dtype::kF64;
  }
  throw nb::type_error("frames: expected dtype uint8, uint16, uint32, int32, float32 or float64");
}

// Returns frames with contiguous pixels, after checks of the arrays.
FrameRows rows_of(const Frames& frames, int64_t average, const std::optional<Marks>& bad,
                  const std::optional<Numbers>& divisor) {
  FrameRows rows;
  rows.dtype = dtype_of(frames.dtype());
  if (frames.shape(1) > 1 && frames.stride(1) != 1) {
    throw nb::value_error(
        "frames: expected contiguous pixels, [N, P] with a stride of one pixel in the last axis");
  }
  if (frames.shape(1) > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    throw nb::value_error("frames: expected fewer than 2^31 pixels");
  }
  if (average < 1) throw nb::value_error("average: expected 1 or more");
  const auto count = static_cast<size_t>(frames.shape(0));
  if (bad && bad->shape(0) != count) throw nb::value_error("bad: expected the length of frames");
  if (divisor && divisor->shape(0) != count) {
    throw nb::value_error("divisor: expected the length of frames");
  }
  rows.data = static_cast<const char*>(frames.data());
  rows.stride = frames.shape(0) > 1 ? frames.stride(0) * dtype_bytes(rows.dtype) : 0;
  rows.average = average;
  if (bad) rows.bad = bad->data();
  if (divisor) rows.divisor = divisor->data();
  return rows;
}

nb::object multitau(const Frames& frames, const Integers& pixel, const Integers& static_bin,
                    const Integers& dynamic_bin, int32_t n_static, int32_t n_dynamic, int32_t dpl,
                    int64_t average, const std::optional<Marks>& bad,
                    const std::optional<Numbers>& divisor, int64_t threads,
                    const std::optional<Cells>& progress) {
  check_dpl(dpl);
  if (const char* problem = simd_problem()) throw nb::value_error(problem);
  const FrameRows rows = rows_of(frames, average, bad, divisor);
  const auto frame_pixels = static_cast<int64_t>(frames.shape(1));
  const OwnPixels own_pixels =
      pixels_of(pixel, static_bin, dynamic_bin, n_static, n_dynamic, frame_pixels);
  const BinnedPixels pixels = own_pixels.view();
  Progress cells;
  if (progress) cells = {progress->data(), progress->data() + 1};
  BinSums sums;
  std::string problem;
  {
    Unlocked unlocked;
    problem = correlate(executor_with(threads), rows, frame_pixels,
                        static_cast<int64_t>(frames.shape(0)) / average, dpl, pixels, cells, &sums);
  }
  if (!problem.empty()) throw nb::value_error(problem.c_str());
  if (cells.stopped()) return nb::none();
  return to_python(std::move(sums), n_static, n_dynamic);
}

// total, g, head, history, and with missing frames lost_past and lost_future.
template <typename Array>
MultiTauState state_of(const std::vector<Array>& arrays, const Delays& delays, int64_t pixels,
                       bool real, bool weighted) {
  if (arrays.size() != (weighted ? 6 : 4)) {
    throw nb::value_error("state: expected 4 arrays, or 6 with missing frames");
  }
  MultiTauState state;
  state.real = real;
  state.pitch = pixels;
  size_t next = 0;
  for_arrays(delays, real, weighted, [&](auto array, int64_t rows, int64_t item) {
    const Array& own = arrays[next++];
    if (own.nbytes() != static_cast<size_t>(rows * item * pixels)) {
      throw nb::value_error("state: an array has another size than expected");
    }
    state.*array = static_cast<char*>(const_cast<void*>(static_cast<const void*>(own.data())));
  });
  return state;
}

Delays delays_of(int64_t most_frames, int32_t dpl) {
  check_dpl(dpl);
  return Delays::of(most_frames, dpl);
}

MissingFrames missing_of(const std::optional<Missing>& given, int64_t sums) {
  if (!given) return {};
  if (static_cast<int64_t>(given->shape(0)) < sums) {
    throw nb::value_error("missing: expected at least one number per sum");
  }
  return {given->data(), sums};
}

void add_frames(const Frames& frames, int64_t seen, const std::vector<StateArray>& arrays,
                int64_t most_frames, int32_t dpl, int64_t average, const std::optional<Marks>& bad,
                const std::optional<Numbers>& divisor, const std::optional<Missing>& missing,
                bool real, int64_t threads) {
  if (const char* problem = simd_problem()) throw nb::value_error(problem);
  const Delays delays = delays_of(most_frames, dpl);
  const FrameRows rows = rows_of(frames, average, bad, divisor);
  if (rows.real() && !real) {
    throw nb::value_error("frames: expected integers for a state of integer counts");
  }
  const auto pixels = static_cast<int64_t>(frames.shape(1));
  const int64_t sums = static_cast<int64_t>(frames.shape(0)) / average;
  if (seen < 0) throw nb::value_error("seen: expected 0 or more");
  const MultiTauState state = state_of(arrays, delays, pixels, real, missing.has_value());
  Unlocked unlocked;
  update(executor_with(threads), rows, pixels, sums, seen, delays, missing_of(missing, seen + sums),
         state);
}

// Returns the sums, means, squares and counts of preceding pixels.
CarriedSums carried_of(const std::vector<StateArray>& arrays, size_t delays, int32_t n_static,
                       int32_t n_dynamic, bool real) {
  const size_t statics = delays * static_cast<size_t>(n_static);
  const size_t dynamics = delays * static_cast<size_t>(n_dynamic);
  const size_t bytes[] = {3 * statics * (real ? 8 : 16), dynamics * 8, dynamics * 8,
                          static_cast<size_t>(n_dynamic) * 8};
  if (arrays.size() != 4) throw nb::value_error("carried: expected 4 arrays");
  for (size_t i = 0; i < 4; ++i) {
    if (arrays[i].nbytes() != bytes[i]) {
      throw nb::value_error("carried: an array has another size than expected");
    }
  }
  return {static_cast<char*>(arrays[0].data()), static_cast<double*>(arrays[1].data()),
          static_cast<double*>(arrays[2].data()), static_cast<int64_t*>(arrays[3].data())};
}

nb::tuple bin_sums(const std::vector<StateRead>& arrays, int64_t seen, int64_t frame_pixels,
                   const Integers& pixel, const Integers& static_bin, const Integers& dynamic_bin,
                   int32_t n_static, int32_t n_dynamic, int64_t most_frames, int32_t dpl,
                   int64_t average, const std::optional<Missing>& missing, bool real,
                   int64_t threads, const std::optional<Integers>& offset,
                   const std::optional<std::vector<StateArray>>& carried) {
  const Delays delays = delays_of(most_frames, dpl);
  const OwnPixels own_pixels = pixels_of(pixel, static_bin, dynamic_bin, n_static, n_dynamic,
                                         offset ? int64_t{1} << 31 : frame_pixels);
  const BinnedPixels pixels = own_pixels.view();
  std::vector<int32_t> offsets;
  if (offset) {
    offsets = copy_of(*offset);
    if (static_cast<int64_t>(offsets.size()) != pixels.count) {
      throw nb::value_error("offset: expected the length of pixel");
    }
    for (const int32_t at : offsets) {
      if (at < 0 || at >= frame_pixels) {
        throw nb::value_error("offset: expected columns of the state");
      }
    }
  }
  CarriedSums sums_before;
  if (carried) {
    const auto count = static_cast<size_t>(delays.count);
    sums_before = carried_of(*carried, count, n_static, n_dynamic, real);
  }
  if (seen < 0 || average < 1) {
    throw nb::value_error("seen, average: expected 0 or more, and 1 or more");
  }
  const MultiTauState state = state_of(arrays, delays, frame_pixels, real, missing.has_value());
  BinSums sums;
  std::string problem;
  {
    Unlocked unlocked;
    problem = reduce(executor_with(threads), state, delays, seen, average,
                     missing_of(missing, seen), pixels, offset ? offsets.data() : pixels.pixel,
                     carried ? &sums_before : nullptr, &sums);
  }
  if (!problem.empty()) throw nb::value_error(problem.c_str());
  return to_python(std::move(sums), n_static, n_dynamic);
}

// Returns totals [masks, N] of Wide: int64_t, or double for floating-point frames.
template <typename Wide>
nb::object totals_of_frames(const FrameRows& rows, int64_t count, int64_t pixels, char* image,
                            double* squares, const std::vector<const uint8_t*>& masks,
                            int64_t threads) {
  std::vector<Wide> totals(masks.size() * static_cast<size_t>(count));
  {
    Unlocked unlocked;
    frame_sums(executor_with(threads), rows, count, pixels, image, squares, masks,
               reinterpret_cast<char*>(totals.data()));
  }
  auto* kept = new std::vector<Wide>(std::move(totals));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<Wide>*>(p); });
  const size_t shape[] = {masks.size(), static_cast<size_t>(count)};
  return nb::cast(nb::ndarray<nb::numpy, Wide>(kept->data(), 2, shape, owner));
}

// Returns totals [masks, N] as int64 or float64.
nb::object sums_of_frames(const Frames& frames, const std::vector<Marks>& masks,
                          const std::optional<StateArray>& image, const std::optional<Marks>& bad,
                          int64_t threads, const std::optional<StateArray>& squares) {
  if (const char* problem = simd_problem()) throw nb::value_error(problem);
  const FrameRows rows = rows_of(frames, 1, bad, std::nullopt);
  const auto count = static_cast<int64_t>(frames.shape(0));
  const auto pixels = static_cast<int64_t>(frames.shape(1));
  const bool real = is_real(rows.dtype);
  if (masks.size() > kMostMasks) throw nb::value_error("masks: expected at most 2");
  std::vector<const uint8_t*> mask_data;
  for (const Marks& mask : masks) {
    if (mask.shape(0) != frames.shape(1)) {
      throw nb::value_error("masks: expected the length of a frame");
    }
    mask_data.push_back(mask.data());
  }
  const nb::dlpack::dtype wide = real ? nb::dtype<double>() : nb::dtype<int64_t>();
  if (image &&
      (image->dtype() != wide || image->ndim() != 1 || image->shape(0) != frames.shape(1))) {
    throw nb::value_error("image: expected [P] of int64, or of float64 for floating-point frames");
  }
  if (squares && (!image || squares->dtype() != nb::dtype<double>() || squares->ndim() != 1 ||
                  squares->shape(0) != frames.shape(1))) {
    throw nb::value_error("squares: expected float64 [P], and an image");
  }
  const auto totals = real ? &totals_of_frames<double> : &totals_of_frames<int64_t>;
  return totals(rows, count, pixels, image ? static_cast<char*>(image->data()) : nullptr,
                squares ? static_cast<double*>(squares->data()) : nullptr, mask_data, threads);
}

}  // namespace

void define_multitau(nb::module_& module) {
  module.attr("MULTITAU_STRIP") = kStrip;
  module.attr("MULTITAU_TILE_STRIPS") = kTileStrips;
  module.def(
      "multitau", &multitau, nb::arg("frames"), nb::arg("pixel"), nb::arg("static_bin"),
      nb::arg("dynamic_bin"), nb::arg("n_static"), nb::arg("n_dynamic"), nb::arg("dpl") = 4,
      nb::arg("average") = 1, nb::arg("bad") = nb::none(), nb::arg("divisor") = nb::none(),
      nb::arg("threads") = 0, nb::arg("progress") = nb::none(),
      "Compute multi-tau sums of frames [N, P] for ascending pixels, whose bins count from 0. bad: "
      "uint8 [N], 1 for frames to leave out; divisor: float64 [N], one per frame, makes all sums "
      "float64; progress: int64 [2]: element 0 counts completed sums of MULTITAU_STRIP pixels, and "
      "a nonzero element 1 stops the call, which then returns None. Returns weight [delays], the "
      "sums [3, delays, n_static] of G, IP and IF over pixels, each exact and rounded once, and "
      "the mean and the summed squares of the deviations [delays, n_dynamic] of the ratio G weight "
      "/ (IP IF) of the pixels. <G> is G / weight / pixels; likewise for IP and IF.");
  module.def(
      "multitau_update", &add_frames, nb::arg("frames"), nb::arg("seen"), nb::arg("state"),
      nb::arg("most_frames"), nb::arg("dpl") = 4, nb::arg("average") = 1,
      nb::arg("bad") = nb::none(), nb::arg("divisor") = nb::none(), nb::arg("missing") = nb::none(),
      nb::arg("real") = false, nb::arg("threads") = 0,
      "Add frames [N, P] to a state after `seen` sums of frames. The state is a list of arrays, "
      "initially zero: of 8 bytes, total [P] and G [delays, P]; of 4 bytes (8 with real), head "
      "[delays, P] and history [levels * 2 dpl, P]; and, with missing (uint32, the number of "
      "missing frames in each sum), two arrays [delays, P] of 8 bytes.");
  module.def(
      "multitau_reduce", &bin_sums, nb::arg("state"), nb::arg("seen"), nb::arg("frame_pixels"),
      nb::arg("pixel"), nb::arg("static_bin"), nb::arg("dynamic_bin"), nb::arg("n_static"),
      nb::arg("n_dynamic"), nb::arg("most_frames"), nb::arg("dpl") = 4, nb::arg("average") = 1,
      nb::arg("missing") = nb::none(), nb::arg("real") = false, nb::arg("threads") = 0,
      nb::arg("offset") = nb::none(), nb::arg("carried") = nb::none(),
      "Return the result of `multitau` for a state of `multitau_update`; weights are 0 at "
      "delays without pairs. offset: int32, the column of each pixel in the state; by default "
      "its number. carried: arrays of preceding pixels, initially zero, to which these are "
      "added: sums [3, delays, n_static] of 16 bytes (8 with real), mean and squares "
      "[delays, n_dynamic] of 8 bytes, and pixels [n_dynamic] of int64: if each call has "
      "whole tiles of MULTITAU_TILE_STRIPS strips that have pixels, the last one gives the "
      "bits of one call with all.");
}

void define_frame_sums(nb::module_& module) {
  module.def("frame_sums", &sums_of_frames, nb::arg("frames"), nb::arg("masks"),
             nb::arg("image") = nb::none(), nb::arg("bad") = nb::none(), nb::arg("threads") = 0,
             nb::arg("squares") = nb::none(),
             "Adds frames [N, P], but for bad ones (uint8 [N]), to image [P], which is int64 for "
             "whole counts and float64 for others, and their squares to squares [P], float64, and "
             "gives the totals [masks, N] of all frames "
             "over the pixels of up to 2 masks, uint8 [P]; whole counts are exact.");
}

}  // namespace jaxkern::correlators
