// The call of an image program: its steps from attributes, and scratch memory to run it.
#ifndef JAXKERN_IMAGE_PROGRAM_CALL_H_
#define JAXKERN_IMAGE_PROGRAM_CALL_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>

#include "image/program.h"

namespace jaxkern::image {

// Sets the steps of a call whose channels are set, from the ops' attributes: codes and
// interpolation [P], kernel [P * 2], fill [P * C], with P at most kMaxProgramSteps. Returns "", or
// an error message that starts with the attribute's name.
template <typename Integers, typename Floats>
std::string set_steps(const Integers& codes, const Integers& interpolation, const Integers& kernel,
                      const Floats& fill, ProgramCall* call) {
  const size_t channels = static_cast<size_t>(call->channels);
  call->steps = static_cast<int32_t>(codes.size());
  for (size_t s = 0; s < codes.size(); ++s) {
    ProgramStep& step = call->step[s];
    step = {codes[s], interpolation[s], kernel[2 * s], kernel[2 * s + 1], {}};
    for (size_t k = 0; k < channels; ++k) step.fill[k] = fill[s * channels + k];
    if (step.interpolation != 0 && step.interpolation != 1) {
      return "'interpolation': expected 0 (nearest) or 1 (bilinear), got " +
             std::to_string(step.interpolation);
    }
    for (const int32_t size : {step.kernel_x, step.kernel_y}) {
      if (size < 1 || size % 2 == 0 || size > kMaxBlurKernel) {
        return "'kernel': expected odd sizes from 1 to " + std::to_string(kMaxBlurKernel) +
               ", got " + std::to_string(size);
      }
    }
  }
  return {};
}

// Scratch that each thread keeps between calls. Larger images allocate theirs for the call.
constexpr size_t kThreadScratchBytes = size_t{8} << 20;

// Runs samples [begin, end) of a checked call.
inline void run_program_samples(const ProgramCall& call, int64_t begin, int64_t end) {
  const size_t bytes = program_scratch_bytes(call);
  if (bytes <= kThreadScratchBytes) {
    return program_samples(call, begin, end, thread_scratch<kThreadScratchBytes>());
  }
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  const std::unique_ptr<char, Free> scratch(static_cast<char*>(std::aligned_alloc(64, bytes)));
  if (!scratch) throw std::bad_alloc();
  program_samples(call, begin, end, scratch.get());
}

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_PROGRAM_CALL_H_
