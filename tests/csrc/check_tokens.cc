// Packing and rows of tokens with documents that cannot be, at random, without Python.
//   check_tokens [rounds] [seed]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "tokens/packer.h"
#include "tokens/rows.h"

namespace {

using namespace jaxkern::tokens;  // NOLINT

int g_failures = 0;

void expect(bool condition, const std::string& what) {
  if (condition) return;
  std::printf("check_tokens: %s\n", what.c_str());
  ++g_failures;
}

template <typename Call>
bool throws(const Call& call) {
  try {
    call();
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

constexpr int64_t kFarAway = int64_t{1} << 60;
const int64_t kHostile[] = {-1, INT64_MIN, INT64_MAX, kFarAway, -kFarAway, 0, 1, 2, 1000};

// Values that end where their memory ends, so that a sanitizer sees the first read beyond.
struct Values {
  Values(int64_t size, Kind kind, std::mt19937_64& random)
      : kind(kind),
        width(kind == Kind::kInt64    ? 8
              : kind == Kind::kUint16 ? 2
                                      : 4) {
    bytes.resize(static_cast<size_t>(size * width));
    for (int64_t i = 0; i < size; ++i) {
      bytes[static_cast<size_t>(i * width)] = static_cast<uint8_t>(random() % 100 + 1);
    }
  }
  int64_t size() const { return static_cast<int64_t>(bytes.size()) / width; }
  uint32_t at(int64_t i) const { return bytes[static_cast<size_t>(i * width)]; }
  Kind kind;
  int64_t width;
  std::vector<uint8_t> bytes;
};

struct Made {
  explicit Made(int64_t places)
      : tokens(static_cast<size_t>(places)),
        segments(tokens.size()),
        positions(tokens.size()),
        mask(tokens.size()) {}
  RowMarks marks() { return {segments.data(), positions.data(), mask.data()}; }
  std::vector<uint32_t> tokens;
  std::vector<int32_t> segments, positions;
  std::vector<uint8_t> mask;
};

// Every token of every document is in the rows once, after the one before it.
void run(uint64_t seed) {
  std::mt19937_64 random(seed);
  const int64_t lengths_of_rows[] = {1, 2, 17, 64, 300};
  const int64_t length = lengths_of_rows[random() % 5];
  const auto method = static_cast<Method>(random() % kMethods);
  const auto overlong = static_cast<Overlong>(1 + random() % (kOverlongs - 1));
  const int64_t most = 1 + static_cast<int64_t>(random() % 9);
  const Kind kinds[] = {Kind::kUint16, Kind::kInt32, Kind::kInt64};
  std::vector<int64_t> begins, lengths;
  int64_t size = static_cast<int64_t>(random() % 3);
  for (uint64_t i = random() % 200; i > 0; --i) {
    begins.push_back(size);
    lengths.push_back(static_cast<int64_t>(random() % (random() % 10 == 0 ? 700 : 40)));
    size += lengths.back();
  }
  const Values values(size, kinds[random() % 3], random);
  Packer packer(length, method, overlong, most);
  const auto count = static_cast<int64_t>(lengths.size());
  std::vector<int64_t> seen(static_cast<size_t>(size), 0);
  int64_t at = 0;
  for (;;) {
    const int64_t rows = 1 + static_cast<int64_t>(random() % 6);
    at += packer.add(begins.data() + at, lengths.data() + at, count - at, rows);
    if (at == count) packer.flush(rows);
    const bool last = at == count && packer.open() == 0;
    const PackedRows taken = packer.take();
    expect(static_cast<int64_t>(taken.ends.size()) <= rows, "too many rows");
    Made made(static_cast<int64_t>(taken.ends.size()) * length);
    const std::vector<Field> fields = {
        {values.bytes.data(), values.size(), values.kind, 0, made.tokens.data()}};
    const auto pieces = static_cast<int64_t>(taken.pieces.size());
    const auto complete = static_cast<int64_t>(taken.ends.size());
    expect(check_rows(taken.pieces.data(), pieces, taken.ends.data(), complete, length, fields)
               .empty(),
           "a packer's rows were refused");
    expect(
        write_rows(taken.pieces.data(), taken.ends.data(), complete, length, fields, made.marks())
                .field == -1,
        "a value was refused");
    int64_t piece = 0;
    for (int64_t row = 0; row < complete; ++row) {
      int64_t place = row * length;
      for (int32_t segment = 1; piece < taken.ends[static_cast<size_t>(row)]; ++piece, ++segment) {
        const Piece& part = taken.pieces[static_cast<size_t>(piece)];
        for (int64_t i = 0; i < part.count; ++i, ++place) {
          const auto p = static_cast<size_t>(place);
          ++seen[static_cast<size_t>(part.begin + i)];
          expect(made.tokens[p] == values.at(part.begin + i) && made.segments[p] == segment &&
                     made.positions[p] == i && made.mask[p] == (i > 0),
                 "a token or its marks differ");
        }
      }
      for (; place < (row + 1) * length; ++place) {
        const auto p = static_cast<size_t>(place);
        expect(made.tokens[p] == 0 && made.segments[p] == 0 && made.positions[p] == 0 &&
                   made.mask[p] == 0,
               "padding differs");
      }
    }
    if (last) break;
    if (random() % 2 == 0) {  // another packer resumes
      std::vector<std::vector<Piece>> bins;
      for (const auto& bin : packer.bins()) {
        if (!bin.empty()) bins.push_back(bin);
      }
      Packer next(length, method, overlong, most);
      next.restore(packer.document(), packer.started(), bins);
      packer = next;
    }
  }
  for (size_t d = 0; d < lengths.size(); ++d) {
    int64_t expected_size = lengths[d];
    if (expected_size > length && method != Method::kConcatSplit) {
      if (overlong == Overlong::kTruncate) expected_size = length;
      if (overlong == Overlong::kDrop) expected_size = 0;
    }
    for (int64_t i = 0; i < lengths[d]; ++i) {
      expect(seen[static_cast<size_t>(begins[d] + i)] == (i < expected_size ? 1 : 0),
             "a token is lost or doubled");
    }
  }
}

void hostile(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto any = [&] {
    return random() % 2 == 0 ? kHostile[random() % 9] : static_cast<int64_t>(random() % 30);
  };
  std::vector<int64_t> offsets(random() % 6);
  for (int64_t& offset : offsets) offset = any();
  bool rises = true;
  int64_t before = 0;
  for (const int64_t offset : offsets) {
    rises = rises && offset >= before && offset <= 20;
    before = offset;
  }
  expect((bad_offset(offsets.data(), static_cast<int64_t>(offsets.size()), 20) < 0) == rises,
         "offsets were judged otherwise");

  const int64_t length = 1 + static_cast<int64_t>(random() % 20);
  std::vector<Piece> pieces(random() % 5);
  for (Piece& piece : pieces) piece = {any(), any(), any(), any()};
  std::vector<int64_t> ends(random() % 4);
  for (int64_t& end : ends) end = any();
  if (random() % 2 == 0) std::sort(ends.begin(), ends.end());
  const Values values(20, Kind::kInt32, random);
  const auto rows = static_cast<int64_t>(ends.size());
  Made made(rows * length);
  const std::vector<Field> fields = {
      {values.bytes.data(), values.size(), values.kind, 0, made.tokens.data()}};
  const auto count = static_cast<int64_t>(pieces.size());
  if (check_rows(pieces.data(), count, ends.data(), rows, length, fields).empty()) {
    write_rows(pieces.data(), ends.data(), rows, length, fields, made.marks());
  }

  Packer packer(length, static_cast<Method>(random() % kMethods),
                static_cast<Overlong>(random() % kOverlongs),
                1 + static_cast<int64_t>(random() % 3));
  std::vector<std::vector<Piece>> bins;
  for (uint64_t i = random() % 5; i > 0; --i) bins.push_back(pieces);
  (void)throws([&] { packer.restore(any(), any(), bins); });
  std::vector<int64_t> begins(6), lengths(6);
  for (int64_t& begin : begins) begin = any();
  // Splitting a document of 2^60 tokens into rows ends when the rows that are asked for are there.
  for (int64_t& size : lengths) size = any();
  (void)throws([&] { (void)packer.add(begins.data(), lengths.data(), 6, 50); });
  packer.flush(100);
  for (const Piece& piece : packer.take().pieces) {
    expect(piece.count >= 1 && piece.count <= length && piece.begin >= 0, "a piece of nothing");
  }
}

void check_refusals() {
  const auto made = [](int64_t length, int32_t method, int32_t overlong, int64_t bins) {
    return
        [=] { Packer(length, static_cast<Method>(method), static_cast<Overlong>(overlong), bins); };
  };
  expect(!throws(made(1, 0, 0, 1)) && !throws(made(kMaxRowLength, 2, 3, 1)),
         "a packer was refused");
  for (const int64_t length : {int64_t{0}, int64_t{-1}, kMaxRowLength + 1, INT64_MAX}) {
    expect(throws(made(length, 0, 0, 1)), "a row of no length");
  }
  expect(throws(made(8, 3, 0, 1)) && throws(made(8, -1, 0, 1)), "no such method");
  expect(throws(made(8, 0, 4, 1)) && throws(made(8, 0, -1, 1)), "no such way");
  expect(throws(made(8, 0, 0, 0)) && throws(made(8, 0, 0, kMaxBins + 1)), "no such bins");

  int64_t wide[] = {1, int64_t{1} << 31, -(int64_t{1} << 31)};
  uint32_t out[3];
  const Piece piece{0, 0, 3, 0};
  const int64_t end = 1;
  const std::vector<Field> fields = {{wide, 3, Kind::kInt64, 0, out}};
  const BadValue bad = write_rows(&piece, &end, 1, 3, fields, {});
  expect(bad.field == 0 && bad.index == 1, "a value beyond int32 was not found");
}

}  // namespace

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 500;
  const auto seed = static_cast<uint64_t>(count > 2 ? std::atoll(arguments[2]) : 1);
  check_refusals();
  for (int i = 0; i < rounds; ++i) {
    run(seed * 1000003 + static_cast<uint64_t>(i) * 17);
    hostile(seed * 999983 + static_cast<uint64_t>(i) * 31);
  }
  if (g_failures == 0) std::printf("check_tokens: %d rounds\n", rounds);
  return g_failures == 0 ? 0 : 1;
}
