// What the CPU module lends to the CUDA module.
#include "ring/program_ring.h"

#include <utility>

#include "ring/waiters.h"

namespace jaxkern::ring {
namespace {

class Delivered : public HostBatch {
 public:
  explicit Delivered(Batch batch) : batch_(std::move(batch)) {
    for (size_t i = 0; i < batch_.size(); ++i) leaves.push_back(const_cast<char*>(batch_.leaf(i)));
  }
  void end() override { batch_.release(); }

 private:
  Batch batch_;
};

class Filling : public HostBatch {
 public:
  Filling(std::shared_ptr<Ring> ring, Slot slot) : ring_(std::move(ring)), slot_(std::move(slot)) {
    for (size_t i = 0; i < slot_.size(); ++i) leaves.push_back(slot_.leaf(i));
  }
  void end() override { (void)ring_->commit(std::move(slot_)); }  // fails where the ring has closed

 private:
  std::shared_ptr<Ring> ring_;
  Slot slot_;
};

class Access : public ProgramRing {
 public:
  explicit Access(std::shared_ptr<Ring> ring) : ring_(std::move(ring)) {}
  const std::vector<LeafSpec>& leaves() const override { return ring_->leaves(); }
  Status take(std::shared_ptr<HostBatch>* batch) override {
    Batch taken;
    const Status status = ring_->take(ring_->pop_deadline(), &taken);
    if (!status.ok()) return status;
    ring_->count_hand_over(0, static_cast<int64_t>(taken.size()));
    *batch = std::make_shared<Delivered>(std::move(taken));
    return status;
  }
  Status acquire(std::shared_ptr<HostBatch>* batch) override {
    Slot slot;
    const Status status = ring_->acquire(kNextIndex, ring_->pop_deadline(), &slot);
    if (status.ok()) *batch = std::make_shared<Filling>(ring_, std::move(slot));
    return status;
  }

 private:
  std::shared_ptr<Ring> ring_;
};

std::shared_ptr<ProgramRing> find(uint64_t key) {
  std::shared_ptr<Ring> ring = Ring::find(key);
  if (ring == nullptr || ring->closed()) return nullptr;
  return std::make_shared<Access>(std::move(ring));
}

void end_elsewhere(std::shared_ptr<HostBatch> batch) {
  run_waiting([batch = std::move(batch)] { batch->end(); });
}

}  // namespace

const ProgramAccess& program_access() {
  static constexpr ProgramAccess kAccess = {&find, &end_elsewhere};
  return kAccess;
}

}  // namespace jaxkern::ring
