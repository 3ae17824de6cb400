// The state of a block of threads of the CUDA image program, its memory, and loops over it; see
// cuda_program.h.
//
// A Block has `threads`, run(body), which calls body(thread) for each thread and ends with a
// barrier, and add(target, value), an atomic addition.
#ifndef JAXKERN_IMAGE_CUDA_PROGRAM_BLOCK_H_
#define JAXKERN_IMAGE_CUDA_PROGRAM_BLOCK_H_

#include <cstdint>

#include "core/host_device.h"
#include "image/blur.h"
#include "image/pixel.h"
#include "image/program.h"

namespace jaxkern::image {

constexpr int32_t kProgramThreads = 512;
constexpr int64_t kProgramBlocks = 264;  // two per multiprocessor of the largest device

// Shared memory of a block.
struct ProgramShared {
  int32_t op;
  float values[kProgramValues];
  uint32_t count[3][256];
  uint8_t level[3][256];
  float low[3], scale[3], mean;
  int32_t reach_x, reach_y;
  unsigned long long luma;  // exact sum of the luma of bytes
  union {
    double part[kProgramThreads];  // per thread, added in the order of threads
    struct {
      float least[3][kProgramThreads], most[3][kProgramThreads], sum[3][kProgramThreads];
    } range;
    struct {
      double x[kMaxBlurReach + 1], y[kMaxBlurReach + 1];
    } weight;
  };
};

// Global memory of one block: a second image and, if steps declare them, the kept image and the sum
// of a mean, the column sums of a blur, and the random numbers and the field of an elastic warp.
struct ProgramMemory {
  int64_t kept_image, sum, columns, numbers, field, bytes;  // offsets, and the total size
};
JAXKERN_HD ProgramMemory program_memory(const ProgramCall& call) {
  const auto padded = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const int64_t image = padded(call.image_bytes());
  const bool means = call.has_means();
  ProgramMemory memory = {};
  memory.kept_image = image;
  memory.sum = memory.kept_image + (means ? image : 0);
  memory.columns = memory.sum + (means ? padded(call.elements() * 4) : 0);
  const bool fields = call.has_fields();
  const int64_t of_field = padded(static_cast<int64_t>(call.height) * call.width * 8);
  memory.numbers =
      memory.columns + (call.may_draw(Code::kBlur) || fields ? padded(call.elements() * 8) : 0);
  memory.field = memory.numbers + (fields ? of_field : 0);
  memory.bytes = memory.field + (fields ? 2 * of_field : 0);
  return memory;
}

inline int64_t program_blocks(const ProgramCall& call) {
  return call.samples < kProgramBlocks ? call.samples : kProgramBlocks;
}

// The image that the steps work on, and memory for the steps that cannot work in place.
template <typename T, int C, typename Block>
struct ProgramBlock {
  static constexpr bool kBytes = sizeof(T) == 1;
  static constexpr int kColours = C == 4 ? 3 : C;

  const ProgramCall& call;
  ProgramShared& shared;
  Block& block;
  char* scratch;
  T* image = nullptr;
  T* other = nullptr;
  int32_t height = 0, width = 0;
  int64_t pixels = 0;

  JAXKERN_HD_MEMBER ProgramBlock(const ProgramCall& call, ProgramShared& shared, Block& block,
                                 char* scratch)
      : call(call), shared(shared), block(block), scratch(scratch) {}

  // Calls body(i) for i < count, and ends with a barrier.
  template <typename Body>
  JAXKERN_HD_MEMBER void each(int64_t count, const Body& body) {
    block.run([&](int32_t thread) {
      for (int64_t i = thread; i < count; i += block.threads) body(i);
    });
  }
  JAXKERN_HD_MEMBER void copy(const T* from, T* to) {
    each(call.elements(), [&](int64_t i) { to[i] = from[i]; });
  }
  JAXKERN_HD_MEMBER void swap() {
    T* const before = image;
    image = other;
    other = before;
  }
  JAXKERN_HD_MEMBER Blend blend() const { return blend_of(shared.values); }

  // Replaces each colour value by map(channel, value).
  template <typename Map>
  JAXKERN_HD_MEMBER void map(const Map& map) {
    each(pixels, [&](int64_t i) {
      for (int32_t c = 0; c < kColours; ++c) image[i * C + c] = map(c, image[i * C + c]);
    });
  }
  // Calls body(&r, &g, &b) for each pixel, which changes its three colours.
  template <typename Body>
  JAXKERN_HD_MEMBER void map_colours(const Body& body) {
    each(pixels, [&](int64_t i) {
      T* const at = image + i * C;
      float r = at[0], g = at[C > 1 ? 1 : 0], b = at[C > 1 ? 2 : 0];
      body(&r, &g, &b);
      at[0] = static_cast<T>(r);
      at[C > 1 ? 1 : 0] = static_cast<T>(g);
      at[C > 1 ? 2 : 0] = static_cast<T>(b);
    });
  }
};

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_CUDA_PROGRAM_BLOCK_H_
