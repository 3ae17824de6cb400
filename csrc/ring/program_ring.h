// Access of programs to rings. The CPU module owns the rings; the CUDA module is a separate
// library, and calls these functions through a table.
#ifndef JAXKERN_RING_PROGRAM_RING_H_
#define JAXKERN_RING_PROGRAM_RING_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ring/ring.h"

namespace jaxkern::ring {

// A delivered batch, or a slot to fill. Destruction without a call of `end` returns it.
struct HostBatch {
  std::vector<char*> leaves;
  std::function<Status()> end;  // releases a batch or commits a slot
};

struct ProgramAccess {
  std::shared_ptr<Ring> (*find)(uint64_t key);  // an open ring, or null
  Status (*take)(const std::shared_ptr<Ring>& ring, Deadline deadline, HostBatch* batch);
  Status (*acquire)(const std::shared_ptr<Ring>& ring, Deadline deadline, HostBatch* slot);
  // Calls task(data, device) in a separate thread, which may free memory and call CUDA; returns
  // false if none can be started.
  bool (*run_in_waiter)(void (*task)(void* data, int device), void* data, int device);
};

const ProgramAccess& program_access();

// Names of the capsules. Change the version with the table and with the fields of Ring.
constexpr char kProgramAccess[] = "jaxkern.ring.ProgramAccess.v5";
constexpr char kAllocator[] = "jaxkern.ring.Allocator.v2";

}  // namespace jaxkern::ring

#endif  // JAXKERN_RING_PROGRAM_RING_H_
