// The state of a group of blocks that runs the CUDA image program on an image, its memory, and
// loops over it; see cuda_program.h. A small batch has fewer images than a GPU has multiprocessors,
// so several blocks share an image: a group acts as one block of more threads.
//
// A Block, which is such a group, has `threads`, run(body), which calls body(thread) for each
// thread and ends with a barrier, and add(target, value), an atomic addition. `width`
// consecutive threads share counts(thread).
#ifndef JAXKERN_IMAGE_CUDA_PROGRAM_BLOCK_H_
#define JAXKERN_IMAGE_CUDA_PROGRAM_BLOCK_H_

#include <algorithm>
#include <cstdint>

#include "core/host_device.h"
#include "image/blur.h"
#include "image/pixel.h"
#include "image/program.h"

namespace jaxkern::image {

constexpr int32_t kProgramThreads = 256;       // of a block
constexpr int64_t kMaxProgramGroup = 16;       // blocks of an image
constexpr int64_t kMinProgramPixels = 2048;    // of a block, if several share an image
constexpr int64_t kProgramBarrierBytes = 256;  // of a group's counter, in a line of its own
constexpr int32_t kProgramLanes = 64;          // threads that add the results of all threads

// Groups of blocks. A group waits for all of its blocks, so all of them must be resident at once.
struct ProgramGrid {
  int64_t groups = 1, blocks = 1;  // `blocks` of each group

  int64_t threads() const { return blocks * kProgramThreads; }
};

// The grid on a device where `resident` blocks run at once.
inline ProgramGrid program_grid(const ProgramCall& call, int64_t resident) {
  ProgramGrid grid;
  grid.groups = std::clamp<int64_t>(call.samples, 1, std::max<int64_t>(resident, 1));
  const int64_t pixels = static_cast<int64_t>(call.height) * call.width;
  const int64_t most = std::min(resident / grid.groups, pixels / kMinProgramPixels);
  grid.blocks = std::clamp<int64_t>(most, 1, kMaxProgramGroup);
  return grid;
}

// Memory that the threads of a group share: shared memory of a single block, else global memory.
struct ProgramShared {
  int32_t op;
  float values[kProgramValues];
  uint32_t count[3][256];
  uint8_t level[3][256];
  float low[3], scale[3], mean;
  int32_t reach_x, reach_y;
  unsigned long long luma;  // exact sum of the luma of bytes
  struct {
    double x[kMaxBlurReach + 1], y[kMaxBlurReach + 1];
  } weight;
};

// A thread's part of a reduction over the image; the parts are combined in a fixed order.
union ProgramPart {
  double sum;
  struct {
    float least[3], most[3], sum[3];
  } range;
};

// Global memory of a group: a second image and, if steps declare them, the kept image and the sum
// of a mean, the column sums of a blur, the random numbers and the field of an elastic warp; then a
// ProgramPart for each thread, and the ProgramShared.
struct ProgramMemory {
  int64_t kept_image, sum, columns, numbers, field, parts, shared, bytes;  // offsets, and the size
};
inline ProgramMemory program_memory(const ProgramCall& call, int64_t threads) {
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
  memory.parts = memory.field + (fields ? 2 * of_field : 0);
  memory.shared = memory.parts + padded(threads * static_cast<int64_t>(sizeof(ProgramPart)));
  memory.bytes = memory.shared + padded(sizeof(ProgramShared));
  return memory;
}

// Bytes of scratch memory of a launch: the counters of all groups, then the memory of each.
inline int64_t program_scratch(const ProgramCall& call, const ProgramGrid& grid) {
  return grid.groups * (kProgramBarrierBytes + program_memory(call, grid.threads()).bytes);
}

// The image that the steps work on, and memory for the steps that cannot work in place.
template <typename T, int C, typename Block>
struct ProgramBlock {
  static constexpr bool kBytes = sizeof(T) == 1;
  static constexpr int kColours = C == 4 ? 3 : C;

  const ProgramCall& call;
  const ProgramMemory& memory;
  ProgramShared& shared;
  Block& block;
  char* scratch;
  T* image = nullptr;
  T* other = nullptr;
  int32_t height = 0, width = 0;
  int64_t pixels = 0;

  JAXKERN_HD_MEMBER ProgramBlock(const ProgramCall& call, const ProgramMemory& memory,
                                 ProgramShared& shared, Block& block, char* scratch)
      : call(call), memory(memory), shared(shared), block(block), scratch(scratch) {}

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
  JAXKERN_HD_MEMBER ProgramPart* parts() const {
    return reinterpret_cast<ProgramPart*>(scratch + memory.parts);
  }
  // Adds the parts of all threads to those of the first kProgramLanes, and ends with a barrier.
  template <typename Add>
  JAXKERN_HD_MEMBER void add_parts(const Add& add) {
    block.run([&](int32_t thread) {
      if (thread >= kProgramLanes) return;
      ProgramPart part = parts()[thread];
      for (int32_t t = thread + kProgramLanes; t < block.threads; t += kProgramLanes) {
        add(part, parts()[t]);
      }
      parts()[thread] = part;
    });
  }
  JAXKERN_HD_MEMBER int32_t lanes() const {
    return block.threads < kProgramLanes ? block.threads : kProgramLanes;
  }

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
