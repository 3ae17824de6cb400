// Events in the caller's memory, as columns or as Rigaku's words, decoded some at a time.
#ifndef JAXKERN_CORRELATORS_EVENT_INPUT_H_
#define JAXKERN_CORRELATORS_EVENT_INPUT_H_

#include <algorithm>
#include <cstdint>
#include <string>

namespace jaxkern::correlators {

enum class ColumnKind : int32_t { kU8, kI8, kU16, kI16, kU32, kI32, kU64, kI64 };

// Whole numbers in the caller's memory, `stride` bytes apart.
struct Column {
  const char* data = nullptr;
  int64_t stride = 0;
  ColumnKind kind = ColumnKind::kI32;
};

// Events as three columns or as Rigaku's words: count in bits 0 to 11, pixel in 16 to 36, frame in
// 40 to 63, little-endian.
struct EventInput {
  int64_t size = 0;
  const char* words = nullptr;  // null: the columns
  int64_t pixel_base = 0;       // subtracted from the pixels of words
  bool mapped = false;          // words lie in a file's read-only mapping, whose pages are given
                                // back once they were read: the file's cache still has them
  Column pixel, frame, count;
};

// No number of a column that counts is as large: what does not fit is turned into it.
constexpr uint32_t kTooLarge = 0xffffffff;

// Some events, decoded.
struct EventChunk {
  static constexpr int64_t kSize = 1024;
  int64_t first = 0, size = 0;
  uint32_t pixel[kSize], frame[kSize], count[kSize];
};

// Fills a chunk whose first and size are given.
void decode_events(const EventInput& input, EventChunk* chunk);

// "the pixel 3, the frame 7 and the count 1", as they stand in the input.
std::string text_of_event(const EventInput& input, int64_t event);

// Bits that no count of the input exceeds.
int32_t most_count_bits(const EventInput& input);

// Gives back the pages of a mapped file in which events first .. first + count - 1 lie alone.
void give_back_events(const EventInput& input, int64_t first, int64_t count);

// run(const EventChunk&) for the events begin .. end - 1, in order.
template <typename Run>
void for_event_chunks(const EventInput& input, int64_t begin, int64_t end, const Run& run) {
  constexpr int64_t kGivenTogether = int64_t{1} << 18;  // 2 MiB of words
  EventChunk chunk;
  int64_t given = begin;  // what lies before it was given back
  for (chunk.first = begin; chunk.first < end; chunk.first += chunk.size) {
    chunk.size = std::min(EventChunk::kSize, end - chunk.first);
    decode_events(input, &chunk);
    run(static_cast<const EventChunk&>(chunk));
    const int64_t done = chunk.first + chunk.size;
    if (input.mapped && (done - given >= kGivenTogether || done == end)) {
      give_back_events(input, given, done - given);
      given = done;
    }
  }
}

}  // namespace jaxkern::correlators

#endif  // JAXKERN_CORRELATORS_EVENT_INPUT_H_
