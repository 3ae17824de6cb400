// Macros for functions that CPU kernels, CUDA kernels and tests share.
#ifndef JAXKERN_CORE_HOST_DEVICE_H_
#define JAXKERN_CORE_HOST_DEVICE_H_

// These functions have internal linkage, because CPU kernels compile them once per SIMD level, and
// the linker must never merge a copy with wide instructions into baseline code.
#ifdef __CUDACC__
#define JAXKERN_HD static __host__ __device__ __forceinline__
#elif defined(JAXKERN_CALLS)  // for tests, where compile time matters more than speed
#define JAXKERN_HD static inline
#else
#define JAXKERN_HD static inline __attribute__((always_inline))
#endif

// The same for long functions on rare paths, which are not inlined.
#ifdef __CUDACC__
#define JAXKERN_HD_NOINLINE [[maybe_unused]] static __host__ __device__ __noinline__
#else
#define JAXKERN_HD_NOINLINE [[maybe_unused]] static __attribute__((noinline))
#endif

// The same for member functions, which cannot have internal linkage.
#ifdef __CUDACC__
#define JAXKERN_HD_MEMBER __host__ __device__ __forceinline__
#elif defined(JAXKERN_CALLS)
#define JAXKERN_HD_MEMBER inline
#else
#define JAXKERN_HD_MEMBER inline __attribute__((always_inline))
#endif

// The parameters of a kernel, before CUDA 12.1.
constexpr int kKernelParameterBytes = 4096;

// JAXKERN_UNROLL precedes a loop whose arrays must remain in registers on the device.
// JAXKERN_ROLLED precedes a loop where unrolling would only use more registers.
#ifdef __CUDA_ARCH__
#define JAXKERN_UNROLL _Pragma("unroll")
#define JAXKERN_ROLLED _Pragma("unroll 1")
#else
#define JAXKERN_UNROLL
#define JAXKERN_ROLLED
#endif

#endif  // JAXKERN_CORE_HOST_DEVICE_H_
