// Adds a block of frames to the multi-tau state of a strip of pixels.
//
// The sums of a level are stored in rows of kStrip pixels, with the last 2 dpl sums of earlier
// blocks before the new ones. If the sums fit into 15 bits, two neighbouring sums of a pixel share
// a word, and one instruction multiplies two pairs and adds the products. Larger sums are
// multiplied to 64 bits.
#ifndef JAXKERN_CORRELATORS_MULTITAU_INL_H_
#define JAXKERN_CORRELATORS_MULTITAU_INL_H_

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/simd-inl.h"
#include "correlators/multitau.h"

namespace jaxkern::correlators::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

#if defined(__AVX512BW__)
constexpr int kWords = 16;
#elif defined(__AVX2__)
constexpr int kWords = 8;
#else
constexpr int kWords = 4;
#endif
typedef uint32_t Words __attribute__((vector_size(4 * kWords)));
typedef uint32_t LooseWords __attribute__((vector_size(4 * kWords), aligned(4), may_alias));
typedef uint32_t LooseHalves __attribute__((vector_size(4 * kDoubles), aligned(4), may_alias));
typedef uint64_t LooseCount __attribute__((aligned(4), may_alias));
typedef double LooseReal __attribute__((aligned(4), may_alias));
typedef uint32_t LooseWord __attribute__((aligned(4), may_alias));

JAXKERN_HD Words load_words(const uint32_t* from) {
  return *reinterpret_cast<const LooseWords*>(from);
}
JAXKERN_HD void store_words(uint32_t* to, Words value) {
  *reinterpret_cast<LooseWords*>(to) = value;
}

// low(a) low(b) + high(a) high(b) of the 15-bit halves of each word.
JAXKERN_HD Words multiply_pairs(Words a, Words b) {
#if defined(__AVX512BW__)
  return (Words)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Words)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (Words)_mm_madd_epi16((__m128i)a, (__m128i)b);
#elif defined(JAXKERN_NEON)
  return (Words)add_word_products((int16x8_t)a, (int16x8_t)b);
#else
  return (a & 0xffff) * (b & 0xffff) + (a >> 16) * (b >> 16);
#endif
}

// Types of sums of frames (Row) and of their products.
template <typename Row>
struct Kind;

template <>
struct Kind<uint32_t> {
  using Sum = LooseCount;
  using Narrow = LooseWord;
  using Vector = Bits;
  JAXKERN_HD_MEMBER static Vector load(const uint32_t* from) {
    return __builtin_convertvector(*reinterpret_cast<const LooseHalves*>(from), Bits);
  }
  JAXKERN_HD_MEMBER static Vector product(Vector a, Vector b) {
#if defined(__AVX512F__)
    return (Bits)_mm512_maskz_mul_epu32(0xff, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (Bits)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__) && !defined(__AVX__)
    return (Bits)_mm_mul_epu32((__m128i)a, (__m128i)b);
#elif defined(JAXKERN_NEON)
    return vmull_u32(vmovn_u64(a), vmovn_u64(b));
#else
    return a * b;
#endif
  }
};

template <>
struct Kind<double> {
  using Sum = LooseReal;
  using Narrow = LooseReal;
  using Vector = Doubles;
  JAXKERN_HD_MEMBER static Vector load(const double* from) {
    return *reinterpret_cast<const LooseDoubles*>(from);
  }
  JAXKERN_HD_MEMBER static Vector product(Vector a, Vector b) { return a * b; }
};

// Buffers of one thread: the sums of a level, of the next one, and pairs.
template <typename Row>
struct StripRows {
  Row* sums;
  Row* next;
  uint32_t* pairs;
};

// Stores one frame of a strip in a row of sums, or adds it.
template <typename T, typename Row>
inline void load_frame(const char* from, const double* divisor, bool add, Row* __restrict to) {
  typedef T Loose __attribute__((aligned(1), may_alias));
  const Loose* __restrict pixels = reinterpret_cast<const Loose*>(from);
  if constexpr (std::is_same_v<Row, double>) {
    const double by = divisor == nullptr ? 1.0 : *divisor;
    if (add) {
      for (int i = 0; i < kStrip; ++i) to[i] += static_cast<double>(pixels[i]) / by;
    } else if (divisor != nullptr) {
      for (int i = 0; i < kStrip; ++i) to[i] = static_cast<double>(pixels[i]) / by;
    } else {
      for (int i = 0; i < kStrip; ++i) to[i] = static_cast<double>(pixels[i]);
    }
  } else if (add) {
    for (int i = 0; i < kStrip; ++i) {
      const uint32_t own = pixels[i] < T{0} ? ~0u : static_cast<uint32_t>(pixels[i]);
      const uint32_t sum = to[i] + own;
      to[i] = sum < own ? ~0u : sum;
    }
  } else {
    for (int i = 0; i < kStrip; ++i) {
      to[i] = pixels[i] < T{0} ? ~0u : static_cast<uint32_t>(pixels[i]);
    }
  }
}

template <typename T, typename Row>
void load_frames_of(const MultiTauStrip& strip, Row* rows) {
  const FrameRows& frames = strip.frames;
  const char* const pixels = frames.data + strip.pixel * static_cast<int64_t>(sizeof(T));
  for (int64_t k = 0; k < strip.sums; ++k) {
    Row* const row = rows + k * kStrip;
    bool begun = false;
    for (int64_t i = 0; i < frames.average; ++i) {
      const int64_t frame = k * frames.average + i;
      if (frames.bad != nullptr && frames.bad[frame]) continue;
      const double* const divisor = frames.divisor == nullptr ? nullptr : frames.divisor + frame;
      load_frame<T>(pixels + frame * frames.stride, divisor, begun, row);
      begun = true;
    }
    if (!begun) std::fill(row, row + kStrip, Row{0});
  }
}

template <typename Row>
void load_frames(const MultiTauStrip& strip, Row* rows) {
  constexpr bool kReal = std::is_same_v<Row, double>;
  switch (strip.frames.dtype) {
    case Dtype::kU8:
      return load_frames_of<uint8_t>(strip, rows);
    case Dtype::kU16:
      return load_frames_of<uint16_t>(strip, rows);
    case Dtype::kU32:
      return load_frames_of<uint32_t>(strip, rows);
    case Dtype::kI32:
      return load_frames_of<int32_t>(strip, rows);
    case Dtype::kF32:
      if constexpr (kReal) load_frames_of<float>(strip, rows);
      return;
    case Dtype::kF64:
      if constexpr (kReal) load_frames_of<double>(strip, rows);
      return;
  }
}

// pairs[i] = rows i and i + 1 of `sums` for i < count. Returns the bits of all rows but the last,
// which is the row of zeros after the newest one.
inline uint32_t make_pairs(const uint32_t* sums, int64_t count, uint32_t* pairs) {
  uint32_t bits = 0;
  for (int column = 0; column < kStrip; column += kWords) {
    Words any = {};
    Words last = load_words(sums + column);
    for (int64_t i = 0; i < count; ++i) {
      any |= last;
      const Words next = load_words(sums + (i + 1) * kStrip + column);
      store_words(pairs + i * kStrip + column, last | next << 16);
      last = next;
    }
    for (int i = 0; i < kWords; ++i) bits |= any[i];
  }
  return bits;
}

// Adds words to counts of 64 bits.
JAXKERN_HD void add_words(Words words, LooseCount* to) {
  uint32_t part[kWords];
  store_words(part, words);
  for (int i = 0; i < kWords; i += kDoubles) {
    Bits sum;
    std::memcpy(&sum, to + i, sizeof(sum));
    sum += Kind<uint32_t>::load(part + i);
    std::memcpy(to + i, &sum, sizeof(sum));
  }
}

// Adds the products of `count` new sums, whose first pair is `late`, to g of kDelays delays from t
// on. `bits` bounds the sums.
template <int kDelays>
void add_pairs(const uint32_t* late, int64_t count, int32_t t, uint32_t bits, LooseCount* g,
               int64_t pitch) {
  const int64_t steps = (count + 1) / 2;
  // Number of products of two pairs that fit into 32 bits.
  const uint64_t largest = 2 * uint64_t{bits} * bits;
  const int64_t chunk = largest == 0 ? steps : static_cast<int64_t>(0xffffffffu / largest);
  for (int column = 0; column < kStrip; column += kWords) {
    for (int64_t begin = 0; begin < steps; begin += chunk) {
      const int64_t end = std::min(begin + chunk, steps);
      Words sum[kDelays] = {};
      for (int64_t j = begin; j < end; ++j) {
        const uint32_t* const at = late + 2 * j * kStrip + column;
        const Words own = load_words(at);
        for (int d = 0; d < kDelays; ++d) {
          sum[d] += multiply_pairs(own, load_words(at - (t + d) * kStrip));
        }
      }
      for (int d = 0; d < kDelays; ++d) add_words(sum[d], g + d * pitch + column);
    }
  }
}

// The same without pairs; `late` is the first new sum. Sums are added sequentially, so that
// floating-point results do not depend on the blocks.
template <int kDelays, typename Row>
void add_products(const Row* late, int64_t count, int32_t t, typename Kind<Row>::Sum* g,
                  int64_t pitch) {
  using Vector = typename Kind<Row>::Vector;
  for (int column = 0; column < kStrip; column += kDoubles) {
    Vector sum[kDelays];
    for (int d = 0; d < kDelays; ++d) std::memcpy(&sum[d], g + d * pitch + column, sizeof(Vector));
    for (int64_t r = 0; r < count; ++r) {
      const Row* const at = late + r * kStrip + column;
      const Vector own = Kind<Row>::load(at);
      for (int d = 0; d < kDelays; ++d) {
        sum[d] += Kind<Row>::product(own, Kind<Row>::load(at - (t + d) * kStrip));
      }
    }
    for (int d = 0; d < kDelays; ++d) std::memcpy(g + d * pitch + column, &sum[d], sizeof(Vector));
  }
}

// One level of a strip: `rows.sums` has 2 dpl earlier sums, `count` new ones and a row of zeros.
template <typename Row>
struct StripLevel {
  using Sum = typename Kind<Row>::Sum;
  using Narrow = typename Kind<Row>::Narrow;

  const MultiTauStrip& strip;
  const StripRows<Row>& rows;
  int32_t level;
  int64_t before, count;  // numbers of earlier and of new sums of the level

  int64_t kept() const { return strip.delays.kept(); }
  int64_t pitch() const { return strip.state.pitch; }
  int32_t first() const { return strip.delays.first(level); }
  int32_t delays() const { return strip.delays.at(level); }
  const Row* sum(int64_t r) const { return rows.sums + (kept() + r) * kStrip; }
  template <typename T>
  T* row_of(char* array, int64_t row) const {
    return reinterpret_cast<T*>(array) + row * pitch();
  }
  Narrow* history(int64_t k) const {
    return row_of<Narrow>(strip.state.history, level * kept() + k % kept());
  }

  void read_history() const {
    for (int64_t i = 0; i < kept(); ++i) {  // sum before - kept + i, which shares its row
      memcpy(rows.sums + i * kStrip, history(before + i), kStrip * sizeof(Row));
    }
    std::fill_n(rows.sums + (kept() + count) * kStrip, kStrip, Row{0});
  }

  void write_history() const {
    for (int64_t r = std::max<int64_t>(0, count - kept()); r < count; ++r) {
      memcpy(history(before + r), sum(r), kStrip * sizeof(Row));
    }
  }

  template <int kDelays>
  void add(int32_t d, uint32_t bits) const {
    Sum* const g = row_of<Sum>(strip.state.g, strip.delays.offset(level) + d);
    if constexpr (std::is_same_v<Row, uint32_t>) {
      if (bits <= 0x7fff) {
        add_pairs<kDelays>(rows.pairs + kept() * kStrip, count, first() + d, bits, g, pitch());
        return;
      }
    }
    add_products<kDelays>(sum(0), count, first() + d, g, pitch());
  }

  // Returns the bits of the sums, all bits for floating-point sums.
  uint32_t correlate() const {
    uint32_t bits = ~0u;
    if constexpr (std::is_same_v<Row, uint32_t>) {
      bits = make_pairs(rows.sums, kept() + count, rows.pairs);
      if (bits == 0) return bits;
    }
    int32_t d = 0;
    for (; d + 8 <= delays(); d += 8) add<8>(d, bits);
    for (; d + 4 <= delays(); d += 4) add<4>(d, bits);
    for (; d < delays(); ++d) add<1>(d, bits);
    return bits;
  }

  void add_total(uint32_t bits) const {
    Sum* const total = row_of<Sum>(strip.state.total, 0);
    if constexpr (std::is_same_v<Row, uint32_t>) {
      static_assert(kBlock * int64_t{0x7fff} <= 0xffffffff);
      if (bits <= 0x7fff) {
        for (int column = 0; column < kStrip; column += kWords) {
          Words all = {};
          for (int64_t r = 0; r < count; ++r) all += load_words(sum(r) + column);
          add_words(all, total + column);
        }
        return;
      }
    }
    for (int column = 0; column < kStrip; column += kDoubles) {
      typename Kind<Row>::Vector all;
      std::memcpy(&all, total + column, sizeof(all));
      for (int64_t r = 0; r < count; ++r) all += Kind<Row>::load(sum(r) + column);
      std::memcpy(total + column, &all, sizeof(all));
    }
  }

  void add_head() const {
    for (int32_t d = 0; d < delays(); ++d) {
      const int64_t end = std::min(count, first() + d - before);
      Narrow* const head = row_of<Narrow>(strip.state.head, strip.delays.offset(level) + d);
      for (int64_t r = 0; r < end; ++r) {
        for (int i = 0; i < kStrip; ++i) head[i] += sum(r)[i];
      }
    }
  }

  void add_lost(const uint32_t* missing) const {
    for (int32_t d = 0; d < delays(); ++d) {
      const int64_t t = first() + d, tau = strip.delays.offset(level) + d;
      Sum* const past = row_of<Sum>(strip.state.lost_past, tau);
      Sum* const future = row_of<Sum>(strip.state.lost_future, tau);
      for (int64_t r = std::max<int64_t>(0, t - before); r < count; ++r) {
        const uint32_t now = missing[before + r], then = missing[before + r - t];
        for (int i = 0; now != 0 && i < kStrip; ++i) {
          past[i] += static_cast<Sum>(sum(r - t)[i]) * now;
        }
        for (int i = 0; then != 0 && i < kStrip; ++i) {
          future[i] += static_cast<Sum>(sum(r)[i]) * then;
        }
      }
    }
  }

  // Computes the new sums of the next level.
  void make_next() const {
    const Row* from = sum(-(before % 2));
    Row* to = rows.next + kept() * kStrip;
    for (int64_t n = (before + count) / 2 - before / 2; n > 0; --n) {
      for (int i = 0; i < kStrip; ++i) to[i] = from[i] + from[kStrip + i];
      from += 2 * kStrip;
      to += kStrip;
    }
  }
};

template <typename Row>
void run_strip(const MultiTauStrip& strip, char* scratch) {
  constexpr int64_t kRows = (2 * kMostDelays + kBlock + 1) * kStrip;
  Row* const first = reinterpret_cast<Row*>(scratch);
  char* const pairs = scratch + 2 * kRows * static_cast<int64_t>(sizeof(Row));
  StripRows<Row> rows = {first, first + kRows, reinterpret_cast<uint32_t*>(pairs)};
  load_frames(strip, rows.sums + strip.delays.kept() * kStrip);
  const int32_t levels = strip.delays.levels();
  for (int32_t level = 0; level < levels; ++level) {
    const int64_t before = strip.seen >> level;
    const int64_t count = ((strip.seen + strip.sums) >> level) - before;
    if (count == 0) break;
    const StripLevel<Row> one = {strip, rows, level, before, count};
    one.read_history();
    const uint32_t bits = one.correlate();
    if (level == 0) one.add_total(bits);
    if (before < strip.delays.kept()) one.add_head();
    if (strip.missing != nullptr && strip.missing->any()) one.add_lost(strip.missing->at(level));
    one.write_history();
    one.make_next();
    std::swap(rows.sums, rows.next);
  }
}

inline void run_strip(const MultiTauStrip& strip, char* scratch) {
  if (strip.state.real) {
    run_strip<double>(strip, scratch);
  } else {
    run_strip<uint32_t>(strip, scratch);
  }
}

}  // namespace
}  // namespace jaxkern::correlators::JAXKERN_LEVEL

#endif  // JAXKERN_CORRELATORS_MULTITAU_INL_H_
