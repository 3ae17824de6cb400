// Decoding of columns of any width and of Rigaku words, and release of mapped pages.
#include "correlators/event_input.h"

#include <cstring>
#include <limits>
#include <stdexcept>

#include "core/platform.h"

namespace jaxkern::correlators {
namespace {

template <typename T>
uint32_t narrowed(T value) {
  if constexpr (sizeof(T) > 4) {
    return static_cast<uint64_t>(value) < kTooLarge ? static_cast<uint32_t>(value) : kTooLarge;
  } else if constexpr (std::numeric_limits<T>::is_signed) {
    return value < 0 ? kTooLarge : static_cast<uint32_t>(value);
  } else {
    return value;
  }
}

template <typename T>
void decode(const Column& column, int64_t begin, int64_t size, uint32_t* __restrict out) {
  const char* const from = column.data + begin * column.stride;
  const auto decode_at = [&](int64_t stride) {
    for (int64_t i = 0; i < size; ++i) {
      T value;
      std::memcpy(&value, from + i * stride, sizeof(T));
      out[i] = narrowed(value);
    }
  };
  // The compiler vectorizes the loop for a constant stride.
  constexpr int64_t kTogether = sizeof(T);
  column.stride == kTogether ? decode_at(kTogether) : decode_at(column.stride);
}

// Returns f(T()) for the type T of a column.
template <typename Function>
auto with_type(ColumnKind kind, const Function& f) {
  switch (kind) {
    case ColumnKind::kU8:
      return f(uint8_t{});
    case ColumnKind::kI8:
      return f(int8_t{});
    case ColumnKind::kU16:
      return f(uint16_t{});
    case ColumnKind::kI16:
      return f(int16_t{});
    case ColumnKind::kU32:
      return f(uint32_t{});
    case ColumnKind::kI32:
      return f(int32_t{});
    case ColumnKind::kU64:
      return f(uint64_t{});
    case ColumnKind::kI64:
      return f(int64_t{});
  }
  throw std::invalid_argument("a column of events has an unknown type");
}

void decode_column(const Column& column, int64_t begin, int64_t size, uint32_t* out) {
  with_type(column.kind, [&](auto zero) { decode<decltype(zero)>(column, begin, size, out); });
}

std::string text_of(const Column& column, int64_t position) {
  return with_type(column.kind, [&](auto value) {
    std::memcpy(&value, column.data + position * column.stride, sizeof(value));
    return std::to_string(value);
  });
}

}  // namespace

void decode_events(const EventInput& input, EventChunk* chunk) {
  if (input.words == nullptr) {
    decode_column(input.pixel, chunk->first, chunk->size, chunk->pixel);
    decode_column(input.frame, chunk->first, chunk->size, chunk->frame);
    decode_column(input.count, chunk->first, chunk->size, chunk->count);
    return;
  }
  const auto base = static_cast<uint32_t>(input.pixel_base);
  for (int64_t i = 0; i < chunk->size; ++i) {
    uint64_t word;
    std::memcpy(&word, input.words + 8 * (chunk->first + i), 8);
    // A pixel below the base wraps to a number that is out of range.
    chunk->pixel[i] = (static_cast<uint32_t>(word >> 16) & 0x1fffff) - base;
    chunk->frame[i] = static_cast<uint32_t>(word >> 40);
    chunk->count[i] = static_cast<uint32_t>(word) & 0xfff;
  }
}

std::string text_of_event(const EventInput& input, int64_t event) {
  std::string pixel, frame, count;
  if (input.words == nullptr) {
    pixel = text_of(input.pixel, event);
    frame = text_of(input.frame, event);
    count = text_of(input.count, event);
  } else {
    uint64_t word;
    std::memcpy(&word, input.words + 8 * event, 8);
    pixel = std::to_string(static_cast<int64_t>((word >> 16) & 0x1fffff) - input.pixel_base);
    frame = std::to_string(word >> 40);
    count = std::to_string(word & 0xfff);
  }
  return "pixel " + pixel + ", frame " + frame + " and count " + count;
}

int32_t most_count_bits(const EventInput& input) {
  if (input.words != nullptr) return 12;
  switch (input.count.kind) {
    case ColumnKind::kU8:
    case ColumnKind::kI8:
      return 8;
    case ColumnKind::kU16:
    case ColumnKind::kI16:
      return 16;
    default:
      return 32;
  }
}

void release_events(const EventInput& input, int64_t first, int64_t count) {
  if (!input.mapped || input.words == nullptr) return;
  release_file_pages(input.words + 8 * first, static_cast<size_t>(8 * count));
}

}  // namespace jaxkern::correlators
