// The image ops: names of handlers and FFI targets.
#ifndef JAXKERN_IMAGE_OPS_H_
#define JAXKERN_IMAGE_OPS_H_

#include "core/handler.h"

#define JAXKERN_IMAGE_OPS(OP)                           \
  OP(ImageChain, "jaxkern.image_chain.v1")              \
  OP(ImageChainRagged, "jaxkern.image_chain_ragged.v1") \
  OP(ImageMix, "jaxkern.image_mix.v1")                  \
  OP(ImageProgram, "jaxkern.image_program.v1")

// Ops without a CUDA kernel.
#define JAXKERN_IMAGE_STAGE_OPS(OP)          \
  OP(ImageStages, "jaxkern.image_stages.v1") \
  OP(ImageStagesRagged, "jaxkern.image_stages_ragged.v1")
#define JAXKERN_IMAGE_CPU_OPS(OP) \
  JAXKERN_IMAGE_STAGE_OPS(OP)     \
  OP(ImageParameters, "jaxkern.image_parameters.v1")

// Ops without a CUDA kernel, in builds with libjpeg-turbo.
#define JAXKERN_IMAGE_JPEG_OPS(OP) OP(ImageDecodeJpeg, "jaxkern.image_decode_jpeg.v1")

JAXKERN_IMAGE_OPS(JAXKERN_DECLARE_HANDLERS)
JAXKERN_IMAGE_CPU_OPS(JAXKERN_DECLARE_HANDLERS)
JAXKERN_IMAGE_JPEG_OPS(JAXKERN_DECLARE_HANDLERS)

#endif  // JAXKERN_IMAGE_OPS_H_
