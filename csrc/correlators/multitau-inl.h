// Adds a block of frames to the multi-tau state of a strip of pixels.
//
// The sums of a level are stored in rows of kStrip pixels, with the last 2 dpl sums of earlier
// blocks before the new ones. Two neighbouring sums of a pixel share a word, and one instruction
// multiplies two pairs and adds the products. Words have 16 bits up to the level whose sums exceed
// kMostNarrow, and 32 bits while sums fit into 15 bits. Larger sums are multiplied to 64 bits.
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

// Sums in words of 16 bits are at most 31, so that 34 products of two pairs fit into 16 bits.
constexpr uint32_t kMostNarrow = 31;

typedef uint32_t LooseHalves __attribute__((vector_size(4 * kDoubles), aligned(4), may_alias));
typedef uint16_t Quarters __attribute__((vector_size(2 * kDoubles)));
typedef uint16_t HalfWords16 __attribute__((vector_size(2 * kSingles)));
typedef uint64_t LooseCount __attribute__((aligned(4), may_alias));
typedef double LooseReal __attribute__((aligned(4), may_alias));
typedef uint32_t LooseWord __attribute__((aligned(4), may_alias));

template <typename Vector>
JAXKERN_HD Vector load_vector(const void* from) {
  Vector value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
template <typename Vector>
JAXKERN_HD void store_vector(void* to, Vector value) {
  std::memcpy(to, &value, sizeof(value));
}

// Returns the bits of all 16-bit or 32-bit words of a vector.
template <typename Row, typename Vector>
JAXKERN_HD uint32_t all_bits(Vector words) {
  uint64_t parts[kDoubles], bits = 0;
  std::memcpy(parts, &words, sizeof(words));
  for (int i = 0; i < kDoubles; ++i) bits |= parts[i];
  bits |= bits >> 32;
  return static_cast<Row>(sizeof(Row) == 2 ? bits | bits >> 16 : bits);
}

// low(a) low(b) + high(a) high(b) of the 15-bit halves of each word.
JAXKERN_HD Words32 multiply_pairs(Words32 a, Words32 b) {
#if defined(__AVX512BW__)
  return (Words32)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Words32)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (Words32)_mm_madd_epi16((__m128i)a, (__m128i)b);
#elif defined(JAXKERN_NEON)
  return (Words32)add_word_products((int16x8_t)a, (int16x8_t)b);
#else
  return (a & 0xffff) * (b & 0xffff) + (a >> 16) * (b >> 16);
#endif
}

// The same for bytes below 128.
JAXKERN_HD Words16 multiply_pairs(Words16 a, Words16 b) {
#if defined(__AVX512BW__)
  return (Words16)_mm512_maddubs_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Words16)_mm256_maddubs_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSSE3__)
  return (Words16)_mm_maddubs_epi16((__m128i)a, (__m128i)b);
#elif defined(JAXKERN_NEON)
  const uint8x16_t x = (uint8x16_t)a, y = (uint8x16_t)b;
  return vpaddq_u16(vmull_u8(vget_low_u8(x), vget_low_u8(y)), vmull_high_u8(x, y));
#else
  return (a & 0xff) * (b & 0xff) + (a >> 8) * (b >> 8);
#endif
}

// Types of sums of frames (Row) and of their products.
template <typename Row>
struct Kind;

template <>
struct Kind<uint16_t> {
  using Sum = LooseCount;
  using Narrow = LooseWord;
  using Words = Words16;
  JAXKERN_HD_MEMBER static Bits load(const uint16_t* from) {
    return __builtin_convertvector(load_vector<Quarters>(from), Bits);
  }
};

template <>
struct Kind<uint32_t> {
  using Sum = LooseCount;
  using Narrow = LooseWord;
  using Words = Words32;
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
  Row* pairs;

  static constexpr int64_t kRows = (2 * kMostDelays + kBlock + 1) * kStrip;

  explicit StripRows(char* scratch) {
    sums = reinterpret_cast<Row*>(scratch);
    next = sums + kRows;
    pairs = next + kRows;
  }
  // Memory after these buffers; `sums` and `next` are swapped after each level.
  char* end() const { return reinterpret_cast<char*>(pairs + kRows); }
};

template <typename Row>
inline void copy_row(const Row* __restrict from, typename Kind<Row>::Narrow* __restrict to) {
  if constexpr (sizeof(*from) == sizeof(*to)) {
    memcpy(to, from, kStrip * sizeof(Row));
  } else {
    for (int i = 0; i < kStrip; ++i) to[i] = from[i];
  }
}

template <typename Row>
inline void add_row(const Row* __restrict from, typename Kind<Row>::Narrow* __restrict to) {
  for (int i = 0; i < kStrip; ++i) to[i] += from[i];
}

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
  } else if constexpr (std::is_same_v<Row, uint16_t>) {
    for (int i = 0; i < kStrip; ++i) to[i] = static_cast<Row>(add ? to[i] + pixels[i] : pixels[i]);
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
  const Dtype dtype = strip.frames.dtype;
  if (dtype == Dtype::kU8) return load_frames_of<uint8_t>(strip, rows);
  if (dtype == Dtype::kU16) return load_frames_of<uint16_t>(strip, rows);
  if constexpr (!std::is_same_v<Row, uint16_t>) {
    if (dtype == Dtype::kU32) return load_frames_of<uint32_t>(strip, rows);
    if (dtype == Dtype::kI32) return load_frames_of<int32_t>(strip, rows);
  }
  if constexpr (std::is_same_v<Row, double>) {
    if (dtype == Dtype::kF32) return load_frames_of<float>(strip, rows);
    load_frames_of<double>(strip, rows);
  }
}

// True if level 0 fits into words of 16 bits, and its earlier sums are small.
inline bool starts_narrow(const MultiTauStrip& strip) {
  const FrameRows& frames = strip.frames;
  if (dtype_bytes(frames.dtype) > 2 ||
      frames.average * (frames.dtype == Dtype::kU8 ? 1 : 255) > 257)
    return false;
  Words32 any = {};
  for (int64_t k = 0; k < strip.delays.kept(); ++k) {
    const char* const row = strip.state.history + 4 * k * strip.state.pitch;
    for (int column = 0; column < kStrip; column += kSingles) {
      any |= load_vector<Words32>(row + 4 * column);
    }
  }
  return all_bits<uint32_t>(any) <= kMostNarrow;
}

// pairs[i] = rows i and i + 1 of `sums` for i < count. Returns the bits of all rows but the last,
// which is the row of zeros after the newest one.
template <typename Row>
inline uint32_t make_pairs(const Row* sums, int64_t count, Row* pairs) {
  using Words = typename Kind<Row>::Words;
  constexpr int kLanes = sizeof(Words) / sizeof(Row);
  constexpr int kColumns = kStrip / kLanes < 4 ? kStrip / kLanes : 4;  // processed together
  Words any = {};
  for (int first = 0; first < kStrip; first += kColumns * kLanes) {
    Words last[kColumns];
    const Row* from = sums + first;
    for (int c = 0; c < kColumns; ++c) last[c] = load_vector<Words>(from + c * kLanes);
    for (Row* to = pairs + first; to < pairs + count * kStrip; to += kStrip) {
      from += kStrip;
      for (int c = 0; c < kColumns; ++c) {
        any |= last[c];
        const Words next = load_vector<Words>(from + c * kLanes);
        store_vector(to + c * kLanes, last[c] | next << (4 * sizeof(Row)));
        last[c] = next;
      }
    }
  }
  return all_bits<Row>(any);
}

// Adds words to counts of 64 bits.
template <typename Row>
JAXKERN_HD void add_words(typename Kind<Row>::Words words, LooseCount* to) {
  constexpr int kLanes = sizeof(words) / sizeof(Row);
  Row part[kLanes];
  store_vector(part, words);
  for (int i = 0; i < kLanes; i += kDoubles) {
    store_vector(to + i, load_vector<Bits>(to + i) + Kind<Row>::load(part + i));
  }
}

// Adds the products of `count` new sums, whose first pair is `late`, to g of kDelays delays from t
// on. `bits` bounds the sums.
template <int kDelays, typename Row>
void add_pairs(const Row* late, int64_t count, int32_t t, uint32_t bits, LooseCount* g,
               int64_t pitch) {
  using Words = typename Kind<Row>::Words;
  constexpr int kLanes = sizeof(Words) / sizeof(Row);
  const int64_t steps = (count + 1) / 2;
  // Number of products of two pairs that fit into a word.
  const uint64_t largest = 2 * uint64_t{bits} * bits;
  const int64_t chunk = largest == 0 ? steps : static_cast<int64_t>(Row(-1) / largest);
  for (int column = 0; column < kStrip; column += kLanes) {
    for (int64_t begin = 0; begin < steps; begin += chunk) {
      const int64_t end = std::min(begin + chunk, steps);
      Words sum[kDelays] = {};
      for (int64_t j = begin; j < end; ++j) {
        const Row* const at = late + 2 * j * kStrip + column;
        const Words own = load_vector<Words>(at);
        for (int d = 0; d < kDelays; ++d) {
          sum[d] += multiply_pairs(own, load_vector<Words>(at - (t + d) * kStrip));
        }
      }
      for (int d = 0; d < kDelays; ++d) add_words<Row>(sum[d], g + d * pitch + column);
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

  static constexpr bool kNarrow = std::is_same_v<Row, uint16_t>;

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

  // Sum before - kept + i is stored in the same row of the history as sum before + i. Returns the
  // bits of the earlier sums if rows have 16 bits, otherwise 0.
  uint32_t read_history() const {
    std::fill_n(rows.sums + (kept() + count) * kStrip, kStrip, Row{0});
    Words32 any = {};
    for (int64_t i = 0; i < kept(); ++i) {
      const Narrow* const from = history(before + i);
      Row* const to = rows.sums + i * kStrip;
      if constexpr (kNarrow) {
        for (int column = 0; column < kStrip; column += kSingles) {
          const Words32 words = load_vector<Words32>(from + column);
          any |= words;
          store_vector(to + column, __builtin_convertvector(words, HalfWords16));
        }
      } else {
        memcpy(to, from, kStrip * sizeof(Row));
      }
    }
    return all_bits<uint32_t>(any);
  }

  void write_history() const {
    for (int64_t r = std::max<int64_t>(0, count - kept()); r < count; ++r) {
      copy_row(sum(r), history(before + r));
    }
  }

  // Returns the bits of the sums, all bits for floating-point sums.
  uint32_t pair() const {
    if constexpr (std::is_same_v<Row, double>)
      return ~0u;
    else
      return make_pairs(rows.sums, kept() + count, rows.pairs);
  }

  template <int kDelays>
  void add(int32_t d, uint32_t bits) const {
    Sum* const g = row_of<Sum>(strip.state.g, strip.delays.offset(level) + d);
    if constexpr (!std::is_same_v<Row, double>) {
      if (kNarrow || bits <= 0x7fff) {
        add_pairs<kDelays>(rows.pairs + kept() * kStrip, count, first() + d, bits, g, pitch());
        return;
      }
    }
    if constexpr (!kNarrow) add_products<kDelays>(sum(0), count, first() + d, g, pitch());
  }

  void correlate(uint32_t bits) const {
    int32_t d = 0;
    for (; d + 8 <= delays(); d += 8) add<8>(d, bits);
    for (; d + 4 <= delays(); d += 4) add<4>(d, bits);
    for (; d < delays(); ++d) add<1>(d, bits);
  }

  void add_total(uint32_t bits) const {
    Sum* const total = row_of<Sum>(strip.state.total, 0);
    if constexpr (!std::is_same_v<Row, double>) {
      using Words = typename Kind<Row>::Words;
      constexpr int kLanes = sizeof(Words) / sizeof(Row), kColumns = kStrip / kLanes;
      static_assert(kBlock * int64_t{0x7fff} <= 0xffffffff && kBlock * kMostNarrow <= 0xffff);
      if (kNarrow || bits <= 0x7fff) {
        Words all[kColumns] = {};
        for (int64_t r = 0; r < count; ++r) {
          for (int c = 0; c < kColumns; ++c) all[c] += load_vector<Words>(sum(r) + c * kLanes);
        }
        for (int c = 0; c < kColumns; ++c) add_words<Row>(all[c], total + c * kLanes);
        return;
      }
    }
    if constexpr (!kNarrow) {
      for (int column = 0; column < kStrip; column += kDoubles) {
        auto all = load_vector<typename Kind<Row>::Vector>(total + column);
        for (int64_t r = 0; r < count; ++r) all += Kind<Row>::load(sum(r) + column);
        store_vector(total + column, all);
      }
    }
  }

  void add_head() const {
    for (int32_t d = 0; d < delays(); ++d) {
      const int64_t end = std::min(count, first() + d - before);
      Narrow* const head = row_of<Narrow>(strip.state.head, strip.delays.offset(level) + d);
      for (int64_t r = 0; r < end; ++r) add_row(sum(r), head);
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
      for (int i = 0; i < kStrip; ++i) to[i] = static_cast<Row>(from[i] + from[kStrip + i]);
      from += 2 * kStrip;
      to += kStrip;
    }
  }
};

// Adds the new sums rows.sums of a level, and those of the levels above. Continues in wide rows
// from the first level whose sums are too large for words of 16 bits.
template <typename Row>
void run_levels(const MultiTauStrip& strip, StripRows<Row> rows, int32_t level) {
  for (; level < strip.delays.levels(); ++level) {
    const int64_t before = strip.seen >> level;
    const int64_t count = ((strip.seen + strip.sums) >> level) - before;
    if (count == 0) break;
    const StripLevel<Row> one = {strip, rows, level, before, count};
    uint32_t bits = one.read_history();
    if (!one.kNarrow || bits <= kMostNarrow) bits = one.pair();
    if constexpr (one.kNarrow) {
      if (bits > kMostNarrow) {
        const StripRows<uint32_t> wide(rows.end());
        const int64_t first = strip.delays.kept();
        for (int64_t r = first; r < first + count; ++r) {
          copy_row(rows.sums + r * kStrip, wide.sums + r * kStrip);
        }
        return run_levels(strip, wide, level);
      }
    }
    if (bits != 0) one.correlate(bits);
    if (level == 0) one.add_total(bits);
    if (before < strip.delays.kept()) one.add_head();
    if (strip.missing != nullptr && strip.missing->any()) one.add_lost(strip.missing->at(level));
    one.write_history();
    one.make_next();
    std::swap(rows.sums, rows.next);
  }
}

template <typename Row>
void run_strip(const MultiTauStrip& strip, char* scratch) {
  const StripRows<Row> rows(scratch);
  constexpr int64_t kRows = StripRows<Row>::kRows;
  static_assert(3 * kRows * (sizeof(uint16_t) + sizeof(uint32_t)) <= kScratchBytes);
  static_assert(2 * kRows * sizeof(double) <= kScratchBytes);  // products of doubles use no pairs
  load_frames(strip, rows.sums + strip.delays.kept() * kStrip);
  run_levels(strip, rows, 0);
}

inline void run_strip(const MultiTauStrip& strip, char* scratch) {
  if (strip.state.real) {
    run_strip<double>(strip, scratch);
  } else if (starts_narrow(strip)) {
    run_strip<uint16_t>(strip, scratch);
  } else {
    run_strip<uint32_t>(strip, scratch);
  }
}

}  // namespace
}  // namespace jaxkern::correlators::JAXKERN_LEVEL

#endif  // JAXKERN_CORRELATORS_MULTITAU_INL_H_
