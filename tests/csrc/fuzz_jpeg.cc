// Decodes mutated JPEG files. Nothing may crash, leak, or read or write out of bounds (build it
// with sanitizers), and a decoder must not use anything of an earlier file. Files are determined by
// their seeds. Usage: fuzz_jpeg [files] [first seed]
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "image/jpeg.h"
#include "jpeg_seeds.h"

namespace jaxkern::image::testing {
namespace {

// Larger headers would take too long to decode.
constexpr int64_t kMaxPixels = 1 << 18;

class Mutator {
 public:
  explicit Mutator(uint32_t seed) : random_(seed) {}

  uint32_t below(size_t count) {
    return static_cast<uint32_t>(random_() % std::max<size_t>(count, 1));
  }

  void mutate(Bytes& file) {
    for (uint32_t edits = below(3) + 1; edits > 0 && !file.empty(); --edits) {
      const size_t at = chosen_place(file);
      switch (below(10)) {
        case 0:
          file[at] = static_cast<uint8_t>(random_());
          break;
        case 1:
          file[at] = static_cast<uint8_t>(file[at] ^ 1u << below(8));
          break;
        case 2:
          file.resize(at);
          break;
        case 3:
          file.erase(position(file, at), position(file, at + below(40)));
          break;
        case 4:
          copy_part(file, at);
          break;
        case 5:
          file.insert(position(file, at), {0xFF, static_cast<uint8_t>(random_())});
          break;
        case 6:
          insert_segment(file, at);
          break;
        case 7:
          std::fill(position(file, at), position(file, at + below(64)), below(2) ? 0xFF : 0x00);
          break;
        case 8:
          remove_segment(file);
          break;
        default:
          resize_frame(file);
          break;
      }
    }
  }

 private:
  static Bytes::iterator position(Bytes& file, size_t at) {
    return file.begin() + static_cast<std::ptrdiff_t>(std::min(at, file.size()));
  }

  // A quarter at a marker, and a quarter in the header, where most bytes matter.
  size_t chosen_place(const Bytes& file) {
    const size_t anywhere = below(file.size());
    switch (below(4)) {
      case 0:
        return below(std::min<size_t>(file.size(), 700));
      case 1: {
        const auto marker =
            std::find(file.begin() + static_cast<std::ptrdiff_t>(anywhere), file.end(), 0xFF);
        return std::min(static_cast<size_t>(marker - file.begin()) + below(6), file.size() - 1);
      }
      default:
        return anywhere;
    }
  }

  void copy_part(Bytes& file, size_t at) {
    const size_t from = below(file.size()),
                 count = std::min<size_t>(below(200), file.size() - from);
    const Bytes part(position(file, from), position(file, from + count));
    file.insert(position(file, at), part.begin(), part.end());
  }

  // EXIF, XMP, Adobe or restart intervals, of any length and content.
  void insert_segment(Bytes& file, size_t at) {
    static const std::string starts[] = {
        std::string("\xE1"
                    "Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0",
                    25),
        std::string("\xE1"
                    "Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01\x12",
                    19),
        std::string("\xE1"
                    "http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation=\"6",
                    53),
        std::string("\xEE"
                    "Adobe\0\x64\0\0\0\0\x02",
                    13),
        std::string("\xDD\0\x01", 3),
        std::string("\xCC\x01\x10", 3)};
    const std::string& start = starts[below(std::size(starts))];
    const size_t length = below(4) ? start.size() + 1 + below(9) : below(70000);
    Bytes segment = {0xFF, static_cast<uint8_t>(start[0]), static_cast<uint8_t>(length >> 8),
                     static_cast<uint8_t>(length)};
    segment.insert(segment.end(), start.begin() + 1, start.end());
    segment.resize(segment.size() + below(12), static_cast<uint8_t>(random_()));
    file.insert(position(file, below(2) ? 2 : at), segment.begin(), segment.end());
  }

  // Tables, restart intervals or colour markers, which an earlier file may have had.
  void remove_segment(Bytes& file) {
    uint32_t skipped = below(12);
    for (size_t at = 2; at + 3 < file.size() && file[at] == 0xFF && file[at + 1] != 0xDA;) {
      const size_t length = 2 + (size_t{file[at + 2]} << 8 | file[at + 3]);
      if (skipped-- == 0) {
        file.erase(position(file, at), position(file, at + length));
        return;
      }
      at += length;
    }
  }

  // Another size, components or sampling.
  void resize_frame(Bytes& file) {
    for (size_t i = 0; i + 20 < file.size(); ++i) {
      if (file[i] == 0xFF && file[i + 1] >= 0xC0 && file[i + 1] <= 0xCF && file[i + 1] != 0xC4) {
        file[i + 4 + below(16)] = static_cast<uint8_t>(below(3) ? below(40) : random_());
        return;
      }
    }
  }

  std::mt19937 random_;
};

// Memory that ends at an unmapped page, because no sanitizer checks the code of libjpeg.
class Guarded {
 public:
  explicit Guarded(size_t size) : size_(size) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    mapped_ = (size / page + 2) * page;
    void* mapping =
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) std::abort();
    memory_ = static_cast<uint8_t*>(mapping);
    if (mprotect(memory_ + mapped_ - page, page, PROT_NONE) != 0) std::abort();
    end_ = memory_ + mapped_ - page;
  }
  ~Guarded() { munmap(memory_, mapped_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  uint8_t* get() const { return end_ - size_; }

 private:
  size_t size_, mapped_ = 0;
  uint8_t *memory_ = nullptr, *end_ = nullptr;
};

struct Tally {
  int64_t headers = 0, decoded = 0, rejected = 0;
};

void try_file(JpegDecoder& decoder, const Bytes& file, Mutator& random, Tally& tally) {
  const Guarded data(file.size());
  std::copy(file.begin(), file.end(), data.get());
  JpegInfo info;
  const std::string error = read_jpeg_info(data.get(), file.size(), &info);
  tally.headers += error.empty();
  constexpr int32_t channel_counts[] = {1, 3, 4};
  const int32_t channels = channel_counts[random.below(3)];
  const int32_t denominator = random.below(3) ? 1 : 1 << random.below(4);
  JpegRegion region;
  int32_t height = error.empty() ? info.height : 16, width = error.empty() ? info.width : 16;
  if (info.orientation >= 5) std::swap(height, width);
  height = scaled_side(height, denominator), width = scaled_side(width, denominator);
  if (random.below(3) == 0) {  // above max_pixels: an error, and nothing is written
    region = {0, 0, height, width};
  } else {
    region.height = 1 + static_cast<int32_t>(random.below(static_cast<size_t>(height)));
    region.width = 1 + static_cast<int32_t>(random.below(static_cast<size_t>(width)));
    region.top =
        static_cast<int32_t>(random.below(static_cast<size_t>(height - region.height) + 1));
    region.left = static_cast<int32_t>(random.below(static_cast<size_t>(width - region.width) + 1));
  }
  const size_t bytes = static_cast<size_t>(
      std::min(int64_t{region.height} * region.width * channels, kMaxPixels * 4));
  const bool banded = random.below(2) != 0;
  const int32_t band = 1 + static_cast<int32_t>(random.below(20));
  const auto decode_by = [&](JpegDecoder& one, uint8_t* out) {
    if (!banded) {
      return one.decode(data.get(), file.size(), channels, kMaxPixels, region, out, denominator);
    }
    std::string problem =
        one.open(data.get(), file.size(), channels, kMaxPixels, region, denominator);
    for (int32_t row = 0; row < region.height && problem.empty(); row += band) {
      problem = one.read(std::min(band, region.height - row),
                         out + int64_t{row} * region.width * channels);
    }
    return problem;
  };
  const Guarded out(bytes), expected(bytes);
  memset(out.get(), 0x55, bytes);
  memset(expected.get(), 0xAA, bytes);
  JpegDecoder unused;
  const std::string problem = decode_by(decoder, out.get());
  if (problem != decode_by(unused, expected.get()) ||
      (problem.empty() && memcmp(out.get(), expected.get(), bytes) != 0)) {
    fprintf(stderr, "a used decoder returns '%s' or other pixels than a new one\n",
            problem.c_str());
    std::abort();
  }
  (problem.empty() ? tally.decoded : tally.rejected) += 1;
}

}  // namespace
}  // namespace jaxkern::image::testing

int main(int argc, char** argv) {
  using namespace jaxkern::image::testing;
  const int64_t count = argc > 1 ? std::atoll(argv[1]) : 20000;
  const int64_t first = argc > 2 ? std::atoll(argv[2]) : 1;
  std::vector<Bytes> seeds;
  constexpr int sizes[][2] = {{1, 1}, {17, 23}, {40, 33}, {64, 80}};
  for (const JpegKind& kind : kJpegKinds) {
    for (const auto& [height, width] : sizes) {
      seeds.push_back(make_jpeg(kind, height, width, static_cast<uint32_t>(seeds.size()), 60));
    }
  }
  jaxkern::image::JpegDecoder decoder;
  Tally tally;
  for (int64_t i = 0; i < count; ++i) {
    Mutator random(static_cast<uint32_t>(first + i));
    Bytes file = seeds[random.below(seeds.size())];
    random.mutate(file);
    try_file(decoder, file, random, tally);
  }
  printf("%lld files: %lld headers read, %lld decoded, %lld rejected\n",
         static_cast<long long>(count), static_cast<long long>(tally.headers),
         static_cast<long long>(tally.decoded), static_cast<long long>(tally.rejected));
  // Without files that decode and files that fail, the mutations would test nothing.
  return tally.decoded * 10 < count || tally.rejected * 10 < count;
}
