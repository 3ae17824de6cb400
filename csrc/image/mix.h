// Mixing (MixUp, CutMix) of a batch of images with their partners: the definition of a call, the
// CPU entry point, and the body of the CUDA kernel as a host and device function of a flat index,
// so that a CPU test runs it over the whole grid.
#ifndef JAXKERN_IMAGE_MIX_H_
#define JAXKERN_IMAGE_MIX_H_

#include <cstdint>

#include "core/batch_set.h"
#include "core/host_device.h"
#include "core/simd_dispatch.h"
#include "image/arithmetic.h"
#include "image/cuda_tile.h"
#include "image/plan.h"

namespace jaxkern::image {

enum MixOperand : int { kX, kPartner, kLambda, kBox, kMixOperands };

// out = lambda * x + (1 - lambda) * partner outside the box, and partner inside it; images are
// [height, width, C] (or [C, height, width]) of `dtype`; `output` may be `x` itself.
// MixUp passes an empty box, CutMix lambda = 1 and its box.
struct MixCall {
  Dtype dtype;
  Layout layout;
  int32_t height, width, channels;
  BatchSet<kMixOperands> operands;
  void* output;
  int64_t samples;

  // Values of a pixel that are adjacent in memory. In NCHW each plane is processed as an image.
  JAXKERN_HD_MEMBER int32_t together() const { return layout == Layout::kNHWC ? channels : 1; }
  JAXKERN_HD_MEMBER int64_t elements() const {
    return static_cast<int64_t>(height) * width * channels;
  }
};

// Mixes samples [begin, end) of a checked call.
JAXKERN_LEVEL_FUNCTION(void, mix_samples, const MixCall& call, int64_t begin, int64_t end)

// True if every image of the batch starts and ends at a 16-byte boundary.
inline bool mix_in_vectors(const MixCall& call) {
  const auto at_boundary = [](const void* at) {
    return reinterpret_cast<uintptr_t>(at) % kStoreBytes == 0;
  };
  return call.elements() * dtype_bytes(call.dtype) % kStoreBytes == 0 &&
         at_boundary(call.operands.data[kX]) && at_boundary(call.operands.data[kPartner]) &&
         at_boundary(call.output);
}

template <Dtype dtype>
JAXKERN_HD float mix_element(float x, float partner, float lambda, bool cut) {
  float value = cut ? partner : mix_value(x, partner, lambda);
  if constexpr (dtype == Dtype::kU8) value = round_value(Rounding::kNearest, value);
  return value;
}

constexpr int32_t kMixThreads = 256;

// Share `flat` of the work is kPieces pieces per thread of one image, kMixThreads pieces apart. A
// piece is kElements consecutive elements. The output may be x itself, so x is read with ordinary
// loads, and each piece by the thread that stores it, before it does.
template <Dtype dtype, int32_t kElements>
struct MixBody {
  using Element = typename Stored<dtype>::Type;
  static_assert(kElements == 1 || kElements * sizeof(Element) == kStoreBytes);
  static constexpr int32_t kPieces = 4;

  struct alignas(kElements == 1 ? sizeof(Element) : kStoreBytes) Piece {
    Element element[kElements];
  };

  JAXKERN_HD int64_t shares_of_image(const MixCall& call) {
    constexpr int64_t kShare = int64_t{kMixThreads} * kPieces * kElements;
    return (call.elements() + kShare - 1) / kShare;
  }
  JAXKERN_HD int64_t shares(const MixCall& call) { return shares_of_image(call) * call.samples; }

  JAXKERN_HD void run(const MixCall& call, int64_t flat, int32_t thread) {
    const int64_t each = shares_of_image(call), sample = flat / each;
    const int64_t first = ((flat - sample * each) * (kMixThreads * kPieces) + thread) * kElements;
    const BatchOffsets<kMixOperands> at = batch_offsets(call.operands, sample);
    const float lambda = *call.operands.at<float>(at, kLambda);
    const EraseBox box = *reinterpret_cast<const EraseBox*>(call.operands.at<int32_t>(at, kBox));
    const Range rows = erased_range(box.top, box.height, call.height);
    const Range columns = erased_range(box.left, box.width, call.width);
    const bool has_box = rows.begin < rows.end && columns.begin < columns.end;
    const Element* const image = call.operands.at<Element>(at, kX);
    const Element* const other = call.operands.at<Element>(at, kPartner);
    Element* const output = static_cast<Element*>(call.output) + sample * call.elements();

    Piece x[kPieces], partner[kPieces];
    JAXKERN_UNROLL
    for (int32_t k = 0; k < kPieces; ++k) {
      const int64_t start = first + int64_t{k} * kMixThreads * kElements;
      if (start < call.elements()) {
        x[k] = load(image + start);
        partner[k] = load(other + start);
      }
    }
    JAXKERN_UNROLL
    for (int32_t k = 0; k < kPieces; ++k) {
      const int64_t start = first + int64_t{k} * kMixThreads * kElements;
      if (start < call.elements())
        *reinterpret_cast<Piece*>(output + start) =
            has_box ? cut(call, rows, columns, start, x[k], partner[k], lambda)
                    : blend(x[k], partner[k], lambda);
    }
  }

 private:
  JAXKERN_HD Piece blend(const Piece& x, const Piece& partner, float lambda) {
    Piece mixed;
    JAXKERN_UNROLL
    for (int32_t e = 0; e < kElements; ++e)
      store_value<dtype>(mixed.element, e,
                         mix_element<dtype>(load_value<dtype>(x.element, e),
                                            load_value<dtype>(partner.element, e), lambda, false));
    return mixed;
  }

  // The piece of an image with a box; `start` is the piece's first element.
  JAXKERN_HD Piece cut(const MixCall& call, Range rows, Range columns, int64_t start,
                       const Piece& x, const Piece& partner, float lambda) {
    const int32_t together = call.together();
    const int64_t pixel = start / together, line = pixel / call.width;
    int32_t channel = static_cast<int32_t>(start - pixel * together);
    int32_t column = static_cast<int32_t>(pixel - line * call.width);
    int32_t row = static_cast<int32_t>(line % call.height);
    Piece mixed;
    JAXKERN_UNROLL
    for (int32_t e = 0; e < kElements; ++e) {
      const bool in_box = inside(rows, row) && inside(columns, column);
      // Rounding the partner itself changes nothing: u8 is an integer, and NaN remains NaN.
      store_value<dtype>(mixed.element, e,
                         mix_element<dtype>(load_value<dtype>(x.element, e),
                                            load_value<dtype>(partner.element, e), lambda, in_box));
      if (++channel == together) {
        channel = 0;
        if (++column == call.width) {
          column = 0;
          if (++row == call.height) row = 0;
        }
      }
    }
    return mixed;
  }

  JAXKERN_HD Piece load(const Element* at) { return *reinterpret_cast<const Piece*>(at); }
};

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_MIX_H_
