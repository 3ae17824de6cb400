// Threads that fill a ring's slots with rows of arrays, batch by batch, without the interpreter.
//
//   Assembly assembly(ring, std::move(leaves), {64, true, start, 2});
//   assembly.submit(records, count, {});   // any number of times, ahead of the consumer
//   assembly.finish();
//
// A batch of rows is one thread's work, one that producers make is shared among the threads that
// are free; the ring brings them into order and holds the threads back. A batch that cannot be made
// is a failure of the ring at its own index, and the next ones go on.
#ifndef JAXKERN_RING_ASSEMBLY_H_
#define JAXKERN_RING_ASSEMBLY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/producer.h"
#include "ring/gather.h"
#include "ring/ring.h"

namespace jaxkern::ring {

// A share in a producer's state; empty where rows are copied as they are.
class Producer {
 public:
  Producer() = default;
  explicit Producer(const JaxkernProducer& abi);  // throws std::invalid_argument
  explicit operator bool() const { return state_ != nullptr; }
  const JaxkernProducer& abi() const { return *state_; }

 private:
  std::shared_ptr<const JaxkernProducer> state_;
};

// How one leaf of every batch is made.
struct AssemblyLeaf {
  Rows rows;
  Producer producer;

  int64_t record_bytes() const {
    return producer ? producer.abi().output_bytes : rows.output_bytes();
  }
};

struct AssemblyOptions {
  int64_t batch = 1;    // records a batch: the leading axis of every leaf
  bool mask = false;    // the ring's last leaf is bool [batch]: which records are there
  int64_t start = 0;    // the index of the first batch
  int64_t workers = 1;  // threads
  // The leaf behind those of `leaves` is bool [batch]: which records the producers could make; what
  // stands for the others is theirs to say. Without it such a record is the batch's failure.
  bool valid = false;
};

// One array of a producer's parameters for the records of a `submit`: [records or 1, record_bytes].
struct AssemblyOperand {
  const void* data;
  int64_t records;
  int64_t record_bytes;
};

class Assembly {
 public:
  // The arrays must outlive the assembly. Throws std::invalid_argument where leaves do not fit the
  // ring's, and std::system_error when there are no threads to be had.
  Assembly(std::shared_ptr<Ring> ring, std::vector<AssemblyLeaf> leaves,
           const AssemblyOptions& options);
  ~Assembly();
  Assembly(const Assembly&) = delete;
  Assembly& operator=(const Assembly&) = delete;

  // Batches of `records`, in order, behind those of the last call; everything is copied. Only the
  // last call's last batch may be short: the rest of its leaves is zero. `operands` [leaf] are the
  // parameters of the leaves' producers. Returns the index after the last batch. Throws
  // std::out_of_range for a record that does not exist, std::invalid_argument, and
  // std::runtime_error after `finish`, `close` or a fork; then nothing has been submitted.
  int64_t submit(const int64_t* records, int64_t count,
                 const std::vector<std::vector<AssemblyOperand>>& operands);
  void finish();  // no more batches
  // Waits until at most `batches` are waiting for a thread; false when the deadline came first,
  // true also when the assembly is closed or has nobody left to deliver to.
  bool wait_for_room(int64_t batches, Deadline deadline);
  // Closes the ring and joins the threads, which stop at the next row. Idempotent.
  void close();
  bool closed() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace jaxkern::ring

#endif  // JAXKERN_RING_ASSEMBLY_H_
