// Batch assembly under closes, refusing producers and casts at random, against plain indexing;
// build it with -fsanitize=thread and with address: usage: check_assembly [rounds] [seed].
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "image/producer.h"
#include "ring/assembly.h"

namespace {

using namespace jaxkern::ring;  // NOLINT: a driver of this namespace alone

std::atomic<int> g_failures{0};

void expect(bool condition, const std::string& what) {
  if (condition) return;
  std::printf("check_assembly: %s\n", what.c_str());
  ++g_failures;
}

template <typename Error, typename Call>
void expect_throws(const Call& call, const std::string& part) {
  try {
    call();
  } catch (const Error& error) {
    expect(std::string(error.what()).find(part) != std::string::npos,
           std::string("another message: ") + error.what());
    return;
  }
  expect(false, "nothing was thrown: " + part);
}

// A producer that adds its parameter to each byte of a row, and refuses a record whose parameter is
// below 0, or makes it of zeros where it may.
struct Adder {
  static constexpr int64_t kBytes = 700;
  std::atomic<int64_t> shares{1};
  int64_t operand_bytes[1] = {8};

  JaxkernProducer abi() {
    JaxkernProducer made{};
    made.version = JAXKERN_PRODUCER_VERSION;
    made.size = sizeof made;
    made.state = this;
    made.retain = [](void* self) { ++static_cast<Adder*>(self)->shares; };
    made.release = [](void* self) { --static_cast<Adder*>(self)->shares; };
    made.row_bytes = made.output_bytes = kBytes;
    made.operands = 1;
    made.operand_bytes = operand_bytes;
    made.run = [](void*, const JaxkernRecords* records, char* message, size_t size) -> int32_t {
      for (int64_t i = 0; i < records->count; ++i) {
        int64_t add = 0;
        std::memcpy(
            &add, static_cast<const char*>(records->operands[0]) + i * records->operand_strides[0],
            sizeof add);
        if (add < 0 && records->valid != nullptr) {
          records->valid[i] = 0;
          std::memset(static_cast<uint8_t*>(records->output) + i * kBytes, 0, kBytes);
          continue;
        }
        if (add < 0) {
          std::snprintf(message, size, "refused at %d", static_cast<int>(i));
          return static_cast<int32_t>(i) + 1;
        }
        const auto* row = static_cast<const uint8_t*>(records->rows[i]);
        auto* out = static_cast<uint8_t*>(records->output) + i * kBytes;
        for (int64_t k = 0; k < kBytes; ++k) out[k] = static_cast<uint8_t>(row[k] + add);
      }
      return 0;
    };
    return made;
  }
};

struct Data {
  explicit Data(int64_t count)
      : rows(count), bytes(static_cast<size_t>(count * Adder::kBytes + 1)) {
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 7 + i / 700);
    for (int64_t i = 0; i < count; ++i) labels.push_back(i - 3);
  }
  int64_t rows;
  std::vector<uint8_t> bytes;
  std::vector<int64_t> labels;

  // Rows at odd addresses, in two parts; 64-bit labels; rows for the producer.
  std::vector<AssemblyLeaf> leaves(Adder& adder) const {
    const auto* base = reinterpret_cast<const char*>(bytes.data());
    const int64_t half = rows / 2;
    const RowBlock second{half, base + 1 + half * Adder::kBytes, Adder::kBytes};
    std::vector<AssemblyLeaf> leaves(3);
    leaves[0].rows = {base + 1, rows, Adder::kBytes, Adder::kBytes, Cast::kNone, {second}};
    leaves[1].rows = {reinterpret_cast<const char*>(labels.data()), rows, 8, 8,
                      Cast::kInt64ToInt32};
    leaves[2].rows = {base, rows, Adder::kBytes, Adder::kBytes, Cast::kNone};
    leaves[2].producer = Producer(adder.abi());
    return leaves;
  }
};

std::shared_ptr<Ring> make_ring(int64_t batch, int64_t capacity, bool valid = false) {
  Options options;
  options.capacity = capacity;
  std::vector<LeafSpec> leaves = {leaf_spec("uint8", 1, {batch, Adder::kBytes}),
                                  leaf_spec("int32", 4, {batch}),
                                  leaf_spec("uint8", 1, {batch, Adder::kBytes})};
  for (int flags = valid ? 2 : 1; flags > 0; --flags) {
    leaves.push_back(leaf_spec("bool", 1, {batch}));
  }
  return Ring::create(leaves, options);
}

void check_batch(const Data& data, const Batch& batch, const std::vector<int64_t>& records,
                 int64_t size, bool valid, int64_t bad) {
  const int64_t first = batch.index() * size;
  bool right = true;
  for (int64_t k = 0; k < size; ++k) {
    const bool there = first + k < static_cast<int64_t>(records.size());
    const int64_t record = there ? records[static_cast<size_t>(first + k)] : 0;
    const bool made = there && first + k != bad;
    const auto* row = data.bytes.data() + record * Adder::kBytes;
    const auto* copied = reinterpret_cast<const uint8_t*>(batch.leaf(0)) + k * Adder::kBytes;
    const auto* added = reinterpret_cast<const uint8_t*>(batch.leaf(2)) + k * Adder::kBytes;
    for (int64_t b = 0; b < Adder::kBytes; ++b) {
      right = right && copied[b] == (there ? row[b + 1] : 0) &&
              added[b] == (made ? static_cast<uint8_t>(row[b] + record % 50) : 0);
    }
    right = right && reinterpret_cast<const int32_t*>(batch.leaf(1))[k] == (there ? record - 3 : 0);
    if (valid) right = right && batch.leaf(3)[k] == (made ? 1 : 0);
    right = right && batch.leaf(valid ? 4 : 3)[k] == (there ? 1 : 0);
  }
  expect(right, "batch " + std::to_string(batch.index()) + " differs");
}

void run(uint64_t seed) {
  std::mt19937_64 random(seed);
  const int64_t batch = 1 + static_cast<int64_t>(random() % 20);
  const int64_t capacity = 1 + static_cast<int64_t>(random() % 4);
  const int64_t workers = 1 + static_cast<int64_t>(random() % 4);
  const bool closes = random() % 2 == 0, refuses = random() % 2 == 0, valid = random() % 2 == 0;
  const Data data(1 + static_cast<int64_t>(random() % 60));
  std::vector<int64_t> records(random() % 400);
  for (int64_t& record : records) record = static_cast<int64_t>(random()) & 0xffff;
  for (int64_t& record : records) record %= data.rows;
  Adder adder;
  {
    const std::shared_ptr<Ring> ring = make_ring(batch, capacity, valid);
    Assembly assembly(ring, data.leaves(adder), {batch, true, 0, workers, valid});
    const int64_t bad =
        refuses && !records.empty() ? static_cast<int64_t>(random() % records.size()) : -1;
    std::thread feeder([&] {
      std::mt19937_64 own(seed + 1);
      for (size_t begin = 0; begin < records.size();) {
        const size_t most = static_cast<size_t>(batch) * (1 + own() % 4);
        const size_t count = std::min(most, records.size() - begin);
        std::vector<int64_t> add;
        for (size_t k = begin; k < begin + count; ++k) {
          add.push_back(static_cast<int64_t>(k) == bad ? -1 : records[k] % 50);
        }
        assembly.submit(records.data() + begin, static_cast<int64_t>(count),
                        {{}, {}, {{add.data(), static_cast<int64_t>(count), 8}}});
        begin += count;
        (void)assembly.wait_for_room(static_cast<int64_t>(own() % 3), kNoDeadline);
      }
      assembly.finish();
    });
    const int64_t closing = closes ? static_cast<int64_t>(random() % 30) : -1;
    std::thread closer;
    const int64_t size = static_cast<int64_t>(records.size());
    const int64_t batches = (size + batch - 1) / batch;
    int64_t seen = 0;
    for (;;) {
      if (seen == closing) closer = std::thread([&] { assembly.close(); });
      Batch got;
      const Status status = ring->take(kNoDeadline, &got);
      if (status.outcome == Outcome::kFinished) {
        expect(seen == batches, "the stream ended early");
        break;
      }
      if (status.outcome == Outcome::kClosed) {
        expect(closes, "closed by nobody");
        break;
      }
      expect(status.index == seen, "batch " + std::to_string(status.index) + " out of order");
      ++seen;
      if (status.outcome == Outcome::kFailed) {
        expect(bad / batch == status.index && bad >= 0 && !valid &&
                   status.message.find("refused at") != std::string::npos,
               "another batch failed: " + status.message);
        continue;
      }
      check_batch(data, got, records, batch, valid, bad);
    }
    if (closer.joinable()) closer.join();
    feeder.join();
  }
  expect(adder.shares == 1, "the producer's shares were not given back");
}

void check_refusals() {
  const Data data(10);
  Adder adder;
  const std::shared_ptr<Ring> ring = make_ring(4, 2);
  const AssemblyOptions options{4, true, 0, 1, false};
  auto leaves = data.leaves(adder);
  leaves[0].rows.bytes = 699;
  expect_throws<std::invalid_argument>([&] { Assembly(ring, leaves, options); }, "leaf 0");
  leaves = data.leaves(adder);
  leaves[2].rows.bytes = 1;
  expect_throws<std::invalid_argument>([&] { Assembly(ring, leaves, options); }, "producer reads");
  leaves = data.leaves(adder);
  leaves[0].rows.more[0].first = 11;
  expect_throws<std::invalid_argument>([&] { Assembly(ring, leaves, options); }, "ascending");
  expect_throws<std::invalid_argument>([&] { Assembly(nullptr, leaves, options); }, "ring");
  JaxkernProducer old = adder.abi();
  old.version = 0;
  expect_throws<std::invalid_argument>([&] { Producer{old}; }, "ABI version 0");
  old = adder.abi();
  old.run = nullptr;
  expect_throws<std::invalid_argument>([&] { Producer{old}; }, "lacks a function");

  Assembly assembly(ring, data.leaves(adder), options);
  const std::vector<int64_t> records = {1, 2, 3, 10, 0};
  const int64_t add[5] = {};
  const std::vector<std::vector<AssemblyOperand>> shared = {{}, {}, {{add, 1, 8}}};
  expect_throws<std::out_of_range>([&] { assembly.submit(records.data(), 4, shared); },
                                   "record 10 at position 3");
  expect_throws<std::invalid_argument>([&] { assembly.submit(records.data(), 3, {}); },
                                       "0 parameter arrays");
  expect_throws<std::invalid_argument>(
      [&] { assembly.submit(records.data(), 3, {{}, {}, {{add, 2, 8}}}); }, "3 or 1");
  expect(assembly.submit(records.data(), 3, shared) == 1, "one short batch");
  expect_throws<std::invalid_argument>([&] { assembly.submit(records.data(), 3, shared); },
                                       "multiple");
  assembly.finish();
  expect_throws<std::runtime_error>([&] { assembly.submit(records.data(), 3, shared); },
                                    "accepts no more");
}

std::atomic<int64_t> g_blocks{0};

// A consumer that keeps batches until there is no memory for more of them: those fail, each in its
// place, and the others come.
void check_no_memory() {
  const Data data(10);
  Options options;
  options.capacity = 2;
  options.allocator.allocate = [](size_t bytes, int) -> void* {
    return --g_blocks < 0 ? nullptr : host_allocator().make(bytes);
  };
  options.allocator.release = [](void* memory, size_t bytes, int) {
    host_allocator().free(memory, bytes);
  };
  g_blocks = 2;
  const std::shared_ptr<Ring> ring = Ring::create({leaf_spec("int64", 8, {1})}, options);
  const Rows rows{reinterpret_cast<const char*>(data.labels.data()), 10, 8, 8, Cast::kNone};
  Assembly assembly(ring, {{rows, {}}}, {1, false, 0, 2, false});
  const std::vector<int64_t> records = {0, 1, 2, 3, 4, 5};
  assembly.submit(records.data(), 6, {});
  assembly.finish();
  std::vector<Batch> kept(2);
  int64_t good = 0, failed = 0;
  for (;;) {
    Batch got;
    const Status status = ring->take(Clock::now() + std::chrono::seconds(10), &got);
    if (status.outcome == Outcome::kFinished) break;
    if (status.outcome != Outcome::kOk && status.outcome != Outcome::kFailed) {
      expect(false, "memory ran out, and then: " + status.message);
      break;
    }
    expect(status.index == good + failed, "out of order where memory ran out");
    if (status.ok()) {
      if (good < 2) kept[static_cast<size_t>(good)] = std::move(got);
      ++good;
    } else {
      expect(status.message.find("memory") != std::string::npos, status.message);
      ++failed;
      for (Batch& batch : kept) batch.release();
    }
  }
  expect(good >= 2 && failed >= 1 && good + failed == 6, "batches were lost with the memory");
}

// A close concurrent with the last `submit` and `finish`: a stream that lost records to it is
// closed, and never looks finished.
void check_close_beside_finish(int rounds) {
  const Data data(10);
  const Rows rows{reinterpret_cast<const char*>(data.labels.data()), 10, 8, 8, Cast::kNone};
  const std::vector<int64_t> records = {0, 1, 2, 3, 4, 5, 6, 7};
  const auto count = static_cast<int64_t>(records.size());
  for (int i = 0; i < rounds; ++i) {
    Options options;
    options.capacity = count;
    const std::shared_ptr<Ring> ring = Ring::create({leaf_spec("int64", 8, {1})}, options);
    Assembly assembly(ring, {{rows, {}}}, {1, false, 0, 1, false});
    std::atomic<int> ready{0};
    const auto meet = [&] {
      ++ready;
      while (ready < 2) {
      }
    };
    std::thread closer([&] {
      meet();
      assembly.close();
    });
    meet();
    for (int64_t k = 0; k < count; ++k) assembly.submit(&records[static_cast<size_t>(k)], 1, {});
    assembly.finish();
    for (int64_t seen = 0;; ++seen) {
      Batch got;
      const Outcome outcome = ring->take(kNoDeadline, &got).outcome;
      if (outcome == Outcome::kOk) continue;
      expect(outcome == Outcome::kClosed || seen == count, "a close during finish lost batches");
      break;
    }
    closer.join();
  }
}

// An image chain's producer refuses bad plans and bad parameters, and gives its memory back.
// The last batch waits for its slot while nothing else is left to do: threads that went home by
// then would leave it to one of them.
void check_last_batch_is_shared() {
  static std::mutex mutex;
  static std::condition_variable arrived;
  static std::set<std::thread::id> makers;  // of the last batch
  constexpr int64_t kBatch = 32;
  const Data data(2 * kBatch);
  Adder adder;
  JaxkernProducer abi = adder.abi();
  abi.run = [](void*, const JaxkernRecords* records, char*, size_t) -> int32_t {
    int64_t last = 0;
    std::memcpy(&last, records->operands[0], sizeof last);
    std::unique_lock<std::mutex> lock(mutex);
    if (last == 0) return 0;
    makers.insert(std::this_thread::get_id());
    arrived.notify_all();
    arrived.wait_for(lock, std::chrono::seconds(2), [] { return makers.size() > 1; });
    return 0;
  };
  std::vector<AssemblyLeaf> leaves = data.leaves(adder);
  leaves[2].producer = Producer(abi);
  const std::shared_ptr<Ring> ring = make_ring(kBatch, 1);
  Assembly assembly(ring, leaves, {kBatch, true, 0, 3});
  std::vector<int64_t> records(2 * kBatch), is_last(2 * kBatch);
  for (int64_t k = kBatch; k < 2 * kBatch; ++k) is_last[static_cast<size_t>(k)] = 1;
  assembly.submit(records.data(), 2 * kBatch, {{}, {}, {{is_last.data(), 2 * kBatch, 8}}});
  assembly.finish();
  {
    Batch first;
    expect(ring->take(kNoDeadline, &first).ok(), "the first batch");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // in which the others would go
  }
  Batch second;
  expect(ring->take(kNoDeadline, &second).ok(), "the last batch");
  expect(makers.size() > 1, "one thread made all of the last batch");
}

void check_chain() {
  using namespace jaxkern::image;  // NOLINT
  Plan plan{};
  plan.segments = 1;
  plan.segment[0] = {Filter::kNone, 2, 2, 0, Rounding::kKeep};
  plan.channels = 3;
  plan.output_dtype = Dtype::kF32;
  Plan bad = plan;
  bad.channels = 2;
  expect_throws<std::invalid_argument>([&] { make_chain_producer(bad, 4, 4); }, "'channels'");
  expect_throws<std::invalid_argument>([&] { make_chain_producer(plan, 0, 4); }, "0 x 4");
  const JaxkernProducer* made = make_chain_producer(plan, 4, 4);
  {
    const Producer kept(*made);
    made->release(made->state);
    uint8_t image[48];
    for (int i = 0; i < 48; ++i) image[i] = static_cast<uint8_t>(i);
    Geometry geometry{1, 1, 2, 2, 2, 2, 0, 0, 2, 2, 0, 1, 0, 1};
    const float affine[6] = {2, 2, 2, 1, 1, 1}, fill[3] = {};
    const void* rows[1] = {image};
    const void* operands[5] = {&geometry, affine, fill, nullptr, nullptr};
    const int64_t strides[5] = {};
    float out[12];
    char message[100] = "";
    const JaxkernRecords records{1, rows, operands, strides, out, nullptr, 0};
    const auto& abi = kept.abi();
    expect(abi.output_bytes == sizeof out, "the output's size");
    expect(abi.run(abi.state, &records, message, sizeof message) == 0, message);
    expect(out[0] == 2 * image[15] + 1 && out[11] == 2 * image[32] + 1, "the crop's values");
    geometry.top = 3;
    expect(abi.run(abi.state, &records, message, sizeof message) != 0, "a bad crop was run");
    expect(std::string(message).find("'geometry'") != std::string::npos, message);
  }
}

}  // namespace

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 300;
  const auto seed = static_cast<uint64_t>(count > 2 ? std::atoll(arguments[2]) : 1);
  check_refusals();
  check_chain();
  check_no_memory();
  check_last_batch_is_shared();
  check_close_beside_finish(10 * rounds);
  for (int i = 0; i < rounds; ++i) run(seed * 1000003 + static_cast<uint64_t>(i) * 17);
  if (g_failures == 0) std::printf("check_assembly: %d rounds\n", rounds);
  return g_failures == 0 ? 0 : 1;
}
