// The Doubles of simd-inl.h.

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

// The sum of the lanes, always in the same order.
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

// exp to 1 unit in the last place or so: 2^k exp(r), |r| <= ln(2)/2, with the Taylor series of
// exp(r), whose next term is 4e-18. Below -708 it is 0; the argument is at most 700. NaN stays NaN.
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

// to[j][i] = from[i][j] for i < rows, j < columns, both rounded up to whole vectors: the rows of
// either buffer lie `from_pitch` and `to_pitch` doubles apart and have room for that.
inline void transpose(const double* from, int64_t from_pitch, int64_t rows, int64_t columns,
                      double* to, int64_t to_pitch) {
#if defined(__AVX__) && !defined(__AVX512F__)
  for (int64_t j = 0; j < columns; j += 4) {
    for (int64_t i = 0; i < rows; i += 4) {
      const double* corner = from + i * from_pitch + j;
      const Doubles r0 = load(corner), r1 = load(corner + from_pitch);
      const Doubles r2 = load(corner + 2 * from_pitch), r3 = load(corner + 3 * from_pitch);
      const Doubles even01 = __builtin_shuffle(r0, r1, Mask{0, 4, 2, 6});
      const Doubles odd01 = __builtin_shuffle(r0, r1, Mask{1, 5, 3, 7});
      const Doubles even23 = __builtin_shuffle(r2, r3, Mask{0, 4, 2, 6});
      const Doubles odd23 = __builtin_shuffle(r2, r3, Mask{1, 5, 3, 7});
      double* turned = to + j * to_pitch + i;
      store(turned, __builtin_shuffle(even01, even23, Mask{0, 1, 4, 5}));
      store(turned + to_pitch, __builtin_shuffle(odd01, odd23, Mask{0, 1, 4, 5}));
      store(turned + 2 * to_pitch, __builtin_shuffle(even01, even23, Mask{2, 3, 6, 7}));
      store(turned + 3 * to_pitch, __builtin_shuffle(odd01, odd23, Mask{2, 3, 6, 7}));
    }
  }
#else
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) to[j * to_pitch + i] = from[i * from_pitch + j];
  }
#endif
}
