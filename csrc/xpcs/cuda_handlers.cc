// The CUDA handlers of the XPCS ops: they check shapes, dtypes and attributes, allocate scratch
// memory, and enqueue the kernels. Kernels check values in device memory: an index or a first_row
// out of range gives NaN. (The CPU handlers return an error for such a first_row.)
#include <algorithm>
#include <optional>
#include <string>

#include "xpcs/cuda.h"
#include "xpcs/operands.h"
#include "xpcs/ops.h"

namespace jaxkern::xpcs {
namespace {

// Approximate limit of the memory for sums of row blocks, except for those of a single angle.
constexpr int64_t kBlocksTarget = int64_t{256} << 20;

ffi::Error status_of(const OpOperands& o, cudaError_t status) {
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(o.call.op() + ": the CUDA launch failed: " +
                              cudaGetErrorName(status) + " (" + cudaGetErrorString(status) + ")");
}

// Scratch memory in pieces. It keeps the first failure, and checks products of sizes for overflow.
class Scratch {
 public:
  explicit Scratch(ffi::ScratchAllocator& allocator) : allocator_(allocator) {}

  template <typename T>
  T* allocate(std::initializer_list<int64_t> sizes) {
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
    const std::optional<void*> memory =
        allocator_.Allocate(static_cast<size_t>(bytes), kScratchAlignment);
    bytes_ = bytes;
    ok_ = memory.has_value();
    return ok_ ? static_cast<T*>(*memory) : nullptr;
  }

  bool ok() const { return ok_; }
  ffi::Error error(const OpOperands& o) const {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted,
                      o.call.op() + ": no device memory for " +
                          (bytes_ > 0 ? std::to_string(bytes_) + " bytes of" : "the") +
                          " scratch; pass fewer angles at once");
  }

 private:
  ffi::ScratchAllocator& allocator_;
  bool ok_ = true;
  int64_t bytes_ = 0;
};

struct NamedOperand {
  AngleOperand which;
  const Operand& operand;
};

void set_operands(std::initializer_list<NamedOperand> operands, AngleCall* angle) {
  for (const NamedOperand& g : operands) {
    angle->operands.set(g.which, g.operand.data, g.operand.map);
  }
}

void set_model(const AngleOperands& o, AngleCall* angle) {
  set_operands({{kPhaseA, o.a}, {kPhaseX, o.x}}, angle);
}

void set_model(const ComponentOperands& o, AngleCall* angle) {
  set_operands({{kWeights, o.tables[kWeightTable]},
                {kPhaseA, o.tables[kDecayTable]},
                {kPhaseX, o.tables[kPhaseTable]}},
               angle);
  angle->components = static_cast<int32_t>(o.count);
}

template <typename Op>
AngleCall angle_call(const Op& o, std::initializer_list<NamedOperand> operands) {
  AngleCall angle;
  angle.single = o.single();
  angle.power = o.power;
  angle.n = angle.rows = o.n;
  angle.samples = o.call.samples();
  set_model(o, &angle);
  set_operands({{kContrast, o.contrast}}, &angle);
  set_operands(operands, &angle);
  return angle;
}

// Tangents [parameters, components, n] of a model of components.
void set_tangents(const Operand (&tangents)[kComponentTables], int64_t parameters,
                  AngleCall* angle) {
  set_operands({{kTablesWeight, tangents[kWeightTable]},
                {kTablesA, tangents[kDecayTable]},
                {kTablesX, tangents[kPhaseTable]}},
               angle);
  angle->tables_a = static_cast<int32_t>(parameters) * kComponentTables * angle->components;
}

void allocate_tables(Scratch& scratch, AngleCall* call) {
  call->angles = scratch.allocate<Angle>({call->samples});
  call->tables = scratch.allocate<double>(
      {call->samples, model_tables(*call) + call->tables_a + call->tables_x, call->n});
}

ffi::Error run_matrix(const OpOperands& o, MatrixOp op, AngleCall angle, const Operand& out,
                      cudaStream_t stream, Scratch& scratch) {
  allocate_tables(scratch, &angle);
  if (!scratch.ok()) return scratch.error(o);
  MatrixCall matrix;
  matrix.angle = angle;
  matrix.out = out.data;
  return status_of(o, launch_matrix(op, matrix, stream));
}

// Of both kinds of models, like run_residual and run_normal.
template <typename Op>
ffi::Error run_g2(const Op& o, cudaStream_t stream, Scratch& scratch) {
  return run_matrix(o, MatrixOp::kG2, angle_call(o, {{kOffset, o.offset}}), o.out, stream, scratch);
}

ffi::Error run(const TwoTimeG2Tangent& o, cudaStream_t stream, Scratch& scratch) {
  AngleCall angle = angle_call(o, {{kTablesA, o.tangent_a},
                                   {kTablesX, o.tangent_x},
                                   {kTangentContrast, o.tangent_contrast},
                                   {kTangentOffset, o.tangent_offset}});
  angle.tables_a = angle.tables_x = 1;
  return run_matrix(o, MatrixOp::kTangent, angle, o.out, stream, scratch);
}

template <typename Op>
ffi::Error run_residual(const Op& o, cudaStream_t stream, Scratch& scratch) {
  AngleCall angle = angle_call(o, {{kOffset, o.offset}, {kData, o.data}, {kSigma, o.sigma}});
  angle.sigma_rank = o.sigma_rank;
  return run_matrix(o, MatrixOp::kResidual, angle, o.out, stream, scratch);
}

ffi::Error run(const TwoTimeG2& o, cudaStream_t stream, Scratch& scratch) {
  return run_g2(o, stream, scratch);
}

ffi::Error run(const ComponentG2& o, cudaStream_t stream, Scratch& scratch) {
  return run_g2(o, stream, scratch);
}

ffi::Error run(const TwoTimeResidual& o, cudaStream_t stream, Scratch& scratch) {
  return run_residual(o, stream, scratch);
}

ffi::Error run(const ComponentResidual& o, cudaStream_t stream, Scratch& scratch) {
  return run_residual(o, stream, scratch);
}

ffi::Error run(const ComponentG2Tangent& o, cudaStream_t stream, Scratch& scratch) {
  AngleCall angle =
      angle_call(o, {{kTangentContrast, o.tangent_contrast}, {kTangentOffset, o.tangent_offset}});
  set_tangents(o.tangents, 1, &angle);
  return run_matrix(o, MatrixOp::kTangent, angle, o.out, stream, scratch);
}

template <typename Op>
ffi::Error run_cotangent(const Op& o, int32_t slopes, std::initializer_list<void*> bars,
                         cudaStream_t stream, Scratch& scratch) {
  CotangentCall work;
  work.angle = angle_call(o, {{kData, o.cotangent}});
  work.slopes = slopes;
  std::copy(bars.begin(), bars.end(), work.bars);
  work.contrast = o.bar_contrast.data;
  work.offset = o.bar_offset.data;
  allocate_tables(scratch, &work.angle);
  work.sums =
      scratch.allocate<double>({work.angle.samples, cotangent_pieces(work), slopes + 2, o.n});
  if (!scratch.ok()) return scratch.error(o);
  return status_of(o, launch_cotangent(work, stream));
}

ffi::Error run(const TwoTimeG2Cotangent& o, cudaStream_t stream, Scratch& scratch) {
  return run_cotangent(o, 2, {o.bar_a.data, o.bar_x.data}, stream, scratch);
}

ffi::Error run(const ComponentG2Cotangent& o, cudaStream_t stream, Scratch& scratch) {
  return run_cotangent(
      o, kComponentTables * static_cast<int32_t>(o.count),
      {o.bars[kWeightTable].data, o.bars[kDecayTable].data, o.bars[kPhaseTable].data}, stream,
      scratch);
}

ffi::Error run(const TwoTimeG2At& o, cudaStream_t stream) {
  if (!o.call.ok()) return o.call.error();
  PointCall points;
  const auto set = [&](PointOperand which, const Operand& operand) {
    points.operands.set(which, operand.data, operand.map);
  };
  set(kPointA, o.a);
  set(kPointX, o.x);
  set(kPointContrast, o.contrast);
  set(kPointOffset, o.offset);
  set(kPointIndex, o.index);
  points.single = o.single();
  points.power = o.power;
  points.n = o.n;
  points.angles = o.angles;
  points.points = o.points;
  points.samples = o.call.samples();
  points.out = o.out.data;
  return status_of(o, launch_points(points, stream));
}

void set_tangents(const TwoTimeNormalEquations& o, AngleCall* angle, Scratch&) {
  set_operands({{kTablesA, o.tangents_a}, {kTablesX, o.tangents_x}}, angle);
  angle->tables_a = o.layout.tables_a;
  angle->tables_x = o.layout.tables_x;
}

void set_tangents(const ComponentNormalEquations& o, AngleCall* angle, Scratch& scratch) {
  set_tangents(o.tangents, o.parameters, angle);
  angle->nonzero = scratch.allocate<int32_t>({angle->samples, 1 + angle->tables_a});
}

template <typename Op>
ffi::Error run_normal(const Op& o, cudaStream_t stream, Scratch& scratch) {
  NormalCall work = {};
  AngleCall& angle = work.angle;
  angle = angle_call(o, {{kOffset, o.offset},
                         {kData, o.data},
                         {kQuantization, o.quantization},
                         {kSigma, o.sigma},
                         {kKeep, o.keep},
                         {kFScale, o.f_scale},
                         {kFirstRow, o.first_row},
                         {kInitial, o.initial}});
  set_tangents(o, &angle, scratch);
  angle.sigma_rank = o.sigma_rank;
  angle.rows = o.rows;
  work.layout = o.layout;
  work.data_type = o.data_type;
  work.loss = o.loss;
  work.symmetric = o.symmetric;
  work.state = o.state.data;
  allocate_tables(scratch, &angle);
  // This cannot overflow: the rows of data exist, and a block has at most kMaxSlices slices.
  const int64_t each = row_blocks(work) * slices_of(o.n) * o.layout.size();
  const int64_t target = kBlocksTarget / static_cast<int64_t>(sizeof(double));
  const int64_t chunk = std::clamp<int64_t>(target / std::max<int64_t>(each, 1), 1,
                                            std::max<int64_t>(angle.samples, 1));
  work.blocks = scratch.allocate<double>({chunk, each});
  if (!scratch.ok()) return scratch.error(o);
  return status_of(o, launch_normal(work, chunk, stream));
}

ffi::Error run(const TwoTimeNormalEquations& o, cudaStream_t stream, Scratch& scratch) {
  return run_normal(o, stream, scratch);
}

ffi::Error run(const ComponentNormalEquations& o, cudaStream_t stream, Scratch& scratch) {
  return run_normal(o, stream, scratch);
}

template <typename Op>
ffi::Error with_scratch(const Op& operands, cudaStream_t stream, ffi::ScratchAllocator allocator) {
  if (!operands.call.ok()) return operands.call.error();
  Scratch scratch(allocator);
  return run(operands, stream, scratch);
}

template <typename Op>
constexpr auto runner() {
  if constexpr (std::is_same_v<TwoTimeG2At, Op>) {
    return static_cast<ffi::Error (*)(const TwoTimeG2At&, cudaStream_t)>(&run);
  } else {
    return &with_scratch<Op>;
  }
}

}  // namespace
}  // namespace jaxkern::xpcs

#define JAXKERN_XPCS_ON_CUDA(name, target) \
  JAXKERN_CUDA_HANDLER(name, jaxkern::xpcs::runner<jaxkern::xpcs::name>())
JAXKERN_XPCS_OPS(JAXKERN_XPCS_ON_CUDA)
