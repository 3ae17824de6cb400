// The CPU handlers of the correlators' ops: run what operands.h has checked over all samples.
#include <string>

#include "core/handler.h"
#include "core/simd_dispatch.h"
#include "correlators/operands.h"
#include "correlators/ops.h"

namespace jaxkern::correlators {
namespace {

ffi::Error run(const Executor& executor, const MultiTauUpdate& op) {
  Call call = op.call;
  for (int64_t i = 0; call.ok() && op.work.items() != 0 && i < call.samples(); ++i) {
    const int32_t seen = *op.seen.at<int32_t>(i);
    if (seen < 0) {
      call.fail("operand 'seen' is " + std::to_string(seen) + "; wanted 0 or more frames");
    }
  }
  if (call.ok()) update_states(executor, op.work);
  return call.error();
}

template <typename Op>
ffi::Error on_cpu(const Op& op, ffi::ThreadPool pool) {
  Call call = op.call;
  if (const char* problem = simd_problem()) call.fail(problem);
  if (!call.ok()) return call.error();
  for (const ffi::AnyBuffer& result : op.results) advise_results(result);
  return run(executor_of(pool), op);
}

}  // namespace
}  // namespace jaxkern::correlators

#define JAXKERN_ON_CPU(name, target) \
  JAXKERN_CPU_HANDLER(name, jaxkern::correlators::on_cpu<jaxkern::correlators::name>)
JAXKERN_CORRELATORS_OPS(JAXKERN_ON_CPU)
