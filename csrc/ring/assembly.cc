// Assembly: a queue of batches, and threads that fill them in parts.
//
//     submit() --> jobs --begin(): acquire a slot--> open --make_part(): fill--> deliver() --> ring
//                (deque of Job)                 (list of PendingBatch)     (commit or fail the
//                slot)
//
// A thread prefers an open batch over a new job, so that the oldest batch is completed first:
//   1. open is not empty: claim the next part of its front batch, fill it without the mutex, and
//      deliver the batch if this was its last unfinished part (`remaining` == 0);
//   2. else, jobs is not empty: acquire the ring slot of the front job (this may wait for the
//      consumer), which makes it an open batch of 1 part (copied rows) or of parts of kPartRecords
//      records (producers);
//   3. else wait on `work`, until finish() was called and no thread is in begin().
// A PendingBatch leaves `open` when all parts are claimed; the threads that fill them own it then.
//
// State::mutex guards jobs, open, next, finished, short_batch, beginning and the counters of each
// PendingBatch. It is not held while a slot is acquired, filled or delivered. `stop` is atomic and
// only changes from false to true: on close(), or when the ring rejects a batch (give_up()).
// Batches reach the consumer in the order of their index because the ring orders them.
#include "ring/assembly.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <limits>
#include <list>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>
#include <utility>

#include "core/platform.h"
#include "core/streaming.h"
#include "ring/memory.h"

namespace jaxkern::ring {
namespace {

// Records of a part. Small parts let idle threads share the first and the last batch, and close()
// waits for one part only.
constexpr int64_t kPartRecords = 8;
constexpr size_t kMessageSize = 1024;
// Thread name in debuggers and profilers; at most 15 characters.
constexpr const char* kThreadName = "jaxkern-batch";

constexpr auto text = [](auto value) { return std::to_string(value); };

// Parameters of one producer for the records of one submit().
struct Operands {
  std::vector<std::vector<uint64_t>> data;  // 8-byte words keep the parameters aligned
  std::vector<int64_t> strides;
};

struct Chunk {
  std::vector<int64_t> records;
  std::vector<Operands> operands;  // [leaf]
};

// One batch: records [begin, begin + count) of a chunk.
struct Job {
  std::shared_ptr<const Chunk> chunk;
  int64_t begin = 0, count = 0, index = 0;
};

// The reason that records could not be made; an empty message means success.
struct Problem {
  std::string message;
  int64_t record = -1;  // the failing record; -1: unknown
};

// A batch that is being filled in parts.
struct PendingBatch {
  Job job;
  Slot slot;
  int64_t parts = 1;
  // Guarded by the assembly's mutex.
  int64_t claimed = 0, remaining = 0;
  int64_t failed = std::numeric_limits<int64_t>::max();  // the first failed part
  Problem problem;                                       // of that part
};
using PendingBatches = std::list<std::shared_ptr<PendingBatch>>;  // spliced without allocation

std::string message_of(const char* what) noexcept {
  try {
    return what;
  } catch (const std::bad_alloc&) {
    return "out of memory";  // fits the string's inline buffer
  }
}

}  // namespace

struct Assembly::State {
  std::shared_ptr<Ring> ring;
  std::vector<AssemblyLeaf> leaves;
  AssemblyOptions options;
  bool stream = false;
  const uint64_t generation = process_generation();

  std::atomic<bool> stop{false};
  std::mutex mutex;                        // guards everything below
  std::condition_variable work, has_room;  // for the threads; for the submitter
  std::deque<Job> jobs;
  PendingBatches open;  // with unclaimed parts
  int64_t next = 0;     // the index of the next batch to be submitted
  bool finished = false, short_batch = false;
  int64_t beginning = 0;  // threads in begin()
  std::mutex joining;
  std::vector<std::thread> threads;

  bool forked() const { return generation != process_generation(); }
  void start_threads();
  void serve();
  void make_part(std::unique_lock<std::mutex>& lock);
  void give_up();
  Status begin(Job job, PendingBatches* started);
  Status fail(int64_t index, const char* problem);
  Status deliver(PendingBatch& batch);
  Problem fill(const PendingBatch& batch, int64_t part);
  Problem produce(const Job& job, size_t leaf, char* out, uint8_t* valid);
  void close();
};

// Runs the producer of a leaf on the records of `job`. `valid` is null or has one byte per record.
Problem Assembly::State::produce(const Job& job, size_t leaf, char* out, uint8_t* valid) {
  const AssemblyLeaf& source = leaves[leaf];
  const JaxkernProducer& abi = source.producer.abi();
  const Operands& parameters = job.chunk->operands[leaf];
  std::vector<const void*> operands(parameters.data.size());
  const void* rows[kPartRecords];
  for (int64_t done = 0; done < job.count && !stop.load(std::memory_order_relaxed);) {
    const int64_t first = job.begin + done;
    JaxkernRecords records{};
    records.count = std::min(kPartRecords, job.count - done);
    for (int64_t k = 0; k < records.count; ++k) {
      rows[k] = source.rows.at(job.chunk->records[static_cast<size_t>(first + k)]);
    }
    for (size_t k = 0; k < operands.size(); ++k) {
      operands[k] =
          reinterpret_cast<const char*>(parameters.data[k].data()) + first * parameters.strides[k];
    }
    records.rows = rows;
    records.operands = operands.data();
    records.operand_strides = parameters.strides.data();
    records.output = out + done * abi.output_bytes;
    records.valid = valid == nullptr ? nullptr : valid + done;
    records.streaming = stream ? 1 : 0;
    char message[kMessageSize] = "the producer failed without a message";
    if (const int32_t failed = abi.run(abi.state, &records, message, sizeof message); failed != 0) {
      message[kMessageSize - 1] = '\0';
      const auto record = [&](int64_t k) {
        return job.chunk->records[static_cast<size_t>(first + k)];
      };
      if (failed > 0 && failed <= records.count) {
        const int64_t number = record(failed - 1);
        return {"record " + text(number) + ": " + message, number};
      }
      return {"records " + text(record(0)) + " to " + text(record(records.count - 1)) + ": " +
              message};
    }
    done += records.count;
  }
  return {};
}

// Acquires the slot of a batch, clears the padding and fills the mask. A status that is not ok
// means that the ring accepts no more batches; `started` remains empty if this batch is skipped.
Status Assembly::State::begin(Job job, PendingBatches* started) {
  const int64_t index = job.index;
  try {
    auto batch = std::make_shared<PendingBatch>();
    PendingBatches single(1, batch);
    const Status status = ring->acquire(index, kNoDeadline, &batch->slot);
    if (!status.ok()) {
      if (status.outcome == Outcome::kNoMemory) {  // the consumer may release memory later
        return fail(index, status.message.c_str());
      }
      // kInvalid: the index was put or failed elsewhere; later batches are not affected.
      return status.outcome == Outcome::kInvalid ? Status{} : status;
    }
    const auto count = static_cast<size_t>(job.count);
    const auto missing = static_cast<size_t>(options.batch - job.count);
    for (size_t i = 0; i < leaves.size(); ++i) {
      const auto record = static_cast<size_t>(leaves[i].record_bytes());
      std::memset(batch->slot.leaf(i) + count * record, 0, missing * record);
      if (leaves[i].producer) batch->parts = (job.count + kPartRecords - 1) / kPartRecords;
    }
    for (size_t i = leaves.size(); i < ring->leaves().size(); ++i) {
      std::memset(batch->slot.leaf(i), 1, count);
      std::memset(batch->slot.leaf(i) + count, 0, missing);
    }
    batch->remaining = batch->parts;
    batch->job = std::move(job);
    *started = std::move(single);
    return {};
  } catch (const std::exception& error) {
    return fail(index, error.what());
  } catch (...) {
    return fail(index, "unknown C++ exception");
  }
}

// Reports a batch without a slot as failed. If memory for that is exhausted, closes the ring,
// because the consumer would otherwise wait for the batch forever; the status is then not ok.
Status Assembly::State::fail(int64_t index, const char* problem) {
  try {
    (void)ring->fail(index, problem);
    return {};
  } catch (const std::bad_alloc&) {
    ring->close("no memory to report a failed batch");
    return {Outcome::kClosed, {}, index};
  }
}

// Fills the records of a part, in all leaves.
Problem Assembly::State::fill(const PendingBatch& batch, int64_t part) {
  const bool single = batch.parts == 1;
  Job job = batch.job;
  const int64_t first = single ? 0 : part * kPartRecords;
  job.begin += first;
  job.count = single ? job.count : std::min(kPartRecords, job.count - first);
  uint8_t* valid =
      options.valid ? reinterpret_cast<uint8_t*>(batch.slot.leaf(leaves.size())) + first : nullptr;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const AssemblyLeaf& source = leaves[i];
    char* out = batch.slot.leaf(i) + first * source.record_bytes();
    if (source.producer) {
      if (Problem problem = produce(job, i, out, valid); !problem.message.empty()) {
        return problem;
      }
    } else if (source.record_bytes() > 0) {
      gather(source.rows, job.chunk->records.data() + job.begin, job.count, out, stream, stop);
    }
  }
  return {};
}

// Commits or fails a batch whose parts are done. A status that is not ok means that the ring
// accepts no more batches.
Status Assembly::State::deliver(PendingBatch& batch) {
  if (stop.load()) return {Outcome::kClosed, {}, -1};  // the slot is abandoned
  try {
    if (batch.problem.message.empty()) return ring->commit(std::move(batch.slot));
    return ring->fail(std::move(batch.slot), batch.problem.message, batch.problem.record);
  } catch (const std::bad_alloc&) {  // only the status of a closed ring allocates
    return {Outcome::kClosed, {}, -1};
  }
}

void Assembly::State::give_up() {
  jobs.clear();
  open.clear();
  stop.store(true);
  work.notify_all();
  has_room.notify_all();
}

// Claims and fills the next part of the front open batch; `lock` is locked before and after. If
// several parts fail, the problem of the first part is reported, independent of timing.
void Assembly::State::make_part(std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<PendingBatch> batch = open.front();
  const int64_t part = batch->claimed++;
  if (batch->claimed == batch->parts) open.pop_front();
  Problem problem;
  if (part < batch->failed) {
    lock.unlock();
    try {
      problem = fill(*batch, part);
    } catch (const std::exception& error) {
      problem.message = message_of(error.what());
    } catch (...) {
      problem.message = message_of("unknown C++ exception");
    }
    lock.lock();
  }
  if (!problem.message.empty() && part < batch->failed) {
    batch->failed = part;
    batch->problem = std::move(problem);
  }
  if (--batch->remaining > 0) return;
  lock.unlock();
  const bool accepted = deliver(*batch).ok();
  lock.lock();
  if (!accepted) give_up();
}

void Assembly::State::serve() {
  name_this_thread(kThreadName);
  std::unique_lock<std::mutex> lock(mutex);
  for (;;) {
    // A thread without a job also waits for batches that other threads are beginning, to help with
    // the last ones.
    work.wait(lock, [this] {
      return stop.load() || !open.empty() || !jobs.empty() || (finished && beginning == 0);
    });
    if (stop.load() || (open.empty() && jobs.empty())) break;
    if (!open.empty()) {
      make_part(lock);
      continue;
    }
    Job job = std::move(jobs.front());
    jobs.pop_front();
    has_room.notify_all();
    ++beginning;
    lock.unlock();
    PendingBatches started;
    const bool accepted = begin(std::move(job), &started).ok();
    lock.lock();
    --beginning;
    if (!accepted) {
      give_up();
    } else if (!started.empty() && !stop.load()) {
      if (started.front()->parts > 1) work.notify_all();
      open.splice(open.end(), started);
    }
    if (finished && beginning == 0) work.notify_all();
  }
}

void Assembly::State::start_threads() {
  for (int64_t i = 0; i < options.workers; ++i) {
    try {
      threads.emplace_back([this] { serve(); });
    } catch (...) {
      close();
      throw;
    }
  }
}

void Assembly::State::close() {
  {
    std::lock_guard<std::mutex> lock(mutex);
    stop.store(true);
    jobs.clear();
    open.clear();
    work.notify_all();
    has_room.notify_all();
  }
  ring->close();
  std::lock_guard<std::mutex> lock(joining);
  for (std::thread& thread : threads) thread.join();
  threads.clear();
}

Assembly::Assembly(std::shared_ptr<Ring> ring, std::vector<AssemblyLeaf> leaves,
                   const AssemblyOptions& options)
    : state_(std::make_unique<State>()) {
  state_->ring = std::move(ring);
  state_->leaves = std::move(leaves);
  state_->options = options;
  state_->next = options.start;
  check_assembly(state_->ring.get(), state_->leaves, options);
  int64_t bytes = 0;
  for (const LeafSpec& leaf : state_->ring->leaves()) bytes += leaf.bytes;
  // The consumer reads a slot after the others were written.
  state_->stream = bytes > largest_cached_result() / state_->ring->capacity();
  state_->start_threads();
}

Assembly::~Assembly() {
  if (state_->forked()) {
    (void)state_.release();  // its threads belong to the parent, and its mutexes may be locked
  } else {
    state_->close();
  }
}

int64_t Assembly::submit(const int64_t* records, int64_t count,
                         const std::vector<std::vector<AssemblyOperand>>& operands) {
  State& s = *state_;
  if (s.forked()) {
    throw std::runtime_error(
        "this assembly was created before the process forked and has no threads here; create a new "
        "one in the child");
  }
  const int64_t rows = s.leaves[0].rows.count;
  auto chunk = std::make_shared<Chunk>();
  // Check the copy: another thread may modify the caller's array.
  chunk->records.assign(records, records + count);
  if (const int64_t at = first_outside(chunk->records.data(), count, rows); at >= 0) {
    throw std::out_of_range("record " + text(chunk->records[static_cast<size_t>(at)]) +
                            " at position " + text(at) +
                            " is out of range; the arrays have records 0 to " + text(rows - 1));
  }
  chunk->operands.resize(s.leaves.size());
  for (size_t i = 0; i < s.leaves.size(); ++i) {
    const Producer& producer = s.leaves[i].producer;
    const auto expected = static_cast<size_t>(producer ? producer.abi().operands : 0);
    const size_t actual = i < operands.size() ? operands[i].size() : 0;
    if (actual != expected) {
      throw std::invalid_argument("leaf " + text(i) + " has " + text(actual) +
                                  " parameter arrays; its producer expects " + text(expected));
    }
    for (size_t k = 0; k < expected; ++k) {
      const AssemblyOperand& operand = operands[i][k];
      const int64_t bytes = producer.abi().operand_bytes[k];
      if (operand.record_bytes != bytes || (operand.records != count && operand.records != 1)) {
        throw std::invalid_argument("parameter array " + text(k) + " of leaf " + text(i) + " has " +
                                    text(operand.records) + " records of " +
                                    text(operand.record_bytes) + " bytes; expected " + text(count) +
                                    " or 1 of " + text(bytes));
      }
      const int64_t stored = operand.records == 1 ? 1 : count;
      const int64_t stride = (bytes + 7) / 8 * 8;
      std::vector<uint64_t> copy(static_cast<size_t>(stored * stride / 8));
      for (int64_t r = 0; r < stored && bytes > 0; ++r) {
        std::memcpy(reinterpret_cast<char*>(copy.data()) + r * stride,
                    static_cast<const char*>(operand.data) + r * bytes, static_cast<size_t>(bytes));
      }
      chunk->operands[i].data.push_back(std::move(copy));
      chunk->operands[i].strides.push_back(operand.records == 1 ? 0 : stride);
    }
  }
  std::lock_guard<std::mutex> lock(s.mutex);
  if (s.finished) throw std::runtime_error("the assembly is finished and accepts no more records");
  if (s.short_batch) {
    throw std::invalid_argument(
        "the records of the previous call were not a multiple of the batch; only the last call may "
        "end with a short batch");
  }
  if (s.stop.load()) return s.next;  // closed, here or by the consumer
  const int64_t batch = s.options.batch;
  if (count > 0 && (count - 1) / batch >= kLastIndex - s.next) {  // leaves an index for a failure
    throw std::invalid_argument(text((count - 1) / batch + 1) + " more batches from index " +
                                text(s.next) + " exceed the largest index, 2^62");
  }
  const size_t before = s.jobs.size();
  try {
    int64_t next = s.next;
    for (int64_t begin = 0; begin < count; begin += batch) {
      s.jobs.push_back({chunk, begin, std::min(batch, count - begin), next++});
    }
    s.next = next;
  } catch (...) {
    s.jobs.resize(before);
    throw;
  }
  s.short_batch = count % batch != 0;
  s.work.notify_all();
  return s.next;
}

void Assembly::finish() {
  State& s = *state_;
  if (s.forked()) return;
  int64_t end = 0;
  {
    std::lock_guard<std::mutex> lock(s.mutex);
    if (s.finished) return;
    s.finished = true;
    s.work.notify_all();
    // After a stop records may have been dropped, and an end would look like the end of the stream.
    // The ring is closed, or about to be.
    if (s.stop.load()) return;
    end = s.next;
  }
  (void)s.ring->finish(end);
}

bool Assembly::wait_for_room(int64_t batches, Deadline deadline) {
  State& s = *state_;
  if (s.forked()) return true;
  std::unique_lock<std::mutex> lock(s.mutex);
  const auto room = [&] { return s.stop.load() || static_cast<int64_t>(s.jobs.size()) <= batches; };
  if (deadline != kNoDeadline) return s.has_room.wait_until(lock, deadline, room);
  s.has_room.wait(lock, room);
  return true;
}

void Assembly::close() {
  if (!state_->forked()) state_->close();
}

bool Assembly::closed() const { return state_->forked() || state_->stop.load(); }

}  // namespace jaxkern::ring
