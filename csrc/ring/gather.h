// Copies rows of an array, in any order, behind each other.
#ifndef JAXKERN_RING_GATHER_H_
#define JAXKERN_RING_GATHER_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace jaxkern::ring {

// What happens to a row's items on the way: JAX has no 64-bit types unless they are enabled.
enum class Cast : int32_t {
  kNone = 0,
  kInt64ToInt32 = 1,      // keeps the low 32 bits, as NumPy does; also unsigned
  kFloat64ToFloat32 = 2,  // also the two parts of a complex number
};
constexpr int32_t kCasts = 3;

// Where the rows from `first` on lie.
struct RowBlock {
  int64_t first = 0;
  const char* base = nullptr;
  int64_t stride = 0;
};

// The rows of an array; each lies without gaps in memory, at any address.
struct Rows {
  const char* base = nullptr;
  int64_t count = 0;
  int64_t stride = 0;  // bytes from one row to the next; may be negative
  int64_t bytes = 0;   // of one row
  Cast cast = Cast::kNone;
  std::vector<RowBlock> more = {};  // further arrays, in the order of their first rows

  const char* at(int64_t row) const {
    if (more.empty() || row < more.front().first) return base + row * stride;
    const auto behind = std::upper_bound(
        more.begin(), more.end(), row,
        [](int64_t wanted, const RowBlock& block) { return wanted < block.first; });
    const RowBlock& block = *(behind - 1);
    return block.base + (row - block.first) * block.stride;
  }
  int64_t output_bytes() const { return cast == Cast::kNone ? bytes : bytes / 2; }
};

// The place of the first record that is not in [0, count), or -1.
int64_t first_outside(const int64_t* records, int64_t size, int64_t count);

// Copies rows `records` [size], which exist, to `out`. With `stream`, past the caches: for batches
// that nobody reads before they have left them. Stops early, with false, once `stop` is set.
bool gather(const Rows& rows, const int64_t* records, int64_t size, char* out, bool stream,
            const std::atomic<bool>& stop);

}  // namespace jaxkern::ring

#endif  // JAXKERN_RING_GATHER_H_
