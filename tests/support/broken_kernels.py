"""A small library of kernels, each of which has one fault."""

from __future__ import annotations

import sys
from pathlib import Path

import jaxkern as jk
from support.core.native_library import build

# Each row: the handler's symbol, the dtype, what one sample does. All have x[n] and s[], both with
# batch axes, and a result out[n] that should be x * s.
_KERNELS = {
    "Right": ("float", "ffi::F32", "for (int64_t k = 0; k < n; ++k) out[k] = x[k] * *s;"),
    "SixOnly": (
        "float",
        "ffi::F32",
        "for (int64_t k = 0; k < n; ++k) out[k] = k < 6 ? x[k] * *s : 0;",
    ),
    # Right, with the factors in another order than the twin's: what is 1 / 0 there is 1 / rounding
    # here, where the elements in the middle are the first ones again.
    "Singular": (
        "float",
        "ffi::F32",
        """const float a = x[0] * *s, b = x[1 % n] * *s;
        const float d = n < 6 ? 1 : a * x[n / 2 + 1] - b * x[n / 2];
        for (int64_t k = 0; k < n; ++k) out[k] = *s / d;""",
    ),
    "LateRows": (
        "float",
        "ffi::F32",
        "for (int64_t k = 0; k < n; ++k) out[k] = x[k] * *s + (i == 9000 && k == 1);",
    ),
    # The middle one of three batch axes is left out.
    "TwoAxes": (
        "float",
        "ffi::F32",
        """if (outs.map.rank == 3) ss.map.stride[1] = 0;
        for (int64_t k = 0; k < n; ++k) out[k] = x[k] * *ss.at<float>(i);""",
    ),
    "OffByOne": (
        "int32_t",
        "ffi::S32",
        "for (int64_t k = 0; k < n; ++k) out[k] = x[k] * *s + (k == 1);",
    ),
    "NoImaginary": (
        "std::complex<float>",
        "ffi::C64",
        "for (int64_t k = 0; k < n; ++k) out[k] = (x[k] * *s).real();",
    ),
    "Complex": (
        "std::complex<float>",
        "ffi::C64",
        "for (int64_t k = 0; k < n; ++k) out[k] = x[k] * *s;",
    ),
    # One place for all threads.
    "BetweenSamples": (
        "float",
        "ffi::F32",
        """static volatile float kept;
        for (int64_t k = 0; k < n; ++k) {
          kept = x[k] * *s;
          pause();
          out[k] = kept;
        }""",
    ),
    # The threads of one sample add to one place, and take turns to be lost.
    "WithinSample": (
        "float",
        "ffi::F32",
        """volatile float total = 0;
        std::vector<std::thread> threads;
        for (int t = 0; t < 2; ++t) threads.emplace_back([&, t] {
          for (int64_t k = t; k < 200; k += 2) {
            const float was = total;
            pause();
            total = was + 1;
          }
        });
        for (std::thread& t : threads) t.join();
        for (int64_t k = 0; k < n; ++k) out[k] = x[k] * *s + (total < 0 ? 1 : 1e-7f * total);""",
    ),
    "Unwritten": (
        "float",
        "ffi::F32",
        "for (int64_t k = 0; k + 1 < n; ++k) out[k] = x[k] * *s;",
    ),
}

_HEAD = """
#include <jaxkern/core/ffi.h>
#include <complex>
using namespace jaxkern;

static void pause() { for (volatile int i = 0; i < 100; i = i + 1) {} }
"""

_KERNEL = """
static ffi::Error {name}Impl(ffi::ThreadPool pool, ffi::AnyBuffer x_, ffi::AnyBuffer s_,
                             ffi::Result<ffi::AnyBuffer> out_) {{
  Call call("broken.{name}", *out_, 1);
  const int64_t n = call.ok() ? call.result_size(0) : 0;
  const Operand xs = call.operand("x", x_, {dtype}, {{n}});
  Operand ss = call.operand("s", s_, {dtype}, {{}});
  const Operand outs = call.result("out", *out_, {dtype}, {{n}});
  if (!call.ok()) return call.error();
  parallel_for(executor_of(pool), call.samples(), 1, [&](int64_t begin, int64_t end) {{
    for (int64_t i = begin; i < end; ++i) {{
      const {type}* x = xs.at<{type}>(i);
      [[maybe_unused]] const {type}* s = ss.at<{type}>(i);
      {type}* out = outs.at<{type}>(i);
      {body}
    }}
  }});
  return ffi::Error::Success();
}}
XLA_FFI_DEFINE_HANDLER_SYMBOL({name}, {name}Impl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()    // x [batch..., n]
                                  .Arg<ffi::AnyBuffer>()    // s [batch...]
                                  .Ret<ffi::AnyBuffer>());  // out [batch..., n]
"""

# A handler with attributes, which says its target as those of `add_handler` do.
_ATTRIBUTES = """
static ffi::Error AttributesImpl(ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer>, float, int32_t) {
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER(Bound, AttributesImpl,
                       ffi::Ffi::Bind()
                           .Arg<ffi::AnyBuffer>()  // x, any
                           .Ret<ffi::AnyBuffer>()  // out, any
                           .Attr<float>("eps")     // scalar
                           .Attr<int32_t>("mode"));  // scalar
extern "C" XLA_FFI_Error* Attributes(XLA_FFI_CallFrame* frame) {
  NamedHandler<Bound>::target = "broken.Attributes.v1";
  return NamedHandler<Bound>::call(frame);
}
extern "C" int abi_major() { return XLA_FFI_API_MAJOR; }
extern "C" int abi_minor() { return XLA_FFI_API_MINOR; }
"""


def load(folder: Path) -> None:
    """Builds the kernels and registers them as ``broken.NAME.v1``."""
    kernels = "".join(
        _KERNEL.format(name=name, type=type_, dtype=dtype, body=body)
        for name, (type_, dtype, body) in _KERNELS.items()
    )
    build(
        folder,
        "broken_kernels_library",
        source_text=_HEAD + kernels + _ATTRIBUTES,
        targets={f"broken.{name}.v1": name for name in [*_KERNELS, "Attributes"]},
    )
    sys.path.insert(0, str(folder))
    assert jk.load_library("broken_kernels_library").problem is None
