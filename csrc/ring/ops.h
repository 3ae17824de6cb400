// The ring's ops: the handlers' names and the FFI targets. They have no CUDA kernels, see
// cuda_memory.cc.
#ifndef JAXKERN_RING_OPS_H_
#define JAXKERN_RING_OPS_H_

#include "core/handler.h"

#define JAXKERN_RING_OPS(OP)         \
  OP(RingPop, "jaxkern.ring_pop.v1") \
  OP(RingPush, "jaxkern.ring_push.v1")

JAXKERN_RING_OPS(JAXKERN_DECLARE_HANDLERS)

#endif  // JAXKERN_RING_OPS_H_
