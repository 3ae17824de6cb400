// What a levels.cc stands on: the instructions of the level that it is compiled for.
#ifndef JAXKERN_CORE_SIMD_TARGET_H_
#define JAXKERN_CORE_SIMD_TARGET_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/half.h"
#include "core/host_device.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifndef JAXKERN_LEVEL
#error "Compile with -DJAXKERN_LEVEL=<portable|v2|v3|v4>"
#endif

#endif  // JAXKERN_CORE_SIMD_TARGET_H_
