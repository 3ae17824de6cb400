// Writes each row once, sequentially, with loops that compilers vectorize.
#include "tokens/rows.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace jaxkern::tokens {
namespace {

constexpr int64_t kPrefetchBytes = 256;  // of the next piece; the hardware prefetches the rest

// Converts to int32; returns false if a value does not fit. Values may be unaligned.
template <typename From>
bool convert(const char* values, int64_t count, uint32_t* out) {
  uint64_t outside = 0;
  for (int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, values + i * static_cast<int64_t>(sizeof(From)), sizeof(From));
    out[i] = static_cast<uint32_t>(value);
    if constexpr (std::is_same_v<From, uint32_t>) outside |= value & 0x80000000u;
    if constexpr (std::is_same_v<From, uint64_t>) outside |= value >> 31;
    if constexpr (std::is_same_v<From, int64_t>) {
      outside |= (static_cast<uint64_t>(value) + 0x80000000u) >> 32;
    }
  }
  return outside == 0;
}

bool copy(const Field& field, int64_t begin, int64_t count, uint32_t* out) {
  const auto* base = static_cast<const char*>(field.values);
  switch (field.kind) {
    case Kind::kInt8:
      return convert<int8_t>(base + begin, count, out);
    case Kind::kUint8:
      return convert<uint8_t>(base + begin, count, out);
    case Kind::kInt16:
      return convert<int16_t>(base + 2 * begin, count, out);
    case Kind::kUint16:
      return convert<uint16_t>(base + 2 * begin, count, out);
    case Kind::kUint32:
      return convert<uint32_t>(base + 4 * begin, count, out);
    case Kind::kInt64:
      return convert<int64_t>(base + 8 * begin, count, out);
    case Kind::kUint64:
      return convert<uint64_t>(base + 8 * begin, count, out);
    case Kind::kInt32:
    case Kind::kFloat32:
      break;
  }
  std::memcpy(out, base + 4 * begin, 4 * static_cast<size_t>(count));
  return true;
}

int64_t bytes_of(Kind kind) {
  switch (kind) {
    case Kind::kInt8:
    case Kind::kUint8:
      return 1;
    case Kind::kInt16:
    case Kind::kUint16:
      return 2;
    case Kind::kInt64:
    case Kind::kUint64:
      return 8;
    default:
      return 4;
  }
}

void prefetch(const Field& field, const Piece& piece) {
  const int64_t bytes = bytes_of(field.kind);
  const auto* from = static_cast<const char*>(field.values) + piece.begin * bytes;
  const int64_t ahead = std::min(kPrefetchBytes, piece.count * bytes);
  for (int64_t at = 0; at < ahead; at += 64) __builtin_prefetch(from + at, 0, 0);
}

int64_t first_bad(const Field& field, const Piece& piece) {
  uint32_t out = 0;
  for (int64_t i = piece.begin; i < piece.begin + piece.count; ++i) {
    if (!copy(field, i, 1, &out)) return i;
  }
  return piece.begin;
}

void count_up(int32_t* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<int32_t>(i);
}

}  // namespace

int64_t bad_offset(const int64_t* offsets, int64_t count, int64_t size) {
  int64_t before = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t offset = offsets[i];
    if (offset < before || offset > size) return i;
    before = offset;
  }
  return -1;
}

std::string check_rows(const Piece* pieces, int64_t count, const int64_t* ends, int64_t rows,
                       int64_t length, const std::vector<Field>& fields) {
  if (length < 1 || length > kMaxRowLength) {
    return "length is " + std::to_string(length) + "; expected 1 to 2^30";
  }
  int64_t min_size = INT64_MAX;
  for (const Field& field : fields) {
    if (static_cast<int32_t>(field.kind) < 0 || static_cast<int32_t>(field.kind) >= kKinds) {
      return "unknown kind " + std::to_string(static_cast<int32_t>(field.kind)) + " of values";
    }
    min_size = std::min(min_size, field.size);
  }
  int64_t at = 0;
  for (int64_t row = 0; row < rows; ++row) {
    if (ends[row] < at || ends[row] > count) {
      return "row " + std::to_string(row) + " ends at piece " + std::to_string(ends[row]) + " of " +
             std::to_string(count);
    }
    int64_t room = length;
    for (; at < ends[row]; ++at) {
      const Piece& piece = pieces[at];
      if (piece.count < 1 || piece.count > room) {
        return "piece " + std::to_string(at) + " of row " + std::to_string(row) + " has " +
               std::to_string(piece.count) + " tokens; the row has room for " +
               std::to_string(room);
      }
      if (piece.begin < 0 || piece.begin > min_size - piece.count) {
        return "document " + std::to_string(piece.document) + " has " +
               std::to_string(piece.count) + " values from " + std::to_string(piece.begin) +
               "; there are " + std::to_string(min_size);
      }
      room -= piece.count;
    }
  }
  return at == count ? "" : "the last row ends before the last piece";
}

BadValue write_rows(const Piece* pieces, const int64_t* ends, int64_t rows, int64_t length,
                    const std::vector<Field>& fields, const RowMarks& marks) {
  BadValue bad;
  const int64_t last = rows > 0 ? ends[rows - 1] : 0;
  int64_t at = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t first = row * length;
    int64_t filled = 0;
    for (int32_t segment = 1; at < ends[row]; ++at, ++segment) {
      const Piece& piece = pieces[at];
      const int64_t to = first + filled;
      for (size_t f = 0; f < fields.size(); ++f) {
        if (at + 1 < last) prefetch(fields[f], pieces[at + 1]);
        if (!copy(fields[f], piece.begin, piece.count, fields[f].out + to) && bad.field < 0) {
          bad = {static_cast<int64_t>(f), first_bad(fields[f], piece)};
        }
      }
      if (marks.segment_ids) std::fill_n(marks.segment_ids + to, piece.count, segment);
      if (marks.positions) count_up(marks.positions + to, piece.count);
      if (marks.loss_mask) {
        marks.loss_mask[to] = 0;
        std::memset(marks.loss_mask + to + 1, 1, static_cast<size_t>(piece.count - 1));
      }
      filled += piece.count;
    }
    const int64_t to = first + filled, rest = length - filled;
    for (const Field& field : fields) std::fill_n(field.out + to, rest, field.pad);
    if (marks.segment_ids) std::fill_n(marks.segment_ids + to, rest, 0);
    if (marks.positions) std::fill_n(marks.positions + to, rest, 0);
    if (marks.loss_mask) std::memset(marks.loss_mask + to, 0, static_cast<size_t>(rest));
  }
  return bad;
}

}  // namespace jaxkern::tokens
