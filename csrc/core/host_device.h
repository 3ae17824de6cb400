// One spelling for functions that CPU kernels, CUDA kernels and tests share.
#ifndef JAXKERN_CORE_HOST_DEVICE_H_
#define JAXKERN_CORE_HOST_DEVICE_H_

// Internal linkage on purpose: the CPU kernels compile these functions once per instruction set,
// and the linker must never merge a copy that uses wide instructions into baseline code.
#ifdef __CUDACC__
#define JAXKERN_HD static __host__ __device__ __forceinline__
#else
#define JAXKERN_HD static inline __attribute__((always_inline))
#endif

#endif  // JAXKERN_CORE_HOST_DEVICE_H_
