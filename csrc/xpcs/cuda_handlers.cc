// The CUDA handlers of the XPCS ops: check what the host knows (shapes, dtypes and attributes),
// take scratch memory, then enqueue. Values in device memory are checked there: an index or a
// first_row outside gives NaN, where the CPU handlers return an error for a first_row.
#include "xpcs/cuda_handlers.h"

#include <algorithm>
#include <optional>
#include <string>

#include "xpcs/call.h"
#include "xpcs/cuda.h"

namespace jaxkern::xpcs {
namespace {

// The sums of the normal equations' row blocks take at most about this much, an angle at least.
constexpr int64_t kBlocksTarget = int64_t{256} << 20;

ffi::Error status_of(const char* op, cudaError_t status) {
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string(op) + ": the CUDA launch failed: " +
                              cudaGetErrorName(status) + " (" + cudaGetErrorString(status) + ")");
}

// Scratch memory in pieces; keeps the first failure. The sizes of a piece are multiplied here, so
// that no product wraps around.
class Scratch {
 public:
  Scratch(const char* op, ffi::ScratchAllocator& allocator) : op_(op), allocator_(allocator) {}

  template <typename T>
  T* take(std::initializer_list<int64_t> sizes) {
    int64_t bytes = sizeof(T);
    bool overflow = false;
    for (int64_t size : sizes) {
      // An empty piece still needs an address.
      overflow |= __builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes);
    }
    if (overflow || !ok_) {
      ok_ = false;
      return nullptr;
    }
    const std::optional<void*> memory = allocator_.Allocate(static_cast<size_t>(bytes), 256);
    wanted_ = bytes;
    ok_ = memory.has_value();
    return ok_ ? static_cast<T*>(*memory) : nullptr;
  }

  bool ok() const { return ok_; }
  ffi::Error error() const {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted,
                      std::string(op_) + ": no device memory for " +
                          (wanted_ > 0 ? std::to_string(wanted_) + " bytes of" : "the") +
                          " scratch; pass fewer angles at once");
  }

 private:
  const char* op_;
  ffi::ScratchAllocator& allocator_;
  bool ok_ = true;
  int64_t wanted_ = 0;
};

void set(AngleCall& call, AngleOperand which, const Operand& operand) {
  call.operands.set(which, operand.data, operand.map);
}

void take_tables(Scratch& scratch, AngleCall* call) {
  call->angles = scratch.take<Angle>({call->samples});
  call->tables = scratch.take<double>(
      {call->samples, kTableTangents + call->tables_a + call->tables_x, call->n});
}

// Shared by the ops whose sample is one angle's matrix.
AngleCall read_angle(Call& call, ffi::AnyBuffer result, ffi::AnyBuffer a, ffi::AnyBuffer x,
                     ffi::AnyBuffer contrast, int32_t power) {
  AngleCall angle;
  const ffi::DataType real = call.ok() ? real_dtype(call, result) : ffi::F64;
  check_power(call, power);
  const Operand as = call.operand("A", a, real, {kAnySize});
  angle.n = as.core[0];
  check_frames(call, angle.n);
  const Operand xs = call.operand("X", x, real, {angle.n});
  const Operand contrasts = call.operand("contrast", contrast, real, {});
  angle.single = real == ffi::F32;
  angle.power = power;
  angle.rows = angle.n;
  angle.samples = call.samples();
  set(angle, kPhaseA, as);
  set(angle, kPhaseX, xs);
  set(angle, kContrast, contrasts);
  return angle;
}

ffi::DataType real_of(const AngleCall& angle) { return angle.single ? ffi::F32 : ffi::F64; }

ffi::Error run_matrix(const char* op, MatrixOp which, AngleCall angle, void* out,
                      ffi::ScratchAllocator& allocator, cudaStream_t stream) {
  Scratch scratch(op, allocator);
  take_tables(scratch, &angle);
  if (!scratch.ok()) return scratch.error();
  MatrixCall matrix;
  matrix.angle = angle;
  matrix.out = out;
  return status_of(op, launch_matrix(which, matrix, stream));
}

ffi::Error G2Impl(cudaStream_t stream, ffi::ScratchAllocator scratch, ffi::AnyBuffer a,
                  ffi::AnyBuffer x, ffi::AnyBuffer contrast, ffi::AnyBuffer offset,
                  ffi::Result<ffi::AnyBuffer> out, int32_t shear_power) {
  constexpr char kOp[] = "jaxkern.two_time_g2";
  Call call(kOp, *out, 2);
  AngleCall angle = read_angle(call, *out, a, x, contrast, shear_power);
  set(angle, kOffset, call.operand("offset", offset, real_of(angle), {}));
  const Operand outs = call.result("out", *out, real_of(angle), {angle.n, angle.n});
  if (!call.ok()) return call.error();
  return run_matrix(kOp, MatrixOp::kG2, angle, outs.data, scratch, stream);
}

ffi::Error G2TangentImpl(cudaStream_t stream, ffi::ScratchAllocator scratch, ffi::AnyBuffer a,
                         ffi::AnyBuffer x, ffi::AnyBuffer contrast, ffi::AnyBuffer tangent_a,
                         ffi::AnyBuffer tangent_x, ffi::AnyBuffer tangent_contrast,
                         ffi::AnyBuffer tangent_offset, ffi::Result<ffi::AnyBuffer> out,
                         int32_t shear_power) {
  constexpr char kOp[] = "jaxkern.two_time_g2_tangent";
  Call call(kOp, *out, 2);
  AngleCall angle = read_angle(call, *out, a, x, contrast, shear_power);
  const ffi::DataType real = real_of(angle);
  set(angle, kTablesA, call.operand("dA", tangent_a, real, {angle.n}));
  set(angle, kTablesX, call.operand("dX", tangent_x, real, {angle.n}));
  angle.tables_a = angle.tables_x = 1;
  set(angle, kTangentContrast, call.operand("dcontrast", tangent_contrast, real, {}));
  set(angle, kTangentOffset, call.operand("doffset", tangent_offset, real, {}));
  const Operand outs = call.result("out", *out, real, {angle.n, angle.n});
  if (!call.ok()) return call.error();
  return run_matrix(kOp, MatrixOp::kTangent, angle, outs.data, scratch, stream);
}

ffi::Error ResidualImpl(cudaStream_t stream, ffi::ScratchAllocator scratch, ffi::AnyBuffer a,
                        ffi::AnyBuffer x, ffi::AnyBuffer contrast, ffi::AnyBuffer offset,
                        ffi::AnyBuffer data, ffi::AnyBuffer sigma, ffi::Result<ffi::AnyBuffer> out,
                        int32_t shear_power, int32_t sigma_rank) {
  constexpr char kOp[] = "jaxkern.two_time_residual";
  Call call(kOp, *out, 2);
  AngleCall angle = read_angle(call, *out, a, x, contrast, shear_power);
  const ffi::DataType real = real_of(angle);
  set(angle, kOffset, call.operand("offset", offset, real, {}));
  set(angle, kData, call.operand("data", data, real, {angle.n, angle.n}));
  set(angle, kSigma, read_sigma(call, sigma, real, sigma_rank, angle.n, angle.n));
  angle.sigma_rank = sigma_rank;
  const Operand outs = call.result("out", *out, real, {angle.n, angle.n});
  if (!call.ok()) return call.error();
  return run_matrix(kOp, MatrixOp::kResidual, angle, outs.data, scratch, stream);
}

ffi::Error G2CotangentImpl(cudaStream_t stream, ffi::ScratchAllocator allocator, ffi::AnyBuffer a,
                           ffi::AnyBuffer x, ffi::AnyBuffer contrast, ffi::AnyBuffer cotangent,
                           ffi::Result<ffi::AnyBuffer> bar_a, ffi::Result<ffi::AnyBuffer> bar_x,
                           ffi::Result<ffi::AnyBuffer> bar_contrast,
                           ffi::Result<ffi::AnyBuffer> bar_offset, int32_t shear_power) {
  constexpr char kOp[] = "jaxkern.two_time_g2_cotangent";
  Call call(kOp, *bar_a, 1);
  CotangentCall work;
  AngleCall& angle = work.angle;
  angle = read_angle(call, *bar_a, a, x, contrast, shear_power);
  const ffi::DataType real = real_of(angle);
  set(angle, kData, call.operand("G", cotangent, real, {angle.n, angle.n}));
  work.phase_a = call.result("A_bar", *bar_a, real, {angle.n}).data;
  work.phase_x = call.result("X_bar", *bar_x, real, {angle.n}).data;
  work.contrast = call.result("contrast_bar", *bar_contrast, real, {}).data;
  work.offset = call.result("offset_bar", *bar_offset, real, {}).data;
  if (!call.ok()) return call.error();
  Scratch scratch(kOp, allocator);
  take_tables(scratch, &angle);
  work.sums =
      scratch.take<double>({angle.samples, cotangent_pieces(work), kCotangentSums, angle.n});
  if (!scratch.ok()) return scratch.error();
  return status_of(kOp, launch_cotangent(work, stream));
}

ffi::Error G2AtImpl(cudaStream_t stream, ffi::AnyBuffer a, ffi::AnyBuffer x,
                    ffi::AnyBuffer contrast, ffi::AnyBuffer offset, ffi::AnyBuffer index,
                    ffi::Result<ffi::AnyBuffer> out, int32_t shear_power) {
  constexpr char kOp[] = "jaxkern.two_time_g2_at";
  Call call(kOp, *out, 1);
  const ffi::DataType real = call.ok() ? real_dtype(call, *out) : ffi::F64;
  check_power(call, shear_power);
  PointCall points;
  const auto set = [&](PointOperand which, const Operand& operand) {
    points.operands.set(which, operand.data, operand.map);
    return operand.core[0];
  };
  points.n = set(kPointA, call.operand("A", a, real, {kAnySize}));
  points.angles = set(kPointX, call.operand("X", x, real, {kAnySize, points.n}));
  set(kPointContrast, call.operand("contrast", contrast, real, {points.angles}));
  set(kPointOffset, call.operand("offset", offset, real, {points.angles}));
  points.points = set(kPointIndex, call.operand("index", index, ffi::S32, {kAnySize, 3}));
  points.out = call.result("out", *out, real, {points.points}).data;
  if (!call.ok()) return call.error();
  points.single = real == ffi::F32;
  points.power = shear_power;
  points.samples = call.samples();
  return status_of(kOp, launch_points(points, stream));
}

ffi::Error NormalEquationsImpl(cudaStream_t stream, ffi::ScratchAllocator allocator,
                               ffi::AnyBuffer a, ffi::AnyBuffer x, ffi::AnyBuffer tangents_a,
                               ffi::AnyBuffer tangents_x, ffi::AnyBuffer contrast,
                               ffi::AnyBuffer offset, ffi::AnyBuffer data,
                               ffi::AnyBuffer quantization, ffi::AnyBuffer sigma,
                               ffi::AnyBuffer keep, ffi::AnyBuffer f_scale,
                               ffi::AnyBuffer first_row, ffi::AnyBuffer initial,
                               ffi::Result<ffi::AnyBuffer> state, int32_t shear_power, int32_t loss,
                               int32_t symmetric, int32_t sigma_rank) {
  constexpr char kOp[] = "jaxkern.two_time_normal_equations";
  Call call(kOp, *state, 1);
  const NormalOperands o =
      read_normal(call,
                  {a, x, tangents_a, tangents_x, contrast, offset, data, quantization, sigma, keep,
                   f_scale, first_row, initial, *state},
                  {shear_power, loss, symmetric, sigma_rank});
  if (!call.ok()) return call.error();
  NormalCall work = {};
  AngleCall& angle = work.angle;
  set(angle, kPhaseA, o.a);
  set(angle, kPhaseX, o.x);
  set(angle, kTablesA, o.tangents_a);
  set(angle, kTablesX, o.tangents_x);
  set(angle, kContrast, o.contrast);
  set(angle, kOffset, o.offset);
  set(angle, kData, o.data);
  set(angle, kQuantization, o.quantization);
  set(angle, kSigma, o.sigma);
  set(angle, kKeep, o.keep);
  set(angle, kFScale, o.f_scale);
  set(angle, kFirstRow, o.first_row);
  set(angle, kInitial, o.initial);
  angle.single = o.state.dtype == ffi::F32;
  angle.power = shear_power;
  angle.tables_a = o.layout.tables_a;
  angle.tables_x = o.layout.tables_x;
  angle.sigma_rank = sigma_rank;
  angle.n = o.n;
  angle.rows = o.rows;
  angle.samples = call.samples();
  work.layout = o.layout;
  work.data_type = o.data_type;
  work.loss = static_cast<Loss>(loss);
  work.symmetric = static_cast<Symmetric>(symmetric);
  work.state = o.state.data;
  Scratch scratch(kOp, allocator);
  take_tables(scratch, &angle);
  // Cannot overflow: the rows of data exist, and a block's slices are at most kMostSlices.
  const int64_t each = row_blocks(work) * slices_of(o.n) * o.layout.size();
  const int64_t target = kBlocksTarget / static_cast<int64_t>(sizeof(double));
  const int64_t chunk = std::clamp<int64_t>(target / std::max<int64_t>(each, 1), 1,
                                            std::max<int64_t>(angle.samples, 1));
  work.blocks = scratch.take<double>({chunk, each});
  if (!scratch.ok()) return scratch.error();
  return status_of(kOp, launch_normal(work, chunk, stream));
}

}  // namespace
}  // namespace jaxkern::xpcs

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernTwoTimeG2Cuda, jaxkern::xpcs::G2Impl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Ctx<ffi::ScratchAllocator>()
                                  .Arg<ffi::AnyBuffer>()           // A [batch..., n]
                                  .Arg<ffi::AnyBuffer>()           // X [batch..., n]
                                  .Arg<ffi::AnyBuffer>()           // contrast [batch...]
                                  .Arg<ffi::AnyBuffer>()           // offset [batch...]
                                  .Ret<ffi::AnyBuffer>()           // out [batch..., n, n]
                                  .Attr<int32_t>("shear_power"));  // scalar

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernTwoTimeG2TangentCuda, jaxkern::xpcs::G2TangentImpl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Ctx<ffi::ScratchAllocator>()
                                  .Arg<ffi::AnyBuffer>()           // A [batch..., n]
                                  .Arg<ffi::AnyBuffer>()           // X [batch..., n]
                                  .Arg<ffi::AnyBuffer>()           // contrast [batch...]
                                  .Arg<ffi::AnyBuffer>()           // dA [batch..., n]
                                  .Arg<ffi::AnyBuffer>()           // dX [batch..., n]
                                  .Arg<ffi::AnyBuffer>()           // dcontrast [batch...]
                                  .Arg<ffi::AnyBuffer>()           // doffset [batch...]
                                  .Ret<ffi::AnyBuffer>()           // out [batch..., n, n]
                                  .Attr<int32_t>("shear_power"));  // scalar

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernTwoTimeG2CotangentCuda, jaxkern::xpcs::G2CotangentImpl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Ctx<ffi::ScratchAllocator>()
                                  .Arg<ffi::AnyBuffer>()           // A [batch..., n]
                                  .Arg<ffi::AnyBuffer>()           // X [batch..., n]
                                  .Arg<ffi::AnyBuffer>()           // contrast [batch...]
                                  .Arg<ffi::AnyBuffer>()           // G [batch..., n, n]
                                  .Ret<ffi::AnyBuffer>()           // A_bar [batch..., n]
                                  .Ret<ffi::AnyBuffer>()           // X_bar [batch..., n]
                                  .Ret<ffi::AnyBuffer>()           // contrast_bar [batch...]
                                  .Ret<ffi::AnyBuffer>()           // offset_bar [batch...]
                                  .Attr<int32_t>("shear_power"));  // scalar

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernTwoTimeResidualCuda, jaxkern::xpcs::ResidualImpl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Ctx<ffi::ScratchAllocator>()
                                  .Arg<ffi::AnyBuffer>()  // A [batch..., n]
                                  .Arg<ffi::AnyBuffer>()  // X [batch..., n]
                                  .Arg<ffi::AnyBuffer>()  // contrast [batch...]
                                  .Arg<ffi::AnyBuffer>()  // offset [batch...]
                                  .Arg<ffi::AnyBuffer>()  // data [batch..., n, n]
                                  .Arg<ffi::AnyBuffer>()  // sigma [batch...] or [batch..., n, n]
                                  .Ret<ffi::AnyBuffer>()  // out [batch..., n, n]
                                  .Attr<int32_t>("shear_power")   // scalar
                                  .Attr<int32_t>("sigma_rank"));  // scalar: 0 or 2

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernTwoTimeG2AtCuda, jaxkern::xpcs::G2AtImpl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()           // A [batch..., n]
                                  .Arg<ffi::AnyBuffer>()           // X [batch..., m, n]
                                  .Arg<ffi::AnyBuffer>()           // contrast [batch..., m]
                                  .Arg<ffi::AnyBuffer>()           // offset [batch..., m]
                                  .Arg<ffi::AnyBuffer>()           // index i32 [batch..., k, 3]
                                  .Ret<ffi::AnyBuffer>()           // out [batch..., k]
                                  .Attr<int32_t>("shear_power"));  // scalar

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernTwoTimeNormalEquationsCuda, jaxkern::xpcs::NormalEquationsImpl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Ctx<ffi::ScratchAllocator>()
                                  .Arg<ffi::AnyBuffer>()  // A [batch..., n]
                                  .Arg<ffi::AnyBuffer>()  // X [batch..., n]
                                  .Arg<ffi::AnyBuffer>()  // tangents_A [batch..., kA, n]
                                  .Arg<ffi::AnyBuffer>()  // tangents_X [batch..., kX, n]
                                  .Arg<ffi::AnyBuffer>()  // contrast [batch...]
                                  .Arg<ffi::AnyBuffer>()  // offset [batch...]
                                  .Arg<ffi::AnyBuffer>()  // data [batch..., rows, n]
                                  .Arg<ffi::AnyBuffer>()  // quantization [batch..., 2]
                                  .Arg<ffi::AnyBuffer>()  // sigma [batch...] or [.., rows, n]
                                  .Arg<ffi::AnyBuffer>()  // keep u8 [batch..., n]
                                  .Arg<ffi::AnyBuffer>()  // f_scale [batch...]
                                  .Arg<ffi::AnyBuffer>()  // first_row i32 [batch...]
                                  .Arg<ffi::AnyBuffer>()  // initial [batch..., S]
                                  .Ret<ffi::AnyBuffer>()  // state [batch..., S]
                                  .Attr<int32_t>("shear_power")   // scalar
                                  .Attr<int32_t>("loss")          // scalar
                                  .Attr<int32_t>("symmetric")     // scalar
                                  .Attr<int32_t>("sigma_rank"));  // scalar: 0 or 2
