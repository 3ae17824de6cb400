// Products of a pixel's dense sums: s holds n sums, and behind them zeros as far as a loop looks.

// Sums that a loop takes at once: s must have zeros up to the next multiple and `last` beyond.
constexpr int64_t kDenseStep = 64;

template <typename Wide, typename T>
inline void four_products(const T* s, const T* s0, const T* s1, const T* s2, const T* s3,
                          int64_t steps, Wide* out) {
  Wide a0 = 0, a1 = 0, a2 = 0, a3 = 0;
  for (int64_t k = 0; k < steps * kDenseStep; ++k) {
    const auto x = static_cast<Wide>(s[k]);
    a0 += x * static_cast<Wide>(s0[k]);
    a1 += x * static_cast<Wide>(s1[k]);
    a2 += x * static_cast<Wide>(s2[k]);
    a3 += x * static_cast<Wide>(s3[k]);
  }
  out[0] = a0;
  out[1] = a1;
  out[2] = a2;
  out[3] = a3;
}

// out[t] = sum_k s[k] other[k + sign t] for t = first .. last.
template <typename Wide, typename T>
inline void products_of(const T* s, const T* other, int64_t n, int64_t first, int64_t last,
                        int64_t sign, uint64_t* out) {
  const int64_t steps = (n + kDenseStep - 1) / kDenseStep;
  for (int64_t t = first; t <= last; t += 4) {
    Wide sums[4];
    const auto at = [&](int64_t j) { return other + sign * (t + j < last ? t + j : last); };
    four_products<Wide>(s, at(0), at(1), at(2), at(3), steps, sums);
    for (int64_t j = 0; j < 4 && t + j <= last; ++j) out[t + j] = static_cast<uint64_t>(sums[j]);
  }
}

inline void ratios_of(const uint64_t* own, int64_t n, const double* pairs,
                      uint64_t* __restrict sums, double* __restrict ratios) {
  const uint64_t *G = own, *IP = own + n, *IF = own + 2 * n;
  for (int64_t i = 0; i < 3 * n; ++i) sums[i] += own[i];
  for (int64_t tau = 0; tau < n; ++tau) {
    const double light = static_cast<double>(IP[tau]) * static_cast<double>(IF[tau]);
    const double ratio = static_cast<double>(G[tau]) * pairs[tau] / (light == 0 ? 1 : light);
    ratios[tau] = light == 0 ? 0 : ratio;
  }
}

// s[k] = s[2 k] + s[2 k + 1], a few at a time so that what is read was not written.
template <typename T>
inline void merge_neighbours(T* s, int64_t n) {
  int64_t k = 0;
  for (; k + kDenseStep <= n; k += kDenseStep) {
    T merged[kDenseStep];
    const T* from = s + 2 * k;
    for (int64_t i = 0; i < kDenseStep; ++i)
      merged[i] = static_cast<T>(from[2 * i] + from[2 * i + 1]);
    std::memcpy(s + k, merged, sizeof(merged));
  }
  for (; k < n; ++k) s[k] = static_cast<T>(s[2 * k] + s[2 * k + 1]);
}
