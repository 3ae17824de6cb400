// The CUDA handlers of the ring: copy between a slot and device memory on XLA's stream; the slot
// goes back, or is committed, when the stream has come there.
#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "ring/cuda_module.h"
#include "ring/operands.h"
#include "ring/ops.h"

namespace jaxkern::ring {
namespace {

std::atomic<const ProgramAccess*> g_access{nullptr};

ffi::Error failure(const char* op, const char* what, cudaError_t status) {
  return ffi::Error::Internal(std::string(op) + ": " + what + " failed: " +
                              cudaGetErrorName(status) + " (" + cudaGetErrorString(status) + ")");
}

// The ring that the token in device memory names. The key is data, so the host waits until the
// stream has come here.
ffi::Error find_ring(const RingOperands& o, cudaStream_t stream, std::shared_ptr<Ring>* ring) {
  const void* token = o.token.untyped_data();
  uint32_t words[2] = {};
  cudaError_t status = cudaMemcpyAsync(words, token, sizeof words, cudaMemcpyDeviceToHost, stream);
  if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
  if (status == cudaSuccess && o.token_out.untyped_data() != token) {
    status = cudaMemcpyAsync(o.token_out.untyped_data(), token, sizeof words,
                             cudaMemcpyDeviceToDevice, stream);
  }
  if (status != cudaSuccess) return failure(o.op, "the token's copy", status);
  const ProgramAccess* access = g_access.load();
  if (access != nullptr) *ring = access->find(key_of(words));
  return *ring == nullptr ? no_ring(o.op) : ffi::Error::Success();
}

// Runs in CUDA's callback thread, where no CUDA call is allowed.
void CUDART_CB end_batch(void* data) {
  const std::unique_ptr<HostBatch> batch(static_cast<HostBatch*>(data));
  g_access.load()->end_elsewhere(std::move(*batch));
}

template <typename Op>
ffi::Error on_cuda(const Op& o, cudaStream_t stream) {
  if (ffi::Error error = o.check_tokens(); error.failure()) return error;
  std::shared_ptr<Ring> ring;
  if (ffi::Error error = find_ring(o, stream, &ring); error.failure()) return error;
  if (ffi::Error error = o.check_leaves(ring->leaves()); error.failure()) return error;
  auto batch = std::make_unique<HostBatch>();
  const ProgramAccess& rings = *g_access.load();
  const Status got =
      (Op::kPops ? rings.take : rings.acquire)(ring, ring->pop_deadline(), batch.get());
  if (!got.ok()) return failure(o.op, got);
  cudaError_t status = cudaSuccess;
  for (size_t i = 0; i < o.leaves.size() && status == cudaSuccess; ++i) {
    void *device = o.leaves[i].untyped_data(), *host = batch->leaves[i];
    const size_t bytes = o.leaves[i].size_bytes();
    if (bytes == 0) continue;
    status = Op::kPops ? cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream)
                       : cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream);
  }
  if (status == cudaSuccess) status = cudaLaunchHostFunc(stream, &end_batch, batch.get());
  if (status == cudaSuccess) {
    (void)batch.release();  // the callback's
    return ffi::Error::Success();
  }
  (void)cudaStreamSynchronize(stream);  // a copy that was enqueued still uses the slot
  return failure(o.op, "a copy of the batch", status);
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

#define JAXKERN_RING_ON_CUDA(name, target) \
  JAXKERN_CUDA_HANDLER(name, jaxkern::ring::on_cuda<jaxkern::ring::name>)
JAXKERN_RING_OPS(JAXKERN_RING_ON_CUDA)
