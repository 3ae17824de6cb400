// Gaussian blur of bytes in float32, and the entry point of blur.h.
//
// Sums run along the rows first, and then down the columns of those sums. Levels whose rounding is
// uncertain in float32 are recomputed in float64 (blur-inl.h). A block is four vectors of float32;
// vector k holds every fourth value from the k-th, so shifts alone split and join the 4-byte words:
//
//   bytes     b0 b1 b2 b3 | b4 b5 b6 b7 | ...      one word of four bytes per lane
//   vector 0  b0            b4            ...      word & 255
//   vector 1  b1            b5            ...      word >> 8 & 255, and so on
//
// Bound of the error. Let u = 2^-24 and values be at most 256. An axis is summed from its smallest
// weights, both sides together. The partial sum after weight t is at most 256 times the sum of all
// weights from t outwards, and these sums add up to 1 + m over all t, where m is the mean of |t|.
// The roundings of partial sums therefore add up to at most 256 u (1 + m). Products add 256 u per
// axis if they are not fused with their sums, and the sums of two float32 values down the columns
// another 256 u (those of two bytes are exact). The total is 2^-16 (3 + m_x + m_y), or 2^-16 (5 +
// m_x + m_y) without fused sums, plus 256 times the weights that were rounded or left out. Values
// are at most 255, and the difference to 256 covers the higher-order terms.
#ifndef JAXKERN_IMAGE_BLUR_BYTES_INL_H_
#define JAXKERN_IMAGE_BLUR_BYTES_INL_H_

#include "core/simd-inl.h"
#include "image/blur-inl.h"

namespace jaxkern::image::JAXKERN_LEVEL {
namespace {

using namespace simd::JAXKERN_LEVEL;

constexpr int32_t kByteReach = 31;    // larger kernels have larger errors and need more rows
constexpr int32_t kRowsTogether = 4;  // rows of sums that share loads
constexpr int32_t kBlurBlock = 4 * kSingles;
constexpr int32_t kBlurSlots = 2 * kByteReach + kRowsTogether;
constexpr int32_t kBlurRing = kBlurRingBytes / sizeof(float);
constexpr int32_t kBlurMargin = kByteReach * kMaxChannels;
static_assert(kBlurSlots * kBlurBlock <= kBlurRing);

// The weights of an axis in float32, without the outermost weights whose sum is below 2^-23.
struct SingleWeights {
  float weight[kByteReach + 1];
  int32_t reach;
  double error = 0;

  SingleWeights(const double* precise, int32_t precise_reach) : reach(precise_reach) {
    double missing = 0, mean = 0;
    for (; reach > 0 && missing + 2 * precise[reach] < 0x1p-23; --reach)
      missing += 2 * precise[reach];
    if (reach > kByteReach) return;
    for (int32_t t = 0; t <= reach; ++t) {
      weight[t] = static_cast<float>(precise[t]);
      missing += 2 * fabs(precise[t] - static_cast<double>(weight[t]));
      mean += 2 * t * precise[t];
    }
    error = 0x1p-16 * (kFusedSingles ? 1.5 + mean : 2.5 + mean) + 256 * missing;
  }
};

struct ByteBlur {
  const SpanBlur<uint8_t, uint8_t>& precise;
  const Blur& blur;
  int32_t channels;
  int64_t row_values, margin;  // values of a row, and of the margin on either side of a line
  SingleWeights x, y;
  float certain;  // largest distance from a level at which its rounding is certain
  // The indices in a row of the reflected values of the left and right margins.
  int64_t left[kBlurMargin], right[kBlurMargin];

  explicit ByteBlur(const SpanBlur<uint8_t, uint8_t>& precise)
      : precise(precise),
        blur(precise.blur),
        channels(blur.channels),
        row_values(int64_t{blur.width} * channels),
        x(precise.weight_x, precise.reach_x),
        y(precise.weight_y, precise.reach_y) {}

  bool fits() const { return x.reach <= kByteReach && y.reach <= kByteReach; }

  // Copies values [first - margin, first + count + margin) of a row to `line`.
  void fill_line(const uint8_t* row, int64_t first, int64_t count, uint8_t* line) const {
    const int64_t start = first - margin, size = count + 2 * margin;
    const int64_t begin = start < 0 ? -start : 0;
    const int64_t end = row_values - start < size ? row_values - start : size;
    for (int64_t i = 0; i < begin; ++i) line[i] = row[left[start + margin + i]];
    for (int64_t i = begin; i < end; ++i) line[i] = row[start + i];
    const int64_t beyond = size - end < margin ? size - end : margin;
    for (int64_t i = 0; i < beyond; ++i) line[end + i] = row[right[i]];
  }

  // Sums the block at `centre` along its line.
  void sum_block(const uint8_t* centre, int32_t reach, int64_t step, float* sums) const {
    constexpr uint32_t kEven = 0x00ff00ff;
    Singles sum[4] = {};
    const auto odd_bytes = [](Words32 bytes) { return (Words32)((Words16)bytes >> 8); };
    const auto add = [&](Words32 even, Words32 odd, float weight) {
      const Words32 part[4] = {even & 0xffff, odd & 0xffff, even >> 16, odd >> 16};
      for (int32_t k = 0; k < 4; ++k)
        sum[k] = multiply_add_singles(to_singles(part[k]), weight - Singles{}, sum[k]);
    };
    for (int32_t t = reach; t >= 1; --t) {
      const Words32 left = load_words(centre - t * step), right = load_words(centre + t * step);
      add((left & kEven) + (right & kEven), odd_bytes(left) + odd_bytes(right), x.weight[t]);
    }
    const Words32 middle = load_words(centre);
    add(middle & kEven, odd_bytes(middle), x.weight[0]);
    for (int32_t k = 0; k < 4; ++k) store_singles(sums + k * kSingles, sum[k]);
  }

  // Sums `blocks` consecutive blocks. This and sum_down are not inlined, because their loops need
  // all registers.
  __attribute__((noinline)) void sum_line(const uint8_t* centre, int64_t blocks,
                                          float* sums) const {
    for (int64_t b = 0; b < blocks; ++b)
      sum_block(centre + b * kBlurBlock, x.reach, channels, sums + b * kBlurBlock);
  }

  struct Levels {
    Words32 bytes;      // in the order of the row
    Words32 uncertain;  // highest bit: the rounding of one of the word's four bytes is uncertain
  };

  // Sums a block down the columns for kRowsTogether output rows. row[k] + at has the line sums of
  // the row that is k rows below the first output row's reach.
  __attribute__((noinline)) void sum_down(const float* const* row, int64_t at,
                                          Levels* levels) const {
    constexpr float kInteger = 0x1p23f;  // adding it leaves the nearest level in the lowest bits
#pragma GCC unroll 4
    for (int32_t k = 0; k < 4; ++k) {
      const auto sums = [&](int32_t i) { return load_singles(row[i] + at + k * kSingles); };
      Singles sum[kRowsTogether] = {}, above[kRowsTogether], below[kRowsTogether];
      for (int32_t j = 0; j < kRowsTogether; ++j) {
        above[j] = sums(j);
        below[j] = sums(j + 2 * y.reach);
      }
#pragma GCC unroll 4
      for (int32_t t = y.reach; t >= 1; --t) {
        for (int32_t j = 0; j < kRowsTogether; ++j)
          sum[j] = multiply_add_singles(above[j] + below[j], y.weight[t] - Singles{}, sum[j]);
        for (int32_t j = 0; j + 1 < kRowsTogether; ++j) above[j] = above[j + 1];
        for (int32_t j = kRowsTogether - 1; j > 0; --j) below[j] = below[j - 1];
        above[kRowsTogether - 1] = sums(y.reach - t + kRowsTogether);
        below[0] = sums(y.reach + t - 1);
      }
      for (int32_t j = 0; j < kRowsTogether; ++j) {
        sum[j] = multiply_add_singles(above[j], y.weight[0] - Singles{}, sum[j]);
        const Singles shifted = sum[j] + kInteger, off = sum[j] - (shifted - kInteger);
        const Words32 uncertain_word = (Words32)(certain - (Singles)((Words32)off & 0x7fffffff));
        const Words32 byte = ((Words32)shifted & 255) << (8 * k);
        levels[j].bytes = k == 0 ? byte : levels[j].bytes | byte;
        levels[j].uncertain = k == 0 ? uncertain_word : levels[j].uncertain | uncertain_word;
      }
    }
  }

  // Writes a block of a row from value `first`, or the rest of the row.
  void write(int32_t row, int64_t first, const Levels& levels) const {
    uint8_t* const to = precise.out + row * row_values + first;
    const int64_t rest = row_values - first;
    if (rest >= kBlurBlock) {
      memcpy(to, &levels.bytes, kBlurBlock);
    } else {
      memcpy(to, &levels.bytes, static_cast<size_t>(rest));
    }
    const uint32_t words = signs(levels.uncertain);
    if (words == 0) return;
    const int64_t begin = first + 4 * __builtin_ctz(words);
    const int64_t end = first + 4 * (32 - __builtin_clz(words));
    if (begin >= row_values) return;
    const int64_t column = begin / channels;
    const int64_t last = ((end < row_values ? end : row_values) - 1) / channels;
    precise.write(row, static_cast<int32_t>(column), static_cast<int32_t>(last - column + 1));
  }

  // Processes strips of blocks, whose width is such that all rows of sums in use fit the ring.
  void run(float* ring) {
    margin = int64_t{x.reach} * channels;
    certain = static_cast<float>(0.5 - x.error - y.error);
    for (int32_t t = 1; t <= x.reach; ++t) {
      for (int32_t c = 0; c < channels; ++c) {
        const int32_t last = blur.width - 1;
        left[margin - t * channels + c] = int64_t{reflected(-t, blur.width)} * channels + c;
        right[(t - 1) * channels + c] = int64_t{reflected(last + t, blur.width)} * channels + c;
      }
    }
    const int32_t slots = 2 * y.reach + kRowsTogether;
    const int64_t blocks = (row_values + kBlurBlock - 1) / kBlurBlock;
    const int64_t most = kBlurRing / (slots * kBlurBlock);
    const int64_t strips = (blocks + most - 1) / most, each = (blocks + strips - 1) / strips;
    const float* rows[kBlurSlots] = {};
    uint8_t line[kBlurRing / kRowsTogether + 2 * kBlurMargin] = {};
    for (int64_t strip = 0; strip < blocks; strip += each) {
      const int64_t end = strip + each < blocks ? strip + each : blocks;
      int32_t done = 0;  // rows of sums
      for (int32_t first = 0; first < blur.height; first += kRowsTogether) {
        for (; done < blur.height && done < first + kRowsTogether + y.reach; ++done) {
          const uint8_t* const from = precise.in + done * row_values;
          fill_line(from, strip * kBlurBlock, (end - strip) * kBlurBlock, line);
          sum_line(line + margin, end - strip, ring + done % slots * each * kBlurBlock);
        }
        // Row k was row k + kRowsTogether of the previous group.
        memmove(rows, rows + kRowsTogether, (kBlurSlots - kRowsTogether) * sizeof rows[0]);
        for (int32_t k = first == 0 ? 0 : slots - kRowsTogether; k < slots; ++k)
          rows[k] = ring + reflected(int64_t{first} - y.reach + k, blur.height) % slots * each *
                               kBlurBlock;
        for (int64_t b = strip; b < end; ++b) {
          Levels levels[kRowsTogether];
          sum_down(rows, (b - strip) * kBlurBlock, levels);
          for (int32_t j = 0; j < kRowsTogether && first + j < blur.height; ++j)
            write(first + j, b * kBlurBlock, levels[j]);
        }
      }
    }
  }
};

}  // namespace

void gaussian_blur(const Blur& blur, const void* in, float sigma_x, float sigma_y, void* scratch,
                   void* out) {
  float* const ring = static_cast<float*>(scratch);
  double* const doubles = reinterpret_cast<double*>(static_cast<char*>(scratch) + kBlurRingBytes);
  if (blur.dtype != Dtype::kU8) {
    return blur_rows(blur, static_cast<const float*>(in), sigma_x, sigma_y, doubles,
                     static_cast<float*>(out));
  }
  const uint8_t* const bytes = static_cast<const uint8_t*>(in);
  uint8_t* const to = static_cast<uint8_t*>(out);
  const SpanBlur<uint8_t, uint8_t> precise(blur, bytes, sigma_x, sigma_y, doubles, to);
  ByteBlur singles(precise);
  if (singles.fits()) return singles.run(ring);
  blur_rows(blur, bytes, sigma_x, sigma_y, doubles, to);
}

}  // namespace jaxkern::image::JAXKERN_LEVEL

#endif  // JAXKERN_IMAGE_BLUR_BYTES_INL_H_
