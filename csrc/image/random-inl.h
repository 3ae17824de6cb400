// Random numbers of an image, counter by counter. Included by program_levels.cc in the level's
// unnamed namespace.
//
// Number n of a key is a function of the two alone: Threefry-2x32 with 20 rounds (Salmon, Moraes,
// Dror, Shaw, Parallel random numbers: as easy as 1, 2, 3, 2011), as JAX's keys have it, turns a
// counter into two words. Normal numbers come in pairs, by Box and Muller in float64, right to its
// last bits, so that every implementation rounds them to the same levels.

struct NoiseKey {
  uint32_t word[2];
};

constexpr int32_t kCounterBlock = 64;

inline uint32_t rotated(uint32_t x, int32_t bits) { return (x << bits) | (x >> (32 - bits)); }

// The words of counters [first, first + kCounterBlock).
inline void random_words(NoiseKey key, int64_t first, uint32_t* a, uint32_t* b) {
  const uint32_t keys[3] = {key.word[0], key.word[1], key.word[0] ^ key.word[1] ^ 0x1BD11BDAu};
  for (int32_t k = 0; k < kCounterBlock; ++k) {
    const uint64_t counter = static_cast<uint64_t>(first) + static_cast<uint64_t>(k);
    a[k] = static_cast<uint32_t>(counter >> 32) + keys[0];
    b[k] = static_cast<uint32_t>(counter) + keys[1];
  }
  constexpr int32_t kTurns[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  for (int32_t group = 0; group < 5; ++group) {
    const uint32_t more_a = keys[(group + 1) % 3];
    const uint32_t more_b = keys[(group + 2) % 3] + static_cast<uint32_t>(group) + 1;
    const int32_t* const turns = kTurns[group % 2];
    for (int32_t k = 0; k < kCounterBlock; ++k) {
      uint32_t x = a[k], y = b[k];
      for (int32_t round = 0; round < 4; ++round) {
        x += y;
        y = rotated(y, turns[round]) ^ x;
      }
      a[k] = x + more_a;
      b[k] = y + more_b;
    }
  }
}

inline uint64_t bits_of(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline double of_bits(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// ln x of a normal number: of its exponent, and of its significand between the roots of 1/2 and 2
// the series of 2 artanh((m - 1) / (m + 1)).
inline double natural_logarithm(double x) {
  const uint64_t bits = bits_of(x);
  // A whole number below 2^52 as a float64, without a conversion of 64-bit integers.
  double exponent = of_bits((bits >> 52) | 0x4330000000000000u) - 0x1p52 - 1023.0;
  double m = of_bits((bits & 0x000FFFFFFFFFFFFFu) | 0x3FF0000000000000u);
  const bool upper = m > 1.4142135623730951;
  m = upper ? 0.5 * m : m;
  exponent = upper ? exponent + 1.0 : exponent;
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  double series = 1.0 / 19;
  for (int32_t k = 17; k >= 1; k -= 2) series = series * z + 1.0 / k;
  return exponent * 0.6931471805599453 + 2.0 * s * series;
}

// The two numbers of a pair: radius times the cosine and the sine of b / 2^32 turns. Of a quarter
// turn, counted from its middle, Taylor's series.
inline void normal_pair(uint32_t a, uint32_t b, double* first, double* second) {
  const double uniform =
      (static_cast<double>(static_cast<int32_t>(a ^ 0x80000000u)) + 0x1p31 + 0.5);
  const double radius = sqrt(-2.0 * natural_logarithm(uniform * 0x1p-32));
  const int32_t part = static_cast<int32_t>(b & 0x3FFFFFFFu) - (1 << 29);
  const double t = static_cast<double>(part) * (1.5707963267948966 * 0x1p-30), z = t * t;
  double sine = 1.0, cosine = 1.0;
  for (int32_t k = 8; k >= 1; --k) {
    sine = 1.0 - sine * z * (1.0 / (2 * k * (2 * k + 1)));
    cosine = 1.0 - cosine * z * (1.0 / (2 * k * (2 * k - 1)));
  }
  sine *= t;
  const double across = (cosine - sine) * 0.7071067811865476;
  const double down = (cosine + sine) * 0.7071067811865476;
  const bool odd = (b >> 30 & 1) != 0, half = b >> 31 != 0;
  const double x = odd ? -down : across, y = odd ? across : down;
  *first = radius * (half ? -x : x);
  *second = radius * (half ? -y : y);
}

// Runs body(begin, count, numbers) over the normal numbers [begin, end) of a key, some at a time.
template <typename Body>
inline void for_normals(NoiseKey key, int64_t begin, int64_t end, const Body& body) {
  uint32_t a[kCounterBlock], b[kCounterBlock];
  double first[kCounterBlock], second[kCounterBlock], numbers[2 * kCounterBlock];
  for (int64_t start = begin / 2; 2 * start < end; start += kCounterBlock) {
    random_words(key, start, a, b);
    for (int32_t k = 0; k < kCounterBlock; ++k) normal_pair(a[k], b[k], &first[k], &second[k]);
    for (int32_t k = 0; k < kCounterBlock; ++k) {
      numbers[2 * k] = first[k];
      numbers[2 * k + 1] = second[k];
    }
    const int64_t from = 2 * start < begin ? begin : 2 * start;
    const int64_t to = 2 * (start + kCounterBlock) < end ? 2 * (start + kCounterBlock) : end;
    body(from, to - from, numbers + (from - 2 * start));
  }
}
