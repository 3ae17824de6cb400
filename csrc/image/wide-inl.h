// Vectors of bytes and floats as wide as the level has them, for byte images. Included by
// program_levels.cc in the level's unnamed namespace.
//
// JAXKERN_WIDE(add_ps) is _mm512_add_ps, or _mm256_add_ps. Shuffles and packs act within lanes of
// 16 bytes; a pixel vector has four pixels in each.

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

// The same 16 numbers in each lane.
inline Wide in_each_lane(const uint8_t (&places)[16]) {
  uint8_t all[kWideBytes];
  for (int32_t k = 0; k < kWideBytes; ++k) all[k] = places[k % 16];
  return load_wide(all);
}

// kWidePixels neighbouring pixels of C bytes, kReach of which must be there: four in each lane.
template <int C>
struct WidePixels {
  static constexpr int32_t kReach = (kWideBytes + C - 1) / C;
  static constexpr uint8_t kNone = 0x80;

  Wide spread, together;  // places of four bytes, in memory's order and back
  Wide channel[C];        // places of its bytes, each at the bottom of 32 bits
  Wide order;             // of the channels' bytes in packed()

  WidePixels() {
    int32_t from[kWidePixels] = {}, to[kWidePixels] = {};
    for (int32_t k = 0; k < kWidePixels; ++k) {
      from[k] = k / 4 * C + k % 4;
      if (k % 4 < C) to[k / 4 * C + k % 4] = k;
    }
    for (int32_t& place : from) place = place < kWidePixels ? place : 0;
    spread = load_wide(from);
    together = load_wide(to);
    uint8_t places[16];
    for (int32_t c = 0; c < C; ++c) {
      for (int32_t k = 0; k < 16; ++k)
        places[k] = k % 4 == 0 ? static_cast<uint8_t>(k / 4 * C + c) : kNone;
      channel[c] = in_each_lane(places);
    }
    for (int32_t k = 0; k < 16; ++k)
      places[k] = k < 4 * C ? static_cast<uint8_t>(k % C * 4 + k / C) : kNone;
    order = in_each_lane(places);
  }

  Wide read(const uint8_t* from) const {
    const Wide x = load_wide(from);
    return C == 4 ? x : permute_wide(x, spread);
  }
  Wide ints_of(Wide pixels, int32_t c) const {
    return JAXKERN_WIDE(shuffle_epi8)(pixels, channel[c]);
  }
  WideFloats channel_of(Wide pixels, int32_t c) const { return floats_of(ints_of(pixels, c)); }
  // Of four channels in 32 bits each, limited to bytes; writes exactly the pixels.
  void write(Wide a, Wide b, Wide c, Wide d, uint8_t* to) const {
    const Wide packed = JAXKERN_WIDE(packus_epi16)(JAXKERN_WIDE(packs_epi32)(a, b),
                                                   JAXKERN_WIDE(packs_epi32)(c, d));
    const Wide bytes = JAXKERN_WIDE(shuffle_epi8)(packed, order);
    if constexpr (C == 4) {
      store_wide(to, bytes);
    } else {
      const Wide first = permute_wide(bytes, together);
      memcpy(to, &first, kWideBytes / 4 * 3);
    }
  }
};

// As luma() of bytes: parts / 10,000 is 1 / 10,000 away from any whole number that it is not, half
// of which is more than what float32 is off.
inline WideFloats wide_luma(WideFloats r, WideFloats g, WideFloats b) {
  const auto all = [](float x) { return JAXKERN_WIDE(set1_ps)(x); };
  const WideFloats parts = JAXKERN_WIDE(fmadd_ps)(
      r, all(2989.f),
      JAXKERN_WIDE(fmadd_ps)(g, all(5870.f), JAXKERN_WIDE(fmadd_ps)(b, all(1140.f), all(0.5f))));
  return floats_of(truncated(JAXKERN_WIDE(mul_ps)(parts, all(1.f / 10000.f))));
}
#endif
