// The operands of the XPCS ops, for the CPU and for CUDA. Each op has its FFI binding, after the
// context of a platform, and a constructor with the checks of a call. The platform checks what
// depends on the values of operands. `call` keeps the first problem.
#ifndef JAXKERN_XPCS_OPERANDS_H_
#define JAXKERN_XPCS_OPERANDS_H_

#include <string>
#include <utility>
#include <vector>

#include "core/ffi.h"
#include "xpcs/plan.h"

namespace jaxkern::xpcs {

using In = ffi::AnyBuffer;
using Out = ffi::Result<ffi::AnyBuffer>;

// With more frames, an index of the points of an angle overflows.
constexpr int64_t kMaxFrames = int64_t{1} << 30;

inline Reals reals_at(const Operand& operand, int64_t sample) {
  return {operand.at<char>(sample), operand.dtype == ffi::F32};
}

// Operands of all ops: reals of the dtype of the result, and the power of the shear factor.
struct OpOperands {
  Call call;
  const ffi::DataType real;
  const int32_t power;                  // 0, 2 or 4
  std::vector<ffi::AnyBuffer> results;  // all of them

  bool single() const { return real == ffi::F32; }
  ffi::Error error(const std::string& text) const {
    Call failed = call;
    failed.fail(text);
    return failed.error();
  }

 protected:
  OpOperands(const char* op, Out result, size_t core_rank, int32_t shear_power)
      : call(op, *result, core_rank), real(result->element_type()), power(shear_power) {
    if (real != ffi::F64 && real != ffi::F32) {
      call.fail("the result", "dtype float64 or float32", dtype_text(real));
    }
    if (power != 0 && power != 2 && power != 4) {
      call.fail("attribute 'shear_power'", "0, 2 or 4", std::to_string(power));
    }
  }

  Operand reals(const char* name, In buffer, std::initializer_list<int64_t> core) {
    return call.operand(name, buffer, real, core);
  }
  Operand result(const char* name, Out buffer, std::initializer_list<int64_t> core) {
    results.push_back(*buffer);
    return call.result(name, *buffer, real, core);
  }
  // One sigma for a sample, or one for each of its points: [] or [rows, n].
  Operand read_sigma(In sigma, int32_t rank, int64_t rows, int64_t n) {
    if (rank != 0 && rank != 2) {
      call.fail("attribute 'sigma_rank'", "0 or 2", std::to_string(rank));
    }
    return rank == 0 ? reals("sigma", sigma, {}) : reals("sigma", sigma, {rows, n});
  }
};

// Operands of ops whose sample is one angle.
struct AngleOperands : OpOperands {
  Operand a;
  const int64_t n;
  Operand x, contrast;

  AngleOperands(const char* op, Out result, size_t core_rank, In a, In x, In contrast,
                int32_t shear_power)
      : OpOperands(op, result, core_rank, shear_power),
        a(reals("A", a, {kAnySize})),
        n(this->a.core[0]),
        x(reals("X", x, {n})),
        contrast(reals("contrast", contrast, {})) {
    if (n > kMaxFrames) {
      call.fail("operand 'A'", "at most 2^30 frames", std::to_string(n));
    }
  }
};

// Operands of ops of models of components; a sample is one angle.
struct ComponentOperands : OpOperands {
  Operand tables[kComponentTables];  // B, A and P
  const int64_t count, n;
  Operand contrast;

  ComponentOperands(const char* op, Out result, size_t core_rank, In weight, In decay, In phase,
                    In contrast)
      : OpOperands(op, result, core_rank, 0),
        tables{reals("weight", weight, {kAnySize, kAnySize}), {}, {}},
        count(tables[0].core[0]),
        n(tables[0].core[1]),
        contrast(reals("contrast", contrast, {})) {
    tables[kDecayTable] = reals("decay", decay, {count, n});
    tables[kPhaseTable] = reals("phase", phase, {count, n});
    if (count < 1 || count > kMaxComponents) {
      call.fail("operand 'weight'", "1 to " + std::to_string(kMaxComponents) + " components",
                std::to_string(count));
    }
    if (n > kMaxFrames) {
      call.fail("operand 'weight'", "at most 2^30 frames", std::to_string(n));
    }
  }

 protected:
  void read_tables(const char* const (&names)[kComponentTables], In weight, In decay, In phase,
                   Operand (&to)[kComponentTables]) {
    to[kWeightTable] = reals(names[kWeightTable], weight, {count, n});
    to[kDecayTable] = reals(names[kDecayTable], decay, {count, n});
    to[kPhaseTable] = reals(names[kPhaseTable], phase, {count, n});
  }
};

struct TwoTimeG2 : AngleOperands {
  Operand offset, out;

  template <typename Binding>
  static auto bind(Binding&& contexts) {
    return std::move(contexts)
        .template Arg<In>()                      // A [batch..., n]
        .template Arg<In>()                      // X [batch..., n]
        .template Arg<In>()                      // contrast [batch...]
        .template Arg<In>()                      // offset [batch...]
        .template Ret<ffi::AnyBuffer>()          // out [batch..., n, n]
        .template Attr<int32_t>("shear_power");  // scalar
  }

  TwoTimeG2(In a, In x, In contrast, In offset, Out out, int32_t shear_power)
      : AngleOperands("jaxkern.two_time_g2", out, 2, a, x, contrast, shear_power),
        offset(reals("offset", offset, {})),
        out(result("out", out, {n, n})) {}
};

struct TwoTimeG2Tangent : AngleOperands {
  Operand tangent_a, tangent_x, tangent_contrast, tangent_offset, out;

  template <typename Binding>
  static auto bind(Binding&& contexts) {
    return std::move(contexts)
        .template Arg<In>()                      // A [batch..., n]
        .template Arg<In>()                      // X [batch..., n]
        .template Arg<In>()                      // contrast [batch...]
        .template Arg<In>()                      // dA [batch..., n]
        .template Arg<In>()                      // dX [batch..., n]
        .template Arg<In>()                      // dcontrast [batch...]
        .template Arg<In>()                      // doffset [batch...]
        .template Ret<ffi::AnyBuffer>()          // out [batch..., n, n]
        .template Attr<int32_t>("shear_power");  // scalar
  }

  TwoTimeG2Tangent(In a, In x, In contrast, In tangent_a, In tangent_x, In tangent_contrast,
                   In tangent_offset, Out out, int32_t shear_power)
      : AngleOperands("jaxkern.two_time_g2_tangent", out, 2, a, x, contrast, shear_power),
        tangent_a(reals("dA", tangent_a, {n})),
        tangent_x(reals("dX", tangent_x, {n})),
        tangent_contrast(reals("dcontrast", tangent_contrast, {})),
        tangent_offset(reals("doffset", tangent_offset, {})),
        out(result("out", out, {n, n})) {}
};

struct TwoTimeG2Cotangent : AngleOperands {
  Operand cotangent, bar_a, bar_x, bar_contrast, bar_offset;

  template <typename Binding>
  static auto bind(Binding&& contexts) {
    return std::move(contexts)
        .template Arg<In>()                      // A [batch..., n]
        .template Arg<In>()                      // X [batch..., n]
        .template Arg<In>()                      // contrast [batch...]
        .template Arg<In>()                      // G [batch..., n, n]
        .template Ret<ffi::AnyBuffer>()          // A_bar [batch..., n]
        .template Ret<ffi::AnyBuffer>()          // X_bar [batch..., n]
        .template Ret<ffi::AnyBuffer>()          // contrast_bar [batch...]
        .template Ret<ffi::AnyBuffer>()          // offset_bar [batch...]
        .template Attr<int32_t>("shear_power");  // scalar
  }

  TwoTimeG2Cotangent(In a, In x, In contrast, In cotangent, Out bar_a, Out bar_x, Out bar_contrast,
                     Out bar_offset, int32_t shear_power)
      : AngleOperands("jaxkern.two_time_g2_cotangent", bar_a, 1, a, x, contrast, shear_power),
        cotangent(reals("G", cotangent, {n, n})),
        bar_a(result("A_bar", bar_a, {n})),
        bar_x(result("X_bar", bar_x, {n})),
        bar_contrast(result("contrast_bar", bar_contrast, {})),
        bar_offset(result("offset_bar", bar_offset, {})) {}
};

struct TwoTimeResidual : AngleOperands {
  Operand offset, data, sigma, out;
  const int32_t sigma_rank;

  template <typename Binding>
  static auto bind(Binding&& contexts) {
    return std::move(contexts)
        .template Arg<In>()                     // A [batch..., n]
        .template Arg<In>()                     // X [batch..., n]
        .template Arg<In>()                     // contrast [batch...]
        .template Arg<In>()                     // offset [batch...]
        .template Arg<In>()                     // data [batch..., n, n]
        .template Arg<In>()                     // sigma [batch...] or [batch..., n, n]
        .template Ret<ffi::AnyBuffer>()         // out [batch..., n, n]
        .template Attr<int32_t>("shear_power")  // scalar
        .template Attr<int32_t>("sigma_rank");  // scalar: 0 or 2
  }

  TwoTimeResidual(In a, In x, In contrast, In offset, In data, In sigma, Out out,
                  int32_t shear_power, int32_t sigma_rank)
      : AngleOperands("jaxkern.two_time_residual", out, 2, a, x, contrast, shear_power),
        offset(reals("offset", offset, {})),
        data(reals("data", data, {n, n})),
        sigma(read_sigma(sigma, sigma_rank, n, n)),
        out(result("out", out, {n, n})),
        sigma_rank(sigma_rank) {}
};

struct TwoTimeG2At : OpOperands {
  Operand a;
  const int64_t n;
  Operand x;
  const int64_t angles;
  Operand contrast, offset, index;
  const int64_t points;
  Operand out;

  template <typename Binding>
  static auto bind(Binding&& contexts) {
    return std::move(contexts)
        .template Arg<In>()                      // A [batch..., n]
        .template Arg<In>()                      // X [batch..., m, n]
        .template Arg<In>()                      // contrast [batch..., m]
        .template Arg<In>()                      // offset [batch..., m]
        .template Arg<In>()                      // index i32 [batch..., k, 3]
        .template Ret<ffi::AnyBuffer>()          // out [batch..., k]
        .template Attr<int32_t>("shear_power");  // scalar
  }

  TwoTimeG2At(In a, In x, In contrast, In offset, In index, Out out, int32_t shear_power)
      : OpOperands("jaxkern.two_time_g2_at", out, 1, shear_power),
        a(reals("A", a, {kAnySize})),
        n(this->a.core[0]),
        x(reals("X", x, {kAnySize, n})),
        angles(this->x.core[0]),
        contrast(reals("contrast", contrast, {angles})),
        offset(reals("offset", offset, {angles})),
        index(call.operand("index", index, ffi::S32, {kAnySize, 3})),
        points(this->index.core[0]),
        out(result("out", out, {points})) {}
};

// The operands of normal equations after those of the model, which are in Base.
template <typename Base>
struct NormalOperands : Base {
  using Base::call;
  using Base::n;
  Operand offset, data, quantization, sigma, keep, f_scale, first_row, initial, state;
  const int64_t rows;
  const Loss loss;
  const Symmetric symmetric;
  const int32_t sigma_rank;
  StateLayout layout{};
  DataType data_type = DataType::kF64;

 protected:
  NormalOperands(Base base, In offset, In data, In quantization, In sigma, In keep, In f_scale,
                 In first_row, int32_t loss, int32_t symmetric, int32_t sigma_rank)
      : Base(std::move(base)),
        offset(this->reals("offset", offset, {})),
        data(call.operand("data", data, ffi::DataType::INVALID, {kAnySize, n})),
        quantization(this->reals("quantization", quantization, {2})),
        sigma(this->read_sigma(sigma, sigma_rank, this->data.core[0], n)),
        keep(call.operand("keep", keep, ffi::U8, {n})),
        f_scale(this->reals("f_scale", f_scale, {})),
        first_row(call.operand("first_row", first_row, ffi::S32, {})),
        rows(this->data.core[0]),
        loss(static_cast<Loss>(loss)),
        symmetric(static_cast<Symmetric>(symmetric)),
        sigma_rank(sigma_rank) {
    check_choice("loss", loss, kLosses);
    check_choice("symmetric", symmetric, 3);
    read_data_type();
    if (call.ok() && rows > n) {
      call.fail("operand 'data'", "at most " + std::to_string(n) + " rows",
                std::to_string(rows) + " rows");
    }
    if (call.ok() && this->symmetric == Symmetric::kAuto && rows != n) {
      call.fail("operand 'data'",
                "all " + std::to_string(n) + " rows, because attribute 'symmetric' is 2 (auto)",
                std::to_string(rows) + " rows");
    }
  }

  void read_states(In initial_states, Out states) {
    const int64_t size = call.ok() ? layout.size() : 0;
    initial = this->reals("initial", initial_states, {size});
    state = this->result("state", states, {size});
  }

 private:
  void check_choice(const char* name, int32_t value, int32_t count) {
    if (value < 0 || value >= count) {
      call.fail(std::string("attribute '") + name + "'", "0 to " + std::to_string(count - 1),
                std::to_string(value));
    }
  }

  void read_data_type() {
    constexpr std::pair<ffi::DataType, DataType> kTypes[] = {{ffi::F64, DataType::kF64},
                                                             {ffi::F32, DataType::kF32},
                                                             {ffi::F16, DataType::kF16},
                                                             {ffi::U16, DataType::kU16}};
    for (const auto& [dtype, type] : kTypes) {
      if (data.dtype == dtype) {
        data_type = type;
        return;
      }
    }
    call.fail("operand 'data'", "dtype float64, float32, float16 or uint16",
              dtype_text(data.dtype));
  }
};

struct TwoTimeNormalEquations : NormalOperands<AngleOperands> {
  Operand tangents_a, tangents_x;

  template <typename Binding>
  static auto bind(Binding&& contexts) {
    return std::move(contexts)
        .template Arg<In>()                     // A [batch..., n]
        .template Arg<In>()                     // X [batch..., n]
        .template Arg<In>()                     // tangents_A [batch..., kA, n]
        .template Arg<In>()                     // tangents_X [batch..., kX, n]
        .template Arg<In>()                     // contrast [batch...]
        .template Arg<In>()                     // offset [batch...]
        .template Arg<In>()                     // data [batch..., rows, n]
        .template Arg<In>()                     // quantization [batch..., 2]
        .template Arg<In>()                     // sigma [batch...] or [batch..., rows, n]
        .template Arg<In>()                     // keep u8 [batch..., n]
        .template Arg<In>()                     // f_scale [batch...]
        .template Arg<In>()                     // first_row i32 [batch...]
        .template Arg<In>()                     // initial [batch..., S]
        .template Ret<ffi::AnyBuffer>()         // state [batch..., S]
        .template Attr<int32_t>("shear_power")  // scalar
        .template Attr<int32_t>("loss")         // scalar
        .template Attr<int32_t>("symmetric")    // scalar
        .template Attr<int32_t>("sigma_rank");  // scalar: 0 or 2
  }

  TwoTimeNormalEquations(In a, In x, In tangents_a, In tangents_x, In contrast, In offset, In data,
                         In quantization, In sigma, In keep, In f_scale, In first_row, In initial,
                         Out state, int32_t shear_power, int32_t loss, int32_t symmetric,
                         int32_t sigma_rank)
      : NormalOperands({"jaxkern.two_time_normal_equations", state, 1, a, x, contrast, shear_power},
                       offset, data, quantization, sigma, keep, f_scale, first_row, loss, symmetric,
                       sigma_rank),
        tangents_a(reals("tangents_A", tangents_a, {kAnySize, n})),
        tangents_x(reals("tangents_X", tangents_x, {kAnySize, n})) {
    read_tables();
    read_states(initial, state);
  }

 private:
  void read_tables() {
    const int64_t a = tangents_a.core[0], x = tangents_x.core[0];
    if (a > kMaxTables || x > kMaxTables - a) {
      call.fail("operands 'tangents_A' and 'tangents_X'",
                "at most " + std::to_string(kMaxTables) + " tables together",
                std::to_string(a) + " and " + std::to_string(x));
    }
    if (power == 0 && x != 0) {
      call.fail("operand 'tangents_X'", "no tables, because attribute 'shear_power' is 0",
                std::to_string(x));
    }
    layout = {static_cast<int32_t>(a), static_cast<int32_t>(x)};
  }
};

struct ComponentG2 : ComponentOperands {
  Operand offset, out;

  template <typename Binding>
  static auto bind(Binding&& contexts) {
    return std::move(contexts)
        .template Arg<In>()               // weight [batch..., count, n]
        .template Arg<In>()               // decay [batch..., count, n]
        .template Arg<In>()               // phase [batch..., count, n]
        .template Arg<In>()               // contrast [batch...]
        .template Arg<In>()               // offset [batch...]
        .template Ret<ffi::AnyBuffer>();  // out [batch..., n, n]
  }

  ComponentG2(In weight, In decay, In phase, In contrast, In offset, Out out)
      : ComponentOperands("jaxkern.component_g2", out, 2, weight, decay, phase, contrast),
        offset(reals("offset", offset, {})),
        out(result("out", out, {n, n})) {}
};

struct ComponentG2Tangent : ComponentOperands {
  Operand tangents[kComponentTables];
  Operand tangent_contrast, tangent_offset, out;

  template <typename Binding>
  static auto bind(Binding&& contexts) {
    return std::move(contexts)
        .template Arg<In>()               // weight [batch..., count, n]
        .template Arg<In>()               // decay [batch..., count, n]
        .template Arg<In>()               // phase [batch..., count, n]
        .template Arg<In>()               // contrast [batch...]
        .template Arg<In>()               // dweight [batch..., count, n]
        .template Arg<In>()               // ddecay [batch..., count, n]
        .template Arg<In>()               // dphase [batch..., count, n]
        .template Arg<In>()               // dcontrast [batch...]
        .template Arg<In>()               // doffset [batch...]
        .template Ret<ffi::AnyBuffer>();  // out [batch..., n, n]
  }

  ComponentG2Tangent(In weight, In decay, In phase, In contrast, In tangent_weight,
                     In tangent_decay, In tangent_phase, In tangent_contrast, In tangent_offset,
                     Out out)
      : ComponentOperands("jaxkern.component_g2_tangent", out, 2, weight, decay, phase, contrast),
        tangent_contrast(reals("dcontrast", tangent_contrast, {})),
        tangent_offset(reals("doffset", tangent_offset, {})),
        out(result("out", out, {n, n})) {
    read_tables({"dweight", "ddecay", "dphase"}, tangent_weight, tangent_decay, tangent_phase,
                tangents);
  }
};

struct ComponentG2Cotangent : ComponentOperands {
  Operand cotangent, bars[kComponentTables], bar_contrast, bar_offset;

  template <typename Binding>
  static auto bind(Binding&& contexts) {
    return std::move(contexts)
        .template Arg<In>()               // weight [batch..., count, n]
        .template Arg<In>()               // decay [batch..., count, n]
        .template Arg<In>()               // phase [batch..., count, n]
        .template Arg<In>()               // contrast [batch...]
        .template Arg<In>()               // G [batch..., n, n]
        .template Ret<ffi::AnyBuffer>()   // weight_bar [batch..., count, n]
        .template Ret<ffi::AnyBuffer>()   // decay_bar [batch..., count, n]
        .template Ret<ffi::AnyBuffer>()   // phase_bar [batch..., count, n]
        .template Ret<ffi::AnyBuffer>()   // contrast_bar [batch...]
        .template Ret<ffi::AnyBuffer>();  // offset_bar [batch...]
  }

  ComponentG2Cotangent(In weight, In decay, In phase, In contrast, In cotangent, Out bar_weight,
                       Out bar_decay, Out bar_phase, Out bar_contrast, Out bar_offset)
      : ComponentOperands("jaxkern.component_g2_cotangent", bar_weight, 2, weight, decay, phase,
                          contrast),
        cotangent(reals("G", cotangent, {n, n})),
        bars{result("weight_bar", bar_weight, {count, n}),
             result("decay_bar", bar_decay, {count, n}),
             result("phase_bar", bar_phase, {count, n})},
        bar_contrast(result("contrast_bar", bar_contrast, {})),
        bar_offset(result("offset_bar", bar_offset, {})) {}
};

struct ComponentResidual : ComponentOperands {
  Operand offset, data, sigma, out;
  const int32_t sigma_rank;

  template <typename Binding>
  static auto bind(Binding&& contexts) {
    return std::move(contexts)
        .template Arg<In>()                     // weight [batch..., count, n]
        .template Arg<In>()                     // decay [batch..., count, n]
        .template Arg<In>()                     // phase [batch..., count, n]
        .template Arg<In>()                     // contrast [batch...]
        .template Arg<In>()                     // offset [batch...]
        .template Arg<In>()                     // data [batch..., n, n]
        .template Arg<In>()                     // sigma [batch...] or [batch..., n, n]
        .template Ret<ffi::AnyBuffer>()         // out [batch..., n, n]
        .template Attr<int32_t>("sigma_rank");  // scalar: 0 or 2
  }

  ComponentResidual(In weight, In decay, In phase, In contrast, In offset, In data, In sigma,
                    Out out, int32_t sigma_rank)
      : ComponentOperands("jaxkern.component_residual", out, 2, weight, decay, phase, contrast),
        offset(reals("offset", offset, {})),
        data(reals("data", data, {n, n})),
        sigma(read_sigma(sigma, sigma_rank, n, n)),
        out(result("out", out, {n, n})),
        sigma_rank(sigma_rank) {}
};

struct ComponentNormalEquations : NormalOperands<ComponentOperands> {
  Operand tangents[kComponentTables];
  const int64_t parameters;

  template <typename Binding>
  static auto bind(Binding&& contexts) {
    return std::move(contexts)
        .template Arg<In>()                     // weight [batch..., count, n]
        .template Arg<In>()                     // decay [batch..., count, n]
        .template Arg<In>()                     // phase [batch..., count, n]
        .template Arg<In>()                     // tangents_weight [batch..., p, count, n]
        .template Arg<In>()                     // tangents_decay [batch..., p, count, n]
        .template Arg<In>()                     // tangents_phase [batch..., p, count, n]
        .template Arg<In>()                     // contrast [batch...]
        .template Arg<In>()                     // offset [batch...]
        .template Arg<In>()                     // data [batch..., rows, n]
        .template Arg<In>()                     // quantization [batch..., 2]
        .template Arg<In>()                     // sigma [batch...] or [batch..., rows, n]
        .template Arg<In>()                     // keep u8 [batch..., n]
        .template Arg<In>()                     // f_scale [batch...]
        .template Arg<In>()                     // first_row i32 [batch...]
        .template Arg<In>()                     // initial [batch..., S]
        .template Ret<ffi::AnyBuffer>()         // state [batch..., S]
        .template Attr<int32_t>("loss")         // scalar
        .template Attr<int32_t>("symmetric")    // scalar
        .template Attr<int32_t>("sigma_rank");  // scalar: 0 or 2
  }

  ComponentNormalEquations(In weight, In decay, In phase, In tangents_weight, In tangents_decay,
                           In tangents_phase, In contrast, In offset, In data, In quantization,
                           In sigma, In keep, In f_scale, In first_row, In initial, Out state,
                           int32_t loss, int32_t symmetric, int32_t sigma_rank)
      : NormalOperands(
            {"jaxkern.component_normal_equations", state, 1, weight, decay, phase, contrast},
            offset, data, quantization, sigma, keep, f_scale, first_row, loss, symmetric,
            sigma_rank),
        tangents{reals("tangents_weight", tangents_weight, {kAnySize, count, n}), {}, {}},
        parameters(tangents[kWeightTable].core[0]) {
    tangents[kDecayTable] = reals("tangents_decay", tangents_decay, {parameters, count, n});
    tangents[kPhaseTable] = reals("tangents_phase", tangents_phase, {parameters, count, n});
    if (parameters > kMaxComponentParameters) {
      call.fail("operand 'tangents_weight'",
                "at most " + std::to_string(kMaxComponentParameters) + " parameters",
                std::to_string(parameters));
    }
    layout = {0, static_cast<int32_t>(parameters)};
    read_states(initial, state);
  }
};

}  // namespace jaxkern::xpcs

#endif  // JAXKERN_XPCS_OPERANDS_H_
