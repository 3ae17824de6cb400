// Vectors for kernels that are compiled once per instruction-set level. Include it inside the
// level's unnamed namespace, after core/simd_target.h.
//
// Both kinds: load and store take any address; splat fills every element.
//
// Doubles are kDoubles float64 by the compiler's vector extension: arithmetic by operators, one
// source for every level and architecture. A comparison gives a Mask: any(mask), mask ? a : b.
//
// Singles are kSingles float32 in as many bits, in the same way, and Words32, Wholes, Words16 and
// WordBytes the integers in them.
//
// Floats are kFloats float32 and Ints the bytes and integers beside them, by intrinsics, since a
// compiler finds neither the byte shuffles nor the streaming stores. A vector is kLanes lanes of
// four 32-bit values. Byte shuffles act within a lane: each lane holds a 16-byte window of the
// input and picks bytes from it (a mask byte of 0x80 picks zero). multiply_pairs adds the products
// of neighbouring 16-bit words: two taps of a filter at once. put_* stores kFloats values of a
// dtype at any address and put2_* twice as many; stream_* and stream2_* go past the caches, to an
// address that is a multiple of 32 (AVX2) or 16 bytes; end_streaming orders such stores before what
// follows.

#include "core/simd_doubles-inl.h"
#include "core/simd_singles-inl.h"
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "core/simd_floats_avx2-inl.h"
#elif defined(__SSE4_1__)
#include "core/simd_floats_sse4-inl.h"
#else
#include "core/simd_floats_portable-inl.h"
#endif
