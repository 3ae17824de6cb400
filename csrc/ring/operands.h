// Operands of the ring's ops, shared by CPU and CUDA: FFI bindings, checks of tokens and of the
// structure of batches, and errors.
#ifndef JAXKERN_RING_OPERANDS_H_
#define JAXKERN_RING_OPERANDS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/ffi.h"
#include "ring/ring.h"

namespace jaxkern::ring {

inline ffi::Error invalid_argument(const char* op, const std::string& text) {
  return ffi::Error::InvalidArgument(std::string(op) + ": " + text);
}

inline ffi::Error no_ring(const char* op) {
  return ffi::Error(ffi::ErrorCode::kNotFound,
                    std::string(op) +
                        ": no open ring has this token's key: the ring is closed, or the token "
                        "belongs to another process; use ring.token()");
}

// The token's two words, low word first, name the ring.
inline uint64_t key_of(const uint32_t* words) {
  return static_cast<uint64_t>(words[1]) << 32 | words[0];
}

// Describes the difference between leaf `i` of the program and of the ring; empty if they agree.
inline std::string leaf_difference(const LeafSpec& spec, size_t i, ffi::AnyBuffer buffer) {
  const auto dimensions = buffer.dimensions();
  bool same = spec.dtype == dtype_text(buffer.element_type()) &&
              dimensions.size() == spec.shape.size() &&
              static_cast<int64_t>(buffer.size_bytes()) == spec.bytes;
  for (size_t k = 0; same && k < dimensions.size(); ++k) same = dimensions[k] == spec.shape[k];
  if (same) return {};
  return "leaf " + std::to_string(i) + " of the program's batch is " +
         dtype_text(buffer.element_type()) + shape_text(dimensions) + "; the ring's is " +
         spec.dtype + shape_text(ffi::AnyBuffer::Dimensions(spec.shape.data(), spec.shape.size()));
}

// Converts a failed take or acquire to the program's error.
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

// A program's batch, in device memory on CUDA.
struct RingOperands {
  const char* op;
  ffi::AnyBuffer token, token_out;
  std::vector<ffi::AnyBuffer> leaves;

  ffi::Error check_tokens() const {
    for (const ffi::AnyBuffer& each : {token, token_out}) {
      if (each.element_type() != ffi::U32 || each.dimensions().size() != 1 ||
          each.dimensions()[0] != 2) {
        return invalid_argument(op, std::string("the token is ") + dtype_text(each.element_type()) +
                                        shape_text(each.dimensions()) + "; expected uint32[2]");
      }
    }
    return ffi::Error::Success();
  }

  ffi::Error check_leaves(const std::vector<LeafSpec>& specs) const {
    if (leaves.size() != specs.size()) {
      return invalid_argument(op, "the program's batch has " + std::to_string(leaves.size()) +
                                      " leaves; the ring's has " + std::to_string(specs.size()));
    }
    for (size_t i = 0; i < leaves.size(); ++i) {
      const std::string text = leaf_difference(specs[i], i, leaves[i]);
      if (!text.empty()) return invalid_argument(op, text);
    }
    return ffi::Error::Success();
  }
};

struct RingPop : RingOperands {
  static constexpr bool kPops = true;

  template <typename Binding>
  static auto bind(Binding&& contexts) {
    return std::move(contexts)
        .template Arg<ffi::AnyBuffer>()  // token u32 [2]
        .template Ret<ffi::AnyBuffer>()  // token u32 [2]
        .RemainingRets();                // the batch's leaves
  }

  RingPop(ffi::AnyBuffer token, ffi::Result<ffi::AnyBuffer> token_out, ffi::RemainingRets results)
      : RingOperands{"jaxkern.ring_pop", token, *token_out, {}} {
    for (size_t i = 0; i < results.size(); ++i) leaves.push_back(**results.get<ffi::AnyBuffer>(i));
  }
};

struct RingPush : RingOperands {
  static constexpr bool kPops = false;

  template <typename Binding>
  static auto bind(Binding&& contexts) {
    return std::move(contexts)
        .template Arg<ffi::AnyBuffer>()   // token u32 [2]
        .RemainingArgs()                  // the batch's leaves
        .template Ret<ffi::AnyBuffer>();  // token u32 [2]
  }

  RingPush(ffi::AnyBuffer token, ffi::RemainingArgs operands, ffi::Result<ffi::AnyBuffer> token_out)
      : RingOperands{"jaxkern.ring_push", token, *token_out, {}} {
    for (size_t i = 0; i < operands.size(); ++i) leaves.push_back(*operands.get<ffi::AnyBuffer>(i));
  }
};

}  // namespace jaxkern::ring

#endif  // JAXKERN_RING_OPERANDS_H_
