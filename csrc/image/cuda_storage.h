// Loads and stores of pixels in CUDA bodies: read-only loads, hardware conversions of half types
// and 16-byte stores on the device, and the shared scalar functions on the host.
#ifndef JAXKERN_IMAGE_CUDA_STORAGE_H_
#define JAXKERN_IMAGE_CUDA_STORAGE_H_

#include <cstdint>
#include <cstring>

#include "core/half.h"
#include "core/host_device.h"
#include "image/arithmetic.h"
#include "image/plan.h"

namespace jaxkern::image {

JAXKERN_HD int32_t highest_bit(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return 31 - __clz(static_cast<int>(bits));
#else
  return 31 - __builtin_clz(bits);
#endif
}

// Loads memory that the kernel does not write.
template <Dtype dtype>
JAXKERN_HD float read_only(const typename Stored<dtype>::Type* at) {
#ifdef __CUDA_ARCH__
  const auto bits = __ldg(at);
  if constexpr (dtype == Dtype::kF16) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  } else if constexpr (dtype == Dtype::kBF16) {
    return bfloat16_to_float(bits);
  } else {
    return static_cast<float>(bits);
  }
#else
  return load_value<dtype>(at, 0);
#endif
}

// Packs two values into a word, the first in the lower half, rounded to nearest even.
template <Dtype dtype>
JAXKERN_HD uint32_t pack_halves(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800  // these instructions
  uint32_t word;
  if constexpr (dtype == Dtype::kF16)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
#else
  const auto bits = [](float value) -> uint32_t {
    return dtype == Dtype::kF16 ? float_to_float16(value) : float_to_bfloat16(value);
  };
  return bits(low) | bits(high) << 16;
#endif
}

struct alignas(16) Words {
  uint32_t word[4];
};

struct alignas(16) Floats {
  float value[4];
};

// A misaligned vector access ends the process on the device, and also in a test on the host.
inline void trap_misaligned(const void* at) {
  if (reinterpret_cast<uintptr_t>(at) % 16 != 0) __builtin_trap();
}

// Loads four floats from an address that is a multiple of 16 bytes.
JAXKERN_HD Floats load_floats(const float* at) {
#ifdef __CUDA_ARCH__
  return *reinterpret_cast<const Floats*>(at);
#else
  Floats floats;
  trap_misaligned(at);
  memcpy(&floats, at, sizeof floats);
  return floats;
#endif
}

JAXKERN_HD void store_words(const Words& words, void* at) {
#ifdef __CUDA_ARCH__
  *static_cast<Words*>(at) = words;
#else
  trap_misaligned(at);
  memcpy(at, &words, sizeof words);
#endif
}

// Casts the staged floats that fill 16 bytes and stores them. Both pointers are aligned to 16
// bytes.
template <Dtype dtype>
JAXKERN_HD void store_vector(const float* staged, typename Stored<dtype>::Type* at) {
  Words words;
  if constexpr (dtype == Dtype::kF32) {
    const Floats four = load_floats(staged);
    JAXKERN_UNROLL
    for (int i = 0; i < 4; ++i) words.word[i] = float_bits(four.value[i]);
  } else if constexpr (dtype == Dtype::kU8) {
    JAXKERN_UNROLL
    for (int i = 0; i < 4; ++i) {
      const Floats four = load_floats(staged + 4 * i);
      words.word[i] = 0;
      JAXKERN_UNROLL
      for (int k = 0; k < 4; ++k)
        words.word[i] |= static_cast<uint32_t>(static_cast<int32_t>(four.value[k])) << (8 * k);
    }
  } else {
    JAXKERN_UNROLL
    for (int i = 0; i < 4; i += 2) {
      const Floats four = load_floats(staged + 2 * i);
      words.word[i] = pack_halves<dtype>(four.value[0], four.value[1]);
      words.word[i + 1] = pack_halves<dtype>(four.value[2], four.value[3]);
    }
  }
  store_words(words, at);
}

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_CUDA_STORAGE_H_
