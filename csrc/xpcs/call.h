// What every XPCS handler checks alike, on the CPU and on CUDA: the dtypes of reals, the
// attributes, and the operands of the normal equations.
#ifndef JAXKERN_XPCS_CALL_H_
#define JAXKERN_XPCS_CALL_H_

#include <string>

#include "core/ffi.h"
#include "xpcs/plan.h"

namespace jaxkern::xpcs {

// The real dtype of a call, taken from its result: float64 or float32.
inline ffi::DataType real_dtype(Call& call, ffi::AnyBuffer result) {
  const ffi::DataType dtype = result.element_type();
  if (dtype != ffi::F64 && dtype != ffi::F32) {
    call.fail(std::string("the result has dtype ") + dtype_text(dtype) +
              "; wanted float64 or float32");
  }
  return dtype;
}

inline Reals reals_at(const Operand& operand, int64_t sample) {
  return {operand.at<char>(sample), operand.dtype == ffi::F32};
}

inline double real_at(const Operand& operand, int64_t sample) {
  return reals_at(operand, sample)[0];
}

inline void check_power(Call& call, int32_t power) {
  if (power != 0 && power != 2 && power != 4) {
    call.fail("attribute 'shear_power' is " + std::to_string(power) + "; wanted 0, 2 or 4");
  }
}

inline void check_choice(Call& call, const char* name, int32_t value, int32_t count) {
  if (value < 0 || value >= count) {
    call.fail(std::string("attribute '") + name + "' is " + std::to_string(value) +
              "; wanted 0 to " + std::to_string(count - 1));
  }
}

// One sigma for a sample, or one for each of its points: [] or [rows, columns].
inline Operand read_sigma(Call& call, ffi::AnyBuffer sigma, ffi::DataType dtype, int32_t rank,
                          int64_t rows, int64_t columns) {
  if (rank != 0 && rank != 2) {
    call.fail("attribute 'sigma_rank' is " + std::to_string(rank) + "; wanted 0 or 2");
  }
  return rank == 0 ? call.operand("sigma", sigma, dtype, {})
                   : call.operand("sigma", sigma, dtype, {rows, columns});
}

// More frames than this overflow an index of the points of an angle.
constexpr int64_t kMostFrames = int64_t{1} << 30;

inline void check_frames(Call& call, int64_t n) {
  if (call.ok() && n > kMostFrames) {
    call.fail("operand 'A' has " + std::to_string(n) + " frames; wanted at most 2^30");
  }
}

// The operands of the normal equations, checked but for what depends on the values.
struct NormalOperands {
  Operand a, x, tangents_a, tangents_x, contrast, offset, data, quantization, sigma, keep, f_scale,
      first_row, initial, state;
  int64_t n = 0, rows = 0;
  StateLayout layout{};
  DataType data_type = DataType::kF64;
};

struct NormalBuffers {
  ffi::AnyBuffer a, x, tangents_a, tangents_x, contrast, offset, data, quantization, sigma, keep,
      f_scale, first_row, initial, state;
};

struct NormalAttributes {
  int32_t shear_power, loss, symmetric, sigma_rank;
};

inline NormalOperands read_normal(Call& call, const NormalBuffers& in,
                                  const NormalAttributes& attributes) {
  NormalOperands o;
  const ffi::DataType real = call.ok() ? real_dtype(call, in.state) : ffi::F64;
  check_power(call, attributes.shear_power);
  check_choice(call, "loss", attributes.loss, kLosses);
  check_choice(call, "symmetric", attributes.symmetric, 3);
  o.a = call.operand("A", in.a, real, {kAnySize});
  o.n = o.a.core[0];
  check_frames(call, o.n);
  o.x = call.operand("X", in.x, real, {o.n});
  o.tangents_a = call.operand("tangents_A", in.tangents_a, real, {kAnySize, o.n});
  o.tangents_x = call.operand("tangents_X", in.tangents_x, real, {kAnySize, o.n});
  if (call.ok() && (o.tangents_a.core[0] > kMaxTables ||
                    o.tangents_x.core[0] > kMaxTables - o.tangents_a.core[0])) {
    call.fail("operands 'tangents_A' and 'tangents_X' have " +
              std::to_string(o.tangents_a.core[0]) + " and " +
              std::to_string(o.tangents_x.core[0]) + " tables; wanted at most " +
              std::to_string(kMaxTables) + " together");
  }
  o.layout = {static_cast<int32_t>(o.tangents_a.core[0]),
              static_cast<int32_t>(o.tangents_x.core[0])};
  if (attributes.shear_power == 0 && o.layout.tables_x != 0) {
    call.fail("operand 'tangents_X' has tables and attribute 'shear_power' is 0; wanted none");
  }
  o.contrast = call.operand("contrast", in.contrast, real, {});
  o.offset = call.operand("offset", in.offset, real, {});
  o.data = call.operand("data", in.data, ffi::DataType::INVALID, {kAnySize, o.n});
  o.rows = o.data.core[0];
  if (call.ok()) {
    switch (o.data.dtype) {
      case ffi::F64:
        o.data_type = DataType::kF64;
        break;
      case ffi::F32:
        o.data_type = DataType::kF32;
        break;
      case ffi::F16:
        o.data_type = DataType::kF16;
        break;
      case ffi::U16:
        o.data_type = DataType::kU16;
        break;
      default:
        call.fail(std::string("operand 'data' has dtype ") + dtype_text(o.data.dtype) +
                  "; wanted float64, float32, float16 or uint16");
    }
  }
  if (call.ok() && o.rows > o.n) {
    call.fail("operand 'data' has " + std::to_string(o.rows) + " rows; wanted at most " +
              std::to_string(o.n));
  }
  if (call.ok() && attributes.symmetric == static_cast<int32_t>(Symmetric::kAuto) &&
      o.rows != o.n) {
    call.fail("operand 'data' has " + std::to_string(o.rows) + " rows of " + std::to_string(o.n) +
              " and attribute 'symmetric' is 2 (auto); wanted all rows, or another value");
  }
  o.quantization = call.operand("quantization", in.quantization, real, {2});
  o.sigma = read_sigma(call, in.sigma, real, attributes.sigma_rank, o.rows, o.n);
  o.keep = call.operand("keep", in.keep, ffi::U8, {o.n});
  o.f_scale = call.operand("f_scale", in.f_scale, real, {});
  o.first_row = call.operand("first_row", in.first_row, ffi::S32, {});
  const int64_t size = call.ok() ? o.layout.size() : 0;
  o.initial = call.operand("initial", in.initial, real, {size});
  o.state = call.result("state", in.state, real, {size});
  return o;
}

}  // namespace jaxkern::xpcs

#endif  // JAXKERN_XPCS_CALL_H_
