// RMS normalization and its derivative as two XLA custom calls.
//
//   y    = scale x r           with r = 1 / sqrt(mean(x^2) + eps)
//   A v  = r v - x r^3 (x . v) / n   the derivative of x r along v; A is symmetric
#include <jaxkern/core/ffi.h>
#include <jaxkern/core/module.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace nb = nanobind;
namespace ffi = xla::ffi;
using jaxkern::add_handler;
using jaxkern::Call;
using jaxkern::Operand;

namespace {

// The arithmetic of one row: pointers and sizes, no FFI types.

double dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

double reciprocal_rms(const float* x, int64_t n, double eps) {
  return 1 / std::sqrt(dot(x, x, n) / static_cast<double>(n) + eps);
}

void rms_norm(const float* x, const float* scale, int64_t n, double eps, float* y) {
  const double r = reciprocal_rms(x, n, eps);
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(scale[i] * (x[i] * r));
}

void rms_norm_tangent(const float* x, const float* v, int64_t n, double eps, float* out) {
  const double r = reciprocal_rms(x, n, eps);
  const double along = r * r * r * dot(x, v, n) / static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(r * v[i] - along * x[i]);
}

using Row = void (*)(const float*, const float*, int64_t, double, float*);

// A handler checks its buffers and calls the arithmetic. Every operand may be broadcast along any
// batch axis: `at` finds the part of a sample.
template <Row row>
ffi::Error run(const char* op, const char* second_name, ffi::ThreadPool pool, ffi::AnyBuffer x,
               ffi::AnyBuffer second, ffi::Result<ffi::AnyBuffer> out, float eps) {
  Call call(op, *out, /*core_rank=*/1);
  const int64_t n = call.result_size(0);
  const Operand xs = call.operand("x", x, ffi::F32, {n});
  const Operand seconds = call.operand(second_name, second, ffi::F32, {n});
  const Operand outs = call.result("out", *out, ffi::F32, {n});
  if (!(eps >= 0)) call.fail("attribute 'eps'", "0 or more", std::to_string(eps));
  if (!call.ok()) return call.error();
  jaxkern::advise_results(*out);
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(n, 1));
  jaxkern::parallel_for(jaxkern::executor_of(pool), call.samples(), grain,
                        [&](int64_t begin, int64_t end) {
                          for (int64_t i = begin; i < end; ++i) {
                            row(xs.at<float>(i), seconds.at<float>(i), n, eps, outs.at<float>(i));
                          }
                        });
  return ffi::Error::Success();
}

ffi::Error rms_norm_impl(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer scale,
                         ffi::Result<ffi::AnyBuffer> out, float eps) {
  return run<rms_norm>("my_op.rms_norm", "scale", pool, x, scale, out, eps);
}

ffi::Error rms_norm_tangent_impl(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer v,
                                 ffi::Result<ffi::AnyBuffer> out, float eps) {
  return run<rms_norm_tangent>("my_op.rms_norm_tangent", "v", pool, x, v, out, eps);
}

XLA_FFI_DEFINE_HANDLER(RmsNorm, rms_norm_impl,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()  // x f32 [batch..., n]
                           .Arg<ffi::AnyBuffer>()  // scale f32 [batch..., n]
                           .Ret<ffi::AnyBuffer>()  // out f32 [batch..., n]
                           .Attr<float>("eps"));   // scalar

XLA_FFI_DEFINE_HANDLER(RmsNormTangent, rms_norm_tangent_impl,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()  // x f32 [batch..., n]
                           .Arg<ffi::AnyBuffer>()  // v f32 [batch..., n]
                           .Ret<ffi::AnyBuffer>()  // out f32 [batch..., n]
                           .Attr<float>("eps"));   // scalar

nb::dict registrations() {
  nb::dict table;
  add_handler<RmsNorm>(table, "my_op.rms_norm.v1");
  add_handler<RmsNormTangent>(table, "my_op.rms_norm_tangent.v1");
  return table;
}

}  // namespace

// What jaxkern.load_library asks of a module: its targets, and the FFI version it was built with.
NB_MODULE(_cpu, m) {
  m.def("registrations", &registrations);
  jaxkern::define_abi(m);
}
