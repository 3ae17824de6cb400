// What a block of threads of the CUDA image program works on, and loops over it: see
// cuda_program.h.
//
// A block has `threads` and run(body), which calls body(thread) for each of them with a barrier
// behind it, and add(where, value), which threads may call at once.
#ifndef JAXKERN_IMAGE_CUDA_PROGRAM_BLOCK_H_
#define JAXKERN_IMAGE_CUDA_PROGRAM_BLOCK_H_

#include <cstdint>

#include "core/host_device.h"
#include "image/cuda_program_memory.h"
#include "image/pixel.h"
#include "image/program.h"

namespace jaxkern::image {

// An image in work, and memory for what cannot be done in place.
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

  // body(i) for i < count, with a barrier behind.
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

  // Each value of a colour through map(channel, value).
  template <typename Map>
  JAXKERN_HD_MEMBER void map(const Map& map) {
    each(pixels, [&](int64_t i) {
      for (int32_t c = 0; c < kColours; ++c) image[i * C + c] = map(c, image[i * C + c]);
    });
  }
  // Each pixel's three colours through body(r, g, b).
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
