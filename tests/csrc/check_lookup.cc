// Bytes looked up in tables with AVX-512, both by words and by bytes at once, against one after the
// other: a CPU that has the second way never takes the first, so that no other test would see a
// wrong channel or half a table there. Images end where their memory ends.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>

#include "image/lookup-inl.h"

namespace {

using namespace jaxkern::image::JAXKERN_LEVEL;

template <int C, int kColours>
bool agree(std::mt19937& random, int64_t blocks, bool alike) {
  const int64_t bytes = blocks * 64 * C;
  const std::unique_ptr<uint8_t[]> image(new uint8_t[bytes]), wanted(new uint8_t[bytes]),
      words(new uint8_t[bytes]), at_once(new uint8_t[bytes]);
  for (int64_t i = 0; i < bytes; ++i) image[i] = static_cast<uint8_t>(random());
  uint8_t level[C][256];
  for (int c = 0; c < C; ++c) {
    for (int k = 0; k < 256; ++k)
      level[c][k] = c >= kColours    ? static_cast<uint8_t>(k)
                    : alike && c > 0 ? level[0][k]
                                     : static_cast<uint8_t>(random());
  }
  for (int64_t i = 0; i < bytes; ++i) wanted[i] = level[i % C][image[i]];
  WideTable tables[C];
  for (int c = 0; c < C; ++c) tables[c] = WideTable(level[c]);
  alike ? look_up_words<1>(image.get(), bytes, tables, words.get())
        : look_up_words<C>(image.get(), bytes, tables, words.get());
  bool same = memcmp(words.get(), wanted.get(), static_cast<size_t>(bytes)) == 0;
  if (__builtin_cpu_supports("avx512vbmi")) {
    alike ? look_up_bytes<1, 1>(image.get(), bytes, level, at_once.get())
          : look_up_bytes<C, kColours>(image.get(), bytes, level, at_once.get());
    same &= memcmp(at_once.get(), wanted.get(), static_cast<size_t>(bytes)) == 0;
  }
  return same;
}

__attribute__((noinline)) bool check() {
  std::mt19937 random(1);
  for (int64_t blocks = 0; blocks < 40; ++blocks) {
    for (const bool alike : {false, true}) {
      if (agree<1, 1>(random, blocks, alike) && agree<3, 3>(random, blocks, alike) &&
          (alike || agree<4, 3>(random, blocks, alike)))
        continue;
      std::printf("%d blocks: a byte differs\n", static_cast<int>(blocks));
      return false;
    }
  }
  return true;
}

}  // namespace

int main() { return !__builtin_cpu_supports("avx512bw") || check() ? 0 : 1; }
