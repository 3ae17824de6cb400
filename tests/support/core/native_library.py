"""Builds of small handler libraries for tests, like those of another package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import jaxkern as jk

# out[batch..., n] = x[batch..., n] * s[batch...]
SOURCE = r"""
#include <jaxkern/core/ffi.h>
using namespace jaxkern;

template <typename T>
void scale(const Call& call, const Executor& executor, const Operand& x, const Operand& s,
           const Operand& out) {
  const int64_t n = call.result_size(0);
  parallel_for(executor, call.samples(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t k = 0; k < n; ++k) out.at<T>(i)[k] = x.at<T>(i)[k] * *s.at<T>(i);
  });
}

static ffi::Error Impl(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer s,
                       ffi::Result<ffi::AnyBuffer> out) {
  Call call("test.scale", *out, 1);
  const ffi::DataType type = out->element_type();
  const int64_t n = call.ok() ? call.result_size(0) : 0;
  const Operand xs = call.operand("x", x, type, {n});
  const Operand ss = call.operand("s", s, type, {});
  const Operand outs = call.result("out", *out, type, {n});
  if (type != ffi::F32 && type != ffi::F64 && type != ffi::S32) call.fail("dtype");
  if (!call.ok()) return call.error();
  if (type == ffi::F32) scale<float>(call, executor_of(pool), xs, ss, outs);
  if (type == ffi::F64) scale<double>(call, executor_of(pool), xs, ss, outs);
  if (type == ffi::S32) scale<int32_t>(call, executor_of(pool), xs, ss, outs);
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(Scale, Impl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()    // x [batch..., n]
                                  .Arg<ffi::AnyBuffer>()    // s [batch...]
                                  .Ret<ffi::AnyBuffer>());  // out [batch..., n]
extern "C" int abi_major() { return XLA_FFI_API_MAJOR; }
extern "C" int abi_minor() { return XLA_FFI_API_MINOR; }
"""

# The Python side, as an importable module.
MODULE = """
import ctypes, jax
_library = ctypes.CDLL({path!r})
def abi(): return _library.abi_major(), _library.abi_minor()
def registrations():
    return {{t: jax.ffi.pycapsule(getattr(_library, f)) for t, f in {targets!r}.items()}}
"""
TARGETS = {"test.scale.v1": "Scale"}


def build(
    folder: Path,
    name: str,
    minor: int | None = None,
    source_text: str = SOURCE,
    targets: dict[str, str] = TARGETS,
) -> Path:
    """Compiles the library and writes module ``name`` into ``folder``; fakes the FFI's minor.

    ``targets``: the handlers' symbols by the names of their targets.
    """
    headers = Path(jk.get_include())
    if minor is not None:
        headers = Path(shutil.copytree(headers, folder / f"headers-{name}"))
        c_api = headers / "xla" / "ffi" / "api" / "c_api.h"
        text, count = re.subn(r"(#define XLA_FFI_API_MINOR) \d+", rf"\1 {minor}", c_api.read_text())
        assert count == 1
        c_api.chmod(0o644)
        c_api.write_text(text)
    source, library = folder / f"{name}.cc", folder / f"lib{name}.so"
    source.write_text(source_text)
    compiler = os.environ.get("CXX", "g++")
    subprocess.run(
        [
            *(compiler, "-std=c++17", "-O1", "-fPIC", "-shared", "-pthread"),
            *(f"-I{headers}", str(source), "-o", str(library)),
        ],
        check=True,
    )
    (folder / f"{name}.py").write_text(MODULE.format(path=str(library), targets=targets))
    return library
