// Parameter programs: instructions that compute the parameters of an image, such as its crop, from
// its key and sizes. jaxkern/image/parameters/compile.py creates them from JAX functions.
//
// A register holds a value of kParameterLanes images: a word of 4 bytes, or a double. Images run
// through the program together, one instruction after the other. Every image computes the same bits
// in any batch and at every SIMD level.
#ifndef JAXKERN_IMAGE_PARAMETERS_H_
#define JAXKERN_IMAGE_PARAMETERS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/simd_dispatch.h"

namespace jaxkern::image {

constexpr int64_t kParameterLanes = 64;
constexpr size_t kRegisterBytes = size_t{1} << 20;  // of all registers

// Operations on each lane: name, type of the result, type of the operands, expression of x, y, z.
// Names end in the type that they interpret: i int32, u uint32 (i where both are equal), f float,
// d double. Truth values are the words 0 and 1.
// clang-format off
#define JAXKERN_FLOAT_OPS(OP, t, T)                                                      \
  OP(add_##t, T, T, x + y) OP(sub_##t, T, T, x - y) OP(mul_##t, T, T, x * y)             \
  OP(div_##t, T, T, x / y)                                                               \
  OP(max_##t, T, T, x != x ? x : (y != y ? y : (x > y ? x : y)))                         \
  OP(min_##t, T, T, x != x ? x : (y != y ? y : (x < y ? x : y)))                         \
  OP(lt_##t, uint32_t, T, x < y) OP(le_##t, uint32_t, T, x <= y)                         \
  OP(eq_##t, uint32_t, T, x == y) OP(is_finite_##t, uint32_t, T, x - x == 0)             \
  OP(floor_##t, T, T, std::floor(x)) OP(ceil_##t, T, T, std::ceil(x))                    \
  OP(round_##t, T, T, std::nearbyint(x)) OP(sqrt_##t, T, T, std::sqrt(x))                \
  OP(exp_##t, T, T, std::exp(double(x))) OP(log_##t, T, T, std::log(double(x)))          \
  OP(log1p_##t, T, T, std::log1p(double(x))) OP(sin_##t, T, T, std::sin(double(x)))      \
  OP(cos_##t, T, T, std::cos(double(x))) OP(tan_##t, T, T, std::tan(double(x)))
#define JAXKERN_LANE_OPS(OP)                                                             \
  OP(add_i, uint32_t, uint32_t, x + y) OP(sub_i, uint32_t, uint32_t, x - y)              \
  OP(mul_i, uint32_t, uint32_t, x * y) OP(and_i, uint32_t, uint32_t, x & y)              \
  OP(or_i, uint32_t, uint32_t, x | y) OP(xor_i, uint32_t, uint32_t, x ^ y)               \
  OP(shift_left_i, uint32_t, uint32_t, y > 31 ? 0 : x << (y & 31))                       \
  OP(shift_right_logical_i, uint32_t, uint32_t, y > 31 ? 0 : x >> (y & 31))              \
  OP(shift_right_arithmetic_i, int32_t, int32_t, x >> (uint32_t(y) > 31 ? 31 : y))       \
  OP(eq_i, uint32_t, uint32_t, x == y)                                                   \
  OP(lt_i, uint32_t, int32_t, x < y) OP(le_i, uint32_t, int32_t, x <= y)                 \
  OP(lt_u, uint32_t, uint32_t, x < y) OP(le_u, uint32_t, uint32_t, x <= y)               \
  OP(max_i, int32_t, int32_t, x > y ? x : y) OP(min_i, int32_t, int32_t, x < y ? x : y)  \
  OP(max_u, uint32_t, uint32_t, x > y ? x : y)                                           \
  OP(min_u, uint32_t, uint32_t, x < y ? x : y)                                           \
  OP(div_i, int32_t, int32_t, y == 0 ? -1 : (y == -1 ? int32_t(0 - uint32_t(x)) : x / y)) \
  OP(rem_i, int32_t, int32_t, y == 0 ? x : (y == -1 ? 0 : x % y))                        \
  OP(div_u, uint32_t, uint32_t, y == 0 ? ~0u : x / y)                                    \
  OP(rem_u, uint32_t, uint32_t, y == 0 ? x : x % y)                                      \
  OP(select_i, uint32_t, uint32_t, x != 0 ? y : z)                                       \
  JAXKERN_FLOAT_OPS(OP, f, float) JAXKERN_FLOAT_OPS(OP, d, double)                       \
  OP(erf_inv_f, float, float, inverse_erf(x))                                            \
  OP(i_to_f, float, int32_t, x) OP(u_to_f, float, uint32_t, x)                           \
  OP(i_to_d, double, int32_t, x) OP(u_to_d, double, uint32_t, x)                         \
  OP(f_to_d, double, float, x) OP(d_to_f, float, double, x)                              \
  OP(f_to_i, int32_t, float, truncated(x)) OP(d_to_i, int32_t, double, truncated(x))
// clang-format on

enum ParameterOp : int32_t {
#define JAXKERN_NUMBER(name, R, T, expression) k_##name,
  JAXKERN_LANE_OPS(JAXKERN_NUMBER)
#undef JAXKERN_NUMBER
      k_select_d,  // x: a word; y, z: doubles
  k_constant_i,    // x: index of a constant
  k_constant_d,    // x: index of the low word of a constant, which the high word follows
  k_gather_i,      // x: index, clamped; y: the first constant; z: number of constants
  k_threefry,      // x, y: key; z: counter; two results
  k_random_gamma,  // x, y: key; z: alpha; the logarithm of a gamma variate
  kParameterOps
};

struct ParameterOpInfo {
  const char* name;
  // Kinds of the two results and three operands: w word, d double, - unused, c index of a constant,
  // n count of constants from index y.
  char kinds[6];
};

// The ops in the order of their numbers.
const ParameterOpInfo* parameter_ops();

struct ParameterInstruction {
  int32_t op, out, second, x, y, z;
};

// `constants` are words. Registers of words are numbered separately from those of doubles.
struct ParameterProgram {
  const ParameterInstruction* instructions;
  int64_t instruction_count;
  const uint32_t* constants;
  int64_t constant_count;
  int64_t words, doubles;  // numbers of registers
};

// Returns the first problem of a program, or an empty string.
std::string check_parameters(const ParameterProgram& program);

// The values of a register of words; those of doubles follow all words.
inline uint32_t* word_register(char* registers, int64_t number) {
  return reinterpret_cast<uint32_t*>(registers) + number * kParameterLanes;
}

// Runs a checked program on all lanes.
JAXKERN_LEVEL_FUNCTION(void, run_parameters, const ParameterProgram& program, char* registers)

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_PARAMETERS_H_
