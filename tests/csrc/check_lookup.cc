// Compares the AVX-512 table lookups, by by_words and by bytes, with a scalar loop. A CPU with VBMI
// never uses the lookup by by_words, so no other test would detect its errors there. Images end at
// the end of their memory.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>

#include "image/lookup-inl.h"

namespace {

using namespace jaxkern::image::JAXKERN_LEVEL;

template <int C, int kColours>
bool agree(std::mt19937& random, int64_t blocks, bool same_table) {
  const int64_t bytes = blocks * 64 * C;
  const std::unique_ptr<uint8_t[]> image(new uint8_t[bytes]), expected(new uint8_t[bytes]),
      by_words(new uint8_t[bytes]), by_bytes(new uint8_t[bytes]);
  for (int64_t i = 0; i < bytes; ++i) image[i] = static_cast<uint8_t>(random());
  uint8_t level[C][256];
  for (int c = 0; c < C; ++c) {
    for (int k = 0; k < 256; ++k)
      level[c][k] = c >= kColours         ? static_cast<uint8_t>(k)
                    : same_table && c > 0 ? level[0][k]
                                          : static_cast<uint8_t>(random());
  }
  for (int64_t i = 0; i < bytes; ++i) expected[i] = level[i % C][image[i]];
  WideTable tables[C];
  for (int c = 0; c < C; ++c) tables[c] = WideTable(level[c]);
  same_table ? look_up_words<1>(image.get(), bytes, tables, by_words.get())
             : look_up_words<C>(image.get(), bytes, tables, by_words.get());
  bool same = memcmp(by_words.get(), expected.get(), static_cast<size_t>(bytes)) == 0;
  if (__builtin_cpu_supports("avx512vbmi")) {
    same_table ? look_up_bytes<1, 1>(image.get(), bytes, level, by_bytes.get())
               : look_up_bytes<C, kColours>(image.get(), bytes, level, by_bytes.get());
    same &= memcmp(by_bytes.get(), expected.get(), static_cast<size_t>(bytes)) == 0;
  }
  return same;
}

__attribute__((noinline)) bool check() {
  std::mt19937 random(1);
  for (int64_t blocks = 0; blocks < 40; ++blocks) {
    for (const bool same_table : {false, true}) {
      if (agree<1, 1>(random, blocks, same_table) && agree<3, 3>(random, blocks, same_table) &&
          (same_table || agree<4, 3>(random, blocks, same_table)))
        continue;
      std::printf("%d blocks: a byte differs\n", static_cast<int>(blocks));
      return false;
    }
  }
  return true;
}

}  // namespace

int main() { return !__builtin_cpu_supports("avx512bw") || check() ? 0 : 1; }
