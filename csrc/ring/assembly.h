// Native threads that fill a ring's slots with rows of arrays, without the GIL.
//
//   Assembly assembly(ring, std::move(leaves), {64, true, start, 2});
//   assembly.submit(records, count, {});   // repeatedly, ahead of the consumer
//   assembly.finish();
//
// A batch of copied rows is filled by one thread. A batch with producers is divided into parts for
// the free threads. The ring orders the batches and limits how far the threads run ahead. A batch
// that cannot be filled becomes a failure at its index; later batches are not affected.
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

// Shared ownership of a producer's state; empty if rows are copied unchanged.
class Producer {
 public:
  Producer() = default;
  explicit Producer(const JaxkernProducer& abi);  // throws std::invalid_argument
  explicit operator bool() const { return state_ != nullptr; }
  const JaxkernProducer& abi() const { return *state_; }

 private:
  std::shared_ptr<const JaxkernProducer> state_;
};

// The source of one leaf of every batch.
struct AssemblyLeaf {
  Rows rows;
  Producer producer;

  int64_t record_bytes() const {
    return producer ? producer.abi().output_bytes : rows.output_bytes();
  }
};

struct AssemblyOptions {
  int64_t batch = 1;    // records per batch: the leading axis of every leaf
  bool mask = false;    // the ring's last leaf is bool [batch]: true for records, false for padding
  int64_t start = 0;    // the index of the first batch
  int64_t workers = 1;  // number of threads
  // The leaf after those of `leaves` is bool [batch]: true for records that the producers could
  // make; producers define the contents of the others. Without it, such a record fails the batch.
  bool valid = false;
};

// Throws std::invalid_argument if the leaves do not match the ring's or an option is out of range.
void check_assembly(const Ring* ring, const std::vector<AssemblyLeaf>& leaves,
                    const AssemblyOptions& options);

// One array of a producer's parameters for the records of a `submit`: [records or 1, record_bytes].
struct AssemblyOperand {
  const void* data;
  int64_t records;
  int64_t record_bytes;
};

class Assembly {
 public:
  // The arrays must outlive the assembly. Throws std::invalid_argument if leaves do not match the
  // ring's, and std::system_error if threads cannot be started.
  Assembly(std::shared_ptr<Ring> ring, std::vector<AssemblyLeaf> leaves,
           const AssemblyOptions& options);
  ~Assembly();
  Assembly(const Assembly&) = delete;
  Assembly& operator=(const Assembly&) = delete;

  // Queues batches of `records`, in order, after those of earlier calls; arguments are copied. Only
  // the last batch of the last call may be short; the rest of its leaves is zero. `operands` [leaf]
  // are the parameters of the leaves' producers. Returns the index after the last batch. Throws
  // std::out_of_range for a record out of range, std::invalid_argument, and std::runtime_error
  // after `finish`, `close` or a fork; then nothing is submitted.
  int64_t submit(const int64_t* records, int64_t count,
                 const std::vector<std::vector<AssemblyOperand>>& operands);
  void finish();  // no more batches
  // Waits until at most `batches` batches are queued. Returns false at the deadline, and true if
  // the assembly or the ring is closed.
  bool wait_for_room(int64_t batches, Deadline deadline);
  // Closes the ring and joins the threads, which stop at their next row. Idempotent.
  void close();
  bool closed() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace jaxkern::ring

#endif  // JAXKERN_RING_ASSEMBLY_H_
