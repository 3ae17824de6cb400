// Placement in O(log bins) per document. First-fit descends a binary tree of the maximal room,
// best-fit searches an ordered set of (room, bin).
#include "tokens/packer.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace jaxkern::tokens {
namespace {

void require(bool condition, const std::string& what) {
  if (!condition) throw std::invalid_argument(what);
}

}  // namespace

Packer::Packer(int64_t length, Method method, Overlong overlong, int64_t max_open_bins)
    : length_(length), method_(method), overlong_(overlong), max_open_(max_open_bins) {
  require(length >= 1 && length <= kMaxRowLength,
          "length is " + std::to_string(length) + "; expected 1 to 2^30");
  require(max_open_bins >= 1 && max_open_bins <= kMaxBins,
          "max_open_bins is " + std::to_string(max_open_bins) + "; expected 1 to 2^20");
  require(static_cast<int32_t>(method) >= 0 && static_cast<int32_t>(method) < kMethods,
          "unknown method " + std::to_string(static_cast<int32_t>(method)));
  require(
      static_cast<int32_t>(overlong) >= 0 && static_cast<int32_t>(overlong) < kOverlongs,
      "unknown treatment of overlong documents: " + std::to_string(static_cast<int32_t>(overlong)));
  if (method_ == Method::kConcatSplit) max_open_ = 1;
  restore(0, 0, {});
}

void Packer::restore(int64_t document, int64_t started,
                     const std::vector<std::vector<Piece>>& bins) {
  require(document >= 0 && document < INT64_MAX / 2 && started >= 0,
          "document and token counts must not be negative");
  require(static_cast<int64_t>(bins.size()) <= max_open_, std::to_string(bins.size()) +
                                                              " bins are open; expected at most " +
                                                              std::to_string(max_open_));
  std::vector<int64_t> rooms;
  for (const std::vector<Piece>& bin : bins) {
    int64_t room = length_;
    for (const Piece& piece : bin) {
      require(piece.document >= 0 && piece.document <= document && piece.start >= 0 &&
                  piece.begin >= 0 && piece.count >= 1 && piece.count < room,
              "the pieces of an open bin are invalid or fill it");
      room -= piece.count;
    }
    require(room < length_, "an open bin is empty");
    rooms.push_back(room);
  }
  document_ = document;
  started_ = started;
  done_ = {};
  const size_t capacity = 2 * static_cast<size_t>(max_open_);
  bins_ = bins;
  bins_.resize(capacity);
  room_.assign(capacity, -1);
  by_room_.clear();
  size_t leaves = 2;
  while (leaves < capacity) leaves *= 2;
  max_room_.assign(2 * leaves, -1);
  for (size_t bin = 0; bin < rooms.size(); ++bin) {
    set_room(static_cast<int64_t>(bin), rooms[bin]);
  }
  next_ = rooms.size();
  oldest_ = 0;
}

int64_t Packer::add(const int64_t* begins, const int64_t* lengths, int64_t count, int64_t rows) {
  int64_t used = 0;
  while (used < count && complete() < rows) {
    if (close_old()) continue;
    const int64_t begin = begins[used];
    int64_t size = lengths[used];
    require(begin >= 0 && size >= 0 && begin <= INT64_MAX - size,
            "document " + std::to_string(document_) + " has " + std::to_string(size) +
                " tokens at offset " + std::to_string(begin));
    if (size > length_ && method_ != Method::kConcatSplit) {
      require(overlong_ != Overlong::kError, "document " + std::to_string(document_) + " has " +
                                                 std::to_string(size) + " tokens; a row has " +
                                                 std::to_string(length_));
      if (overlong_ == Overlong::kTruncate) size = length_;
      if (overlong_ == Overlong::kDrop) size = 0;
    }
    if (started_ < size) {
      int64_t piece = std::min(size - started_, length_);
      if (method_ == Method::kConcatSplit && !by_room_.empty()) {
        piece = std::min(piece, by_room_.begin()->first);
      }
      place({document_, started_, piece, begin + started_});
      started_ += piece;
      if (started_ < size) continue;
    }
    skip();
    ++used;
  }
  return used;
}

void Packer::flush(int64_t rows) {
  for (size_t bin = 0; bin < next_ && complete() < rows; ++bin) {
    if (room_[bin] >= 0) close(static_cast<int64_t>(bin));
  }
}

PackedRows Packer::take() {
  PackedRows rows;
  std::swap(rows, done_);
  return rows;
}

bool Packer::close_old() {
  while (oldest_ < next_ && room_[oldest_] < 0) ++oldest_;
  if (oldest_ == next_ || document_ - bins_[oldest_].front().document < kMaxAge * max_open_) {
    return false;
  }
  close(static_cast<int64_t>(oldest_));
  return true;
}

void Packer::place(const Piece& piece) {
  if (piece.count == length_) {  // fills a row
    done_.pieces.push_back(piece);
    done_.ends.push_back(static_cast<int64_t>(done_.pieces.size()));
    return;
  }
  const int64_t at = find_bin(piece.count);
  const int64_t room = room_[static_cast<size_t>(at)];
  bins_[static_cast<size_t>(at)].push_back(piece);
  set_room(at, (room < 0 ? length_ : room) - piece.count);
  if (room == piece.count) close(at);
}

int64_t Packer::find_bin(int64_t count) {
  if (method_ == Method::kBestFit) {
    const auto found = by_room_.lower_bound({count, 0});
    if (found != by_room_.end()) return found->second;
  } else if (max_room_[1] >= count) {
    size_t node = 1;
    const size_t leaves = max_room_.size() / 2;
    while (node < leaves) node = max_room_[2 * node] >= count ? 2 * node : 2 * node + 1;
    return static_cast<int64_t>(node - leaves);
  }
  if (open() == max_open_) close(by_room_.begin()->second);
  if (next_ == bins_.size()) compact();
  return static_cast<int64_t>(next_++);
}

void Packer::compact() {
  size_t to = 0;
  for (size_t from = 0; from < next_; ++from) {
    const int64_t room = room_[from];
    if (room < 0) continue;
    if (to != from) {
      bins_[to].swap(bins_[from]);
      set_room(static_cast<int64_t>(from), -1);
      set_room(static_cast<int64_t>(to), room);
    }
    ++to;
  }
  next_ = to;
  oldest_ = 0;
}

void Packer::set_room(int64_t bin, int64_t room) {
  int64_t& current = room_[static_cast<size_t>(bin)];
  if (current >= 0) by_room_.erase({current, bin});
  if (room >= 0) by_room_.insert({room, bin});
  current = room;
  size_t node = max_room_.size() / 2 + static_cast<size_t>(bin);
  max_room_[node] = room;
  while (node > 1) {
    node /= 2;
    max_room_[node] = std::max(max_room_[2 * node], max_room_[2 * node + 1]);
  }
}

void Packer::close(int64_t bin) {
  std::vector<Piece>& pieces = bins_[static_cast<size_t>(bin)];
  done_.pieces.insert(done_.pieces.end(), pieces.begin(), pieces.end());
  done_.ends.push_back(static_cast<int64_t>(done_.pieces.size()));
  pieces.clear();
  set_room(bin, -1);
}

}  // namespace jaxkern::tokens
