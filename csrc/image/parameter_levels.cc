// The loops of parameter programs, compiled once per SIMD level with every product rounded before
// it is added.
#include <cmath>
#include <cstring>

#include "image/parameters.h"
#include "image/random.h"

// The iterations of a loop over lanes are independent; clang compares the addresses instead.
#if defined(__clang__)
#define JAXKERN_INDEPENDENT
#else
#define JAXKERN_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

constexpr int64_t kLanes = kParameterLanes;

template <typename T>
inline T load(const char* from, int64_t lane) {
  T value;
  memcpy(&value, from + lane * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
inline void store(char* to, int64_t lane, T value) {
  memcpy(to + lane * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

// Truncates a number; NaN becomes 0, and numbers outside the range its ends.
inline int32_t truncated(double x) {
  const double above = x > -2147483648.0 ? x : -2147483648.0;
  const double inside = above < 2147483647.0 ? above : 2147483647.0;
  return x == x ? static_cast<int32_t>(inside) : 0;
}

inline float inverse_erf(float x) {
  // M. Giles, Approximating the erfinv function, 2010.
  const float kSmall[] = {2.81022636e-08f,  3.43273939e-07f, -3.5233877e-06f,
                          -4.39150654e-06f, 0.00021858087f,  -0.00125372503f,
                          -0.00417768164f,  0.246640727f,    1.50140941f};
  const float kLarge[] = {-0.000200214257f, 0.000100950558f, 0.00134934322f,
                          -0.00367342844f,  0.00573950773f,  -0.0076224613f,
                          0.00943887047f,   1.00167406f,     2.83297682f};
  float w = -static_cast<float>(std::log1p(-static_cast<double>(x) * x));
  const bool small = w < 5.f;
  w = small ? w - 2.5f : std::sqrt(w) - 3.f;
  float p = small ? kSmall[0] : kLarge[0];
  for (int k = 1; k < 9; ++k) p = (small ? kSmall[k] : kLarge[k]) + p * w;
  return std::fabs(x) == 1.f ? x * INFINITY : p * x;
}

// Maps random bits to [0, 1), as jax.random.uniform does.
inline float unit_fraction(uint32_t bits) {
  const uint32_t one = bits >> 9 | 0x3F800000u;
  float x;
  memcpy(&x, &one, sizeof x);
  return x - 1.f;
}

inline NoiseKey folded(NoiseKey key, uint32_t number) {
  random_words(key, number, &key.word[0], &key.word[1]);
  return key;
}

inline uint32_t bits_of_key(NoiseKey key) {
  const NoiseKey words = folded(key, 0);
  return words.word[0] ^ words.word[1];
}

// Draws the logarithm of a gamma variate with the random numbers of jax.random.loggamma. G.
// Marsaglia, W. W. Tsang, A simple method for generating gamma variables, 2000.
inline float log_gamma_variate(NoiseKey key, float alpha) {
  if (!(alpha >= 0.f)) return NAN;
  const bool boosted = alpha < 1.f;
  const float d = (boosted ? alpha + 1.f : alpha) - 1.f / 3.f;
  const float c = 1.f / 3.f / std::sqrt(d);
  const NoiseKey boost_key = folded(key, 1);
  key = folded(key, 0);
  float cube = 1.f;
  // An attempt fails with a probability below 0.05; the bound only excludes an endless loop.
  for (int attempt = 0; attempt < 1000; ++attempt) {
    NoiseKey normal_key = folded(key, 1);
    const NoiseKey uniform_key = folded(key, 2);
    key = folded(key, 0);
    float x = 0.f, v = -1.f;
    for (int inner = 0; v <= 0.f && inner < 1000; ++inner) {
      const NoiseKey own = folded(normal_key, 1);
      normal_key = folded(normal_key, 0);
      const float low = -0.99999994f;
      const float u = unit_fraction(bits_of_key(own)) * (1.f - low) + low;
      x = 1.41421356f * inverse_erf(u < low ? low : u);
      v = 1.f + x * c;
    }
    const float square = x * x;
    cube = v * v * v;
    const float u = unit_fraction(bits_of_key(uniform_key));
    if (u < 1.f - 0.0331f * (square * square)) break;
    if (std::log(u) < square * 0.5f + d * (1.f - cube + std::log(cube))) break;
  }
  float result = std::log(d) + std::log(cube);
  const float uniform = unit_fraction(bits_of_key(boost_key));
  if (boosted && uniform > 0.f) result += std::log1p(-uniform) * (1.f / alpha);
  return result;
}

}  // namespace

void run_parameters(const ParameterProgram& program, char* registers) {
  constexpr int64_t kWordBytes = kLanes * 4, kDoubleBytes = kLanes * 8;
  char* const doubles = registers + program.words * kWordBytes;
  for (int64_t n = 0; n < program.instruction_count; ++n) {
    const ParameterInstruction& at = program.instructions[n];
    const auto word = [&](int32_t number) { return registers + number * kWordBytes; };
    const auto wide = [&](int32_t number) { return doubles + number * kDoubleBytes; };
    switch (at.op) {
      // Operands may be the register of the result, of which each lane is read before it is
      // written.
#define JAXKERN_CASE(name, R, T, expression)                         \
  case k_##name: {                                                   \
    char* const out = sizeof(R) == 8 ? wide(at.out) : word(at.out);  \
    const char* const a = sizeof(T) == 8 ? wide(at.x) : word(at.x);  \
    const char* const b = sizeof(T) == 8 ? wide(at.y) : word(at.y);  \
    const char* const c = sizeof(T) == 8 ? wide(at.z) : word(at.z);  \
    JAXKERN_INDEPENDENT for (int64_t i = 0; i < kLanes; ++i) {       \
      const T x = load<T>(a, i);                                     \
      [[maybe_unused]] const T y = load<T>(b, i), z = load<T>(c, i); \
      store<R>(out, i, static_cast<R>(expression));                  \
    }                                                                \
    break;                                                           \
  }
      JAXKERN_LANE_OPS(JAXKERN_CASE)
#undef JAXKERN_CASE
      case k_select_d:
        for (int64_t i = 0; i < kLanes; ++i) {
          const double y = load<double>(wide(at.y), i), z = load<double>(wide(at.z), i);
          store(wide(at.out), i, load<uint32_t>(word(at.x), i) != 0 ? y : z);
        }
        break;
      case k_constant_i:
        for (int64_t i = 0; i < kLanes; ++i) store(word(at.out), i, program.constants[at.x]);
        break;
      case k_constant_d: {
        double value;
        memcpy(&value, program.constants + at.x, sizeof value);
        for (int64_t i = 0; i < kLanes; ++i) store(wide(at.out), i, value);
        break;
      }
      case k_gather_i:
        for (int64_t i = 0; i < kLanes; ++i) {
          const int32_t index = load<int32_t>(word(at.x), i);
          const int32_t inside = index < 0 ? 0 : (index < at.z ? index : at.z - 1);
          store(word(at.out), i, program.constants[at.y + inside]);
        }
        break;
      case k_threefry: {
        const char *const a = word(at.x), *const b = word(at.y), *const c = word(at.z);
        char *const out = word(at.out), *const second = word(at.second);
        JAXKERN_INDEPENDENT for (int64_t i = 0; i < kLanes; ++i) {
          const NoiseKey key = {{load<uint32_t>(a, i), load<uint32_t>(b, i)}};
          uint32_t first_word, second_word;
          random_words(key, load<uint32_t>(c, i), &first_word, &second_word);
          store(out, i, first_word);
          store(second, i, second_word);
        }
        break;
      }
      case k_random_gamma:
        for (int64_t i = 0; i < kLanes; ++i) {
          const NoiseKey key = {{load<uint32_t>(word(at.x), i), load<uint32_t>(word(at.y), i)}};
          store(word(at.out), i, log_gamma_variate(key, load<float>(word(at.z), i)));
        }
        break;
      default:
        break;
    }
  }
}

}  // namespace jaxkern::image::JAXKERN_LEVEL
