// Stages as a producer of records (core/producer.h): crops, resizes, colours and normalizes an
// image where it lies, straight into a batch's memory.
#ifndef JAXKERN_IMAGE_PRODUCER_H_
#define JAXKERN_IMAGE_PRODUCER_H_

#include <cstdint>

#include "core/producer.h"
#include "image/stages.h"

namespace jaxkern::image {

// Rows are images [height, width, C] of the first stage's source dtype. The parameters are those of
// chain_state.h. The caller has the first share in the result's state, which holds the result too:
// result->release(result->state) gives it back. Throws std::invalid_argument for a plan or size
// that the kernels refuse.
const JaxkernProducer* make_chain_producer(const Stages& stages, int32_t height, int32_t width);

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_PRODUCER_H_
