// Gathers rows of an array, in any order, into contiguous memory.
#ifndef JAXKERN_RING_GATHER_H_
#define JAXKERN_RING_GATHER_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace jaxkern::ring {

// Conversion of a row's items: JAX has no 64-bit types unless they are enabled.
enum class Cast : int32_t {
  kNone = 0,
  kInt64ToInt32 = 1,      // keeps the low 32 bits, as NumPy does; also unsigned
  kFloat64ToFloat32 = 2,  // also for the two parts of complex numbers
};
constexpr int32_t kCasts = 3;

// Location of the rows from `first` on.
struct RowBlock {
  int64_t first = 0;
  const char* base = nullptr;
  int64_t stride = 0;
};

// The rows of an array. Each row is contiguous, at any alignment.
struct Rows {
  const char* base = nullptr;
  int64_t count = 0;
  int64_t stride = 0;  // bytes from one row to the next; may be negative
  int64_t bytes = 0;   // of one row
  Cast cast = Cast::kNone;
  std::vector<RowBlock> more = {};  // further arrays, in the order of their first rows

  const char* at(int64_t row) const {
    if (more.empty() || row < more.front().first) return base + row * stride;
    const auto next =
        std::upper_bound(more.begin(), more.end(), row,
                         [](int64_t index, const RowBlock& block) { return index < block.first; });
    const RowBlock& block = *(next - 1);
    return block.base + (row - block.first) * block.stride;
  }
  int64_t output_bytes() const { return cast == Cast::kNone ? bytes : bytes / 2; }
};

// Returns the position of the first record outside [0, count), or -1.
int64_t first_outside(const int64_t* records, int64_t size, int64_t count);

// Copies rows `records` [size], which must be in range, to `out`. `stream` selects streaming
// stores, for batches that leave the caches before they are read. Returns false as soon as `stop`
// is set.
bool gather(const Rows& rows, const int64_t* records, int64_t size, char* out, bool stream,
            const std::atomic<bool>& stop);

}  // namespace jaxkern::ring

#endif  // JAXKERN_RING_GATHER_H_
