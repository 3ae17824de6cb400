// The CPU handlers of the ring: take or put a batch in the middle of a program. What is there
// already is copied at once; a wait goes to a thread of its own, so that XLA's threads stay free.
#include "ring/handlers.h"

#include <cstring>
#include <functional>
#include <utility>

#include "ring/call.h"
#include "ring/waiters.h"

namespace jaxkern::ring {
namespace {

constexpr char kPop[] = "jaxkern.ring_pop";
constexpr char kPush[] = "jaxkern.ring_push";

struct Leaf {
  char* data;
  size_t bytes;
};

ffi::Future settled(ffi::Error error) {
  ffi::Promise promise;
  ffi::Future future(promise);
  if (error.success()) {
    promise.SetAvailable();
  } else {
    promise.SetError(std::move(error));
  }
  return future;
}

// `attempt(deadline)` first without a wait, then with one. It must copy what it needs.
template <typename Attempt>
ffi::Future run(const char* op, const std::shared_ptr<Ring>& ring, Attempt attempt) {
  Status status = attempt(kNow);
  if (status.ok()) return settled(ffi::Error::Success());
  if (status.outcome != Outcome::kTimeout) return settled(failure(op, status));
  const Deadline deadline = ring->pop_deadline();
  ffi::Promise promise;
  ffi::Future future(promise);
  try {
    run_waiting([op, promise, deadline, attempt]() mutable {
      const Status late = attempt(deadline);
      if (late.ok()) {
        promise.SetAvailable();
      } else {
        promise.SetError(failure(op, late));
      }
    });
  } catch (const std::exception& error) {
    promise.SetError(
        ffi::Error::Internal(std::string(op) + ": no thread to wait in: " + error.what()));
  }
  return future;
}

ffi::Future Pop(ffi::AnyBuffer token, ffi::Result<ffi::AnyBuffer> token_out,
                ffi::RemainingRets results) {
  if (!is_token(token)) return settled(bad_token(kPop, token));
  if (!is_token(*token_out)) return settled(bad_token(kPop, *token_out));
  const auto* words = static_cast<const uint32_t*>(token.untyped_data());
  const std::shared_ptr<Ring> ring = ring_of(words);
  if (ring == nullptr || ring->closed()) return settled(no_ring(kPop));
  std::vector<Leaf> leaves;
  if (results.size() != ring->leaves().size()) {
    return settled(another_count(kPop, results.size(), ring->leaves().size()));
  }
  for (size_t i = 0; i < results.size(); ++i) {
    auto result = results.get<ffi::AnyBuffer>(i);
    if (!result.has_value()) return settled(result.error());
    if (const std::string text = differs(ring->leaves()[i], i, **result); !text.empty()) {
      return settled(refused(kPop, text));
    }
    advise_results(**result);
    leaves.push_back({static_cast<char*>((*result)->untyped_data()), (*result)->size_bytes()});
  }
  std::memmove(token_out->untyped_data(), words, token.size_bytes());
  return run(kPop, ring, [ring, leaves](Deadline deadline) {
    Batch batch;
    const Status status = ring->take(deadline, &batch);
    if (!status.ok()) return status;
    for (size_t i = 0; i < leaves.size(); ++i) {
      std::memcpy(leaves[i].data, batch.leaf(i), leaves[i].bytes);
    }
    ring->count_hand_over(0, static_cast<int64_t>(leaves.size()));
    return status;
  });
}

ffi::Future Push(ffi::AnyBuffer token, ffi::RemainingArgs operands,
                 ffi::Result<ffi::AnyBuffer> token_out) {
  if (!is_token(token)) return settled(bad_token(kPush, token));
  if (!is_token(*token_out)) return settled(bad_token(kPush, *token_out));
  const auto* words = static_cast<const uint32_t*>(token.untyped_data());
  const std::shared_ptr<Ring> ring = ring_of(words);
  if (ring == nullptr || ring->closed()) return settled(no_ring(kPush));
  std::vector<Leaf> leaves;
  if (operands.size() != ring->leaves().size()) {
    return settled(another_count(kPush, operands.size(), ring->leaves().size()));
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    const auto operand = operands.get<ffi::AnyBuffer>(i);
    if (!operand.has_value()) return settled(operand.error());
    if (const std::string text = differs(ring->leaves()[i], i, *operand); !text.empty()) {
      return settled(refused(kPush, text));
    }
    leaves.push_back({static_cast<char*>(operand->untyped_data()), operand->size_bytes()});
  }
  std::memmove(token_out->untyped_data(), words, token.size_bytes());
  return run(kPush, ring, [ring, leaves](Deadline deadline) {
    Slot slot;
    const Status status = ring->acquire(kNextIndex, deadline, &slot);
    if (!status.ok()) return status;
    for (size_t i = 0; i < leaves.size(); ++i) {
      std::memcpy(slot.leaf(i), leaves[i].data, leaves[i].bytes);
    }
    return ring->commit(std::move(slot));
  });
}

}  // namespace
}  // namespace jaxkern::ring

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernRingPopCpu, jaxkern::ring::Pop,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()  // token u32 [2]
                                  .Ret<ffi::AnyBuffer>()  // token u32 [2]
                                  .RemainingRets());      // the batch's leaves

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernRingPushCpu, jaxkern::ring::Push,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()    // token u32 [2]
                                  .RemainingArgs()          // the batch's leaves
                                  .Ret<ffi::AnyBuffer>());  // token u32 [2]
