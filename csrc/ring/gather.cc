// Row copies at memory bandwidth: streaming stores of full cache lines, and prefetched rows.
#include "ring/gather.h"

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace jaxkern::ring {
namespace {

constexpr int64_t kLine = 64;
// The hardware prefetcher follows a row after its first lines but cannot predict the next row:
// prefetch this many rows ahead, and this many cache lines of each.
constexpr int64_t kRowsAhead = 8;
constexpr int64_t kLinesAhead = 4;
// Between checks whether to stop, while short rows are copied.
constexpr int64_t kRowsPerCheck = 1024;
// For shorter rows partial cache lines outweigh the benefit.
constexpr int64_t kMinStreamedBytes = 4096;

void prefetch_row(const char* row, int64_t bytes) {
  for (int64_t at = 0; at < std::min(bytes, kLinesAhead * kLine); at += kLine) {
    __builtin_prefetch(row + at, 0, 0);
  }
}

#if defined(__SSE2__)
void copy_streamed(char* out, const char* row, int64_t bytes) {
  const int64_t head =
      std::min(bytes, static_cast<int64_t>(-reinterpret_cast<uintptr_t>(out) & (kLine - 1)));
  std::memcpy(out, row, static_cast<size_t>(head));
  int64_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    const auto* from = reinterpret_cast<const __m128i*>(row + at);
    auto* to = reinterpret_cast<__m128i*>(out + at);
    const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  std::memcpy(out + at, row + at, static_cast<size_t>(bytes - at));
}
// Streaming stores are not ordered with the commit that follows.
void end_stream() { _mm_sfence(); }
#else
void copy_streamed(char* out, const char* row, int64_t bytes) {
  std::memcpy(out, row, static_cast<size_t>(bytes));
}
void end_stream() {}
#endif

template <typename From, typename To>
void convert(char* out, const char* row, int64_t bytes) {
  const int64_t items = bytes / static_cast<int64_t>(sizeof(From));
  for (int64_t i = 0; i < items; ++i) {  // rows of a file may be unaligned
    From value;
    std::memcpy(&value, row + i * static_cast<int64_t>(sizeof(From)), sizeof(From));
    const To converted = static_cast<To>(value);
    std::memcpy(out + i * static_cast<int64_t>(sizeof(To)), &converted, sizeof(To));
  }
}

template <typename Copy>
bool each_row(const Rows& rows, const int64_t* records, int64_t size, char* out,
              const std::atomic<bool>& stop, const Copy& copy) {
  const int64_t step = rows.output_bytes();
  for (int64_t i = 0; i < std::min(kRowsAhead, size); ++i) {
    prefetch_row(rows.at(records[i]), rows.bytes);
  }
  for (int64_t i = 0; i < size; ++i) {
    if (stop.load(std::memory_order_relaxed)) return false;
    if (i + kRowsAhead < size) prefetch_row(rows.at(records[i + kRowsAhead]), rows.bytes);
    copy(out + i * step, rows.at(records[i]), rows.bytes);
  }
  return true;
}

// Copies short rows of one array. A call of memcpy takes longer than the few moves that copy a row
// of a fixed size; and the loads of later rows begin without a prefetch.
template <int64_t kBytes>
bool short_rows(const Rows& rows, const int64_t* records, int64_t size, char* out,
                const std::atomic<bool>& stop) {
  const char* const base = rows.base;
  const int64_t stride = rows.stride;
  for (int64_t first = 0; first < size; first += kRowsPerCheck) {
    if (stop.load(std::memory_order_relaxed)) return false;
    for (int64_t i = first; i < std::min(first + kRowsPerCheck, size); ++i) {
      std::memcpy(out + i * kBytes, base + records[i] * stride, kBytes);
    }
  }
  return true;
}

// Returns the function for rows of this size; null without one.
auto* short_rows_of(int64_t bytes) {
  switch (bytes) {
    case 1:
      return short_rows<1>;
    case 2:
      return short_rows<2>;
    case 4:
      return short_rows<4>;
    case 8:
      return short_rows<8>;
    case 12:
      return short_rows<12>;
    case 16:
      return short_rows<16>;
    case 32:
      return short_rows<32>;
    case 64:
      return short_rows<64>;
    default:
      return static_cast<decltype(&short_rows<1>)>(nullptr);
  }
}

}  // namespace

int64_t first_outside(const int64_t* records, int64_t size, int64_t count) {
  for (int64_t i = 0; i < size; ++i) {
    if (records[i] < 0 || records[i] >= count) return i;
  }
  return -1;
}

bool gather(const Rows& rows, const int64_t* records, int64_t size, char* out, bool stream,
            const std::atomic<bool>& stop) {
  switch (rows.cast) {
    case Cast::kInt64ToInt32:
      return each_row(rows, records, size, out, stop, convert<uint64_t, uint32_t>);
    case Cast::kFloat64ToFloat32:
      return each_row(rows, records, size, out, stop, convert<double, float>);
    case Cast::kNone:
      break;
  }
  if (stream && rows.bytes >= kMinStreamedBytes) {
    const bool done = each_row(rows, records, size, out, stop, copy_streamed);
    end_stream();
    return done;
  }
  if (auto* copy = short_rows_of(rows.bytes); copy != nullptr && rows.more.empty()) {
    return copy(rows, records, size, out, stop);
  }
  return each_row(rows, records, size, out, stop, [](char* to, const char* row, int64_t bytes) {
    std::memcpy(to, row, static_cast<size_t>(bytes));
  });
}

}  // namespace jaxkern::ring
