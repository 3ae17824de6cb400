// The threads' queue of batches, and how each fills its slot.
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

#include "ring/memory.h"

namespace jaxkern::ring {
namespace {

// A producer runs on so many records at a time, so that a close does not wait for a whole batch,
// and threads without one of their own help with it: the first batch comes sooner, and so does the
// last.
constexpr int64_t kRunRecords = 8;
constexpr size_t kMessageSize = 1024;
// As debuggers and profilers show the threads; at most 15 characters.
constexpr const char* kThreadName = "jaxkern-batch";
// Batches that together stay in a processor's cache are written through it: the consumer finds
// them there. Beyond, a store would read memory only to overwrite it.
constexpr int64_t kCachedBytes = int64_t{8} << 20;

constexpr auto text = [](auto value) { return std::to_string(value); };

// Parameters of one producer for the records of one `submit`.
struct Operands {
  std::vector<std::vector<uint64_t>> data;  // of 8-byte words, so that every record's are aligned
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

// Why records could not be made; no problem where the message is empty.
struct Problem {
  std::string message;
  int64_t record = -1;  // the record at fault; -1: not known to be one
};

// A batch that threads are making, part by part.
struct Making {
  Job job;
  Slot slot;
  int64_t parts = 1;
  // Guarded by the assembly's mutex.
  int64_t claimed = 0, left = 0;
  int64_t failed = std::numeric_limits<int64_t>::max();  // the first part that could not be made
  Problem problem;                                       // of that part
};
using Open = std::list<std::shared_ptr<Making>>;  // spliced from list to list without memory

std::string message_of(const char* what) noexcept {
  try {
    return what;
  } catch (const std::bad_alloc&) {
    return "out of memory";  // short enough to need none
  }
}

}  // namespace

Producer::Producer(const JaxkernProducer& abi) {
  if (abi.version != JAXKERN_PRODUCER_VERSION || abi.size < sizeof(JaxkernProducer)) {
    throw std::invalid_argument(
        "the producer has ABI version " + text(abi.version) + " and size " + text(abi.size) +
        "; wanted version " + text(JAXKERN_PRODUCER_VERSION) + " and at least " +
        text(sizeof(JaxkernProducer)) + ": build it with this jaxkern's core/producer.h");
  }
  bool sound = abi.retain != nullptr && abi.release != nullptr && abi.run != nullptr &&
               abi.row_bytes >= 0 && abi.output_bytes >= 0 && abi.operands >= 0 &&
               (abi.operands == 0 || abi.operand_bytes != nullptr);
  for (int64_t i = 0; sound && i < abi.operands; ++i) sound = abi.operand_bytes[i] >= 0;
  if (!sound) throw std::invalid_argument("the producer lacks a function or has a negative size");
  abi.retain(abi.state);
  state_ = std::shared_ptr<const JaxkernProducer>(new JaxkernProducer(abi),
                                                  [](const JaxkernProducer* last) {
                                                    last->release(last->state);
                                                    delete last;
                                                  });
}

struct Assembly::State {
  std::shared_ptr<Ring> ring;
  std::vector<AssemblyLeaf> leaves;
  AssemblyOptions options;
  bool stream = false;
  const uint64_t generation = process_generation();

  std::atomic<bool> stop{false};
  std::mutex mutex;                        // guards everything below
  std::condition_variable work, has_room;  // for threads; for who submits
  std::deque<Job> jobs;
  Open open;         // with parts that nobody has claimed
  int64_t next = 0;  // the index of the next batch to be submitted
  bool finished = false, short_batch = false;
  int64_t beginning = 0;  // threads that take a slot for a batch
  std::mutex joining;
  std::vector<std::thread> threads;

  bool forked() const { return generation != process_generation(); }
  void check() const;
  void start_threads();
  void serve();
  void make_part(std::unique_lock<std::mutex>& lock);
  void give_up();
  Status begin(Job job, Open* made);
  Status fail(int64_t index, const char* problem);
  Status deliver(Making& batch);
  Problem fill(const Making& batch, int64_t part);
  Problem produce(const Job& job, size_t leaf, char* out, uint8_t* valid);
  void close();
};

void Assembly::State::check() const {
  if (ring == nullptr) throw std::invalid_argument("there is no ring");
  const std::vector<LeafSpec>& wanted = ring->leaves();
  if (options.batch < 1 || options.workers < 1 || options.workers > 1024 || options.start < 0) {
    throw std::invalid_argument("an assembly of " + text(options.workers) +
                                " workers, batches of " + text(options.batch) + " and start " +
                                text(options.start) +
                                "; wanted 1 to 1024 workers, a batch of at least 1 and a start of "
                                "0 or more");
  }
  const size_t flags = (options.mask ? 1 : 0) + (options.valid ? 1 : 0);
  if (leaves.empty() || leaves.size() + flags != wanted.size()) {
    throw std::invalid_argument("the ring has " + text(wanted.size()) + " leaves and " +
                                text(leaves.size()) +
                                " arrays fill them; wanted one array a leaf, and at least one");
  }
  for (size_t i = leaves.size(); i < wanted.size(); ++i) {
    if (wanted[i].bytes != options.batch) {
      throw std::invalid_argument("the mask leaf has " + text(wanted[i].bytes) +
                                  " bytes; wanted one a record: " + text(options.batch));
    }
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    const Rows& rows = leaves[i].rows;
    const std::string name = "array " + text(i);
    if (rows.count != leaves[0].rows.count || rows.count < 0 || rows.bytes < 0 ||
        static_cast<int32_t>(rows.cast) < 0 || static_cast<int32_t>(rows.cast) >= kCasts ||
        (rows.base == nullptr && rows.count > 0 && rows.bytes > 0)) {
      throw std::invalid_argument(name + " has " + text(rows.count) + " rows of " +
                                  text(rows.bytes) + " bytes; wanted " +
                                  text(leaves[0].rows.count) + " rows, as array 0");
    }
    int64_t before = 0;
    for (const RowBlock& block : rows.more) {
      if (block.first < before || block.first > rows.count ||
          (block.base == nullptr && rows.bytes > 0)) {
        throw std::invalid_argument(name + " has a part that begins at row " + text(block.first) +
                                    " of " + text(rows.count) + "; wanted ascending parts");
      }
      before = block.first;
    }
    const int64_t record = leaves[i].record_bytes();
    int64_t all = 0;
    if (leaves[i].producer) {
      const JaxkernProducer& abi = leaves[i].producer.abi();
      if (abi.row_bytes != rows.bytes || rows.cast != Cast::kNone) {
        throw std::invalid_argument(name + " has rows of " + text(rows.bytes) +
                                    " bytes; its producer reads " + text(abi.row_bytes));
      }
    }
    if (__builtin_mul_overflow(record, options.batch, &all) || all != wanted[i].bytes) {
      throw std::invalid_argument("leaf " + text(i) + " of the ring has " + text(wanted[i].bytes) +
                                  " bytes; " + text(options.batch) + " records of " + name +
                                  " make " + text(record) + " each");
    }
  }
}

// The records of a leaf, transformed; a problem where the producer fails. `valid` is null or
// [batch].
Problem Assembly::State::produce(const Job& job, size_t leaf, char* out, uint8_t* valid) {
  const AssemblyLeaf& source = leaves[leaf];
  const JaxkernProducer& abi = source.producer.abi();
  const Operands& given = job.chunk->operands[leaf];
  std::vector<const void*> operands(given.data.size());
  const void* rows[kRunRecords];
  for (int64_t done = 0; done < job.count && !stop.load(std::memory_order_relaxed);) {
    const int64_t first = job.begin + done;
    JaxkernRecords records{};
    records.count = std::min(kRunRecords, job.count - done);
    for (int64_t k = 0; k < records.count; ++k) {
      rows[k] = source.rows.at(job.chunk->records[static_cast<size_t>(first + k)]);
    }
    for (size_t k = 0; k < operands.size(); ++k) {
      operands[k] = reinterpret_cast<const char*>(given.data[k].data()) + first * given.strides[k];
    }
    records.rows = rows;
    records.operands = operands.data();
    records.operand_strides = given.strides.data();
    records.output = out + done * abi.output_bytes;
    records.valid = valid == nullptr ? nullptr : valid + done;
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

// Takes a slot for the batch and sets what no part does. Not ok: nobody will take any more batches;
// nothing made: this one is not to be.
Status Assembly::State::begin(Job job, Open* made) {
  const int64_t index = job.index;
  try {
    auto batch = std::make_shared<Making>();
    Open one(1, batch);
    const Status status = ring->acquire(index, kNoDeadline, &batch->slot);
    if (!status.ok()) {
      if (status.outcome == Outcome::kNoMemory) {  // the consumer may give some back
        return fail(index, status.message.c_str());
      }
      // An index that somebody else has put, or failed, is taken: the rest goes on.
      return status.outcome == Outcome::kInvalid ? Status{} : status;
    }
    const auto there = static_cast<size_t>(job.count);
    const auto missing = static_cast<size_t>(options.batch - job.count);
    for (size_t i = 0; i < leaves.size(); ++i) {
      const auto record = static_cast<size_t>(leaves[i].record_bytes());
      std::memset(batch->slot.leaf(i) + there * record, 0, missing * record);
      if (leaves[i].producer) batch->parts = (job.count + kRunRecords - 1) / kRunRecords;
    }
    for (size_t i = leaves.size(); i < ring->leaves().size(); ++i) {
      std::memset(batch->slot.leaf(i), 1, there);
      std::memset(batch->slot.leaf(i) + there, 0, missing);
    }
    batch->left = batch->parts;
    batch->job = std::move(job);
    *made = std::move(one);
    return {};
  } catch (const std::exception& error) {
    return fail(index, error.what());
  } catch (...) {
    return fail(index, "an exception that is no std::exception");
  }
}

// Reports a batch that has no slot. Where there is no memory for that, the ring is closed, since
// the consumer would wait for the batch for ever; not ok then.
Status Assembly::State::fail(int64_t index, const char* problem) {
  try {
    (void)ring->fail(index, problem);
    return {};
  } catch (const std::bad_alloc&) {
    ring->close("no memory to report a failed batch");
    return {Outcome::kClosed, {}, index};
  }
}

// Makes the records of a part, in all leaves.
Problem Assembly::State::fill(const Making& batch, int64_t part) {
  const bool whole = batch.parts == 1;
  Job job = batch.job;
  const int64_t first = whole ? 0 : part * kRunRecords;
  job.begin += first;
  job.count = whole ? job.count : std::min(kRunRecords, job.count - first);
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

// A batch whose parts are all done. Not ok: nobody will take any more batches.
Status Assembly::State::deliver(Making& batch) {
  if (stop.load()) return {Outcome::kClosed, {}, -1};  // the slot is given back unfilled
  try {
    if (batch.problem.message.empty()) return ring->commit(std::move(batch.slot));
    return ring->fail(std::move(batch.slot), batch.problem.message, batch.problem.record);
  } catch (const std::bad_alloc&) {  // only the status of a closed ring needs memory
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

// A part of the first batch that has one left; holds `lock` before and after. Of several parts that
// fail the first one's problem is told, whoever was faster.
void Assembly::State::make_part(std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<Making> batch = open.front();
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
      problem.message = message_of("an exception that is no std::exception");
    }
    lock.lock();
  }
  if (!problem.message.empty() && part < batch->failed) {
    batch->failed = part;
    batch->problem = std::move(problem);
  }
  if (--batch->left > 0) return;
  lock.unlock();
  const bool wanted = deliver(*batch).ok();
  lock.lock();
  if (!wanted) give_up();
}

void Assembly::State::serve() {
  (void)pthread_setname_np(pthread_self(), kThreadName);
  std::unique_lock<std::mutex> lock(mutex);
  for (;;) {
    // The last batches are shared too: who has none of its own waits for what others begin.
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
    Open made;
    const bool wanted = begin(std::move(job), &made).ok();
    lock.lock();
    --beginning;
    if (!wanted) {
      give_up();
    } else if (!made.empty() && !stop.load()) {
      if (made.front()->parts > 1) work.notify_all();
      open.splice(open.end(), made);
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
  state_->check();
  int64_t bytes = 0;
  for (const LeafSpec& leaf : state_->ring->leaves()) bytes += leaf.bytes;
  state_->stream = bytes > kCachedBytes / state_->ring->capacity();
  state_->start_threads();
}

Assembly::~Assembly() {
  if (state_->forked()) {
    (void)state_.release();  // its threads and who held its locks are the parent's
  } else {
    state_->close();
  }
}

int64_t Assembly::submit(const int64_t* records, int64_t count,
                         const std::vector<std::vector<AssemblyOperand>>& operands) {
  State& s = *state_;
  if (s.forked()) {
    throw std::runtime_error(
        "this assembly was made before the process forked and has no threads here; make a new one "
        "in the child");
  }
  const int64_t rows = s.leaves[0].rows.count;
  auto chunk = std::make_shared<Chunk>();
  // The copy is checked: the caller's array may be written to meanwhile.
  chunk->records.assign(records, records + count);
  if (const int64_t at = first_outside(chunk->records.data(), count, rows); at >= 0) {
    throw std::out_of_range("record " + text(chunk->records[static_cast<size_t>(at)]) +
                            " at place " + text(at) +
                            " is not in the arrays, which have records 0 to " + text(rows - 1));
  }
  chunk->operands.resize(s.leaves.size());
  for (size_t i = 0; i < s.leaves.size(); ++i) {
    const Producer& producer = s.leaves[i].producer;
    const auto wanted = static_cast<size_t>(producer ? producer.abi().operands : 0);
    const size_t given = i < operands.size() ? operands[i].size() : 0;
    if (given != wanted) {
      throw std::invalid_argument("leaf " + text(i) + " was given " + text(given) +
                                  " parameter arrays; its producer takes " + text(wanted));
    }
    for (size_t k = 0; k < wanted; ++k) {
      const AssemblyOperand& operand = operands[i][k];
      const int64_t bytes = producer.abi().operand_bytes[k];
      if (operand.record_bytes != bytes || (operand.records != count && operand.records != 1)) {
        throw std::invalid_argument("parameter array " + text(k) + " of leaf " + text(i) + " has " +
                                    text(operand.records) + " records of " +
                                    text(operand.record_bytes) + " bytes; wanted " + text(count) +
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
  if (s.finished) throw std::runtime_error("the assembly is finished and takes no more records");
  if (s.short_batch) {
    throw std::invalid_argument(
        "the records before were no multiple of the batch, which only the "
        "last ones may be");
  }
  if (s.stop.load()) return s.next;  // closed, here or by the consumer: nobody wants them
  const int64_t batch = s.options.batch;
  if (count > 0 && (count - 1) / batch >= kLastIndex - s.next) {  // an index is left for a failure
    throw std::invalid_argument(text((count - 1) / batch + 1) + " more batches from index " +
                                text(s.next) + " on; indices of batches end before 2^62");
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
    // Stopped, it may have dropped records: an end here would pass for the stream's. The ring is
    // closed, or about to be.
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
