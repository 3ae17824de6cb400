// The CPU handlers of the XPCS ops: check everything, then run all angles in one parallel loop.
#include "xpcs/handlers.h"

#include <string>
#include <vector>

#include "core/simd_level.h"
#include "xpcs/call.h"
#include "xpcs/cpu.h"

namespace jaxkern::xpcs {
namespace {

void check_simd(Call& call) {
  if (const char* problem = simd_problem()) call.fail(problem);
}

// Shared by the ops whose sample is one angle's matrix.
struct MatrixOperands {
  ffi::DataType real = ffi::F64;
  int64_t n = 0;
  Operand a, x, contrast;
};

MatrixOperands read_angle(Call& call, ffi::AnyBuffer result, ffi::AnyBuffer a, ffi::AnyBuffer x,
                          ffi::AnyBuffer contrast, int32_t power) {
  MatrixOperands o;
  if (call.ok()) o.real = real_dtype(call, result);
  check_power(call, power);
  check_simd(call);
  o.a = call.operand("A", a, o.real, {kAnySize});
  o.n = o.a.core[0];
  check_frames(call, o.n);
  o.x = call.operand("X", x, o.real, {o.n});
  o.contrast = call.operand("contrast", contrast, o.real, {});
  return o;
}

PhaseTables tables_of(const Executor& executor, const Operand& a, const Operand& x, int64_t samples,
                      int64_t n, int32_t power) {
  std::vector<Reals> all_a(samples), all_x(samples);
  for (int64_t i = 0; i < samples; ++i) {
    all_a[i] = reals_at(a, i);
    all_x[i] = reals_at(x, i);
  }
  return PhaseTables(executor, n, power, all_a, all_x);
}

std::vector<MatrixWork> matrix_work(const MatrixOperands& o, const PhaseTables& tables,
                                    int64_t samples) {
  std::vector<MatrixWork> work(samples);
  for (int64_t i = 0; i < samples; ++i) {
    work[i].phases = tables[i];
    work[i].single = o.real == ffi::F32;
    work[i].contrast = real_at(o.contrast, i);
  }
  return work;
}

void write_real(const Operand& operand, int64_t sample, int64_t index, double value) {
  if (operand.dtype == ffi::F32) {
    operand.at<float>(sample)[index] = static_cast<float>(value);
  } else {
    operand.at<double>(sample)[index] = value;
  }
}

ffi::Error G2Impl(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer x, ffi::AnyBuffer contrast,
                  ffi::AnyBuffer offset, ffi::Result<ffi::AnyBuffer> out, int32_t shear_power) {
  Call call("jaxkern.two_time_g2", *out, 2);
  const MatrixOperands o = read_angle(call, *out, a, x, contrast, shear_power);
  const Operand offsets = call.operand("offset", offset, o.real, {});
  const Operand outs = call.result("out", *out, o.real, {o.n, o.n});
  if (!call.ok()) return call.error();
  if (o.n == 0) return ffi::Error::Success();
  advise_results(*out);
  const Executor executor = executor_of(pool);
  const PhaseTables tables = tables_of(executor, o.a, o.x, call.samples(), o.n, shear_power);
  std::vector<MatrixWork> work = matrix_work(o, tables, call.samples());
  for (int64_t i = 0; i < call.samples(); ++i) {
    work[i].offset = real_at(offsets, i);
    work[i].out = outs.at<char>(i);
  }
  matrix(executor, MatrixOp::kG2, work);
  return ffi::Error::Success();
}

ffi::Error G2TangentImpl(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer x,
                         ffi::AnyBuffer contrast, ffi::AnyBuffer tangent_a,
                         ffi::AnyBuffer tangent_x, ffi::AnyBuffer tangent_contrast,
                         ffi::AnyBuffer tangent_offset, ffi::Result<ffi::AnyBuffer> out,
                         int32_t shear_power) {
  Call call("jaxkern.two_time_g2_tangent", *out, 2);
  const MatrixOperands o = read_angle(call, *out, a, x, contrast, shear_power);
  const Operand ta = call.operand("dA", tangent_a, o.real, {o.n});
  const Operand tx = call.operand("dX", tangent_x, o.real, {o.n});
  const Operand tc = call.operand("dcontrast", tangent_contrast, o.real, {});
  const Operand to = call.operand("doffset", tangent_offset, o.real, {});
  const Operand outs = call.result("out", *out, o.real, {o.n, o.n});
  if (!call.ok()) return call.error();
  if (o.n == 0) return ffi::Error::Success();
  advise_results(*out);
  const Executor executor = executor_of(pool);
  const PhaseTables tables = tables_of(executor, o.a, o.x, call.samples(), o.n, shear_power);
  std::vector<MatrixWork> work = matrix_work(o, tables, call.samples());
  std::vector<std::vector<double>> tangents;
  for (int64_t i = 0; i < call.samples(); ++i) {
    tangents.push_back(padded(reals_at(ta, i), 1, o.n));
    work[i].tangent_a = tangents.back().data();
    tangents.push_back(padded(reals_at(tx, i), 1, o.n));
    work[i].tangent_x = tangents.back().data();
    work[i].tangent_contrast = real_at(tc, i);
    work[i].tangent_offset = real_at(to, i);
    work[i].out = outs.at<char>(i);
  }
  matrix(executor, MatrixOp::kTangent, work);
  return ffi::Error::Success();
}

ffi::Error G2CotangentImpl(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer x,
                           ffi::AnyBuffer contrast, ffi::AnyBuffer cotangent,
                           ffi::Result<ffi::AnyBuffer> bar_a, ffi::Result<ffi::AnyBuffer> bar_x,
                           ffi::Result<ffi::AnyBuffer> bar_contrast,
                           ffi::Result<ffi::AnyBuffer> bar_offset, int32_t shear_power) {
  Call call("jaxkern.two_time_g2_cotangent", *bar_a, 1);
  const MatrixOperands o = read_angle(call, *bar_a, a, x, contrast, shear_power);
  const Operand g = call.operand("G", cotangent, o.real, {o.n, o.n});
  const Operand out_a = call.result("A_bar", *bar_a, o.real, {o.n});
  const Operand out_x = call.result("X_bar", *bar_x, o.real, {o.n});
  const Operand out_contrast = call.result("contrast_bar", *bar_contrast, o.real, {});
  const Operand out_offset = call.result("offset_bar", *bar_offset, o.real, {});
  if (!call.ok()) return call.error();
  advise_results(*bar_a, *bar_x, *bar_contrast, *bar_offset);
  const Executor executor = executor_of(pool);
  const int64_t samples = call.samples();
  const PhaseTables tables = tables_of(executor, o.a, o.x, samples, o.n, shear_power);
  std::vector<MatrixWork> work = matrix_work(o, tables, samples);
  std::vector<double> rows(2 * samples * o.n);
  for (int64_t i = 0; i < samples; ++i) {
    work[i].data = g.at<char>(i);
    work[i].phase_a = rows.data() + 2 * i * o.n;
    work[i].phase_x = work[i].phase_a + o.n;
  }
  std::vector<double> scalars(2 * samples);
  matrix(executor, MatrixOp::kCotangent, work, reinterpret_cast<double (*)[2]>(scalars.data()));
  for (int64_t i = 0; i < samples; ++i) {
    for (int64_t k = 0; k < o.n; ++k) {
      write_real(out_a, i, k, work[i].phase_a[k]);
      write_real(out_x, i, k, work[i].phase_x[k]);
    }
    write_real(out_contrast, i, 0, scalars[2 * i]);
    write_real(out_offset, i, 0, scalars[2 * i + 1]);
  }
  return ffi::Error::Success();
}

ffi::Error ResidualImpl(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer x,
                        ffi::AnyBuffer contrast, ffi::AnyBuffer offset, ffi::AnyBuffer data,
                        ffi::AnyBuffer sigma, ffi::Result<ffi::AnyBuffer> out, int32_t shear_power,
                        int32_t sigma_rank) {
  Call call("jaxkern.two_time_residual", *out, 2);
  const MatrixOperands o = read_angle(call, *out, a, x, contrast, shear_power);
  const Operand offsets = call.operand("offset", offset, o.real, {});
  const Operand measured = call.operand("data", data, o.real, {o.n, o.n});
  const Operand sigmas = read_sigma(call, sigma, o.real, sigma_rank, o.n, o.n);
  const Operand outs = call.result("out", *out, o.real, {o.n, o.n});
  if (!call.ok()) return call.error();
  if (o.n == 0) return ffi::Error::Success();
  advise_results(*out);
  const Executor executor = executor_of(pool);
  const PhaseTables tables = tables_of(executor, o.a, o.x, call.samples(), o.n, shear_power);
  std::vector<MatrixWork> work = matrix_work(o, tables, call.samples());
  for (int64_t i = 0; i < call.samples(); ++i) {
    work[i].offset = real_at(offsets, i);
    work[i].data = measured.at<char>(i);
    if (sigma_rank == 2) {
      work[i].sigma_matrix = sigmas.at<char>(i);
    } else {
      work[i].sigma = real_at(sigmas, i);
    }
    work[i].out = outs.at<char>(i);
  }
  matrix(executor, MatrixOp::kResidual, work);
  return ffi::Error::Success();
}

ffi::Error G2AtImpl(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer x,
                    ffi::AnyBuffer contrast, ffi::AnyBuffer offset, ffi::AnyBuffer index,
                    ffi::Result<ffi::AnyBuffer> out, int32_t shear_power) {
  Call call("jaxkern.two_time_g2_at", *out, 1);
  const ffi::DataType real = call.ok() ? real_dtype(call, *out) : ffi::F64;
  check_power(call, shear_power);
  const Operand as = call.operand("A", a, real, {kAnySize});
  const int64_t n = as.core[0];
  const Operand xs = call.operand("X", x, real, {kAnySize, n});
  const int64_t angles = xs.core[0];
  const Operand contrasts = call.operand("contrast", contrast, real, {angles});
  const Operand offsets = call.operand("offset", offset, real, {angles});
  const Operand indices = call.operand("index", index, ffi::S32, {kAnySize, 3});
  const int64_t points = indices.core[0];
  const Operand outs = call.result("out", *out, real, {points});
  if (!call.ok()) return call.error();
  if (points == 0) return ffi::Error::Success();  // however many samples
  advise_results(*out);
  const Executor executor = executor_of(pool);
  for (int64_t i = 0; i < call.samples(); ++i) {
    const PointWork work = {n,
                            angles,
                            shear_power,
                            reals_at(as, i),
                            reals_at(xs, i),
                            reals_at(contrasts, i),
                            reals_at(offsets, i)};
    parallel_for(executor, points, 1024, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        write_real(outs, i, k, point(work, indices.at<int32_t>(i) + 3 * k));
      }
    });
  }
  return ffi::Error::Success();
}

ffi::Error NormalEquationsImpl(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer x,
                               ffi::AnyBuffer tangents_a, ffi::AnyBuffer tangents_x,
                               ffi::AnyBuffer contrast, ffi::AnyBuffer offset, ffi::AnyBuffer data,
                               ffi::AnyBuffer quantization, ffi::AnyBuffer sigma,
                               ffi::AnyBuffer keep, ffi::AnyBuffer f_scale,
                               ffi::AnyBuffer first_row, ffi::AnyBuffer initial,
                               ffi::Result<ffi::AnyBuffer> state, int32_t shear_power, int32_t loss,
                               int32_t symmetric, int32_t sigma_rank) {
  Call call("jaxkern.two_time_normal_equations", *state, 1);
  check_simd(call);
  const NormalOperands o =
      read_normal(call,
                  {a, x, tangents_a, tangents_x, contrast, offset, data, quantization, sigma, keep,
                   f_scale, first_row, initial, *state},
                  {shear_power, loss, symmetric, sigma_rank});
  if (!call.ok()) return call.error();
  const int64_t samples = call.samples(), n = o.n;
  // Taken once: an operand can be a caller's own memory, which another thread writes to.
  std::vector<int32_t> first_rows(samples);
  for (int64_t i = 0; i < samples; ++i) {
    first_rows[i] = *static_cast<const volatile int32_t*>(o.first_row.at<int32_t>(i));
    const int64_t row = first_rows[i];
    if (row < 0 || row > n - o.rows) {
      call.fail("operand 'first_row' is " + std::to_string(row) + " and 'data' has " +
                std::to_string(o.rows) + " rows; wanted 0 to " + std::to_string(n - o.rows));
      return call.error();
    }
  }
  advise_results(*state);
  const Executor executor = executor_of(pool);
  const PhaseTables tables = tables_of(executor, o.a, o.x, samples, n, shear_power);
  std::vector<NormalWork> work(samples);
  std::vector<std::vector<double>> states(samples), angle_tables(samples);
  std::vector<std::vector<int64_t>> kept(samples, std::vector<int64_t>(n + 1));
  std::vector<double*> sums(samples);
  const int32_t size = o.layout.size();
  for (int64_t i = 0; i < samples; ++i) {
    NormalWork& w = work[i];
    w.phases = tables[i];
    w.layout = o.layout;
    angle_tables[i] = padded(reals_at(o.tangents_a, i), o.layout.tables_a, n);
    const std::vector<double> shear = padded(reals_at(o.tangents_x, i), o.layout.tables_x, n);
    angle_tables[i].insert(angle_tables[i].end(), shear.begin(), shear.end());
    w.tables = angle_tables[i].data();
    w.keep = o.keep.at<uint8_t>(i);
    for (int64_t k = 0; k < n; ++k) kept[i][k + 1] = kept[i][k] + (w.keep[k] != 0);
    w.kept = kept[i].data();
    w.contrast = real_at(o.contrast, i);
    w.offset = real_at(o.offset, i);
    w.first_row = first_rows[i];
    w.rows = o.rows;
    w.data = o.data.at<char>(i);
    w.data_type = o.data_type;
    w.step = reals_at(o.quantization, i)[0];
    w.zero = reals_at(o.quantization, i)[1];
    if (sigma_rank == 2) {
      w.sigma_matrix = reals_at(o.sigma, i);
    } else {
      w.sigma = real_at(o.sigma, i);
    }
    w.loss = static_cast<Loss>(loss);
    w.f_scale = real_at(o.f_scale, i);
    w.symmetric = static_cast<Symmetric>(symmetric);
    states[i].resize(size);
    for (int32_t k = 0; k < size; ++k) states[i][k] = reals_at(o.initial, i)[k];
    sums[i] = states[i].data();
  }
  normal_equations(executor, work, sums);
  for (int64_t i = 0; i < samples; ++i) {
    for (int32_t k = 0; k < size; ++k) write_real(o.state, i, k, states[i][k]);
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jaxkern::xpcs

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernTwoTimeG2Cpu, jaxkern::xpcs::G2Impl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()           // A [batch..., n]
                                  .Arg<ffi::AnyBuffer>()           // X [batch..., n]
                                  .Arg<ffi::AnyBuffer>()           // contrast [batch...]
                                  .Arg<ffi::AnyBuffer>()           // offset [batch...]
                                  .Ret<ffi::AnyBuffer>()           // out [batch..., n, n]
                                  .Attr<int32_t>("shear_power"));  // scalar

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernTwoTimeG2TangentCpu, jaxkern::xpcs::G2TangentImpl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()           // A [batch..., n]
                                  .Arg<ffi::AnyBuffer>()           // X [batch..., n]
                                  .Arg<ffi::AnyBuffer>()           // contrast [batch...]
                                  .Arg<ffi::AnyBuffer>()           // dA [batch..., n]
                                  .Arg<ffi::AnyBuffer>()           // dX [batch..., n]
                                  .Arg<ffi::AnyBuffer>()           // dcontrast [batch...]
                                  .Arg<ffi::AnyBuffer>()           // doffset [batch...]
                                  .Ret<ffi::AnyBuffer>()           // out [batch..., n, n]
                                  .Attr<int32_t>("shear_power"));  // scalar

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernTwoTimeG2CotangentCpu, jaxkern::xpcs::G2CotangentImpl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()           // A [batch..., n]
                                  .Arg<ffi::AnyBuffer>()           // X [batch..., n]
                                  .Arg<ffi::AnyBuffer>()           // contrast [batch...]
                                  .Arg<ffi::AnyBuffer>()           // G [batch..., n, n]
                                  .Ret<ffi::AnyBuffer>()           // A_bar [batch..., n]
                                  .Ret<ffi::AnyBuffer>()           // X_bar [batch..., n]
                                  .Ret<ffi::AnyBuffer>()           // contrast_bar [batch...]
                                  .Ret<ffi::AnyBuffer>()           // offset_bar [batch...]
                                  .Attr<int32_t>("shear_power"));  // scalar

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernTwoTimeResidualCpu, jaxkern::xpcs::ResidualImpl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()  // A [batch..., n]
                                  .Arg<ffi::AnyBuffer>()  // X [batch..., n]
                                  .Arg<ffi::AnyBuffer>()  // contrast [batch...]
                                  .Arg<ffi::AnyBuffer>()  // offset [batch...]
                                  .Arg<ffi::AnyBuffer>()  // data [batch..., n, n]
                                  .Arg<ffi::AnyBuffer>()  // sigma [batch...] or [batch..., n, n]
                                  .Ret<ffi::AnyBuffer>()  // out [batch..., n, n]
                                  .Attr<int32_t>("shear_power")   // scalar
                                  .Attr<int32_t>("sigma_rank"));  // scalar: 0 or 2

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernTwoTimeG2AtCpu, jaxkern::xpcs::G2AtImpl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()           // A [batch..., n]
                                  .Arg<ffi::AnyBuffer>()           // X [batch..., m, n]
                                  .Arg<ffi::AnyBuffer>()           // contrast [batch..., m]
                                  .Arg<ffi::AnyBuffer>()           // offset [batch..., m]
                                  .Arg<ffi::AnyBuffer>()           // index i32 [batch..., k, 3]
                                  .Ret<ffi::AnyBuffer>()           // out [batch..., k]
                                  .Attr<int32_t>("shear_power"));  // scalar

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxkernTwoTimeNormalEquationsCpu, jaxkern::xpcs::NormalEquationsImpl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
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
