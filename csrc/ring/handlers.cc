// CPU handlers of the ring: take or put a batch inside a program. A batch or slot that is available
// is copied at once; otherwise a separate thread waits, so that XLA's threads are not blocked.
#include <cstring>
#include <utility>

#include "ring/operands.h"
#include "ring/ops.h"
#include "ring/program_ring.h"
#include "ring/waiters.h"

namespace jaxkern::ring {
namespace {

struct Leaf {
  char* data;
  size_t bytes;
};

ffi::Future completed(ffi::Error error) {
  ffi::Promise promise;
  ffi::Future future(promise);
  if (error.success()) {
    promise.SetAvailable();
  } else {
    promise.SetError(std::move(error));
  }
  return future;
}

// Calls `attempt(deadline)` first without and then with a wait. `attempt` must own what it uses.
template <typename Attempt>
ffi::Future run(const char* op, const std::shared_ptr<Ring>& ring, Attempt attempt) {
  Status status = attempt(kNow);
  if (status.ok()) return completed(ffi::Error::Success());
  if (status.outcome != Outcome::kTimeout) return completed(failure(op, status));
  const Deadline deadline = ring->pop_deadline();
  ffi::Promise promise;
  ffi::Future future(promise);
  // Allocated in advance: a promise must be fulfilled even when memory is exhausted.
  ffi::Error error(ffi::ErrorCode::kResourceExhausted, std::string(op) + ": out of memory");
  try {
    run_in_thread([op, promise, deadline, attempt, error]() mutable {
      try {
        const Status late = attempt(deadline);
        error = late.ok() ? ffi::Error::Success() : failure(op, late);
      } catch (const std::exception&) {  // std::bad_alloc; `error` remains
      }
      if (error.success()) {
        promise.SetAvailable();
      } else {
        promise.SetError(std::move(error));
      }
    });
  } catch (const std::exception& why) {
    promise.SetError(ffi::Error::Internal(std::string(op) +
                                          ": cannot start a thread to wait in: " + why.what()));
  }
  return future;
}

template <typename Op>
ffi::Future on_cpu(const Op& o) {
  if (ffi::Error error = o.check_tokens(); error.failure()) return completed(std::move(error));
  const auto* words = static_cast<const uint32_t*>(o.token.untyped_data());
  const ProgramAccess& rings = program_access();
  const std::shared_ptr<Ring> ring = rings.find(key_of(words));
  if (ring == nullptr) return completed(no_ring(o.op));
  if (ffi::Error error = o.check_leaves(ring->leaves()); error.failure()) {
    return completed(std::move(error));
  }
  std::vector<Leaf> leaves;  // the buffers are only valid during this call
  for (const ffi::AnyBuffer& leaf : o.leaves) {
    if (Op::kPops) advise_results(leaf);
    leaves.push_back({static_cast<char*>(leaf.untyped_data()), leaf.size_bytes()});
  }
  std::memmove(o.token_out.untyped_data(), words, o.token.size_bytes());
  return run(o.op, ring, [ring, leaves, &rings](Deadline deadline) {
    HostBatch batch;
    const Status status = (Op::kPops ? rings.take : rings.acquire)(ring, deadline, &batch);
    if (!status.ok()) return status;
    for (size_t i = 0; i < leaves.size(); ++i) {
      char* const to = Op::kPops ? leaves[i].data : batch.leaves[i];
      std::memcpy(to, Op::kPops ? batch.leaves[i] : leaves[i].data, leaves[i].bytes);
    }
    return batch.end();
  });
}

}  // namespace
}  // namespace jaxkern::ring

#define JAXKERN_RING_ON_CPU(name, target) \
  JAXKERN_CPU_HANDLER(name, jaxkern::ring::on_cpu<jaxkern::ring::name>)
JAXKERN_RING_OPS(JAXKERN_RING_ON_CPU)
