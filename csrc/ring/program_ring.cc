// The rings' functions for programs.
#include "ring/program_ring.h"

#include <exception>
#include <utility>

#include "ring/waiters.h"

namespace jaxkern::ring {
namespace {

std::shared_ptr<Ring> find(uint64_t key) {
  std::shared_ptr<Ring> ring = Ring::find(key);
  return ring == nullptr || ring->closed() ? nullptr : ring;
}

Status take(const std::shared_ptr<Ring>& ring, Deadline deadline, HostBatch* batch) {
  Batch taken;
  Status status = ring->take(deadline, &taken);
  if (!status.ok()) return status;
  ring->count_hand_over(0, static_cast<int64_t>(taken.size()));
  for (size_t i = 0; i < taken.size(); ++i) {
    batch->leaves.push_back(const_cast<char*>(taken.leaf(i)));
  }
  batch->end = [taken]() mutable {
    taken.release();
    return Status{};
  };
  return status;
}

Status acquire(const std::shared_ptr<Ring>& ring, Deadline deadline, HostBatch* batch) {
  const auto slot = std::make_shared<Slot>();
  Status status = ring->acquire(kNextIndex, deadline, slot.get());
  if (!status.ok()) return status;
  for (size_t i = 0; i < slot->size(); ++i) batch->leaves.push_back(slot->leaf(i));
  batch->end = [ring, slot] { return ring->commit(std::move(*slot)); };
  return status;
}

void end_elsewhere(HostBatch batch) {
  const auto shared = std::make_shared<HostBatch>(std::move(batch));
  const auto end = [shared] { (void)shared->end(); };  // fails where the ring has closed
  try {
    run_waiting(end);
  } catch (const std::exception&) {  // no thread to be had, and CUDA's callback must not throw
    end();
  }
}

}  // namespace

const ProgramAccess& program_access() {
  static constexpr ProgramAccess kAccess = {&find, &take, &acquire, &end_elsewhere};
  return kAccess;
}

}  // namespace jaxkern::ring
