// Rows of packed tokens, gathered from the documents.
#ifndef JAXKERN_TOKENS_ROWS_H_
#define JAXKERN_TOKENS_ROWS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tokens/packer.h"

namespace jaxkern::tokens {

// Type of stored values. Rows hold int32 or float32.
enum class Kind : int32_t {
  kInt8 = 0,
  kUint8 = 1,
  kInt16 = 2,
  kUint16 = 3,
  kInt32 = 4,
  kUint32 = 5,
  kInt64 = 6,
  kUint64 = 7,
  kFloat32 = 8,
};
constexpr int32_t kKinds = 9;

// One field: its values, at any alignment, and its rows [rows, length] of 4-byte items.
struct Field {
  const void* values = nullptr;
  int64_t size = 0;
  Kind kind = Kind::kInt32;
  uint32_t pad = 0;  // the bits of an int32 or a float32
  uint32_t* out = nullptr;
};

// Arrays that are written in addition to the fields; each may be null.
struct RowMarks {
  int32_t* segment_ids = nullptr;  // 1, 2, ... by document; 0 is padding
  int32_t* positions = nullptr;    // in the segment, from 0; 0 in padding
  uint8_t* loss_mask = nullptr;    // 1 where the token follows another of its segment
};

// Returns the first position at which offsets decrease or leave [0, size], or -1.
int64_t bad_offset(const int64_t* offsets, int64_t count, int64_t size);

// Checks rows of pieces of fields; returns a message, or "" if the rows can be written.
std::string check_rows(const Piece* pieces, int64_t count, const int64_t* ends, int64_t rows,
                       int64_t length, const std::vector<Field>& fields);

// A value that does not fit int32: its field and its index among the values. `field` is -1 if all
// values fit.
struct BadValue {
  int64_t field = -1;
  int64_t index = 0;
};

// Writes rows; `check_rows` must have succeeded.
BadValue write_rows(const Piece* pieces, const int64_t* ends, int64_t rows, int64_t length,
                    const std::vector<Field>& fields, const RowMarks& marks);

}  // namespace jaxkern::tokens

#endif  // JAXKERN_TOKENS_ROWS_H_
