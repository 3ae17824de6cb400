// Correlators of events in NumPy's memory for Python; they run without the interpreter's lock.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "bind/correlators.h"
#include "bind/objects.h"
#include "bind/unlocked.h"
#include "core/simd_level.h"
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
    throw nb::type_error("events are not whole numbers");
  }
  for (int32_t power = 0; power < 4; ++power) {
    if (dtype.bits != 8 << power) continue;
    return {static_cast<const char*>(values.data()), values.stride(0) * (int64_t{1} << power),
            static_cast<ColumnKind>(2 * power + (is_signed ? 1 : 0))};
  }
  throw nb::type_error("events are not whole numbers of 8 to 64 bits");
}

EventInput input_of(const std::optional<Words>& words, int64_t pixel_base,
                    const std::optional<Values>& pixel, const std::optional<Values>& frame,
                    const std::optional<Values>& count) {
  EventInput input;
  if (words) {
    input.size = static_cast<int64_t>(words->shape(0));
    input.words = reinterpret_cast<const char*>(words->data());
    input.pixel_base = pixel_base;
    static const char kNothing = 0;
    if (input.words == nullptr) input.words = &kNothing;
    return input;
  }
  if (!pixel || !frame || !count || pixel->shape(0) != frame->shape(0) ||
      pixel->shape(0) != count->shape(0)) {
    throw nb::value_error("pixel, frame and count differ in length");
  }
  input.size = static_cast<int64_t>(pixel->shape(0));
  input.pixel = column_of(*pixel);
  input.frame = column_of(*frame);
  input.count = column_of(*count);
  return input;
}

EventFrames frames_of(int64_t n_frames, int64_t n_sums, int64_t first_frame,
                      const std::optional<Integers>& sum, const std::optional<Good>& good) {
  if ((sum && static_cast<int64_t>(sum->shape(0)) != n_frames) ||
      (good && static_cast<int64_t>(good->shape(0)) != n_sums)) {
    throw nb::value_error("sum or good has another length than frames or sums");
  }
  return {n_frames, n_sums, first_frame, sum ? sum->data() : nullptr,
          good ? good->data() : nullptr};
}

nb::object multitau_events(
    const std::optional<Words>& words, int64_t pixel_base, const std::optional<Values>& event_pixel,
    const std::optional<Values>& event_frame, const std::optional<Values>& event_count,
    int64_t n_frames, int64_t n_sums, int64_t first_frame, const std::optional<Integers>& sum,
    const std::optional<Good>& good, int64_t frame_pixels, const Integers& pixel,
    const Integers& static_bin, const Integers& dynamic_bin, int32_t n_static, int32_t n_dynamic,
    int32_t dpl, double bytes, int64_t threads, const std::optional<Cells>& progress) {
  check_dpl(dpl);
  if (frame_pixels < 0 || frame_pixels > std::numeric_limits<int32_t>::max()) {
    throw nb::value_error("frames have 2^31 pixels or more");
  }
  if (const char* problem = simd_problem()) throw nb::value_error(problem);
  const EventInput input = input_of(words, pixel_base, event_pixel, event_frame, event_count);
  const EventFrames frames = frames_of(n_frames, n_sums, first_frame, sum, good);
  const BinnedPixels pixels =
      pixels_of(pixel, static_bin, dynamic_bin, n_static, n_dynamic, frame_pixels);
  Progress cells;
  if (progress) cells = {progress->data(), progress->data() + 1};
  BinSums sums;
  {
    Unlocked unlocked;
    OwnThreads own(threads);
    correlate_events(own.executor(), input, frames, frame_pixels, dpl, pixels, bytes, cells, &sums);
  }
  if (cells.stopped()) return nb::none();
  return to_python(std::move(sums), n_static, n_dynamic);
}

}  // namespace

void define_events(nb::module_& module) {
  module.def(
      "multitau_events", &multitau_events, nb::arg("words").none(), nb::arg("pixel_base"),
      nb::arg("event_pixel").none(), nb::arg("event_frame").none(), nb::arg("event_count").none(),
      nb::arg("n_frames"), nb::arg("n_sums"), nb::arg("first_frame"), nb::arg("sum").none(),
      nb::arg("good").none(), nb::arg("frame_pixels"), nb::arg("pixel"), nb::arg("static_bin"),
      nb::arg("dynamic_bin"), nb::arg("n_static"), nb::arg("n_dynamic"), nb::arg("dpl"),
      nb::arg("bytes"), nb::arg("threads") = 0, nb::arg("progress") = nb::none(),
      "What `multitau` gives, of events: Rigaku's words, or columns of whole numbers of any width "
      "and stride. sum: int32 [n_frames] the sum that a frame belongs to, -1 none, or None where "
      "frame f is sum f - first_frame; good: uint32 [n_sums] good frames of each sum, or None "
      "where all hold the same. bytes: for sorted events, more are taken in parts. progress: as of "
      "`multitau`, counting events.");
}

}  // namespace jaxkern::correlators
