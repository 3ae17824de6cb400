// A ring as the CUDA module sees it. Rings live in the CPU module; the two are separate libraries,
// and every call here runs in the one that made the object.
#ifndef JAXKERN_RING_PROGRAM_RING_H_
#define JAXKERN_RING_PROGRAM_RING_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "ring/ring.h"

namespace jaxkern::ring {

// A delivered batch, or a slot to fill; `end` gives it back, or commits it.
class HostBatch {
 public:
  virtual ~HostBatch() = default;
  virtual void end() = 0;
  std::vector<char*> leaves;
};

class ProgramRing {
 public:
  virtual ~ProgramRing() = default;
  virtual const std::vector<LeafSpec>& leaves() const = 0;
  // Wait at most the ring's pop_timeout.
  virtual Status take(std::shared_ptr<HostBatch>* batch) = 0;
  virtual Status acquire(std::shared_ptr<HostBatch>* slot) = 0;
};

struct ProgramAccess {
  std::shared_ptr<ProgramRing> (*find)(uint64_t key);  // an open ring, or null
  // Calls batch->end() in a thread of its own, where memory may be freed and CUDA may be called.
  void (*end_elsewhere)(std::shared_ptr<HostBatch> batch);
};

const ProgramAccess& program_access();

constexpr char kProgramAccess[] = "jaxkern.ring.ProgramAccess.v1";  // the capsule's name
constexpr char kAllocator[] = "jaxkern.ring.Allocator.v1";

}  // namespace jaxkern::ring

#endif  // JAXKERN_RING_PROGRAM_RING_H_
