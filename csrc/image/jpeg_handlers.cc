// The CPU handler that decodes a batch of JPEG images, each into a canvas of one size.
#include <cstring>
#include <limits>
#include <mutex>
#include <string>
#include <utility>

#include "core/ffi.h"
#include "core/handler.h"
#include "image/jpeg.h"
#include "image/ops.h"

namespace jaxkern::image {
namespace {

struct ImageDecodeJpeg {
  Call call;
  ffi::AnyBuffer result;
  Operand buffer, begin, end, canvas, size;
  int32_t height = 0, width = 0, channels = 0;
  int64_t max_pixels = 0;
  int32_t denominator = 1;
  bool mask = false;

  template <class Binding>
  static auto bind(Binding&& contexts) {
    return std::move(contexts)
        .template Arg<ffi::AnyBuffer>()         // buffer u8 [1..., B]
        .template Arg<ffi::AnyBuffer>()         // begin i32 or i64 [batch...]
        .template Arg<ffi::AnyBuffer>()         // end, as begin
        .template Ret<ffi::AnyBuffer>()         // images u8 [batch..., H, W, C]
        .template Ret<ffi::AnyBuffer>()         // sizes i32 [batch..., 2]
        .template Attr<int64_t>("max_pixels")   // scalar
        .template Attr<int32_t>("denominator")  // scalar: 1, 2, 4 or 8
        .template Attr<bool>("mask");           // scalar
  }

  ImageDecodeJpeg(ffi::AnyBuffer bytes, ffi::AnyBuffer begins, ffi::AnyBuffer ends,
                  ffi::Result<ffi::AnyBuffer> images, ffi::Result<ffi::AnyBuffer> sizes,
                  int64_t pixels, int32_t scale, bool masked)
      : call("jaxkern.image_decode_jpeg", *images, 3),
        result(*images),
        max_pixels(pixels),
        denominator(scale),
        mask(masked) {
    buffer = call.operand("buffer", bytes, ffi::U8, {kAnySize});
    const bool wide = begins.element_type() == ffi::S64;
    begin = call.operand("begin", begins, wide ? ffi::S64 : ffi::S32, {});
    end = call.operand("end", ends, wide ? ffi::S64 : ffi::S32, {});
    if (!is_jpeg_denominator(denominator)) {
      call.fail("attribute 'denominator'", "1, 2, 4 or 8", std::to_string(denominator));
    }
    canvas = call.result("images", *images, ffi::U8, {kAnySize, kAnySize, kAnySize});
    size = call.result("sizes", *sizes, ffi::S32, {2});
    if (!call.ok()) return;
    constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
    const int64_t c = call.result_size(2);
    if (call.result_size(0) > kLimit || call.result_size(1) > kLimit ||
        (c != 1 && c != 3 && c != 4)) {
      call.fail("result", "1, 3 or 4 channels, and a height and width below 2^31",
                "shape " + shape_text(images->dimensions()));
      return;
    }
    height = static_cast<int32_t>(call.result_size(0));
    width = static_cast<int32_t>(call.result_size(1));
    channels = static_cast<int32_t>(c);
  }

  // Reads a value once, because another thread can write to the memory of an operand.
  static int64_t read_once(const Operand& operand, int64_t i) {
    if (operand.dtype == ffi::S64) return *static_cast<volatile int64_t*>(operand.at<int64_t>(i));
    return *static_cast<volatile int32_t*>(operand.at<int32_t>(i));
  }
};

std::string decode_one(const ImageDecodeJpeg& op, int64_t i, JpegDecoder& decoder, uint8_t* canvas,
                       int32_t* size) {
  const int64_t begin = op.read_once(op.begin, i), end = op.read_once(op.end, i);
  const int64_t bytes = op.buffer.core[0];
  if (begin < 0 || end < begin || end > bytes) {
    return "expected a range inside operand 'buffer' of " + std::to_string(bytes) +
           " bytes, got bytes " + std::to_string(begin) + " to " + std::to_string(end);
  }
  const uint8_t* data = op.buffer.at<uint8_t>(i) + begin;
  const auto count = static_cast<size_t>(end - begin);
  JpegInfo info;
  if (std::string problem = read_jpeg_info(data, count, &info); !problem.empty()) return problem;
  JpegRegion region;
  region.height = scaled_side(info.orientation < 5 ? info.height : info.width, op.denominator);
  region.width = scaled_side(info.orientation < 5 ? info.width : info.height, op.denominator);
  if (int64_t{info.height} * info.width <= op.max_pixels &&
      (region.height > op.height || region.width > op.width)) {
    return "expected at most " + std::to_string(op.height) + " x " + std::to_string(op.width) +
           " pixels, the size of the canvas, got " + std::to_string(region.height) + " x " +
           std::to_string(region.width);
  }
  std::string problem =
      decoder.open(data, count, op.channels, op.max_pixels, region, op.denominator);
  const size_t used = static_cast<size_t>(region.width) * static_cast<size_t>(op.channels);
  const size_t line = static_cast<size_t>(op.width) * static_cast<size_t>(op.channels);
  for (int32_t row = 0; row < region.height && problem.empty(); ++row, canvas += line) {
    problem = decoder.read(1, canvas);
    memset(canvas + used, 0, line - used);
  }
  if (!problem.empty()) return problem;
  memset(canvas, 0, static_cast<size_t>(op.height - region.height) * line);
  size[0] = region.height;
  size[1] = region.width;
  return "";
}

ffi::Error decode_on_cpu(const ImageDecodeJpeg& op, ffi::ThreadPool pool) {
  Call call = op.call;
  if (!call.ok()) return call.error();
  advise_results(op.result);
  const size_t canvas_bytes = static_cast<size_t>(op.height) * static_cast<size_t>(op.width) *
                              static_cast<size_t>(op.channels);
  std::mutex mutex;
  int64_t first = call.samples();
  std::string problem;
  parallel_for(executor_of(pool), call.samples(), 1, [&](int64_t begin, int64_t end) {
    thread_local JpegDecoder decoder;
    for (int64_t i = begin; i < end; ++i) {
      auto* canvas = op.canvas.at<uint8_t>(i);
      auto* size = op.size.at<int32_t>(i);
      std::string message = decode_one(op, i, decoder, canvas, size);
      if (message.empty()) continue;
      memset(canvas, 0, canvas_bytes);
      size[0] = size[1] = 0;
      const std::lock_guard<std::mutex> lock(mutex);
      if (!op.mask && i < first) {
        first = i;
        problem = std::move(message);
      }
    }
  });
  if (!problem.empty()) call.fail("image " + std::to_string(first) + ": " + problem);
  return call.error();
}

}  // namespace
}  // namespace jaxkern::image

#define JAXKERN_JPEG_ON_CPU(name, target) JAXKERN_CPU_HANDLER(name, jaxkern::image::decode_on_cpu)
JAXKERN_IMAGE_JPEG_OPS(JAXKERN_JPEG_ON_CPU)
