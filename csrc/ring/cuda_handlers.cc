// The CUDA handlers of the ring: copy between a slot and device memory on XLA's stream; the slot
// goes back, or is committed, when the stream has come there.
#include "ring/cuda_handlers.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ring/call.h"

namespace jaxkern::ring {
namespace {

constexpr char kPop[] = "jaxkern.ring_pop";
constexpr char kPush[] = "jaxkern.ring_push";

std::atomic<const ProgramAccess*> g_access{nullptr};

ffi::Error failure(const char* op, const char* what, cudaError_t status) {
  return ffi::Error::Internal(std::string(op) + ": " + what + " failed: " +
                              cudaGetErrorName(status) + " (" + cudaGetErrorString(status) + ")");
}

// The ring that the token in device memory names. The key is data, so the host waits until the
// stream has come here.
ffi::Error find_ring(const char* op, cudaStream_t stream, ffi::AnyBuffer token,
                     ffi::AnyBuffer token_out, std::shared_ptr<ProgramRing>* ring) {
  if (!is_token(token)) return bad_token(op, token);
  if (!is_token(token_out)) return bad_token(op, token_out);
  uint32_t words[2] = {};
  cudaError_t status =
      cudaMemcpyAsync(words, token.untyped_data(), sizeof words, cudaMemcpyDeviceToHost, stream);
  if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
  if (status == cudaSuccess && token_out.untyped_data() != token.untyped_data()) {
    status = cudaMemcpyAsync(token_out.untyped_data(), token.untyped_data(), sizeof words,
                             cudaMemcpyDeviceToDevice, stream);
  }
  if (status != cudaSuccess) return failure(op, "the token's copy", status);
  const ProgramAccess* access = g_access.load();
  if (access != nullptr) {
    *ring = access->find(static_cast<uint64_t>(words[1]) << 32 | words[0]);
  }
  return *ring == nullptr ? no_ring(op) : ffi::Error::Success();
}

// Runs in CUDA's callback thread, where no CUDA call is allowed.
void CUDART_CB end_batch(void* data) {
  auto* batch = static_cast<std::shared_ptr<HostBatch>*>(data);
  g_access.load()->end_elsewhere(std::move(*batch));
  delete batch;
}

struct Copy {
  void* device;
  size_t bytes;
};

ffi::Error copy_and_end(const char* op, cudaStream_t stream, const std::vector<Copy>& copies,
                        std::shared_ptr<HostBatch> batch, bool to_device) {
  cudaError_t status = cudaSuccess;
  for (size_t i = 0; i < copies.size() && status == cudaSuccess; ++i) {
    if (copies[i].bytes == 0) continue;
    status = to_device ? cudaMemcpyAsync(copies[i].device, batch->leaves[i], copies[i].bytes,
                                         cudaMemcpyHostToDevice, stream)
                       : cudaMemcpyAsync(batch->leaves[i], copies[i].device, copies[i].bytes,
                                         cudaMemcpyDeviceToHost, stream);
  }
  auto owned = std::make_unique<std::shared_ptr<HostBatch>>(std::move(batch));
  if (status == cudaSuccess) status = cudaLaunchHostFunc(stream, &end_batch, owned.get());
  if (status == cudaSuccess) {
    (void)owned.release();  // the callback's
    return ffi::Error::Success();
  }
  (void)cudaStreamSynchronize(stream);  // a copy that was enqueued still uses the slot
  return failure(op, "a copy of the batch", status);
}

ffi::Error Pop(cudaStream_t stream, ffi::AnyBuffer token, ffi::Result<ffi::AnyBuffer> token_out,
               ffi::RemainingRets results) {
  std::shared_ptr<ProgramRing> ring;
  if (ffi::Error error = find_ring(kPop, stream, token, *token_out, &ring); error.failure()) {
    return error;
  }
  if (results.size() != ring->leaves().size()) {
    return another_count(kPop, results.size(), ring->leaves().size());
  }
  std::vector<Copy> copies;
  for (size_t i = 0; i < results.size(); ++i) {
    auto result = results.get<ffi::AnyBuffer>(i);
    if (!result.has_value()) return result.error();
    if (const std::string text = differs(ring->leaves()[i], i, **result); !text.empty()) {
      return refused(kPop, text);
    }
    copies.push_back({(*result)->untyped_data(), (*result)->size_bytes()});
  }
  std::shared_ptr<HostBatch> batch;
  const Status status = ring->take(&batch);
  if (!status.ok()) return failure(kPop, status);
  return copy_and_end(kPop, stream, copies, std::move(batch), true);
}

ffi::Error Push(cudaStream_t stream, ffi::AnyBuffer token, ffi::RemainingArgs operands,
                ffi::Result<ffi::AnyBuffer> token_out) {
  std::shared_ptr<ProgramRing> ring;
  if (ffi::Error error = find_ring(kPush, stream, token, *token_out, &ring); error.failure()) {
    return error;
  }
  if (operands.size() != ring->leaves().size()) {
    return another_count(kPush, operands.size(), ring->leaves().size());
  }
  std::vector<Copy> copies;
  for (size_t i = 0; i < operands.size(); ++i) {
    auto operand = operands.get<ffi::AnyBuffer>(i);
    if (!operand.has_value()) return operand.error();
    if (const std::string text = differs(ring->leaves()[i], i, *operand); !text.empty()) {
      return refused(kPush, text);
    }
    copies.push_back({operand->untyped_data(), operand->size_bytes()});
  }
  std::shared_ptr<HostBatch> slot;
  const Status status = ring->acquire(&slot);
  if (!status.ok()) return failure(kPush, status);
  return copy_and_end(kPush, stream, copies, std::move(slot), false);
}

void* allocate_pinned(size_t bytes) {
  void* data = nullptr;
  const cudaError_t status =
      cudaHostAlloc(&data, bytes == 0 ? kAlignment : bytes, cudaHostAllocPortable);
  return status == cudaSuccess ? data : nullptr;
}

// The last reader may be a callback of CUDA, which must not free.
void release_pinned(void* data, size_t) {
  try {
    std::thread([data] { (void)cudaFreeHost(data); }).detach();
  } catch (const std::exception&) {
    (void)cudaFreeHost(data);
  }
}

}  // namespace

void set_program_access(const ProgramAccess* access) { g_access = access; }

const Allocator& pinned_allocator() {
  static constexpr Allocator kPinned = {&allocate_pinned, &release_pinned};
  return kPinned;
}

}  // namespace jaxkern::ring

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernRingPopCuda, jaxkern::ring::Pop,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()  // token u32 [2]
                                  .Ret<ffi::AnyBuffer>()  // token u32 [2]
                                  .RemainingRets());      // the batch's leaves

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernRingPushCuda, jaxkern::ring::Push,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()    // token u32 [2]
                                  .RemainingArgs()          // the batch's leaves
                                  .Ret<ffi::AnyBuffer>());  // token u32 [2]
