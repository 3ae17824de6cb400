// What the ring's handlers share on every platform: the ring of a token, and its structure's check.
#ifndef JAXKERN_RING_CALL_H_
#define JAXKERN_RING_CALL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/ffi.h"
#include "ring/ring.h"

namespace jaxkern::ring {

// The dtype's name as in LeafSpec; null for one that rings do not carry into programs.
inline const char* leaf_dtype(ffi::DataType dtype) {
  switch (dtype) {
    case ffi::C64:
      return "complex64";
    case ffi::C128:
      return "complex128";
    case ffi::F8E5M2:
      return "float8_e5m2";
    case ffi::F8E4M3:
      return "float8_e4m3";
    case ffi::F8E4M3FN:
      return "float8_e4m3fn";
    case ffi::F8E4M3B11FNUZ:
      return "float8_e4m3b11fnuz";
    case ffi::F8E5M2FNUZ:
      return "float8_e5m2fnuz";
    case ffi::F8E4M3FNUZ:
      return "float8_e4m3fnuz";
    case ffi::F8E3M4:
      return "float8_e3m4";
    case ffi::F8E8M0FNU:
      return "float8_e8m0fnu";
    default:
      return dtype_text(dtype);
  }
}

inline ffi::Error refused(const char* op, const std::string& text) {
  return ffi::Error::InvalidArgument(std::string(op) + ": " + text);
}

// The token's two words in host memory, low word first, name the ring.
inline std::shared_ptr<Ring> ring_of(const uint32_t* words) {
  return Ring::find(static_cast<uint64_t>(words[1]) << 32 | words[0]);
}

inline bool is_token(ffi::AnyBuffer token) {
  return token.element_type() == ffi::U32 && token.dimensions().size() == 1 &&
         token.dimensions()[0] == 2;
}

inline ffi::Error bad_token(const char* op, ffi::AnyBuffer token) {
  return refused(op, std::string("the token is ") + dtype_text(token.element_type()) +
                         shape_text(token.dimensions()) + "; wanted uint32[2]");
}

inline ffi::Error no_ring(const char* op) {
  return ffi::Error(ffi::ErrorCode::kNotFound,
                    std::string(op) +
                        ": no open ring has this token's key: it is closed or gone, or the token "
                        "is another process's; take the token from ring.token()");
}

// What the program has as leaf `i` against what the ring holds; empty where they agree.
inline std::string differs(const LeafSpec& spec, size_t i, ffi::AnyBuffer buffer) {
  const auto dimensions = buffer.dimensions();
  bool same = spec.dtype == leaf_dtype(buffer.element_type()) &&
              dimensions.size() == spec.shape.size() &&
              static_cast<int64_t>(buffer.size_bytes()) == spec.bytes;
  for (size_t k = 0; same && k < dimensions.size(); ++k) same = dimensions[k] == spec.shape[k];
  if (same) return {};
  return "leaf " + std::to_string(i) + " of the program's batch is " +
         leaf_dtype(buffer.element_type()) + shape_text(dimensions) + "; the ring's is " +
         spec.dtype + shape_text(ffi::AnyBuffer::Dimensions(spec.shape.data(), spec.shape.size()));
}

inline ffi::Error another_count(const char* op, size_t given, size_t wanted) {
  return refused(op, "the program's batch has " + std::to_string(given) +
                         " leaves; the ring's has " + std::to_string(wanted));
}

// A take or an acquire that did not succeed, as the program's error.
inline ffi::Error failure(const char* op, const Status& status) {
  const std::string name = std::string(op) + ": ";
  switch (status.outcome) {
    case Outcome::kFailed:
      return ffi::Error(ffi::ErrorCode::kAborted, name + "the producer of batch " +
                                                      std::to_string(status.index) +
                                                      " failed: " + status.message);
    case Outcome::kTimeout:
      return ffi::Error(ffi::ErrorCode::kDeadlineExceeded,
                        name + "waited longer than the ring's pop_timeout for " + status.message);
    case Outcome::kFinished:
      return ffi::Error(ffi::ErrorCode::kOutOfRange, name + status.message);
    case Outcome::kClosed:
      return ffi::Error(ffi::ErrorCode::kCancelled, name + status.message);
    case Outcome::kNoMemory:
      return ffi::Error(ffi::ErrorCode::kResourceExhausted, name + status.message);
    default:
      return ffi::Error(ffi::ErrorCode::kFailedPrecondition, name + status.message);
  }
}

}  // namespace jaxkern::ring

#endif  // JAXKERN_RING_CALL_H_
