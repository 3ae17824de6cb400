// What programs do with rings. Rings live in the CPU module, and the CUDA module is another
// library: it calls these functions through a table, and of a Ring only what is inline.
#ifndef JAXKERN_RING_PROGRAM_RING_H_
#define JAXKERN_RING_PROGRAM_RING_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ring/ring.h"

namespace jaxkern::ring {

// A delivered batch, or a slot to fill. Dropped before its end it is given back.
struct HostBatch {
  std::vector<char*> leaves;
  // Gives it back, or commits it. With an error, a literal, a slot becomes a failure of that text.
  std::function<Status(const char* error)> end;
};

struct ProgramAccess {
  std::shared_ptr<Ring> (*find)(uint64_t key);  // an open ring, or null
  Status (*take)(const std::shared_ptr<Ring>& ring, Deadline deadline, HostBatch* batch);
  Status (*acquire)(const std::shared_ptr<Ring>& ring, Deadline deadline, HostBatch* slot);
  // Calls batch.end(error) in a thread of its own, where memory may be freed and CUDA may be
  // called, or here when there is none to be had.
  void (*end_elsewhere)(HostBatch batch, const char* error);
  // Calls task(data, device) in such a thread; false when there is none to be had.
  bool (*run_elsewhere)(void (*task)(void* data, int device), void* data, int device);
};

const ProgramAccess& program_access();

// The capsules' names. A change of the table, or of Ring's fields, takes another one.
constexpr char kProgramAccess[] = "jaxkern.ring.ProgramAccess.v3";
constexpr char kAllocator[] = "jaxkern.ring.Allocator.v2";

}  // namespace jaxkern::ring

#endif  // JAXKERN_RING_PROGRAM_RING_H_
