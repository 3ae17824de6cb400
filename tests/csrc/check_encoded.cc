// Runs random chains on encoded images and compares them, bit for bit, with the chain on the
// decoded image; also with invalid ranges, sizes and files. Build it with sanitizers. Usage:
// check_encoded [iterations] [first seed]
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "image/jpeg.h"
#include "image/producer.h"
#include "jpeg_seeds.h"
#include "random_chain.h"

namespace jaxkern::image::testing {
namespace {

std::atomic<int> g_failures{0};

void expect(bool condition, const std::string& what) {
  if (condition) return;
  std::printf("check_encoded: %s\n", what.c_str());
  ++g_failures;
}

// A record of a case, and a producer that writes it.
struct Record {
  const Case* chain;
  int64_t range[3];
  int32_t size[2];
  bool masked = false;
  uint8_t valid = 1;
  std::vector<unsigned char> output;
  std::string message;

  Record(const Case& c, size_t bytes)
      : chain(&c), range{0, 0, static_cast<int64_t>(bytes)}, size{c.height, c.width} {}

  // Returns true if the producer succeeded.
  bool run(const JaxkernProducer& abi) {
    output.assign(static_cast<size_t>(abi.output_bytes), 0xA5);
    const void* rows[] = {range};
    const void* operands[] = {chain->geometry.data(),    chain->affine.data(),
                              chain->fill.data(),        chain->erase_box.data(),
                              chain->erase_value.data(), size};
    const int64_t strides[6] = {};
    char text[1024] = "";
    const JaxkernRecords records{
        1, rows, operands, strides, output.data(), masked ? &valid : nullptr, 0};
    const int32_t failed = abi.run(abi.state, &records, text, sizeof text);
    message = text;
    expect(failed == 0 || failed == 1, "an unknown record failed");
    expect(failed == 0 || !message.empty(), "a failure without a message");
    return failed == 0;
  }
};

struct Producer {
  const JaxkernProducer* abi;
  Producer(const Plan& plan, const EncodedSource& source)
      : abi(make_encoded_producer(plan, source)) {}
  Producer(const Producer&) = delete;
  Producer& operator=(const Producer&) = delete;
  ~Producer() { abi->release(abi->state); }
};

EncodedSource in_memory(const Bytes& bytes, Codec codec) {
  EncodedSource source;
  source.blobs = {{bytes.data(), bytes.size()}};
  source.codec = codec;
  source.max_pixels = 1 << 20;
  return source;
}

// A chain on u8 whose source is `pixels`, the decoded image of a JPEG, and that JPEG.
Case jpeg_case(uint64_t seed, Bytes* encoded) {
  Limits limits;
  limits.size = 60;
  Case c = random_case(seed, limits);
  Random random(seed * 7 + 1);
  c.plan.source_dtype = Dtype::kU8;
  const JpegKind& kind = kJpegKinds[random.integer(0, std::size(kJpegKinds) - 1)];
  *encoded = make_jpeg(kind, c.height, c.width, static_cast<uint32_t>(seed));
  c.pixels.resize(static_cast<size_t>(c.height) * static_cast<size_t>(c.width) *
                  static_cast<size_t>(c.plan.channels));
  JpegDecoder decoder;
  const std::string error = decoder.decode(encoded->data(), encoded->size(), c.plan.channels,
                                           1 << 20, {0, 0, c.height, c.width}, c.pixels.data());
  if (!error.empty()) c.pixels.clear();  // a kind that this libjpeg does not decode
  return c;
}

void check_same(uint64_t seed, bool* ran) {
  Bytes encoded;
  const Case c = jpeg_case(seed, &encoded);
  *ran = !c.pixels.empty();
  if (!*ran) return;
  Random random(seed * 31 + 5);
  const std::string where = "seed " + std::to_string(seed) + ": ";
  std::vector<unsigned char> expected(output_bytes(c.plan));
  run_sample(c.plan, c.view(), expected.data(), thread_scratch<kScratchBytes>());
  EncodedSource source = in_memory(encoded, Codec::kJpeg);
  source.band_bytes = random.chance(50) ? random.integer(1, 5000) : source.band_bytes;
  const Producer producer(c.plan, source);
  Record record(c, encoded.size());
  // The buffers of a fresh thread have the exact size, so that a sanitizer detects accesses beyond.
  std::thread([&] { expect(record.run(*producer.abi), where + record.message); }).join();
  expect(record.output == expected, where + "the JPEG's chain differs");

  const Producer plain(c.plan, in_memory(c.pixels, Codec::kRaw));
  Record raw(c, c.pixels.size());
  expect(raw.run(*plain.abi), where + raw.message);
  expect(raw.output == expected, where + "the raw image's chain differs");

  // Broken images are replaced by zeros.
  const size_t half = encoded.size() / 2;
  Record broken(c, half);
  broken.masked = true;
  expect(broken.run(*producer.abi), where + broken.message);
  if (broken.valid == 0) {
    Case zeros = c;
    std::fill(zeros.pixels.begin(), zeros.pixels.end(), static_cast<unsigned char>(0));
    run_sample(c.plan, zeros.view(), expected.data(), thread_scratch<kScratchBytes>());
    expect(broken.output == expected, where + "zeros differ");
  }
  broken.masked = false;
  expect(broken.run(*producer.abi) == (broken.valid == 1), where + "masked, but no error");
}

// Random operands and rows. Nothing may be read beyond them.
void check_hostile(uint64_t seed) {
  static const int64_t edges[] = {INT64_MIN, INT64_MIN + 1, -1,       0, 1, 2, 1 << 24,
                                  INT32_MAX, INT64_MAX - 1, INT64_MAX};
  Bytes encoded;
  const Case c = jpeg_case(seed, &encoded);
  if (c.pixels.empty()) return;
  Random random(seed ^ 0x9e3779b97f4a7c15u);
  const bool raw = random.chance(50);
  Bytes bytes = raw ? c.pixels : encoded;
  if (!raw && random.chance(60)) {
    for (int32_t edits = random.integer(1, 4); edits > 0; --edits) {
      bytes[random.engine() % bytes.size()] = static_cast<uint8_t>(random.engine());
    }
  }
  EncodedSource source = in_memory(bytes, raw ? Codec::kRaw : Codec::kJpeg);
  source.in_files = random.chance(10);
  source.scaled = random.chance(30);
  source.band_bytes = random.chance(30) ? random.integer(1, 5000) : source.band_bytes;
  const Producer producer(c.plan, source);
  for (int32_t i = 0; i < 8; ++i) {
    Record record(c, bytes.size());
    record.masked = random.chance(50);
    if (random.chance(60)) record.range[random.integer(0, 2)] = edges[random.integer(0, 9)];
    if (random.chance(20)) record.range[2] = random.integer(0, static_cast<int64_t>(bytes.size()));
    if (random.chance(30)) {
      record.size[random.integer(0, 1)] = static_cast<int32_t>(edges[random.integer(0, 9)]);
    }
    (void)record.run(*producer.abi);
  }
}

struct Folder {
  std::string path;
  Folder() {
    char name[] = "/tmp/check_encoded.XXXXXX";
    path = mkdtemp(name) == nullptr ? "" : name;
  }
  ~Folder() {
    for (const char* name : {"/good", "/short", "/pipe", "/folder", "/loop"}) {
      (void)std::remove((path + name).c_str());
    }
    (void)rmdir(path.c_str());
  }
  void write(const std::string& name, const uint8_t* data, size_t size) const {
    FILE* file = std::fopen((path + name).c_str(), "wb");
    if (file == nullptr) return expect(false, "the file cannot be opened");
    expect(std::fwrite(data, 1, size, file) == size, "the file cannot be written");
    (void)std::fclose(file);
  }
};

// Readable files, and paths that are not, from several threads at once.
void check_files() {
  Bytes encoded;
  uint64_t seed = 1;
  Case c = jpeg_case(seed, &encoded);
  while (c.pixels.empty()) c = jpeg_case(++seed, &encoded);
  std::vector<unsigned char> expected(output_bytes(c.plan));
  run_sample(c.plan, c.view(), expected.data(), thread_scratch<kScratchBytes>());
  const Folder folder;
  folder.write("/good", encoded.data(), encoded.size());
  folder.write("/short", encoded.data(), 10);
  expect(mkfifo((folder.path + "/pipe").c_str(), 0600) == 0, "mkfifo failed");
  expect(mkdir((folder.path + "/folder").c_str(), 0700) == 0, "mkdir failed");
  expect(symlink("loop", (folder.path + "/loop").c_str()) == 0, "symlink failed");
  struct Named {
    std::string name, problem;
    bool always;  // an error with and without `valid` flags
  };
  const std::vector<Named> files = {
      {folder.path + "/good", "", false},
      {folder.path + "/short", "/short: ", false},
      {folder.path + "/pipe", "/pipe: is not a regular file", true},
      {folder.path + "/folder", "/folder: is not a regular file", true},
      {folder.path + "/loop", "/loop: cannot be opened", true},
      {folder.path + "/missing", "/missing: cannot be opened", true},
      {"/dev/zero", "/dev/zero: is not a regular file", true},
      {std::string("good\0", 5), "file name: ", true},
      {"", "file name: ", true},
      {std::string(6000, 'x'), "...xxxx", true},
  };
  Bytes names;
  std::vector<int64_t> starts;
  for (const Named& file : files) {
    starts.push_back(static_cast<int64_t>(names.size()));
    names.insert(names.end(), file.name.begin(), file.name.end());
  }
  EncodedSource source = in_memory(names, Codec::kJpeg);
  source.in_files = true;
  const Producer producer(c.plan, source);
  const auto work = [&](bool masked) {
    for (int round = 0; round < 20; ++round) {
      for (size_t i = 0; i < files.size(); ++i) {
        Record record(c, files[i].name.size());
        record.range[1] = starts[i];
        record.masked = masked;
        const bool succeeded = record.run(*producer.abi);
        const bool right = files[i].problem.empty();
        expect(succeeded == (right || (masked && !files[i].always)),
               files[i].name + ": unexpected outcome");
        expect(record.valid == (succeeded && !right ? 0 : 1), files[i].name + ": wrong flag");
        if (right) expect(record.output == expected, "a file's chain differs");
        if (!succeeded) {
          expect(record.message.find(files[i].problem) != std::string::npos, record.message);
        }
      }
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back(work, t % 2 == 0);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace jaxkern::image::testing

int main(int argc, char** argv) {
  using namespace jaxkern::image::testing;  // NOLINT: a driver of this namespace alone
  const uint64_t iterations = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 300;
  const uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  check_files();
  uint64_t compared = 0;
  for (uint64_t seed = first; seed < first + iterations; ++seed) {
    bool ran = false;
    check_same(seed, &ran);
    compared += ran;
    check_hostile(seed);
  }
  expect(compared * 2 > iterations, "too few images were compared");
  std::printf("check_encoded: %" PRIu64 " chains compared, of %" PRIu64 "\n", compared, iterations);
  return g_failures == 0 ? 0 : 1;
}
