// Conversions between Python and the functions of the correlators.
#ifndef JAXKERN_BIND_CORRELATORS_H_
#define JAXKERN_BIND_CORRELATORS_H_

#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <thread>
#include <utility>
#include <vector>

#include "core/parallel.h"
#include "correlators/multitau.h"
#include "ring/waiters.h"

namespace jaxkern::correlators {

namespace nb = nanobind;

using Integers = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Cells = nb::ndarray<int64_t, nb::shape<2>, nb::c_contig, nb::device::cpu>;
using Made = nb::ndarray<nb::numpy, double>;

// Up to `threads` threads, or all cores, of the pool whose idle threads remain for later loops.
inline Executor executor_with(int64_t threads) {
  Executor executor;
  executor.workers =
      threads > 0 ? threads : std::max<int64_t>(1, std::thread::hardware_concurrency());
  executor.schedule = ring::run_in_thread;
  return executor;
}

// Kernels run without the interpreter's lock, while another thread can write to the caller's
// arrays. Numbers that are used as indices are therefore copied, and the copies are checked.
inline std::vector<int32_t> copy_of(const Integers& indices) {
  return {indices.data(), indices.data() + indices.shape(0)};
}

// Copies of the pixels and their bins.
class OwnPixels {
 public:
  OwnPixels(const Integers& pixel, const Integers& static_bin, const Integers& dynamic_bin,
            int32_t n_static, int32_t n_dynamic)
      : pixel_(copy_of(pixel)),
        static_bin_(copy_of(static_bin)),
        dynamic_bin_(copy_of(dynamic_bin)),
        n_static_(n_static),
        n_dynamic_(n_dynamic) {
    if (static_bin_.size() != pixel_.size() || dynamic_bin_.size() != pixel_.size()) {
      throw nb::value_error("pixel, static_bin and dynamic_bin: expected arrays of one length");
    }
  }
  // Valid as long as this object.
  BinnedPixels view() const {
    return {pixel_.data(),       static_bin_.data(),
            dynamic_bin_.data(), static_cast<int64_t>(pixel_.size()),
            n_static_,           n_dynamic_};
  }

 private:
  std::vector<int32_t> pixel_, static_bin_, dynamic_bin_;
  int32_t n_static_, n_dynamic_;
};

inline OwnPixels pixels_of(const Integers& pixel, const Integers& static_bin,
                           const Integers& dynamic_bin, int32_t n_static, int32_t n_dynamic,
                           int64_t frame_pixels) {
  OwnPixels own(pixel, static_bin, dynamic_bin, n_static, n_dynamic);
  const BinnedPixels pixels = own.view();
  for (int64_t i = 0; i < pixels.count; ++i) {
    if (pixels.pixel[i] < 0 || pixels.pixel[i] >= frame_pixels ||
        (i > 0 && pixels.pixel[i] <= pixels.pixel[i - 1])) {
      throw nb::value_error("pixel: expected ascending pixels inside of the frame");
    }
    if (pixels.static_bin[i] < 0 || pixels.static_bin[i] >= n_static || pixels.dynamic_bin[i] < 0 ||
        pixels.dynamic_bin[i] >= n_dynamic) {
      throw nb::value_error("a bin is below 0, or not below the number of bins");
    }
  }
  return own;
}

inline void check_dpl(int64_t dpl) {
  if (dpl < 1 || dpl > kMostDelays) {
    throw nb::value_error("dpl: expected 1 to 64 delays per level");
  }
}

inline Made to_numpy(std::vector<double>&& values, std::initializer_list<size_t> shape) {
  auto* kept = new std::vector<double>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<double>*>(p); });
  return Made(kept->data(), shape, owner);
}

inline nb::tuple to_python(BinSums&& sums, int32_t n_static, int32_t n_dynamic) {
  const size_t delays = sums.weight.size();
  const auto statics = static_cast<size_t>(n_static), dynamics = static_cast<size_t>(n_dynamic);
  return nb::make_tuple(to_numpy(std::move(sums.weight), {delays}),
                        to_numpy(std::move(sums.sums), {3, delays, statics}),
                        to_numpy(std::move(sums.mean), {delays, dynamics}),
                        to_numpy(std::move(sums.squares), {delays, dynamics}));
}

}  // namespace jaxkern::correlators

#endif  // JAXKERN_BIND_CORRELATORS_H_
