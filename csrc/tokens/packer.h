// Which row each document of tokens goes to: placement by lengths alone; no token is looked at.
#ifndef JAXKERN_TOKENS_PACKER_H_
#define JAXKERN_TOKENS_PACKER_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace jaxkern::tokens {

enum class Method : int32_t {
  kFirstFit = 0,     // the first open bin that has room
  kBestFit = 1,      // the open bin with the least room that suffices
  kConcatSplit = 2,  // one document behind the other, cut at every row's end
};
constexpr int32_t kMethods = 3;

// What becomes of a document that is longer than a row; concat-split cuts them anyway.
enum class Overlong : int32_t { kError = 0, kSplit = 1, kTruncate = 2, kDrop = 3 };
constexpr int32_t kOverlongs = 4;

constexpr int64_t kMostBins = int64_t{1} << 20;
constexpr int64_t kDocumentsBack = 256;  // times the bins that may be open
constexpr int64_t kLongestRow = int64_t{1} << 30;

// Tokens [start, start + count) of a document, which lie from `begin` on among all values.
struct Piece {
  int64_t document = 0;
  int64_t start = 0;
  int64_t count = 0;
  int64_t begin = 0;
};

// Rows that are complete: row r is the pieces from ends[r - 1] to ends[r].
struct PackedRows {
  std::vector<Piece> pieces;
  std::vector<int64_t> ends;
};

// Bins with a bound on how many are open. Where a document fits into none of them and all are
// open, the fullest is closed; so is one that becomes full, and one whose first document lies so
// far back that who reads documents again would read too many. Documents are numbered as they come.
class Packer {
 public:
  // Throws std::invalid_argument for what it cannot be.
  Packer(int64_t length, Method method, Overlong overlong, int64_t max_open_bins);

  // Places documents, given by where they begin and their lengths, until `rows` rows are complete
  // that were not taken. Returns how many documents were used up; the next call goes on with the
  // one behind them, of which `started()` tokens may have been placed already.
  // Throws std::invalid_argument, and has then placed those before, for a negative begin or length
  // and for an overlong document that is an error.
  int64_t add(const int64_t* begins, const int64_t* lengths, int64_t count, int64_t rows);

  // Closes open bins, in their order, until `rows` rows are complete that were not taken.
  void flush(int64_t rows);

  // The complete rows that were not taken.
  PackedRows take();

  // Goes on where another packer was that had these open bins. Throws std::invalid_argument for
  // what cannot be a packer's.
  void restore(int64_t document, int64_t started, const std::vector<std::vector<Piece>>& bins);

  // Passes over a document, as one that was refused.
  void skip() { ++document_, started_ = 0; }

  int64_t document() const { return document_; }
  int64_t started() const { return started_; }
  int64_t complete() const { return static_cast<int64_t>(done_.ends.size()); }
  int64_t open() const { return static_cast<int64_t>(by_room_.size()); }
  // The open bins in the order in which they were opened, with empty places between them.
  const std::vector<std::vector<Piece>>& bins() const { return bins_; }

 private:
  bool close_old();
  void place(const Piece& piece);
  int64_t place_for(int64_t count);  // where there is room, after a close if it must be
  void move_together();              // frees the places between open bins
  void set_room(int64_t place, int64_t room);
  void close(int64_t place);

  int64_t length_;
  Method method_;
  Overlong overlong_;
  int64_t most_;
  int64_t document_ = 0, started_ = 0;
  // Places are taken one behind the other, so that their order is that of opening; twice as many as
  // bins, so that they are moved together only when that many were opened.
  std::vector<std::vector<Piece>> bins_;           // by place
  std::vector<int64_t> room_;                      // by place; -1 where no bin is open
  std::set<std::pair<int64_t, int64_t>> by_room_;  // (room, place) of the open bins
  std::vector<int64_t> most_room_;  // a tree: node i is the larger of 2i and 2i + 1, leaves places
  size_t next_ = 0;                 // the next place to take
  size_t oldest_ = 0;               // no open bin stands before this place
  PackedRows done_;
};

}  // namespace jaxkern::tokens

#endif  // JAXKERN_TOKENS_PACKER_H_
