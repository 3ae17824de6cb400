// Calls a kernel of the instruction-set level in use, with its thread's working memory.
#ifndef JAXKERN_CORE_CALL_LEVEL_H_
#define JAXKERN_CORE_CALL_LEVEL_H_

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

#include "core/simd_level.h"

// Returns function(...) of the namespace of that level: portable, v2, v3 or v4.
#if defined(__x86_64__)
#define JAXKERN_CALL_LEVEL(function, ...)     \
  switch (::jaxkern::simd_level()) {          \
    case ::jaxkern::SimdLevel::kV4:           \
      return v4::function(__VA_ARGS__);       \
    case ::jaxkern::SimdLevel::kV3:           \
      return v3::function(__VA_ARGS__);       \
    case ::jaxkern::SimdLevel::kV2:           \
      return v2::function(__VA_ARGS__);       \
    case ::jaxkern::SimdLevel::kPortable:     \
      return portable::function(__VA_ARGS__); \
  }
#else
#define JAXKERN_CALL_LEVEL(function, ...) return portable::function(__VA_ARGS__)
#endif

namespace jaxkern {

// kBytes of memory of this thread, aligned to 64, for the kernel that it runs next. Kept for the
// thread's life: a fresh block would cost page faults at every call. Pages that nothing has touched
// take no memory.
template <size_t kBytes>
char* thread_scratch() {
  static_assert(kBytes % 64 == 0);
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  thread_local std::unique_ptr<char, Free> scratch(
      static_cast<char*>(std::aligned_alloc(64, kBytes)));
  if (!scratch) throw std::bad_alloc();
  return scratch.get();
}

}  // namespace jaxkern

#endif  // JAXKERN_CORE_CALL_LEVEL_H_
