// Rows of packed tokens, written from where the documents lie.
#ifndef JAXKERN_TOKENS_ROWS_H_
#define JAXKERN_TOKENS_ROWS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tokens/packer.h"

namespace jaxkern::tokens {

// Of the values as they lie; the rows hold int32, and float32 as it is.
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

// One field: its values, at any address, and its rows [rows, length], 4 bytes an item.
struct Field {
  const void* values = nullptr;
  int64_t size = 0;
  Kind kind = Kind::kInt32;
  uint32_t pad = 0;  // the bits of an int32 or a float32
  uint32_t* out = nullptr;
};

// What is written beside the fields; each may be null.
struct RowMarks {
  int32_t* segment_ids = nullptr;  // 1, 2, ... by document; 0 is padding
  int32_t* positions = nullptr;    // in the segment, from 0; 0 in padding
  uint8_t* loss_mask = nullptr;    // 1 where the token follows another of its segment
};

// The first place at which offsets do not rise from 0 or more to `size` or less, or -1.
int64_t bad_offset(const int64_t* offsets, int64_t count, int64_t size);

// What is wrong with rows that take pieces of fields; "" where they can be written.
std::string check_rows(const Piece* pieces, int64_t count, const int64_t* ends, int64_t rows,
                       int64_t length, const std::vector<Field>& fields);

// A value that is no int32: which field and where among its values; field is -1 where there is
// none.
struct BadValue {
  int64_t field = -1;
  int64_t place = 0;
};

// Writes rows that `check_rows` has passed.
BadValue write_rows(const Piece* pieces, const int64_t* ends, int64_t rows, int64_t length,
                    const std::vector<Field>& fields, const RowMarks& marks);

}  // namespace jaxkern::tokens

#endif  // JAXKERN_TOKENS_ROWS_H_
