// Functions of rings for programs.
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

// Allocates before taking the batch, so that an exception cannot lose it.
Status take(const std::shared_ptr<Ring>& ring, Deadline deadline, HostBatch* batch) {
  const auto taken = std::make_shared<Batch>();
  batch->leaves.reserve(ring->leaves().size());
  batch->end = [taken] {
    taken->release();
    return Status{};
  };
  Status status = ring->take(deadline, taken.get());
  if (!status.ok()) return status;
  ring->count_hand_over(0, static_cast<int64_t>(taken->size()));
  for (size_t i = 0; i < taken->size(); ++i) {
    batch->leaves.push_back(const_cast<char*>(taken->leaf(i)));
  }
  return status;
}

Status acquire(const std::shared_ptr<Ring>& ring, Deadline deadline, HostBatch* batch) {
  const auto slot = std::make_shared<Slot>();
  batch->leaves.reserve(ring->leaves().size());
  batch->end = [ring, slot] { return ring->commit(std::move(*slot)); };
  Status status = ring->acquire(kNextIndex, deadline, slot.get());
  for (size_t i = 0; i < slot->size(); ++i) batch->leaves.push_back(slot->leaf(i));
  return status;
}

bool run_in_waiter(void (*task)(void*, int), void* data, int device) {
  try {
    run_in_thread([=] { task(data, device); });
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

const ProgramAccess& program_access() {
  static constexpr ProgramAccess kAccess = {&find, &take, &acquire, &run_in_waiter};
  return kAccess;
}

}  // namespace jaxkern::ring
