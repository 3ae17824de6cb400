// CUDA handlers of the ring: copy between a slot and device memory on XLA's stream. A stream
// callback returns or commits the slot after the copy.
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

// Finds the ring of the token in device memory. The key is data, so the host synchronizes with the
// stream.
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

// Runs in CUDA's callback thread, where CUDA calls are not allowed; also after a device error.
void CUDART_CB end_batch(cudaStream_t, cudaError_t status, void* data) {
  const std::unique_ptr<HostBatch> batch(static_cast<HostBatch*>(data));
  const char* error = status == cudaSuccess ? nullptr : cudaGetErrorString(status);
  g_access.load()->end_in_waiter(std::move(*batch), error);
}

template <typename Op>
ffi::Error on_cuda(const Op& o, cudaStream_t stream) {
  if (ffi::Error error = o.check_tokens(); error.failure()) return error;
  std::shared_ptr<Ring> ring;
  if (ffi::Error error = find_ring(o, stream, &ring); error.failure()) return error;
  if (ffi::Error error = o.check_leaves(ring->leaves()); error.failure()) return error;
  auto batch = std::make_unique<HostBatch>();
  const ProgramAccess& rings = *g_access.load();
  const Status acquired =
      (Op::kPops ? rings.take : rings.acquire)(ring, ring->pop_deadline(), batch.get());
  if (!acquired.ok()) return failure(o.op, acquired);
  cudaError_t status = cudaSuccess;
  for (size_t i = 0; i < o.leaves.size() && status == cudaSuccess; ++i) {
    void *device = o.leaves[i].untyped_data(), *host = batch->leaves[i];
    const size_t bytes = o.leaves[i].size_bytes();
    if (bytes == 0) continue;
    status = Op::kPops ? cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream)
                       : cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream);
  }
  // Not cudaLaunchHostFunc, which is not called after an error: the slot would be lost.
  if (status == cudaSuccess) status = cudaStreamAddCallback(stream, &end_batch, batch.get(), 0);
  if (status == cudaSuccess) {
    (void)batch.release();  // owned by the callback
    return ffi::Error::Success();
  }
  (void)cudaStreamSynchronize(stream);  // an enqueued copy may still use the slot
  return failure(o.op, "a copy of the batch", status);
}

// A separate thread selects the ring's device, so that the caller's current device is unchanged.
// Without a selected device CUDA would create a context on device 0, about 500 MB per process.
void* allocate_pinned(size_t bytes, int device) {
  void* data = nullptr;
  const auto allocate = [&] {
    if (cudaSetDevice(device) != cudaSuccess ||
        cudaHostAlloc(&data, bytes == 0 ? kAlignment : bytes, cudaHostAllocPortable) !=
            cudaSuccess) {
      data = nullptr;
    }
  };
  try {
    std::thread(allocate).join();
  } catch (const std::exception&) {  // the thread could not be started
  }
  return data;
}

void free_pinned(void* data, int device) {
  if (cudaSetDevice(device) == cudaSuccess) (void)cudaFreeHost(data);
}

// The last reference may end in a CUDA callback, which must not free memory.
void release_pinned(void* data, size_t, int device) {
  if (!g_access.load()->run_in_waiter(&free_pinned, data, device)) free_pinned(data, device);
}

}  // namespace

void set_program_access(const ProgramAccess* access) { g_access = access; }

Allocator pinned_allocator(int device) { return {&allocate_pinned, &release_pinned, device}; }

}  // namespace jaxkern::ring

#define JAXKERN_RING_ON_CUDA(name, target) \
  JAXKERN_CUDA_HANDLER(name, jaxkern::ring::on_cuda<jaxkern::ring::name>)
JAXKERN_RING_OPS(JAXKERN_RING_ON_CUDA)
