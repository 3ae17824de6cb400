// What a block of the CUDA image program has beside the image: see cuda_program.h.
#ifndef JAXKERN_IMAGE_CUDA_PROGRAM_MEMORY_H_
#define JAXKERN_IMAGE_CUDA_PROGRAM_MEMORY_H_

#include <cstdint>

#include "core/host_device.h"
#include "image/blur.h"
#include "image/program.h"

namespace jaxkern::image {

constexpr int32_t kProgramThreads = 512;
constexpr int64_t kProgramBlocks = 264;  // two for each multiprocessor of the largest device

// What the threads of a block share.
struct ProgramShared {
  int32_t op;
  float values[kProgramValues];
  uint32_t count[3][256];
  uint8_t level[3][256];
  float low[3], scale[3], mean;
  int32_t reach_x, reach_y;
  unsigned long long luma;  // of bytes, summed exactly
  union {
    double part[kProgramThreads];  // of a thread, added in their order
    struct {
      float least[3][kProgramThreads], most[3][kProgramThreads], sum[3][kProgramThreads];
    } range;
    struct {
      double x[kMaxBlurReach + 1], y[kMaxBlurReach + 1];
    } weight;
  };
};

// Memory of one block: an image beside the one in work; where they are declared what a mean keeps
// and its sum, the columns' sums of a blur, and an elastic warp's random numbers and its field.
struct ProgramMemory {
  int64_t kept, sum, columns, numbers, field, bytes;  // where they begin
};
JAXKERN_HD ProgramMemory program_memory(const ProgramCall& call) {
  const auto padded = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const int64_t image = padded(call.image_bytes());
  const bool means = call.has_means();
  ProgramMemory memory = {};
  memory.kept = image;
  memory.sum = memory.kept + (means ? image : 0);
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

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_CUDA_PROGRAM_MEMORY_H_
