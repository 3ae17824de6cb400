// Python bindings of the correlators of events, which run without the interpreter's lock.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "bind/correlators.h"
#include "bind/objects.h"
#include "bind/unlocked.h"
#include "core/simd_dispatch.h"
#include "correlators/event_pairs.h"
#include "correlators/multitau_events.h"

namespace nb = nanobind;

namespace jaxkern::correlators {
namespace {

using Values = nb::ndarray<nb::ro, nb::ndim<1>, nb::device::cpu>;
using Words = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Good = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

Column column_of(const Values& values) {
  const nb::dlpack::dtype dtype = values.dtype();
  const auto code = static_cast<nb::dlpack::dtype_code>(dtype.code);
  const bool is_signed = code == nb::dlpack::dtype_code::Int;
  if (dtype.lanes != 1 || (!is_signed && code != nb::dlpack::dtype_code::UInt)) {
    throw nb::type_error("events: expected integers");
  }
  for (int32_t power = 0; power < 4; ++power) {
    if (dtype.bits != 8 << power) continue;
    return {static_cast<const char*>(values.data()), values.stride(0) * (int64_t{1} << power),
            static_cast<ColumnKind>(2 * power + (is_signed ? 1 : 0))};
  }
  throw nb::type_error("events: expected integers of 8 to 64 bits");
}

EventInput input_of(const std::optional<Words>& words, int64_t pixel_base, bool mapped,
                    const std::optional<Values>& pixel, const std::optional<Values>& frame,
                    const std::optional<Values>& count) {
  EventInput input;
  if (words) {
    input.size = static_cast<int64_t>(words->shape(0));
    input.words = reinterpret_cast<const char*>(words->data());
    input.pixel_base = pixel_base;
    input.mapped = mapped;
    static const char kNothing = 0;
    if (input.words == nullptr) input.words = &kNothing;
    return input;
  }
  if (!pixel || !frame || !count || pixel->shape(0) != frame->shape(0) ||
      pixel->shape(0) != count->shape(0)) {
    throw nb::value_error("pixel, frame and count: expected arrays of one length");
  }
  input.size = static_cast<int64_t>(pixel->shape(0));
  input.pixel = column_of(*pixel);
  input.frame = column_of(*frame);
  input.count = column_of(*count);
  return input;
}

// `sums` stores the copy of `sum` that the result points to and EventSort checks.
EventFrames frames_of(int64_t n_frames, int64_t n_sums, int64_t first_frame,
                      const std::optional<Integers>& sum, const std::optional<Good>& good,
                      std::vector<int32_t>* sums) {
  if ((sum && static_cast<int64_t>(sum->shape(0)) != n_frames) ||
      (good && static_cast<int64_t>(good->shape(0)) != n_sums)) {
    throw nb::value_error("sum, good: expected the numbers of frames and of sums as lengths");
  }
  if (sum) *sums = copy_of(*sum);
  return {n_frames, n_sums, first_frame, sum ? sums->data() : nullptr,
          good ? good->data() : nullptr};
}

nb::object multitau_events(const std::optional<Words>& words, int64_t pixel_base, bool mapped,
                           const std::optional<Values>& event_pixel,
                           const std::optional<Values>& event_frame,
                           const std::optional<Values>& event_count, int64_t n_frames,
                           int64_t n_sums, int64_t first_frame, const std::optional<Integers>& sum,
                           const std::optional<Good>& good, int64_t frame_pixels,
                           const Integers& pixel, const Integers& static_bin,
                           const Integers& dynamic_bin, int32_t n_static, int32_t n_dynamic,
                           int32_t dpl, double bytes, int64_t threads,
                           const std::optional<Cells>& progress) {
  check_dpl(dpl);
  if (frame_pixels < 0 || frame_pixels > std::numeric_limits<int32_t>::max()) {
    throw nb::value_error("frame_pixels: expected fewer than 2^31 pixels");
  }
  if (const char* problem = simd_problem()) throw nb::value_error(problem);
  const EventInput input =
      input_of(words, pixel_base, mapped, event_pixel, event_frame, event_count);
  std::vector<int32_t> sums_of_frames;
  const EventFrames frames = frames_of(n_frames, n_sums, first_frame, sum, good, &sums_of_frames);
  const OwnPixels own_pixels =
      pixels_of(pixel, static_bin, dynamic_bin, n_static, n_dynamic, frame_pixels);
  const BinnedPixels pixels = own_pixels.view();
  Progress cells;
  if (progress) cells = {progress->data(), progress->data() + 1};
  BinSums sums;
  {
    Unlocked unlocked;
    correlate_events(executor_with(threads), input, frames, frame_pixels, dpl, pixels, bytes, cells,
                     &sums);
  }
  if (cells.stopped()) return nb::none();
  return to_python(std::move(sums), n_static, n_dynamic);
}

using Factors = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Divisors = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ends = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Block = nb::ndarray<double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void make_pairs(EventPairs* self, const std::optional<Words>& words, int64_t pixel_base,
                bool mapped, const std::optional<Values>& event_pixel,
                const std::optional<Values>& event_frame, const std::optional<Values>& event_count,
                int64_t n_frames, int64_t n_sums, int64_t first_frame,
                const std::optional<Integers>& sum, const std::optional<Good>& good,
                int64_t frame_pixels, const Integers& pixel, const Ends& group_ends,
                int64_t threads) {
  if (const char* problem = simd_problem()) throw nb::value_error(problem);
  if (frame_pixels < 0 || frame_pixels > std::numeric_limits<int32_t>::max()) {
    throw nb::value_error("frame_pixels: expected fewer than 2^31 pixels");
  }
  const EventInput input =
      input_of(words, pixel_base, mapped, event_pixel, event_frame, event_count);
  std::vector<int32_t> sums_of_frames;
  const EventFrames frames = frames_of(n_frames, n_sums, first_frame, sum, good, &sums_of_frames);
  const std::vector<int32_t> pixels = copy_of(pixel);
  std::vector<int64_t> ends(group_ends.data(), group_ends.data() + group_ends.shape(0));
  const auto count = static_cast<int64_t>(pixels.size());
  if (!std::is_sorted(ends.begin(), ends.end()) || (!ends.empty() && ends.front() < 0) ||
      (ends.empty() ? 0 : ends.back()) != count) {
    throw nb::value_error("group_ends: expected ascending ends up to the number of pixels");
  }
  std::vector<bool> seen(frame_pixels, false);
  for (const int32_t p : pixels) {
    if (p < 0 || p >= frame_pixels || seen[p]) {
      throw nb::value_error("pixel: expected different pixels inside of the frame");
    }
    seen[p] = true;
  }
  EventMap map;
  map.n_pixels = frame_pixels;
  map.n_frames = frames.n_frames;
  map.n_sums = frames.n_sums;
  map.sum = frames.sum;
  map.first_frame = frames.first_frame;
  Unlocked unlocked;
  new (self) EventPairs(executor_with(threads), input, map, pixels.data(), std::move(ends));
}

nb::ndarray<nb::numpy, uint64_t> totals_of(const EventPairs& self) {
  auto* kept = new std::vector<uint64_t>(self.totals());
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<uint64_t>*>(p); });
  return nb::ndarray<nb::numpy, uint64_t>(
      kept->data(), {static_cast<size_t>(self.n_groups()), static_cast<size_t>(self.n_sums())},
      owner);
}

void write_rows(EventPairs& self, int64_t first, const Factors& factors, const Divisors& divisors,
                double pixels, int64_t row, const Block& out, int64_t threads) {
  const auto rows = static_cast<int64_t>(out.shape(0)), width = static_cast<int64_t>(out.shape(1));
  const auto groups = static_cast<int64_t>(factors.shape(0)), n = self.n_sums();
  if (first < 0 || first > self.n_groups() || groups > self.n_groups() - first ||
      static_cast<int64_t>(factors.shape(1)) != n || static_cast<int64_t>(divisors.shape(0)) != n ||
      row < 0 || row > n || rows > n - row || width != n - row) {
    throw nb::value_error("factors, divisors, out: an array has another shape than expected");
  }
  Unlocked unlocked;
  self.rows(executor_with(threads), first, first + groups, factors.data(), divisors.data(), pixels,
            row, rows, out.data());
}

}  // namespace

void define_events(nb::module_& module) {
  module.def(
      "multitau_events", &multitau_events, nb::arg("words").none(), nb::arg("pixel_base"),
      nb::arg("mapped"), nb::arg("event_pixel").none(), nb::arg("event_frame").none(),
      nb::arg("event_count").none(), nb::arg("n_frames"), nb::arg("n_sums"), nb::arg("first_frame"),
      nb::arg("sum").none(), nb::arg("good").none(), nb::arg("frame_pixels"), nb::arg("pixel"),
      nb::arg("static_bin"), nb::arg("dynamic_bin"), nb::arg("n_static"), nb::arg("n_dynamic"),
      nb::arg("dpl"), nb::arg("bytes"), nb::arg("threads") = 0, nb::arg("progress") = nb::none(),
      "Return the result of `multitau` for events: Rigaku words (mapped: in a read-only mapping of "
      "a file, whose pages are released after reading), or columns of integers of any width and "
      "stride. sum: int32 [n_frames], the sum of each frame or -1; None if frame f is sum f - "
      "first_frame. good: uint32 [n_sums], good frames of each sum; None if all are equal. bytes: "
      "memory for sorted events; more events are processed in parts. progress: see `multitau`; "
      "counts events.");
  nb::class_<EventPairs>(
      module, "EventPairs",
      "Pairs of events of pixels, for rows of two-time correlations. Calls must not overlap.")
      .def("__init__", &make_pairs, nb::arg("words").none(), nb::arg("pixel_base"),
           nb::arg("mapped"), nb::arg("event_pixel").none(), nb::arg("event_frame").none(),
           nb::arg("event_count").none(), nb::arg("n_frames"), nb::arg("n_sums"),
           nb::arg("first_frame"), nb::arg("sum").none(), nb::arg("good").none(),
           nb::arg("frame_pixels"), nb::arg("pixel"), nb::arg("group_ends"), nb::arg("threads") = 0,
           "See `multitau_events`; pixels are ordered by group, and groups end at group_ends.")
      .def("totals", &totals_of, "Return exact counts, uint64 [groups, sums].")
      .def("rows", &write_rows, nb::arg("first"), nb::arg("factors"), nb::arg("divisors"),
           nb::arg("pixels"), nb::arg("row"), nb::arg("out"), nb::arg("threads") = 0,
           "out [R, sums - row] = pixels sum_g factors[g, t] factors[g, u] M_g[t, u] / "
           "(divisors[t] divisors[u]) for t = row .. and u = row .. from t on, 0 before; factors "
           "[groups, sums] of the groups from `first` on, M_g their exact sums of products.");
}

}  // namespace jaxkern::correlators
