// The fused chain as a producer of records (core/producer.h): crops, resizes and normalizes an
// image where it lies, straight into a batch's memory.
#ifndef JAXKERN_IMAGE_PRODUCER_H_
#define JAXKERN_IMAGE_PRODUCER_H_

#include <cstdint>

#include "core/producer.h"
#include "image/plan.h"

namespace jaxkern::image {

// Rows are images [height, width, C] of the plan's source dtype. The parameters are, per record:
// geometry i32 [S, 14], affine f32 [S, 2, C], fill f32 [S, C], erase_box i32 [K, 4] and erase_value
// f32 [K, C]. The caller has the first share in the result's state, which holds the result too:
// result->release(result->state) gives it back. Throws std::invalid_argument for a plan or size
// that the kernels refuse.
const JaxkernProducer* make_chain_producer(const Plan& plan, int32_t height, int32_t width);

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_PRODUCER_H_
