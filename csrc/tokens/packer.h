// Bin packing of token documents into rows, by their lengths; does not read tokens.
#ifndef JAXKERN_TOKENS_PACKER_H_
#define JAXKERN_TOKENS_PACKER_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace jaxkern::tokens {

enum class Method : int32_t {
  kFirstFit = 0,     // the first open bin with enough room
  kBestFit = 1,      // the open bin with the least sufficient room
  kConcatSplit = 2,  // concatenates documents and splits them at row ends
};
constexpr int32_t kMethods = 3;

// Treatment of documents that are longer than a row; concat-split always splits.
enum class Overlong : int32_t { kError = 0, kSplit = 1, kTruncate = 2, kDrop = 3 };
constexpr int32_t kOverlongs = 4;

constexpr int64_t kMaxBins = int64_t{1} << 20;
// A bin is closed when its first document is this many times `max_open_bins` documents old, which
// bounds the documents to read again on restore.
constexpr int64_t kMaxAge = 256;
constexpr int64_t kMaxRowLength = int64_t{1} << 30;

// Tokens [start, start + count) of a document; `begin` is their offset among all values.
struct Piece {
  int64_t document = 0;
  int64_t start = 0;
  int64_t count = 0;
  int64_t begin = 0;
};

// Complete rows: row r consists of pieces [ends[r - 1], ends[r]).
struct PackedRows {
  std::vector<Piece> pieces;
  std::vector<int64_t> ends;
};

// Online bin packing with at most `max_open_bins` open bins. A bin is closed, and becomes a row,
// when it is full, when its first document is too old (kMaxAge), or when it is the fullest and a
// document needs a new bin while all are open. Documents are numbered in the order of arrival.
class Packer {
 public:
  // Throws std::invalid_argument for arguments out of range.
  Packer(int64_t length, Method method, Overlong overlong, int64_t max_open_bins);

  // Places documents, described by offset and length, until `rows` complete rows can be taken.
  // Returns the number of documents that were consumed; the next call continues with the document
  // after them, of which `started()` tokens may already be placed.
  // Throws std::invalid_argument for a negative begin or length, and for an overlong document with
  // Overlong::kError; earlier documents are placed then.
  int64_t add(const int64_t* begins, const int64_t* lengths, int64_t count, int64_t rows);

  // Closes open bins in their order until `rows` complete rows can be taken.
  void flush(int64_t rows);

  // Removes and returns the complete rows.
  PackedRows take();

  // Restores the state of a packer with these open bins. Throws std::invalid_argument if no packer
  // can have this state.
  void restore(int64_t document, int64_t started, const std::vector<std::vector<Piece>>& bins);

  // Skips a document, for example one that raised an error.
  void skip() { ++document_, started_ = 0; }

  int64_t document() const { return document_; }
  int64_t started() const { return started_; }
  int64_t complete() const { return static_cast<int64_t>(done_.ends.size()); }
  int64_t open() const { return static_cast<int64_t>(by_room_.size()); }
  // Bins in the order of opening; closed ones are empty.
  const std::vector<std::vector<Piece>>& bins() const { return bins_; }

 private:
  bool close_old();
  void place(const Piece& piece);
  int64_t find_bin(int64_t count);  // a bin with enough room; may close another bin
  void compact();                   // removes closed bins from the arrays
  void set_room(int64_t bin, int64_t room);
  void close(int64_t bin);

  int64_t length_;
  Method method_;
  Overlong overlong_;
  int64_t max_open_;
  int64_t document_ = 0, started_ = 0;
  // Bins are indexed in the order of opening. The arrays have 2 * max_open_ elements, so that they
  // are compacted at most once per max_open_ openings.
  std::vector<std::vector<Piece>> bins_;
  std::vector<int64_t> room_;                      // -1: not open
  std::set<std::pair<int64_t, int64_t>> by_room_;  // (room, bin) of the open bins
  std::vector<int64_t> max_room_;  // binary tree of maxima: node i over 2i and 2i + 1; leaves: bins
  size_t next_ = 0;                // the next unused bin
  size_t oldest_ = 0;              // no bin before this one is open
  PackedRows done_;
};

}  // namespace jaxkern::tokens

#endif  // JAXKERN_TOKENS_PACKER_H_
