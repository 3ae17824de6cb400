// The correlators' ops: the handlers' names and the FFI targets.
#ifndef JAXKERN_CORRELATORS_OPS_H_
#define JAXKERN_CORRELATORS_OPS_H_

#include "core/handler.h"

#define JAXKERN_CORRELATORS_OPS(OP) OP(MultiTauUpdate, "jaxkern.multitau_update.v1")

JAXKERN_CORRELATORS_OPS(JAXKERN_DECLARE_HANDLERS)

#endif  // JAXKERN_CORRELATORS_OPS_H_
