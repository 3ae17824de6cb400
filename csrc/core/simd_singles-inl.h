// The Singles of simd-inl.h.

constexpr int kSingles = 2 * kDoubles;

typedef float Singles __attribute__((vector_size(4 * kSingles)));
typedef int32_t Wholes __attribute__((vector_size(4 * kSingles)));
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

// Of words below 2^31, and of floats that an int32 holds, truncated.
JAXKERN_HD Singles to_singles(Words32 x) { return __builtin_convertvector((Wholes)x, Singles); }
JAXKERN_HD Words32 to_words(Singles x) { return (Words32) __builtin_convertvector(x, Wholes); }

#if defined(__FMA__)
constexpr bool kFusedSingles = true;
#else
constexpr bool kFusedSingles = false;
#endif
// a * b + c, rounded once where the level has the instruction.
JAXKERN_HD Singles multiply_add_singles(Singles a, Singles b, Singles c) {
#if defined(__AVX512F__)
  return (Singles)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Singles)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

// Words that hold an int32 each, limited to 0 and 255.
JAXKERN_HD Words32 clamped_bytes(Words32 x) {
#if defined(__AVX512F__)
  constexpr uint16_t kAll = 0xffff;
  const __m512i zero = {}, positive = _mm512_maskz_max_epi32(kAll, (__m512i)x, zero);
  return (Words32)_mm512_maskz_min_epi32(kAll, positive, _mm512_set1_epi32(255));
#elif defined(__AVX2__)
  const __m256i positive = _mm256_max_epi32((__m256i)x, _mm256_setzero_si256());
  return (Words32)_mm256_min_epi32(positive, _mm256_set1_epi32(255));
#else
  const Wholes positive = (Wholes)x > 0 ? (Wholes)x : Wholes{};
  return (Words32)(positive < 255 ? positive : 255 - Wholes{});
#endif
}

// Bit k is the highest of word k.
JAXKERN_HD uint32_t signs(Words32 x) {
#if defined(__AVX512F__)
  return _mm512_cmplt_epi32_mask((__m512i)x, _mm512_setzero_si512());
#elif defined(__AVX__)
  return static_cast<uint32_t>(_mm256_movemask_ps((__m256)x));
#elif defined(__SSE2__)
  return static_cast<uint32_t>(_mm_movemask_ps((__m128)x));
#else
  uint32_t bits = 0;
  for (int k = 0; k < kSingles; ++k) bits |= x[k] >> 31 << k;
  return bits;
#endif
}
