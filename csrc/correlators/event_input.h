// Events in the caller's memory, as columns or as Rigaku words, decoded in chunks.
#ifndef JAXKERN_CORRELATORS_EVENT_INPUT_H_
#define JAXKERN_CORRELATORS_EVENT_INPUT_H_

#include <algorithm>
#include <cstdint>
#include <string>

namespace jaxkern::correlators {

enum class ColumnKind : int32_t { kU8, kI8, kU16, kI16, kU32, kI32, kU64, kI64 };

// Integers in the caller's memory, `stride` bytes apart.
struct Column {
  const char* data = nullptr;
  int64_t stride = 0;
  ColumnKind kind = ColumnKind::kI32;
};

// Events as three columns or as Rigaku words: count in bits 0 to 11, pixel in 16 to 36, frame in
// 40 to 63, little-endian.
struct EventInput {
  int64_t size = 0;
  const char* words = nullptr;  // null for columns
  int64_t pixel_base = 0;       // subtracted from the pixels of words
  bool mapped = false;          // words are in a read-only mapping of a file, whose pages are
                                // released after reading (the page cache still has them)
  Column pixel, frame, count;
};

// Replaces numbers that are negative or do not fit; larger than every valid number.
constexpr uint32_t kTooLarge = 0xffffffff;

// Decoded events first .. first + size - 1.
struct EventChunk {
  static constexpr int64_t kSize = 1024;
  int64_t first = 0, size = 0;
  uint32_t pixel[kSize], frame[kSize], count[kSize];
};

// Decodes the events of a chunk with `first` and `size` set.
void decode_events(const EventInput& input, EventChunk* chunk);

// Returns a text such as "pixel 3, frame 7 and count 1" with the numbers of the input.
std::string text_of_event(const EventInput& input, int64_t event);

// Returns the number of bits of the largest possible count of the input's type.
int32_t most_count_bits(const EventInput& input);

// Releases the pages of a mapped file that only hold events first .. first + count - 1.
void release_events(const EventInput& input, int64_t first, int64_t count);

// Calls run(const EventChunk&) for the events begin .. end - 1, in order.
template <typename Run>
void for_event_chunks(const EventInput& input, int64_t begin, int64_t end, const Run& run) {
  constexpr int64_t kReleasedTogether = int64_t{1} << 18;  // 2 MiB of words
  EventChunk chunk;
  int64_t released = begin;  // events before this were released
  for (chunk.first = begin; chunk.first < end; chunk.first += chunk.size) {
    chunk.size = std::min(EventChunk::kSize, end - chunk.first);
    decode_events(input, &chunk);
    run(static_cast<const EventChunk&>(chunk));
    const int64_t done = chunk.first + chunk.size;
    if (input.mapped && (done - released >= kReleasedTogether || done == end)) {
      release_events(input, released, done - released);
      released = done;
    }
  }
}

}  // namespace jaxkern::correlators

#endif  // JAXKERN_CORRELATORS_EVENT_INPUT_H_
