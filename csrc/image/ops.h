// The image ops: the handlers' names and the FFI targets.
#ifndef JAXKERN_IMAGE_OPS_H_
#define JAXKERN_IMAGE_OPS_H_

#include "core/handler.h"

#define JAXKERN_IMAGE_OPS(OP)                           \
  OP(ImageChain, "jaxkern.image_chain.v1")              \
  OP(ImageChainRagged, "jaxkern.image_chain_ragged.v1") \
  OP(ImageMix, "jaxkern.image_mix.v1")

JAXKERN_IMAGE_OPS(JAXKERN_DECLARE_HANDLERS)

#endif  // JAXKERN_IMAGE_OPS_H_
