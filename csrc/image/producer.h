// Producers of records (core/producer.h) that run stages on images, in memory or encoded, and write
// the results directly into a batch's memory.
#ifndef JAXKERN_IMAGE_PRODUCER_H_
#define JAXKERN_IMAGE_PRODUCER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/producer.h"
#include "image/stages.h"

namespace jaxkern::image {

// Creates a producer of images in memory. Rows are images [height, width, C] of the first stage's
// source dtype. The caller owns one reference of the result's state, which also holds the result,
// and releases it by result->release(result->state). Throws std::invalid_argument for an invalid
// plan or size.
const JaxkernProducer* make_chain_producer(const Stages& stages, int32_t height, int32_t width);

// ---------------------------------------------------------------- encoded images

enum class Codec : int32_t { kJpeg = 0, kRaw = 1 };  // raw: unencoded [height, width, channels]

struct Blob {
  const uint8_t* data = nullptr;
  size_t size = 0;
};

struct EncodedSource {
  std::vector<Blob> blobs;  // must outlive the producer's last run
  bool in_files = false;    // blobs hold file names
  Codec codec = Codec::kJpeg;
  int64_t max_pixels = 0;  // largest accepted height * width
  bool scaled = false;     // JPEG: decode at 1/2, 1/4 or 1/8 if the chain shrinks by at least that
  // Regions of more than twice this size are decoded in bands, each of which reads about this many
  // bytes of the source.
  int64_t band_bytes = int64_t{1} << 19;
};

// Creates a producer of encoded images, which reads a file or bytes in memory, decodes the part
// that the first chain needs and runs the stages on it, in the calling thread.
//
// Rows are int64 [3]: the index of a blob, and the offset and length of the image's bytes, or of
// its file name, in that blob. The last parameter array is size i32 [2], the upright image's height
// and width for which the other parameters were drawn. An image of another size is an error, like a
// broken image; if the caller has `valid` flags, the image becomes zeros and its flag 0. An
// unreadable file is always an error.
//
// The result is bit-identical to that of the stages on the whole image, except with `scaled`.
// Throws std::invalid_argument also if this build lacks the codec, or if the stages do not begin
// with a chain.
const JaxkernProducer* make_encoded_producer(const Stages& stages, EncodedSource source);

// ---------------------------------------------------------------- shared by both

// The parameter arrays of a record, as `ChainProducer` (jaxkern/image) draws them: geometry i32 [S,
// 14], affine f32 [S, 2, C], fill f32 [S, C], erase_box i32 [K, 4] and erase_value f32 [K, C]; for
// more than a single chain also op i32 [P] and values f32 [P, 8]. A producer may append others.
enum Parameter { kGeometry, kAffine, kFill, kEraseBox, kEraseValue, kOps, kValues, kParameters };

// Base class of producers: stages with a reference count, run record by record.
class ChainState {
 public:
  // Throws std::invalid_argument for an invalid plan.
  explicit ChainState(const Stages& stages);
  virtual ~ChainState() = default;
  ChainState(const ChainState&) = delete;
  ChainState& operator=(const ChainState&) = delete;

  const JaxkernProducer* abi() const { return &abi_; }

 protected:
  // Writes record i of `records` to `output`. Throws an exception for an invalid record.
  virtual void write(const JaxkernRecords& records, int64_t i, void* output) const = 0;

  void set_row_bytes(int64_t bytes) { abi_.row_bytes = bytes; }
  // Appends a parameter array and returns its index.
  int64_t add_parameter(int64_t bytes);

  template <typename T>
  static const T* parameter(const JaxkernRecords& records, int64_t which, int64_t i) {
    return reinterpret_cast<const T*>(static_cast<const char*>(records.operands[which]) +
                                      i * records.operand_strides[which]);
  }

  // Copies the geometry before it is checked, because the caller can write to the operands.
  void read_geometry(const JaxkernRecords& records, int64_t i,
                     Geometry (&out)[kMaxStageSegments]) const;
  // Returns the sample of an image of this size with the parameters of record i. Throws an
  // exception if they are invalid for this size.
  StagesSample checked_sample(const JaxkernRecords& records, int64_t i, const Geometry* geometry,
                              int32_t height, int32_t width) const;

  const Stages stages_;
  const Plan& plan_ = stages_.stage[0].chain;

 private:
  static int32_t run(void* self, const JaxkernRecords* records, char* message, size_t size);

  std::atomic<int64_t> references_{1};
  int64_t parameter_bytes_[kParameters + 1] = {};
  JaxkernProducer abi_{};
};

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_PRODUCER_H_
