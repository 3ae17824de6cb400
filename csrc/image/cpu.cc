// Sends each sample to the instruction-set level in use, with its thread's working memory.
#include "image/cpu.h"

#include <cstdlib>
#include <memory>
#include <new>

#include "core/simd_level.h"
#include "image/levels.h"

#if defined(__x86_64__)
#define JAXKERN_CALL_LEVEL(function, ...)     \
  switch (simd_level()) {                     \
    case SimdLevel::kV4:                      \
      return v4::function(__VA_ARGS__);       \
    case SimdLevel::kV3:                      \
      return v3::function(__VA_ARGS__);       \
    case SimdLevel::kV2:                      \
      return v2::function(__VA_ARGS__);       \
    case SimdLevel::kPortable:                \
      return portable::function(__VA_ARGS__); \
  }
#else
#define JAXKERN_CALL_LEVEL(function, ...) return portable::function(__VA_ARGS__)
#endif

namespace jaxkern::image {
namespace {

// Kept for the thread's life: a fresh block would cost page faults at every sample. Pages that no
// chain has touched take no memory.
char* thread_scratch() {
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  thread_local std::unique_ptr<char, Free> scratch(
      static_cast<char*>(std::aligned_alloc(64, kScratchBytes)));
  if (!scratch) throw std::bad_alloc();
  return scratch.get();
}

}  // namespace

void run_sample(const Plan& plan, const Sample& sample, void* output) {
  JAXKERN_CALL_LEVEL(run_sample, plan, sample, output, thread_scratch());
}

void mix_sample(Dtype dtype, Layout layout, int32_t height, int32_t width, int32_t channels,
                const void* x, const void* partner, float lambda, EraseBox box, void* output) {
  JAXKERN_CALL_LEVEL(mix_sample, dtype, layout, height, width, channels, x, partner, lambda, box,
                     output);
}

}  // namespace jaxkern::image
