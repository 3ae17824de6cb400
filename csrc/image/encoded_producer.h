// A producer of records (core/producer.h) from encoded images: reads a file or bytes in memory,
// decodes what the first chain needs of it, and runs the stages on that, in the calling thread.
#ifndef JAXKERN_IMAGE_ENCODED_PRODUCER_H_
#define JAXKERN_IMAGE_ENCODED_PRODUCER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/producer.h"
#include "image/stages.h"

namespace jaxkern::image {

enum class Codec : int32_t { kJpeg = 0, kRaw = 1 };  // raw: [height, width, channels] as it is

struct Blob {
  const uint8_t* data = nullptr;
  size_t size = 0;
};

struct EncodedSource {
  std::vector<Blob> blobs;  // must outlive the producer's last run
  bool in_files = false;    // blobs hold the names of files
  Codec codec = Codec::kJpeg;
  int64_t max_pixels = 0;  // height * width that no image may exceed
  bool scaled = false;     // JPEG: decoded at 1/2, 1/4 or 1/8 where the chain shrinks by as much
  // Regions of more than twice as many bytes are decoded and run in bands that need about so much
  // of the source.
  int64_t band_bytes = int64_t{1} << 19;
};

// Rows are int64 [3]: a blob, and offset and length of the image's bytes, or of its file's name,
// there. The parameters are those of chain_state.h and, last, size i32 [2]: the upright image's
// height and width with which the others were drawn. An image that has another size by now is
// refused, as one that is broken; where the caller has `valid` flags it is made of zeros and its
// flag is 0. A file that cannot be read is always an error.
//
// The result is the stages' on the whole image, bit for bit, except with `scaled`. Ownership and
// errors as for `make_chain_producer`; std::invalid_argument also where the codec is missing, and
// where no chain is first.
const JaxkernProducer* make_encoded_producer(const Stages& stages, EncodedSource source);

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_ENCODED_PRODUCER_H_
