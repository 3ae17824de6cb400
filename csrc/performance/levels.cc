// The loops of the machine probes, compiled once per instruction-set level into the namespace
// JAXKERN_LEVEL. They use vector types, so the ceilings do not depend on auto-vectorization.
#include "performance/levels.h"

#include "core/simd-inl.h"

namespace jaxkern::performance::JAXKERN_LEVEL {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

typedef uint64_t Words __attribute__((vector_size(kVectorBytes)));
constexpr int kBlockVectors = kBlockBytes / kVectorBytes;

// Enough chains to keep every unit busy: latency times units is 8 on current x86 chips and 16 on
// the widest Arm chips. Chains and two constants must fit in the registers: 16, or 32 with AVX-512
// and on Arm.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kChains = 20;
#else
constexpr int kChains = 12;
#endif

inline void stream(Words* target, Words value) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(target), reinterpret_cast<__m512i>(value));
#elif defined(__AVX2__)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(target), reinterpret_cast<__m256i>(value));
#elif defined(__x86_64__)
  _mm_stream_si128(reinterpret_cast<__m128i*>(target), reinterpret_cast<__m128i>(value));
#else
  *target = value;
#endif
}

// Orders streaming stores before later stores.
inline void finish_stream() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

template <typename Real>
struct Chains {
  typedef Real Vector __attribute__((vector_size(kVectorBytes)));
  static constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(Real));

  static double run(int64_t rounds, Real start) {
    Vector x[kChains];
    for (int k = 0; k < kChains; ++k) x[k] = Vector{} + (start + static_cast<Real>(k));
    // Hides the constants from the compiler, because repeated x / 2 + 1 has a closed form.
    Vector factor = Vector{} + static_cast<Real>(0.5), term = Vector{} + static_cast<Real>(1);
#if defined(__GNUC__)
    __asm__ volatile("" : : "r"(&factor), "r"(&term) : "memory");
#endif
    const Vector a = factor, b = term;
    for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 20
      for (int k = 0; k < kChains; ++k) x[k] = x[k] * a + b;
    }
    double sum = 0;
    for (int k = 0; k < kChains; ++k) {
      for (int lane = 0; lane < kLanes; ++lane) sum += static_cast<double>(x[k][lane]);
    }
    return sum / (kChains * kLanes);
  }
};

}  // namespace

uint64_t load_bytes(const char* source, int64_t bytes) {
  Words sums[8] = {};
  for (int64_t offset = 0; offset < bytes; offset += kBlockBytes) {
    const Words* words = reinterpret_cast<const Words*>(source + offset);
#pragma GCC unroll 8
    for (int k = 0; k < kBlockVectors; ++k) sums[k % 8] += words[k];
  }
  uint64_t total = 0;
  for (int k = 0; k < 8; ++k) {
    for (uint64_t lane = 0; lane < kVectorBytes / sizeof(uint64_t); ++lane) total += sums[k][lane];
  }
  return total;
}

void store_bytes(char* target, int64_t bytes, uint64_t value, bool streaming) {
  const Words words = Words{} + value;
  for (int64_t offset = 0; offset < bytes; offset += kBlockBytes) {
    Words* block = reinterpret_cast<Words*>(target + offset);
    if (streaming) {
      for (int k = 0; k < kBlockVectors; ++k) stream(block + k, words);
    } else {
      for (int k = 0; k < kBlockVectors; ++k) block[k] = words;
    }
  }
  if (streaming) finish_stream();
}

void copy_bytes(const char* source, char* target, int64_t bytes, bool streaming) {
  for (int64_t offset = 0; offset < bytes; offset += kBlockBytes) {
    const Words* words = reinterpret_cast<const Words*>(source + offset);
    Words* block = reinterpret_cast<Words*>(target + offset);
    if (streaming) {
      for (int k = 0; k < kBlockVectors; ++k) stream(block + k, words[k]);
    } else {
      for (int k = 0; k < kBlockVectors; ++k) block[k] = words[k];
    }
  }
  if (streaming) finish_stream();
}

double multiply_add_f32(int64_t rounds, float start) { return Chains<float>::run(rounds, start); }
double multiply_add_f64(int64_t rounds, double start) { return Chains<double>::run(rounds, start); }

int64_t round_flops_f32() { return 2 * kChains * Chains<float>::kLanes; }
int64_t round_flops_f64() { return 2 * kChains * Chains<double>::kLanes; }

}  // namespace jaxkern::performance::JAXKERN_LEVEL
