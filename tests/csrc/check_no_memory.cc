// The ring and all that starts threads while memory runs out: each allocation of each step fails in
// turn. Nothing is lost (a batch, a slot, a failure, a turn), and no exception ends the process;
// build it with -fsanitize=thread and with address.
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/simd_dispatch.h"
#include "image/files.h"
#include "ring/assembly.h"
#include "ring/program_ring.h"
#include "ring/ring.h"
#include "ring/waiters.h"

namespace {

using namespace jaxkern::ring;  // NOLINT: a driver of this namespace alone

std::atomic<bool> g_armed{false};
std::atomic<int64_t> g_count{0}, g_first{0}, g_width{0};

// While it lives, the allocations [first, first + width) of all threads fail.
class Failing {
 public:
  Failing(int64_t first, int64_t width) {
    g_count = 0;
    g_first = first;
    g_width = width;
    g_armed = true;
  }
  ~Failing() { g_armed = false; }
  bool fired() const { return g_count > g_first; }
};

void* allocate(size_t bytes, size_t alignment) {
  if (g_armed) {
    const int64_t at = g_count++ - g_first;
    if (at >= 0 && at < g_width) throw std::bad_alloc();
  }
  bytes = (bytes + alignment - 1) / alignment * alignment;
  void* data = std::aligned_alloc(alignment, bytes == 0 ? alignment : bytes);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) { return allocate(bytes, 16); }
[[gnu::noinline]] void* operator new(size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* data) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, size_t) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, size_t, std::align_val_t) noexcept {
  std::free(data);
}

namespace {

constexpr int64_t kForGood = int64_t{1} << 40;
std::atomic<int> g_failures{0};

// The text comes in parts, which need no memory where nothing is wrong.
void expect(bool condition, std::string_view what, std::string_view more = "") {
  if (condition) return;
  std::printf("check_no_memory: %.*s%.*s\n", static_cast<int>(what.size()), what.data(),
              static_cast<int>(more.size()), more.data());
  std::fflush(stdout);
  ++g_failures;
}

Deadline soon() { return Clock::now() + std::chrono::seconds(20); }

// ------------------------------------------------------------------------------ the ring

constexpr int64_t kCapacity = 3;
std::atomic<int> g_blocks{0};

Options options_of(const std::shared_ptr<SlotMemory>& memory) {
  Options options;
  options.capacity = kCapacity;
  options.memory = memory;
  options.allocator.allocate = [](size_t bytes, int) -> void* {
    ++g_blocks;
    return std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  };
  options.allocator.release = [](void* data, size_t, int) {
    --g_blocks;
    std::free(data);
  };
  return options;
}

std::vector<LeafSpec> two_leaves() {
  return {leaf_spec("int64", 8, {5}), leaf_spec("int64", 8, {})};
}

// Longer than what a std::string holds in itself.
const std::string kProblem = "a producer's message of more than fifteen characters";

// What producers, a consumer and programs do with a ring, step by step.
struct Story {
  std::shared_ptr<Ring> ring;
  Slot slot;
  Batch batch;
  Status status;
  HostBatch program;
  std::unique_ptr<Lease> lease;
  std::vector<Batch> kept;

  void acquire() {
    const Status got = ring->acquire(kNextIndex, kNow, &slot);
    if (got.outcome == Outcome::kNoMemory) throw std::bad_alloc();
    expect(got.ok(), "no slot: ", got.message);
    std::memset(slot.leaf(0), static_cast<int>(slot.index()) + 1, 40);
  }
  void commit() { expect(ring->commit(std::move(slot)).ok(), "a commit"); }
  void take(int64_t index) {
    status = ring->take(kNow, &batch);
    expect(status.ok() && status.index == index && batch.index() == index, "a batch is lost");
    if (batch) expect(batch.leaf(0)[39] == static_cast<char>(index + 1), "another batch's bytes");
  }
  void take_failure(int64_t index) {
    status = ring->take(kNow, &batch);
    expect(status.outcome == Outcome::kFailed && status.index == index &&
               status.record == 7 + index &&
               (status.message == kProblem || status.message == "out of memory"),
           "a failure is lost");
  }

  std::vector<std::function<void()>> steps() {
    const ProgramAccess& rings = program_access();
    return {
        [this] { acquire(); },
        [this] { commit(); },
        [this] { acquire(); },
        [this] { expect(ring->fail(std::move(slot), kProblem, 8).ok(), "a slot's failure"); },
        [this] { acquire(); },
        [this]() noexcept { slot.abandon(); },
        [this] { expect(ring->fail(kNextIndex, kProblem, 9).ok(), "a failure"); },
        [this] { take(0); },
        [this] { lease = batch.lease(0); },
        [this]() noexcept {
          lease.reset();
          batch.release();
        },
        [this] { take_failure(1); },
        [this] { take_failure(2); },
        [this, &rings] {
          const Status got = rings.acquire(ring, kNow, &program);
          if (got.outcome == Outcome::kNoMemory) throw std::bad_alloc();
          expect(got.ok() && program.leaves.size() == 2, "a program's slot");
          std::memset(program.leaves[0], 4, 40);
        },
        [this] { expect(program.end().ok(), "a program's commit"); },
        [this, &rings] {
          program = {};
          const Status got = rings.take(ring, kNow, &program);
          expect(got.ok() && got.index == 3 && program.leaves[0][39] == 4, "a program's batch");
        },
        [this] { expect(program.end().ok(), "a program's batch goes back"); },
        [this] { acquire(); },
        [this] { commit(); },
        [this] { take(4); },
        [this]() noexcept { batch.release(); },
        // The consumer keeps batches, for which the ring has to make more.
        [this] { acquire(); },
        [this] { commit(); },
        [this] { take(5); },
        [this] { kept.push_back(std::move(batch)); },
        [this] { acquire(); },
        [this] { commit(); },
        [this] { take(6); },
        [this] { kept.push_back(std::move(batch)); },
        [this] { acquire(); },
        [this] { commit(); },
        [this] { take(7); },
        [this] { kept.push_back(std::move(batch)); },
        [this] { acquire(); },
        [this] { commit(); },
        [this] { take(8); },
        [this]() noexcept {
          kept.clear();
          batch.release();
        },
        [this] {  // the messages of waits
          expect(ring->take(Clock::now(), &batch).outcome == Outcome::kTimeout,
                 "a batch of nobody");
        },
        [this] {
          expect(ring->acquire(100, Clock::now(), &slot).outcome == Outcome::kTimeout,
                 "a far index");
        },
        [this] {
          expect(ring->acquire(2, kNow, &slot).outcome == Outcome::kInvalid, "an old index");
        },
    };
  }
};

// Every allocation of every step fails, once or until the step has ended; then the step is
// repeated.
void ring_without_memory() {
  const size_t count = Story{}.steps().size();
  for (const int64_t width : {int64_t{1}, kForGood}) {
    for (size_t armed = 0; armed < count; ++armed) {
      bool fired = true;
      for (int64_t first = 0; fired && first < 100 && g_failures == 0; ++first) {
        const auto memory = std::make_shared<SlotMemory>();
        Story story;
        story.ring = Ring::create(two_leaves(), options_of(memory));
        const auto steps = story.steps();
        for (size_t i = 0; i < count && g_failures == 0; ++i) {
          bool done = false;
          if (i == armed) {
            const Failing failing(first, width);
            try {
              steps[i]();
              done = true;
            } catch (const std::bad_alloc&) {
            }
            fired = failing.fired();
          }
          if (!done) steps[i]();
        }
        if (g_failures != 0) {
          std::printf("after step %zu, allocation %d\n", armed, static_cast<int>(first));
          return;
        }
        const Statistics counts = story.ring->statistics();
        const std::string where =
            " after step " + std::to_string(armed) + ", allocation " + std::to_string(first);
        expect(counts.filling == 0 && counts.ready == 0, "a slot is lost", where);
        expect(counts.held == 0, "a unit of capacity is lost", where);
        expect(counts.batches == 7 && counts.failures == 2, "miscounted", where);
        // The thread of `end_in_waiter` keeps the ring until it has finished.
        expect(join_waiters(soon()), "a thread did not finish", where);
        expect(g_blocks <= 2 * (kCapacity + 4), "blocks are lost", where);
        std::vector<Slot> slots(kCapacity);
        for (Slot& slot : slots) {
          expect(story.ring->acquire(kNextIndex, kNow, &slot).ok(), "capacity is lost", where);
        }
        (void)story.ring->commit(std::move(slots[0]));
        expect(story.ring->finish().ok(), "finish", where);
        {  // with a ready batch, and slots that are returned after it
          const Failing failing(first, width);
          [&]() noexcept { story.ring->close(); }();
          [&]() noexcept { slots.clear(); }();
        }
        expect(story.ring->take(kNow, &story.batch).outcome == Outcome::kClosed, "close", where);
      }
    }
  }
  expect(g_blocks == 0, "memory of slots is leaked");
}

// ------------------------------------------------------------------------- its assembly

void copy_rows(void*, const JaxkernRecords* records, int64_t bytes) {
  for (int64_t i = 0; i < records->count; ++i) {
    std::memcpy(static_cast<char*>(records->output) + i * bytes, records->rows[i],
                static_cast<size_t>(bytes));
  }
}

JaxkernProducer copier() {
  JaxkernProducer made{};
  made.version = JAXKERN_PRODUCER_VERSION;
  made.size = sizeof made;
  made.retain = made.release = [](void*) {};
  made.row_bytes = made.output_bytes = 8;
  made.run = [](void* state, const JaxkernRecords* records, char* message, size_t size) -> int32_t {
    copy_rows(state, records, 8);
    int64_t value = 0;
    std::memcpy(&value, records->rows[0], sizeof value);
    if (value != 96) return 0;
    std::snprintf(message, size, "refused, with a message that is long");
    return 1;
  };
  return made;
}

// Batches are delivered or fail in their places. Where not even a failure can be reported the ring
// is closed, which takes more than one failed allocation.
void assembly_without_memory(int64_t first, int64_t width) {
  constexpr int64_t kBatch = 20, kRecords = 200;
  std::vector<int64_t> values(kRecords);
  for (int64_t i = 0; i < kRecords; ++i) values[static_cast<size_t>(i)] = i;
  const Rows rows{reinterpret_cast<const char*>(values.data()), kRecords, 8, 8, Cast::kNone};
  const auto ring = Ring::create({leaf_spec("int64", 8, {kBatch})}, options_of(nullptr));
  Assembly assembly(ring, {{rows, Producer(copier())}}, {kBatch, false, 0, 2, false});
  const Failing failing(first, width);
  bool submitted = false;
  while (!submitted) {
    try {
      const int64_t next = assembly.submit(values.data(), kRecords, {});
      expect(next == kRecords / kBatch, "records were submitted twice");
      submitted = true;
    } catch (const std::bad_alloc&) {
      if (width == kForGood) g_armed = false;
    }
  }
  try {
    assembly.finish();
  } catch (const std::bad_alloc&) {
    assembly.finish();
  }
  for (int64_t index = 0; g_failures == 0;) {
    Batch batch;
    Status status;
    try {
      status = ring->take(soon(), &batch);
    } catch (const std::bad_alloc&) {
      if (width == kForGood) g_armed = false;
      continue;
    }
    if (status.outcome == Outcome::kFinished) {
      expect(index == kRecords / kBatch, "the tail is lost");
      break;
    }
    if (status.outcome == Outcome::kClosed) {
      expect(width > 1 && status.message.find("no memory") != std::string::npos,
             "closed after a single failed allocation: ", status.message);
      break;
    }
    expect((status.ok() || status.outcome == Outcome::kFailed) && status.index == index,
           "a batch is lost: ", status.message);
    if (status.ok()) {
      expect(std::memcmp(batch.leaf(0), values.data() + index * kBatch, kBatch * 8) == 0,
             "a batch of other records");
    } else {
      expect(!status.message.empty(), "a failure without a message");
    }
    ++index;
  }
}

// ------------------------------------------------------------------------------ waiters

void waiters() {
  const size_t kTasks = 3 * idle_waiters();
  std::mutex mutex;
  std::condition_variable changed;
  size_t running = 0, ran = 0;
  bool open = false;
  const auto wait_for = [&](const std::function<bool()>& ready, const char* what) {
    std::unique_lock<std::mutex> lock(mutex);
    expect(changed.wait_until(lock, soon(), ready), what);
  };
  const auto task = [&] {
    std::unique_lock<std::mutex> lock(mutex);
    ++running;
    changed.notify_all();
    changed.wait(lock, [&] { return open; });
    ++ran;
    changed.notify_all();
    throw std::runtime_error("a task's exception");
  };
  for (size_t i = 0; i < kTasks; ++i) run_in_thread(task);
  wait_for([&] { return running == kTasks; }, "tasks that wait hold each other up");
  expect(waiter_threads() == kTasks, "a thread a task that waits");
  expect(!join_waiters(Clock::now()), "threads that still wait were joined");
  {
    std::lock_guard<std::mutex> lock(mutex);
    open = true;
    changed.notify_all();
  }
  wait_for([&] { return ran == kTasks; }, "a task did not run");
  // The others end by themselves, as soon as they see that enough of them are idle.
  const Deadline deadline = soon();
  while (waiter_threads() > idle_waiters() && Clock::now() < deadline) std::this_thread::yield();
  expect(waiter_threads() <= idle_waiters(), "more idle threads than are kept");
  expect(join_waiters(soon()) && waiter_threads() == 0, "idle threads were not joined");
  // A caller whose deadline passes does not stop another caller from joining.
  open = false;
  running = ran = 0;
  run_in_thread(task);
  wait_for([&] { return running == 1; }, "the task did not start");
  bool joined = false;
  std::thread joiner([&] { joined = join_waiters(soon()); });
  expect(!join_waiters(Clock::now() + std::chrono::milliseconds(50)), "the task still waits");
  {
    std::lock_guard<std::mutex> lock(mutex);
    open = true;
    changed.notify_all();
  }
  joiner.join();
  expect(joined && waiter_threads() == 0, "a second caller's deadline ended the join");
  for (int64_t first = 0, fired = 1; fired && first < 50; ++first) {
    size_t mine = 0;
    bool refused = false;
    {
      const Failing failing(first, 1);
      try {
        run_in_thread([&] {
          std::lock_guard<std::mutex> lock(mutex);
          ++mine;
          changed.notify_all();
        });
      } catch (const std::bad_alloc&) {
        refused = true;
      }
      fired = failing.fired();
    }
    if (!refused) wait_for([&] { return mine == 1; }, "a task that was accepted did not run");
    expect(join_waiters(soon()) && waiter_threads() == 0, "a thread is left");
    expect(mine == (refused ? 0 : 1), "a task that was refused ran, or one ran twice");
  }
}

// -------------------------------------------------------------- threads and scratch memory

// Threads that read headers of files: those that cannot be started are done without.
void headers_without_memory() {
  const std::vector<std::string_view> names(200, "/");  // no regular file
  std::vector<jaxkern::image::FileStamp> stamps(names.size());
  bool fired = true;
  for (int64_t first = 0; fired && first < 300; ++first) {
    const Failing failing(first, 1);
    try {
      jaxkern::image::stamp_files(names, 8, stamps.data());
    } catch (const std::bad_alloc&) {  // before a thread was started
    }
    fired = failing.fired();
  }
}

void scratch_without_memory() {
  std::thread([] {
    bool refused = false;
    {
      const Failing failing(0, 1);
      try {
        (void)jaxkern::thread_scratch<4096>();
      } catch (const std::bad_alloc&) {
        refused = true;
      }
    }
    char* first = nullptr;
    try {
      first = jaxkern::thread_scratch<4096>();
      first[4095] = 1;
    } catch (const std::bad_alloc&) {
    }
    expect(refused && first != nullptr && first == jaxkern::thread_scratch<4096>(),
           "scratch memory is not to be had after one failure");
  }).join();
}

}  // namespace

int main() {
  ring_without_memory();
  for (int64_t first = 0; first < 120 && g_failures == 0; ++first) {
    for (const int64_t width : {int64_t{1}, int64_t{4}, kForGood}) {
      assembly_without_memory(first, width);
    }
  }
  waiters();
  headers_without_memory();
  scratch_without_memory();
  (void)join_waiters(kNoDeadline);
  std::printf("check_no_memory: %s\n", g_failures ? "FAILED" : "passed");
  return g_failures ? 1 : 0;
}
