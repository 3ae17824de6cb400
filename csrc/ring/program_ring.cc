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

// Everything is allocated before the batch is taken, which would be lost otherwise.
Status take(const std::shared_ptr<Ring>& ring, Deadline deadline, HostBatch* batch) {
  const auto taken = std::make_shared<Batch>();
  batch->leaves.reserve(ring->leaves().size());
  batch->end = [taken](const char*) {
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
  batch->end = [ring, slot](const char* error) {
    return error == nullptr ? ring->commit(std::move(*slot)) : ring->fail(std::move(*slot), error);
  };
  Status status = ring->acquire(kNextIndex, deadline, slot.get());
  for (size_t i = 0; i < slot->size(); ++i) batch->leaves.push_back(slot->leaf(i));
  return status;
}

// CUDA's callback must not throw.
void end_elsewhere(HostBatch batch, const char* error) {
  std::shared_ptr<HostBatch> shared;
  try {
    shared = std::make_shared<HostBatch>(std::move(batch));
    run_waiting([shared, error] { (void)shared->end(error); });
    return;
  } catch (const std::exception&) {  // no thread to be had
  }
  try {
    (void)(shared ? *shared : batch).end(error);
  } catch (const std::exception&) {  // the ring has closed
  }
}

bool run_elsewhere(void (*task)(void*, int), void* data, int device) {
  try {
    run_waiting([=] { task(data, device); });
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

const ProgramAccess& program_access() {
  static constexpr ProgramAccess kAccess = {&find, &take, &acquire, &end_elsewhere, &run_elsewhere};
  return kAccess;
}

}  // namespace jaxkern::ring
