// Bytes of an image looked up in tables of 256 levels, a table a channel. Included by
// program_levels.cc in the level's unnamed namespace.

#if defined(__AVX512BW__)
// Two levels in a word: 32 words are a register, and 64 are looked up at once.
typedef uint16_t Words __attribute__((vector_size(64)));

struct WideTable {
  Words part[4];

  explicit WideTable(const uint8_t* level) { memcpy(part, level, sizeof part); }
  WideTable() = default;

  // Of words below 256.
  Words operator()(Words at) const {
    const Words pair = at >> 1;  // a shuffle takes the lowest bits of its indices
    const Words low = __builtin_shuffle(part[0], part[1], pair);
    const Words high = __builtin_shuffle(part[2], part[3], pair);
    return ((at >= 128 ? high : low) >> ((at & 1) << 3)) & 255;
  }
};

// Whole blocks of 64 bytes from the first, which has channel 0; returns how many bytes they have.
template <int C>
int64_t look_up_blocks(uint8_t* bytes, int64_t count, const WideTable* tables) {
  // Which channel the even and the odd bytes of a block have, of as many blocks as differ.
  constexpr int kPhases = C == 3 ? 3 : 1;
  Words channel[kPhases][2];
  for (int p = 0; p < kPhases; ++p) {
    for (int j = 0; j < 64; ++j)
      channel[p][j & 1][j >> 1] = static_cast<uint16_t>((64 * p + j) % C);
  }
  const auto of_channel = [&](Words at, Words which) {
    Words value = tables[0](at);
    for (int c = 1; c < C; ++c) value = which == static_cast<uint16_t>(c) ? tables[c](at) : value;
    return value;
  };
  int64_t i = 0;
  for (int p = 0; i + 64 <= count; i += 64) {
    Words both;
    memcpy(&both, bytes + i, 64);
    both = of_channel(both & 255, channel[p][0]) | (of_channel(both >> 8, channel[p][1]) << 8);
    memcpy(bytes + i, &both, 64);
    p = p + 1 == kPhases ? 0 : p + 1;
  }
  return i;
}
#endif

// Each byte of channel c < kColours becomes level[c][byte]; a fourth channel stays.
template <int C, int kColours>
void look_up(uint8_t* image, int64_t pixels, const uint8_t level[kColours][256]) {
  int64_t first = 0;  // a pixel
#if defined(__AVX512BW__)
  bool alike = C == kColours;
  for (int c = 1; c < kColours; ++c) alike &= memcmp(level[c], level[0], 256) == 0;
  WideTable tables[C];
  for (int c = 0; c < kColours; ++c) tables[c] = WideTable(level[c]);
  if constexpr (C > kColours) {
    uint8_t same[256];
    for (int k = 0; k < 256; ++k) same[k] = static_cast<uint8_t>(k);
    tables[kColours] = WideTable(same);
  }
  const int64_t bytes = pixels * C, blocks = bytes - bytes % (64 * C);
  alike ? look_up_blocks<1>(image, blocks, tables) : look_up_blocks<C>(image, blocks, tables);
  first = blocks / C;
#endif
  for (int64_t i = first; i < pixels; ++i) {
    for (int c = 0; c < kColours; ++c) image[i * C + c] = level[c][image[i * C + c]];
  }
}

// The least and the largest level of each channel.
template <int C>
void find_extremes(const uint8_t* image, int64_t pixels, int32_t* least, int32_t* most) {
  constexpr int64_t kBlock = 192;  // bytes: whole pixels of 1, 3 or 4 channels
  uint8_t low[kBlock], high[kBlock];
  memset(low, 255, sizeof low);
  memset(high, 0, sizeof high);
  const int64_t bytes = pixels * C;
  for (int64_t start = 0; start < bytes; start += kBlock) {
    const int64_t left = bytes - start;
    const uint8_t* const from = image + start;
    if (left >= kBlock) {
      for (int64_t j = 0; j < kBlock; ++j) {
        low[j] = from[j] < low[j] ? from[j] : low[j];
        high[j] = from[j] > high[j] ? from[j] : high[j];
      }
    } else {
      for (int64_t j = 0; j < left; ++j) {
        low[j] = from[j] < low[j] ? from[j] : low[j];
        high[j] = from[j] > high[j] ? from[j] : high[j];
      }
    }
  }
  for (int c = 0; c < C; ++c) {
    least[c] = 255;
    most[c] = 0;
    for (int64_t j = c; j < kBlock; j += C) {
      least[c] = low[j] < least[c] ? low[j] : least[c];
      most[c] = high[j] > most[c] ? high[j] : most[c];
    }
  }
}
