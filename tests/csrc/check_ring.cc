// The ring under many producers, with errors, abandoned slots, timeouts and closes at random; build
// it with -fsanitize=thread and with address: usage: check_ring [rounds] [seed].
#include <pthread.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ring/program_ring.h"
#include "ring/ring.h"
#include "ring/waiters.h"

namespace {

using jaxkern::ring::Batch;
using jaxkern::ring::Clock;
using jaxkern::ring::Deadline;
using jaxkern::ring::kNextIndex;
using jaxkern::ring::kNoDeadline;
using jaxkern::ring::kNow;
using jaxkern::ring::Lease;
using jaxkern::ring::Options;
using jaxkern::ring::Outcome;
using jaxkern::ring::Ring;
using jaxkern::ring::Slot;
using jaxkern::ring::Status;

std::atomic<int> g_failures{0};

void expect(bool condition, const std::string& what) {
  if (condition) return;
  std::printf("check_ring: %s\n", what.c_str());
  ++g_failures;
}

Deadline in(int microseconds) { return Clock::now() + std::chrono::microseconds(microseconds); }

// What index i's leaves hold: a wrong or torn batch is seen, and a slot that is written while it is
// held is a data race.
void fill(const Slot& slot) {
  for (size_t leaf = 0; leaf < slot.size(); ++leaf) {
    auto* values = reinterpret_cast<int64_t*>(slot.leaf(leaf));
    const size_t count = slot.block(leaf)->bytes() / sizeof(int64_t);
    for (size_t k = 0; k < count; ++k) values[k] = slot.index() * 1000 + static_cast<int64_t>(leaf);
  }
}

bool holds(const char* data, size_t bytes, int64_t index, size_t leaf) {
  const auto* values = reinterpret_cast<const int64_t*>(data);
  for (size_t k = 0; k < bytes / sizeof(int64_t); ++k) {
    if (values[k] != index * 1000 + static_cast<int64_t>(leaf)) return false;
  }
  return true;
}

std::shared_ptr<Ring> make(int64_t capacity, int64_t start = 0, uint64_t key = 0) {
  Options options;
  options.capacity = capacity;
  options.start = start;
  options.key = key;
  return Ring::create(
      {jaxkern::ring::leaf_spec("int64", 8, {5, 3}), jaxkern::ring::leaf_spec("int64", 8, {}),
       jaxkern::ring::leaf_spec("float32", 4, {0, 7})},
      options);
}

struct Plan {
  int64_t count = 0;
  bool explicit_indices = false;
  bool closes = false, closes_behind = false;  // somewhere in the stream; when it has ended
  int64_t failing = -1;                        // every index that this divides fails; -1: none
};

bool fails(const Plan& plan, int64_t index) {
  return plan.failing > 0 && index % plan.failing == plan.failing - 1;
}

void produce(const std::shared_ptr<Ring>& ring, const Plan& plan, std::atomic<int64_t>& ticket,
             uint64_t seed) {
  std::mt19937_64 random(seed);
  for (;;) {
    const int64_t requested = plan.explicit_indices ? ticket.fetch_add(1) : kNextIndex;
    if (requested >= plan.count) return;
    for (;;) {
      Slot slot;
      const Status status = ring->acquire(
          requested, random() % 3 == 0 ? in(static_cast<int>(random() % 200)) : kNoDeadline, &slot);
      if (status.outcome == Outcome::kTimeout) {
        expect(status.message.rfind("a slot for batch ", 0) == 0, "timeout: " + status.message);
        continue;
      }
      if (!status.ok()) {
        const bool ended = status.outcome == Outcome::kFinished && !plan.explicit_indices;
        const bool closed =
            status.outcome == Outcome::kClosed && (plan.closes || plan.closes_behind);
        expect(ended || closed, "a producer was refused: " + status.message);
        return;
      }
      if (plan.explicit_indices && random() % 8 == 0) continue;  // abandons the slot
      fill(slot);
      if (random() % 16 == 0) std::this_thread::yield();
      const int64_t index = slot.index();
      const Status done = fails(plan, index)
                              ? ring->fail(std::move(slot), "bad " + std::to_string(index))
                              : ring->commit(std::move(slot));
      expect(done.ok() || (plan.closes && done.outcome == Outcome::kClosed),
             "a commit failed: " + done.message);
      break;
    }
  }
}

struct Kept {
  int64_t index;
  size_t leaf;
  std::unique_ptr<Lease> lease;
};

void check(const Kept& kept) {
  expect(holds(kept.lease->data(), static_cast<size_t>(kept.lease->spec().bytes), kept.index,
               kept.leaf),
         "a slot was written while a lease held it");
}

void consume(const std::shared_ptr<Ring>& ring, const Plan& plan, uint64_t seed,
             std::vector<Kept>& kept) {
  std::mt19937_64 random(seed);
  const int64_t close_at =
      plan.closes ? static_cast<int64_t>(random() % static_cast<uint64_t>(plan.count + 1)) : -1;
  int64_t next = 0;
  for (;;) {
    if (next == close_at) {
      ring->close();
      Batch batch;
      expect(ring->take(kNoDeadline, &batch).outcome == Outcome::kClosed, "take after close");
      return;
    }
    Batch batch;
    const uint64_t way = random() % 4;
    const Status status = ring->take(
        way == 0 ? kNow : (way == 1 ? in(static_cast<int>(random() % 100)) : kNoDeadline), &batch);
    if (status.outcome == Outcome::kTimeout) continue;
    if (status.outcome == Outcome::kFinished) break;
    expect(status.index == next, "batch " + std::to_string(status.index) + " came as " +
                                     std::to_string(next) + ": " + status.message);
    if (fails(plan, next)) {
      expect(status.outcome == Outcome::kFailed && status.message == "bad " + std::to_string(next),
             "an error was lost");
    } else {
      expect(status.ok(), "take failed: " + status.message);
      for (size_t leaf = 0; leaf < batch.size(); ++leaf) {
        expect(holds(batch.leaf(leaf), static_cast<size_t>(ring->leaves()[leaf].bytes), next, leaf),
               "a batch is torn");
        if (random() % 3 == 0) kept.push_back({next, leaf, batch.lease(leaf)});
      }
    }
    ++next;
    if (random() % 4 == 0) batch.release();
    while (!kept.empty() && random() % 3 != 0) {
      check(kept.back());
      kept.pop_back();
    }
  }
  expect(next == plan.count,
         "the tail was lost: " + std::to_string(next) + " of " + std::to_string(plan.count));
}

void stress(uint64_t seed) {
  std::mt19937_64 random(seed);
  Plan plan;
  plan.count = static_cast<int64_t>(random() % 60);
  plan.explicit_indices = random() % 2 == 0;
  plan.closes = random() % 4 == 0;
  plan.closes_behind = random() % 2 == 0;
  plan.failing = random() % 3 == 0 ? static_cast<int64_t>(2 + random() % 5) : -1;
  std::shared_ptr<Ring> ring = make(static_cast<int64_t>(1 + random() % 5));
  std::atomic<int64_t> ticket{0};
  std::vector<Kept> kept;
  std::vector<std::thread> threads;
  const uint64_t producers = 1 + random() % 4;
  // Producers that take the next index learn the end from the ring.
  expect(ring->finish(plan.count).ok(), "finish");
  for (uint64_t i = 0; i < producers; ++i) {
    threads.emplace_back([&, i] { produce(ring, plan, ticket, seed * 31 + i); });
  }
  consume(ring, plan, seed * 17, kept);
  if (plan.closes_behind) ring->close();
  for (std::thread& thread : threads) thread.join();
  const jaxkern::ring::Statistics counts = ring->statistics();
  if (!plan.closes) {
    expect(counts.batches + counts.failures == plan.count, "the count of batches is wrong");
    expect(counts.filling == 0 && counts.ready == 0, "a slot is lost");
  }
  // What is kept outlives the ring, and ends in another thread.
  ring.reset();
  std::thread([kept = std::move(kept)]() mutable {
    for (const Kept& each : kept) check(each);
    kept.clear();
  }).join();
}

// Takers and closers in several threads: every index is delivered to exactly one of them.
void several_consumers(uint64_t seed) {
  const auto ring = make(3);
  constexpr int64_t kCount = 200;
  std::atomic<int64_t> ticket{0}, delivered{0};
  Plan plan;
  plan.count = kCount;
  plan.explicit_indices = true;
  expect(ring->finish(kCount).ok(), "finish");
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] { produce(ring, plan, ticket, seed + i); });
  }
  for (int i = 0; i < 4; ++i) {  // more than the batches can wake: the end wakes the others
    threads.emplace_back([&] {
      Batch batch;
      while (ring->take(kNoDeadline, &batch).ok()) ++delivered;
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect(delivered == kCount, "several consumers lost a batch");
}

void refusals() {
  const auto ring = make(2, 10);
  Slot a, b;
  expect(ring->acquire(9, kNow, &a).outcome == Outcome::kInvalid, "an index below the start");
  expect(ring->acquire(11, kNow, &a).ok(), "an index in the window");
  expect(ring->acquire(11, kNow, &b).outcome == Outcome::kInvalid, "an index that is being filled");
  expect(ring->acquire(12, kNow, &b).outcome == Outcome::kTimeout, "an index beyond the window");
  expect(ring->commit(std::move(a)).ok(), "commit");
  expect(ring->commit(std::move(a)).outcome == Outcome::kInvalid, "a slot committed twice");
  expect(ring->fail(11, "late").outcome == Outcome::kInvalid, "a failure of a ready batch");
  Batch batch;
  const Status late = ring->take(in(100), &batch);
  expect(late.message == "batch 10, which no producer has put; later ones are ready: 11",
         "the gap is not named: " + late.message);
  expect(ring->fail(10, "first").ok(), "fail");
  expect(ring->finish(11).outcome == Outcome::kInvalid, "an end before a batch that was put");
  expect(ring->finish().index == 12, "the end after the highest index");
  expect(ring->finish(13).outcome == Outcome::kInvalid, "a second end");
  expect(ring->take(kNow, &batch).outcome == Outcome::kFailed, "the failure comes first");
  expect(ring->take(kNow, &batch).index == 11, "then the batch after it");
  expect(ring->take(kNow, &batch).outcome == Outcome::kFinished, "then the end");
  const auto last = make(4, jaxkern::ring::kLastIndex);
  expect(last->acquire(kNextIndex, kNow, &a).ok(), "the last index");
  expect(last->acquire(kNextIndex, kNow, &b).outcome == Outcome::kInvalid, "after the last index");
  expect(last->fail(INT64_MAX, "far").outcome == Outcome::kInvalid, "the largest number");
  expect(last->finish(INT64_MAX).outcome == Outcome::kInvalid, "an end of the largest number");
  a.abandon();
  expect(last->fail(kNextIndex, "last").ok(), "a failure at the last index");
  expect(last->finish().index == jaxkern::ring::kLastIndex + 1, "the end after the last index");
  for (const auto& bad :
       {std::pair<int64_t, int64_t>{0, 0}, {-1, 0}, {1, -1}, {1, jaxkern::ring::kLastIndex + 1}}) {
    bool refused = false;
    try {
      make(bad.first, bad.second);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    expect(refused, "a capacity or a start was accepted");
  }
}

// Memory: as many slots as the capacity, and what the consumer keeps beyond half of them.
void memory() {
  constexpr int64_t kCapacity = 4, kCount = 32;
  const auto ring = make(kCapacity);
  std::vector<Batch> all;
  std::vector<const char*> addresses;
  for (int64_t i = 0; i < kCount; ++i) {
    Slot slot;
    expect(ring->acquire(kNextIndex, kNow, &slot).ok(), "a consumer that keeps all stalls");
    fill(slot);
    expect(ring->commit(std::move(slot)).ok(), "commit");
    Batch batch;
    expect(ring->take(kNow, &batch).ok(), "take");
    for (const char* other : addresses) expect(other != batch.leaf(0), "a held slot was reused");
    addresses.push_back(batch.leaf(0));
    all.push_back(std::move(batch));
  }
  expect(ring->statistics().held == kCount, "held batches are miscounted");
  all.clear();
  expect(ring->statistics().held == 0, "released batches are miscounted");
  // One batch at a time: never more addresses than slots.
  addresses.clear();
  for (int64_t i = 0; i < 50; ++i) {
    Slot slot;
    expect(ring->acquire(kNextIndex, kNow, &slot).ok(), "acquire");
    expect(ring->commit(std::move(slot)).ok(), "commit");
    Batch batch;
    expect(ring->take(kNow, &batch).ok(), "take");
    bool known = false;
    for (const char* other : addresses) known = known || other == batch.leaf(0);
    if (!known) addresses.push_back(batch.leaf(0));
    expect(reinterpret_cast<uintptr_t>(batch.leaf(0)) % jaxkern::ring::kAlignment == 0,
           "alignment");
  }
  expect(addresses.size() <= kCapacity, "more slots than the capacity");
}

// Rings one after the other have the same blocks, and no more are kept than they have, and one
// slot.
void kept_memory() {
  constexpr int kCapacity = 4;
  static std::atomic<int> alive;
  alive = 0;
  Options options;
  options.capacity = kCapacity;
  options.allocator = {[](size_t bytes, int) -> void* {
                         ++alive;
                         return std::aligned_alloc(64, (bytes + 63) / 64 * 64);
                       },
                       [](void* data, size_t, int) {
                         --alive;
                         std::free(data);
                       }};
  options.memory = std::make_shared<jaxkern::ring::SlotMemory>();
  const auto begin = [&](int64_t rows) {
    return Ring::create(
        {jaxkern::ring::leaf_spec("int64", 8, {rows}), jaxkern::ring::leaf_spec("int8", 1, {rows})},
        options);
  };
  const auto hold = [](const std::shared_ptr<Ring>& ring, std::vector<Batch>* kept) {
    for (Batch& batch : *kept) {
      Slot slot;
      expect(ring->acquire(kNextIndex, kNow, &slot).ok(), "a slot");
      std::memset(slot.leaf(0), static_cast<int>(slot.index()) + 1, 80);
      expect(ring->commit(std::move(slot)).ok() && ring->take(kNow, &batch).ok(), "a batch");
    }
  };
  std::vector<Batch> many(3 * kCapacity), last(1);
  auto ring = begin(10);
  hold(ring, &many);
  ring->close();
  const int held = alive;
  expect(held > 2 * (kCapacity + 1), "a consumer that keeps batches has fresh memory");
  for (int epoch = 0; epoch < 3; ++epoch) {
    ring = begin(10);  // while the consumer has those of the first, then one of the last ring
    hold(ring, &last);
    ring->close();
    for (size_t k = 0; k < many.size() && epoch == 0; ++k) {
      expect(many[k].leaf(0)[79] == static_cast<char>(k + 1), "a batch of a ring before");
    }
    many.clear();
    expect(alive <= held, "the ring's memory, in addition to the consumer's");
    if (epoch > 0) expect(alive == 2 * (kCapacity + 1), "a ring's blocks and a slot's");
  }
  ring = begin(20);
  expect(alive <= 2 * (kCapacity + 1), "blocks of another size are freed");
  ring.reset();
  last.clear();
  options.memory.reset();
  expect(alive == 0, "all memory is freed at the end");
}

// A consumer that holds batches, and an exhausted allocator: a status, and the ring continues.
void exhaustion() {
  static std::atomic<int> left;
  left = 2;
  Options options;
  options.capacity = 1;
  options.allocator = {[](size_t bytes, int) -> void* {
                         return left-- > 0 ? std::aligned_alloc(64, (bytes + 63) / 64 * 64)
                                           : nullptr;
                       },
                       [](void* data, size_t, int) { std::free(data); }};
  const auto ring = Ring::create({jaxkern::ring::leaf_spec("int64", 8, {5, 3})}, options);
  std::vector<Batch> kept(2);
  for (Batch& batch : kept) {
    Slot slot;
    expect(ring->acquire(kNextIndex, kNow, &slot).ok(), "a slot");
    expect(ring->commit(std::move(slot)).ok() && ring->take(kNow, &batch).ok(), "a batch");
  }
  Slot slot;
  const Status none = ring->acquire(kNextIndex, kNoDeadline, &slot);
  expect(none.outcome == Outcome::kNoMemory && none.index == 2 &&
             none.message.find("holds 2 batches") != std::string::npos,
         "exhausted memory: " + none.message);
  kept.clear();
  expect(ring->acquire(kNextIndex, kNow, &slot).ok() && slot.index() == 2, "memory came back");
}

// A failure carries its record to the consumer; one without a record says -1.
void failures() {
  const auto ring = make(2);
  Slot slot;
  expect(ring->acquire(kNextIndex, kNow, &slot).ok(), "a slot");
  expect(ring->fail(std::move(slot), "bad", 7).ok(), "fail a slot");
  expect(ring->fail(kNextIndex, "worse").ok(), "fail an index");
  for (const int64_t record : {int64_t{7}, int64_t{-1}}) {
    Batch none;
    const Status failed = ring->take(kNow, &none);
    expect(failed.outcome == Outcome::kFailed && failed.record == record, "the record");
  }
  expect(ring->statistics().failures == 2 && ring->delivered() == 2, "two failures");
}

// Bytes of a producer as text: what Python's strict decoder takes, and '?' for the rest.
void messages() {
  using jaxkern::ring::printable;
  for (const std::string good : {"", "plain", "\xc2\xb5m \xe2\x82\xac \xf0\x9f\x8d\x8e",
                                 "\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf"}) {
    expect(printable(good) == good, "a message was changed: " + good);
  }
  for (const std::string bad :
       {"\x80", "\xc0\x80", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80", "\xe2\x82", "\xff"}) {
    expect(printable("a" + bad + "b") == "a" + std::string(bad.size(), '?') + "b", "no UTF-8");
    expect(printable("a" + bad) == "a" + std::string(bad.size(), '?'), "no UTF-8 at the end");
  }
  expect(printable(std::string("a\0b", 3)) == "a?b", "a zero");
  const std::string cut = printable(std::string(1 << 20, 'x'));
  expect(cut.size() < 5000 && cut.substr(cut.size() - 4) == " ...", "a long message");
}

// Eight producers that each wait for a tenth of the time do not wait for longer than a consumer
// that waits for a third of it.
void verdicts() {
  jaxkern::ring::Statistics counts;
  counts.elapsed = 10;
  counts.producers = 8;
  counts.producer_wait = 8;
  counts.consumer_wait = 3.3;
  expect(std::string(counts.verdict()) == "producer-bound", "the sum of producers' waits counts");
  counts.consumer_wait = 0.4;
  expect(std::string(counts.verdict()) == "consumer-bound", "one producer's wait");
  counts.producer_wait = 1.5;
  counts.consumer_wait = 0.1;
  expect(std::string(counts.verdict()) == "balanced", "short waits");

  const auto ring = make(3);
  std::vector<Slot> slots(2);
  for (Slot& slot : slots) expect(ring->acquire(kNextIndex, kNow, &slot).ok(), "a slot");
  slots.clear();
  Slot slot;
  expect(ring->acquire(kNextIndex, kNow, &slot).ok(), "a slot");
  expect(ring->statistics().producers == 2, "producers at once");
}

void keys() {
  auto ring = make(2, 0, 77);
  expect(Ring::find(77) == ring, "a ring is not found by its key");
  expect(Ring::find(78) == nullptr, "an unknown key finds a ring");
  ring.reset();
  expect(Ring::find(77) == nullptr, "a ring outlives its owner");
}

// Until it ends, the system has no memory for the stack of a new thread: no address space is so
// large.
class NoThreads {
 public:
  NoThreads() {
    pthread_getattr_default_np(&usual_);
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, size_t{1} << 60);
    expect(pthread_setattr_default_np(&huge) == 0, "the size of stacks");
    pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    pthread_setattr_default_np(&usual_);
    pthread_attr_destroy(&usual_);
  }

 private:
  pthread_attr_t usual_;
};

// The functions of a ring that programs and the CUDA module call.
void programs() {
  const auto ring = make(2, 0, 79);
  const jaxkern::ring::ProgramAccess& rings = jaxkern::ring::program_access();
  expect(rings.find(79) == ring && rings.find(80) == nullptr, "a program's ring");
  {
    jaxkern::ring::HostBatch dropped;
    expect(rings.acquire(ring, kNow, &dropped).ok(), "a program's slot");
    expect(dropped.leaves.size() == ring->leaves().size(), "the leaves of a program's slot");
  }
  expect(ring->statistics().filling == 0, "a slot that a program drops goes back");
  jaxkern::ring::HostBatch slot, batch;
  expect(rings.acquire(ring, kNow, &slot).ok() && slot.end().ok(), "a program's commit");
  expect(rings.take(ring, kNow, &batch).ok(), "a batch that a program committed");
  expect(batch.end().ok() && ring->statistics().held == 0, "a program's batch goes back");
  static std::atomic<int> freed{-1};
  const auto task = [](void* data, int device) { *static_cast<std::atomic<int>*>(data) = device; };
  {
    NoThreads none;
    expect(!rings.run_in_waiter(task, &freed, 3), "a thread that cannot be started");
  }
  expect(rings.run_in_waiter(task, &freed, 3), "a thread for a task of the CUDA module");
  expect(jaxkern::ring::join_waiters(in(5000000)) && freed == 3, "the task of the CUDA module");
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 300;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  refusals();
  memory();
  kept_memory();
  exhaustion();
  failures();
  messages();
  verdicts();
  keys();
  programs();
  for (int i = 0; i < rounds && g_failures == 0; ++i) {
    stress(seed + static_cast<uint64_t>(i));
    if (i % 10 == 0) several_consumers(seed + static_cast<uint64_t>(i));
    if (g_failures) std::printf("check_ring: round with seed %d\n", static_cast<int>(seed) + i);
  }
  std::printf("check_ring: %s\n", g_failures ? "FAILED" : "passed");
  return g_failures ? 1 : 0;
}
