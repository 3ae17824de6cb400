// The XPCS ops: the handlers' names and the FFI targets.
#ifndef JAXKERN_XPCS_OPS_H_
#define JAXKERN_XPCS_OPS_H_

#include "core/handler.h"

#define JAXKERN_XPCS_OPS(OP)                                         \
  OP(TwoTimeG2, "jaxkern.two_time_g2.v1")                            \
  OP(TwoTimeG2Tangent, "jaxkern.two_time_g2_tangent.v1")             \
  OP(TwoTimeG2Cotangent, "jaxkern.two_time_g2_cotangent.v1")         \
  OP(TwoTimeResidual, "jaxkern.two_time_residual.v1")                \
  OP(TwoTimeG2At, "jaxkern.two_time_g2_at.v1")                       \
  OP(TwoTimeNormalEquations, "jaxkern.two_time_normal_equations.v1") \
  OP(ComponentG2, "jaxkern.component_g2.v1")                         \
  OP(ComponentG2Tangent, "jaxkern.component_g2_tangent.v1")          \
  OP(ComponentG2Cotangent, "jaxkern.component_g2_cotangent.v1")      \
  OP(ComponentResidual, "jaxkern.component_residual.v1")             \
  OP(ComponentNormalEquations, "jaxkern.component_normal_equations.v1")

JAXKERN_XPCS_OPS(JAXKERN_DECLARE_HANDLERS)

#endif  // JAXKERN_XPCS_OPS_H_
