// Page-locked memory for rings that feed a GPU. No op waits for a ring on a GPU: that would block
// the thread in which XLA launches all kernels, or the thread in which CUDA runs callbacks.
#include <cuda_runtime_api.h>

#include <atomic>
#include <thread>

#include "ring/cuda_module.h"

namespace jaxkern::ring {
namespace {

std::atomic<const ProgramAccess*> g_access{nullptr};

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
