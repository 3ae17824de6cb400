// The CUDA kernel of image programs: groups of blocks over the body of cuda_program.h, and its
// launch. Like program_levels.cc, it is compiled without contraction of products and sums.
#include <algorithm>
#include <cstdint>

#include "image/cuda.h"
#include "image/cuda_program.h"

namespace jaxkern::image {
namespace {

static_assert(sizeof(ProgramCall) + sizeof(ProgramMemory) + 16 <= kKernelParameterBytes);

// A group of blocks. Their barrier counts arrivals in global memory, unless the group is one block.
struct CudaBlock {
  static constexpr int32_t width = kProgramThreads;
  int32_t threads;    // of the group
  int32_t first;      // number of the block's first thread
  uint32_t* own;      // the counts of the block
  uint32_t* arrived;  // counts up to the end of the launch
  uint32_t expected;  // arrivals at the last barrier

  template <typename Body>
  JAXKERN_HD_MEMBER void run(const Body& body) {
#ifdef __CUDA_ARCH__
    body(first + static_cast<int32_t>(threadIdx.x));
    __syncthreads();
    if (threads == width) return;
    expected += static_cast<uint32_t>(threads / width);
    if (threadIdx.x == 0) {
      __threadfence();  // of the writes of the block, which its other threads made before the
                        // barrier
      atomicAdd(arrived, 1u);
      while (static_cast<int32_t>(*static_cast<volatile uint32_t*>(arrived) - expected) < 0) {
      }
      __threadfence();
    }
    __syncthreads();
#endif
  }
  template <typename Number>
  JAXKERN_HD_MEMBER void add(Number* target, Number value) {
#ifdef __CUDA_ARCH__
    atomicAdd(target, value);
#endif
  }
  JAXKERN_HD_MEMBER uint32_t* counts(int32_t) { return own; }
};

// Groups loop over the images. `blocks` is the number of blocks of a group, `scratch` as of
// launch_program.
template <typename T, int C>
__global__ void __launch_bounds__(kProgramThreads, 2)
    program_kernel(const __grid_constant__ ProgramCall call,
                   const __grid_constant__ ProgramMemory memory, char* scratch, int32_t blocks) {
  __shared__ ProgramShared own;
  __shared__ uint32_t counts[3 * 256];
  const int32_t threads = blocks * kProgramThreads,
                groups = static_cast<int32_t>(gridDim.x) / blocks;
  const int32_t group = static_cast<int32_t>(blockIdx.x) / blocks;
  const int32_t rank = static_cast<int32_t>(blockIdx.x) % blocks;
  char* const mine = scratch + groups * kProgramBarrierBytes + group * memory.bytes;
  uint32_t* const arrived = reinterpret_cast<uint32_t*>(scratch + group * kProgramBarrierBytes);
  ProgramShared& shared =
      blocks == 1 ? own : *reinterpret_cast<ProgramShared*>(mine + memory.shared);
  CudaBlock block = {threads, rank * kProgramThreads, counts, arrived, 0};
  ProgramBody<T, C, CudaBlock> body = {call, memory, shared, block, mine};
  for (int64_t i = group; i < call.samples; i += groups) body.run(i);
}

// The kernel of a call.
const void* kernel_of(const ProgramCall& call) {
  const auto of_channels = [&](auto item) -> const void* {
    using T = decltype(item);
    if (call.channels == 1) return reinterpret_cast<const void*>(program_kernel<T, 1>);
    if (call.channels == 3) return reinterpret_cast<const void*>(program_kernel<T, 3>);
    return reinterpret_cast<const void*>(program_kernel<T, 4>);
  };
  return call.dtype == Dtype::kU8 ? of_channels(uint8_t()) : of_channels(float());
}

}  // namespace

cudaError_t program_grid(const ProgramCall& call, ProgramGrid* grid) {
  int device = 0, processors = 0, each = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess)
    status = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (status == cudaSuccess)
    status =
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel_of(call), kProgramThreads, 0);
  *grid = program_grid(call, int64_t{processors} * each);
  return status;
}

cudaError_t launch_program(ProgramCall call, ProgramGrid grid, char* scratch, cudaStream_t stream) {
  if (call.samples == 0 || call.elements() == 0) return cudaSuccess;
  int32_t blocks = static_cast<int32_t>(grid.blocks);
  ProgramMemory memory = program_memory(call, grid.threads());
  void* arguments[] = {&call, &memory, &scratch, &blocks};
  const void* const kernel = kernel_of(call);
  if (blocks > 1) {
    const size_t barriers = static_cast<size_t>(grid.groups) * kProgramBarrierBytes;
    const cudaError_t cleared = cudaMemsetAsync(scratch, 0, barriers, stream);
    if (cleared != cudaSuccess) return cleared;
    const unsigned all = static_cast<unsigned>(grid.groups * grid.blocks);
    const cudaError_t status =
        cudaLaunchCooperativeKernel(kernel, all, kProgramThreads, arguments, 0, stream);
    if (status != cudaErrorCooperativeLaunchTooLarge && status != cudaErrorNotSupported)
      return status;
    (void)cudaGetLastError();  // this device runs fewer blocks at once: one for each image
    blocks = 1;
  }
  return cudaLaunchKernel(kernel, static_cast<unsigned>(grid.groups), kProgramThreads, arguments, 0,
                          stream);
}

}  // namespace jaxkern::image
