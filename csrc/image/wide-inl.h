// Intrinsics of the widest vectors that the level has, for sharpness of bytes.
//
// JAXKERN_WIDE(add_ps) is _mm512_add_ps, or _mm256_add_ps. Packs act within lanes of 16 bytes.
#ifndef JAXKERN_IMAGE_WIDE_INL_H_
#define JAXKERN_IMAGE_WIDE_INL_H_

#include "core/simd-inl.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

#if defined(__AVX512BW__)
#define JAXKERN_WIDE(name) _mm512_##name
using Wide = __m512i;
using HalfWide = __m256i;
using WideFloats = __m512;
#elif defined(__AVX2__) && defined(__FMA__)
#define JAXKERN_WIDE(name) _mm256_##name
using Wide = __m256i;
using HalfWide = __m128i;
using WideFloats = __m256;
#endif

#if defined(JAXKERN_WIDE)
constexpr int32_t kWideBytes = sizeof(Wide);
constexpr int32_t kWidePixels = kWideBytes / 4;

inline Wide load_wide(const void* from) {
  Wide x;
  memcpy(&x, from, sizeof x);
  return x;
}
inline void store_wide(void* to, Wide x) { memcpy(to, &x, sizeof x); }

// By the compiler's vectors where it warns of its own intrinsics.
typedef int32_t WideInts __attribute__((vector_size(kWideBytes)));
inline Wide permute_wide(Wide x, Wide places) {
  return (Wide)__builtin_shuffle((WideInts)x, (WideInts)places);
}
inline WideFloats floats_of(Wide ints) {
  return (WideFloats) __builtin_convertvector((WideInts)ints, WideFloats);
}
inline Wide truncated(WideFloats x) { return (Wide) __builtin_convertvector(x, WideInts); }
#endif

}  // namespace
}  // namespace jaxkern::image::JAXKERN_LEVEL

#endif  // JAXKERN_IMAGE_WIDE_INL_H_
