// Vectors of the instruction-set level that a file is compiled for.
//
// A file NAME-inl.h holds loops that are compiled once per level. It is an ordinary header: it has
// an include guard, includes what it uses, and puts its code into the unnamed namespace of
// jaxkern::DOMAIN::JAXKERN_LEVEL. The build compiles each levels.cc once per level, with
// -DJAXKERN_LEVEL=portable, v2, v3, v4 or neon and the instructions of that level; only these files
// include -inl.h headers. The unnamed namespace matters: an inline function with external linkage
// would be merged with the copies of other levels, and baseline code could call one with AVX-512
// instructions. For the same reason a loop uses only those functions of the standard library that
// are always inlined. tests/csrc checks that each -inl.h compiles on its own, so editors can
// analyse it.
//
// The vectors, in namespace jaxkern::simd::JAXKERN_LEVEL. Loads and stores accept any address;
// splat fills every element.
//
// - Doubles: kDoubles float64 by the compiler's vector extension, with arithmetic by operators and
//   one source for every level and architecture. A comparison gives a Mask: any(mask), mask ? a :
//   b.
// - Singles: kSingles float32 of the same total width, and Words32, Int32s, Words16 and WordBytes,
//   the integers of that width.
// - Floats: kFloats float32, and Ints, the bytes and integers of the same width, by intrinsics,
//   because compilers do not generate the byte shuffles and streaming stores. A vector has kLanes
//   lanes of four 32-bit values. A byte shuffle acts within a lane: each lane holds a 16-byte
//   window of the input and picks bytes from it (a mask byte of 0x80 picks zero). multiply_pairs
//   adds the products of neighbouring 16-bit words, that is, of two taps of a filter. put_* stores
//   kFloats values of a dtype at any address, put2_* twice as many. stream_* and stream2_* bypass
//   the caches and need an address that is a multiple of 32 (AVX2) or 16 bytes; end_streaming
//   orders them before later stores.
#ifndef JAXKERN_CORE_SIMD_INL_H_
#define JAXKERN_CORE_SIMD_INL_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/half.h"
#include "core/host_device.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(JAXKERN_NEON)  // the level neon; the baseline of aarch64 has the instructions too
#include <arm_neon.h>
#endif

#ifndef JAXKERN_LEVEL
#error "Compile with -DJAXKERN_LEVEL=<portable|v2|v3|v4|neon>"
#endif

namespace jaxkern::simd::JAXKERN_LEVEL {
namespace {

// ---------------------------------------------------------------- Doubles

#if defined(__AVX512F__)
constexpr int kDoubles = 8;
#elif defined(__AVX__)
constexpr int kDoubles = 4;
#else
constexpr int kDoubles = 2;
#endif

typedef double Doubles __attribute__((vector_size(8 * kDoubles)));
typedef int64_t Mask __attribute__((vector_size(8 * kDoubles)));
typedef uint64_t Bits __attribute__((vector_size(8 * kDoubles)));
typedef double LooseDoubles __attribute__((vector_size(8 * kDoubles), aligned(8), may_alias));

JAXKERN_HD Doubles load(const double* from) { return *reinterpret_cast<const LooseDoubles*>(from); }
JAXKERN_HD void store(double* to, Doubles value) { *reinterpret_cast<LooseDoubles*>(to) = value; }
JAXKERN_HD Doubles splat(double value) { return value - Doubles{}; }

JAXKERN_HD bool any(Mask mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi64_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX__)
  return _mm256_movemask_pd((__m256d)mask) != 0;
#elif defined(__SSE2__)
  return _mm_movemask_pd((__m128d)mask) != 0;
#else
  int64_t bits = 0;
  for (int i = 0; i < kDoubles; ++i) bits |= mask[i];
  return bits != 0;
#endif
}

// Adds the lanes, always in the same order.
JAXKERN_HD double total(Doubles v) {
#if defined(__AVX512F__)
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
#elif defined(__AVX__)
  const __m128d pairs =
      _mm_add_pd(_mm256_castpd256_pd128((__m256d)v), _mm256_extractf128_pd((__m256d)v, 1));
  return pairs[0] + pairs[1];
#else
  return v[0] + v[1];
#endif
}

JAXKERN_HD Doubles magnitude(Doubles v) { return (Doubles)((Mask)v & ~(Mask)(-0.0 - Doubles{})); }
JAXKERN_HD Doubles smaller(Doubles a, Doubles b) { return a < b ? a : b; }

// exp to about 1 unit in the last place: 2^k exp(r), |r| <= ln(2)/2, with the Taylor series of
// exp(r), whose next term is 4e-18. Returns 0 below -708. The argument is at most 700. NaN is
// preserved.
JAXKERN_HD Doubles exponential(Doubles x) {
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  const Doubles shifted = x * 1.4426950408889634 + kRound;
  const Doubles k = shifted - kRound;
  const Doubles r = (x - k * 0x1.62e42fefa38p-1) - k * 0x1.ef35793c7673p-45;
  const Doubles s = r * r;
  const Doubles low = (1.0 + r) + s * (0.5 + r * (1.0 / 6));
  const Doubles middle = (1.0 / 24 + r * (1.0 / 120)) + s * (1.0 / 720 + r * (1.0 / 5040));
  const Doubles high =
      (1.0 / 40320 + r * (1.0 / 362880)) + s * ((1.0 / 3628800 + r * (1.0 / 39916800)) +
                                                s * (1.0 / 479001600 + r * (1.0 / 6227020800.0)));
  const Doubles value = low + (s * s) * (middle + (s * s) * high);
  const Doubles scaled = (Doubles)((Bits)value + ((Bits)shifted << 52));
  return x < -708.0 ? Doubles{} : (x != x ? x : scaled);
}

// Sets to[j][i] = from[i][j] for i < rows and j < columns, both rounded up to whole vectors. The
// rows of the buffers are `from_pitch` and `to_pitch` doubles apart and have room for whole
// vectors.
inline void transpose(const double* from, int64_t from_pitch, int64_t rows, int64_t columns,
                      double* to, int64_t to_pitch) {
#if defined(__AVX__) && !defined(__AVX512F__)
  for (int64_t j = 0; j < columns; j += 4) {
    for (int64_t i = 0; i < rows; i += 4) {
      const double* corner = from + i * from_pitch + j;
      const Doubles r0 = load(corner), r1 = load(corner + from_pitch);
      const Doubles r2 = load(corner + 2 * from_pitch), r3 = load(corner + 3 * from_pitch);
      const Doubles even01 = __builtin_shufflevector(r0, r1, 0, 4, 2, 6);
      const Doubles odd01 = __builtin_shufflevector(r0, r1, 1, 5, 3, 7);
      const Doubles even23 = __builtin_shufflevector(r2, r3, 0, 4, 2, 6);
      const Doubles odd23 = __builtin_shufflevector(r2, r3, 1, 5, 3, 7);
      double* turned = to + j * to_pitch + i;
      store(turned, __builtin_shufflevector(even01, even23, 0, 1, 4, 5));
      store(turned + to_pitch, __builtin_shufflevector(odd01, odd23, 0, 1, 4, 5));
      store(turned + 2 * to_pitch, __builtin_shufflevector(even01, even23, 2, 3, 6, 7));
      store(turned + 3 * to_pitch, __builtin_shufflevector(odd01, odd23, 2, 3, 6, 7));
    }
  }
#elif defined(JAXKERN_NEON)
  for (int64_t j = 0; j < columns; j += 2) {
    for (int64_t i = 0; i < rows; i += 2) {
      const double* corner = from + i * from_pitch + j;
      const Doubles r0 = load(corner), r1 = load(corner + from_pitch);
      double* turned = to + j * to_pitch + i;
      store(turned, __builtin_shufflevector(r0, r1, 0, 2));
      store(turned + to_pitch, __builtin_shufflevector(r0, r1, 1, 3));
    }
  }
#else
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) to[j * to_pitch + i] = from[i * from_pitch + j];
  }
#endif
}

// ---------------------------------------------------------------- Singles

constexpr int kSingles = 2 * kDoubles;

typedef float Singles __attribute__((vector_size(4 * kSingles)));
typedef int32_t Int32s __attribute__((vector_size(4 * kSingles)));
typedef uint32_t Words32 __attribute__((vector_size(4 * kSingles)));
typedef uint16_t Words16 __attribute__((vector_size(4 * kSingles)));
typedef uint8_t WordBytes __attribute__((vector_size(4 * kSingles)));

JAXKERN_HD Singles load_singles(const float* from) {
  Singles value;
  memcpy(&value, from, sizeof value);
  return value;
}
JAXKERN_HD void store_singles(float* to, Singles value) { memcpy(to, &value, sizeof value); }
JAXKERN_HD Words32 load_words(const void* from) {
  Words32 value;
  memcpy(&value, from, sizeof value);
  return value;
}

// Conversions of words below 2^31, and of floats within the range of int32, truncated.
JAXKERN_HD Singles to_singles(Words32 x) { return __builtin_convertvector((Int32s)x, Singles); }
JAXKERN_HD Words32 to_words(Singles x) { return (Words32) __builtin_convertvector(x, Int32s); }

#if defined(__FMA__) || defined(JAXKERN_NEON)
constexpr bool kFusedSingles = true;
#else
constexpr bool kFusedSingles = false;
#endif
// a * b + c, rounded once if the level has the instruction.
JAXKERN_HD Singles multiply_add_singles(Singles a, Singles b, Singles c) {
#if defined(__AVX512F__)
  return (Singles)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Singles)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(JAXKERN_NEON)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

JAXKERN_HD Singles floored(Singles x) {
#if defined(__AVX512F__)
  constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  return (Singles)_mm512_maskz_roundscale_ps(0xffff, (__m512)x, kDown);
#elif defined(__AVX__)
  return (Singles)_mm256_floor_ps((__m256)x);
#elif defined(__SSE4_1__)
  return (Singles)_mm_floor_ps((__m128)x);
#elif defined(JAXKERN_NEON)
  return vrndmq_f32(x);
#else
  for (int k = 0; k < kSingles; ++k) x[k] = std::floor(x[k]);
  return x;
#endif
}

// Clamps words that hold int32 values to [0, 255].
JAXKERN_HD Words32 clamped_bytes(Words32 x) {
#if defined(__AVX512F__)
  constexpr uint16_t kAll = 0xffff;
  const __m512i zero = {}, positive = _mm512_maskz_max_epi32(kAll, (__m512i)x, zero);
  return (Words32)_mm512_maskz_min_epi32(kAll, positive, _mm512_set1_epi32(255));
#elif defined(__AVX2__)
  const __m256i positive = _mm256_max_epi32((__m256i)x, _mm256_setzero_si256());
  return (Words32)_mm256_min_epi32(positive, _mm256_set1_epi32(255));
#elif defined(JAXKERN_NEON)
  return (Words32)vminq_s32(vmaxq_s32((Int32s)x, vdupq_n_s32(0)), vdupq_n_s32(255));
#else
  const Int32s positive = (Int32s)x > 0 ? (Int32s)x : Int32s{};
  return (Words32)(positive < 255 ? positive : 255 - Int32s{});
#endif
}

// Returns a mask: bit k is the highest bit of word k.
JAXKERN_HD uint32_t signs(Words32 x) {
#if defined(__AVX512F__)
  return _mm512_cmplt_epi32_mask((__m512i)x, _mm512_setzero_si512());
#elif defined(__AVX__)
  return static_cast<uint32_t>(_mm256_movemask_ps((__m256)x));
#elif defined(__SSE2__)
  return static_cast<uint32_t>(_mm_movemask_ps((__m128)x));
#elif defined(JAXKERN_NEON)
  return vaddvq_u32((x >> 31) << Words32{0, 1, 2, 3});
#else
  uint32_t bits = 0;
  for (int k = 0; k < kSingles; ++k) bits |= x[k] >> 31 << k;
  return bits;
#endif
}

}  // namespace
}  // namespace jaxkern::simd::JAXKERN_LEVEL

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "core/simd_floats_avx2-inl.h"
#elif defined(__SSE4_1__)
#include "core/simd_floats_sse4-inl.h"
#elif defined(JAXKERN_NEON)
#include "core/simd_floats_neon-inl.h"
#else
#include "core/simd_floats_portable-inl.h"
#endif

#endif  // JAXKERN_CORE_SIMD_INL_H_
