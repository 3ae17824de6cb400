"""The installed package is complete and is the one under test.

Catches: tests that import the source tree and so pass without a native module; a wheel without its
headers, type marker or stub; a build against headers newer than the oldest supported jaxlib's; a
native module that drags in libpython, the CUDA runtime or another library that users lack.
"""

import ast
import importlib
import importlib.metadata
import os
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxkern
from jaxkern.core import registry

PACKAGE = Path(jaxkern.__path__[-1])


def test_package_under_test_is_the_installed_one():
    if not os.environ.get("JAXKERN_REQUIRE"):
        pytest.skip("JAXKERN_REQUIRE is not set: any copy of the package may be under test")
    assert jaxkern.__file__ is not None
    assert "site-packages" in Path(jaxkern.__file__).parts
    assert importlib.metadata.version("jaxkern-native") == jaxkern.__version__


def test_extension_headers_marker_and_stub_are_there():
    headers = {p.name for p in (PACKAGE / "include" / "jaxkern" / "core").iterdir()}
    assert headers >= {"ffi.h", "huge_pages.h", "platform.h", "module.h", "batch.h", "parallel.h"}
    assert (PACKAGE / "py.typed").exists()
    tree = ast.parse((PACKAGE / "_cpu.pyi").read_text())
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert functions >= {"abi", "registrations", "simd_level", "simd_levels"}
    assert all(node.returns is not None for node in tree.body if isinstance(node, ast.FunctionDef))


def test_headers_stand_alone():
    """Headers that installed headers include with quotes are installed too."""
    folder = PACKAGE / "include" / "jaxkern" / "core"
    for header in folder.iterdir():
        for line in header.read_text().splitlines():
            if line.startswith('#include "') and "xla/" not in line:
                assert (folder / line.split('"')[1]).exists(), f"{header.name}: {line}"


def test_abi_is_the_oldest_supported_one():
    native = registry.module("cpu")
    assert native is not None
    assert native.abi() == (0, 3)  # of jaxlib 0.10.0
    assert native.abi() <= registry.running_abi()


def test_native_kernel_runs():
    x, partner = (np.full((2, 3, 5, 3), v, np.float32) for v in (1.0, 3.0))
    mix = jax.ffi.ffi_call("jaxkern.image_mix.v1", jax.ShapeDtypeStruct(x.shape, x.dtype))
    with jax.default_device(jax.devices("cpu")[0]):
        no_box = jnp.zeros((2, 4), jnp.int32)
        mixed = mix(x, partner, jnp.full(2, 0.25), no_box, layout=np.int32(0))
    # Blended everywhere: lam x + (1 - lam) partner.
    np.testing.assert_allclose(mixed, np.full(x.shape, 2.5, np.float32), rtol=1e-6)


def test_native_module_needs_only_system_libraries():
    libraries = _needed(next(PACKAGE.glob("_cpu*.so")))
    allowed = (
        "libstdc++.so",
        "libm.so",
        "libgcc_s.so",
        "libc.so",
        "libpthread.so",
        "libdl.so",
        "ld-linux",
    )
    assert libraries
    assert [name for name in libraries if not name.startswith(allowed)] == []


def test_licences_of_all_that_is_bundled():
    files = importlib.metadata.files("jaxkern-native") or []
    licences = {path.name: path.read_text() for path in files if path.name.startswith("LICENSE")}
    phrases = {
        "LICENSE": "The jaxkern authors",
        "LICENSE-libjpeg-turbo": "based in part on the work of the Independent JPEG Group",
        "LICENSE-nanobind": "Wenzel Jakob",
        "LICENSE-robin-map": "Thibaut Goetghebuer-Planchon",
        "LICENSE-xla": "Apache License",
    }
    if list(PACKAGE.glob("_cuda*.so")):
        phrases["LICENSE-cuda-runtime"] = "NVIDIA"
    assert {name for name, text in licences.items() if phrases.get(name, name) in text} == set(
        phrases
    )


def test_index_page_has_no_relative_links():
    description = str(importlib.metadata.metadata("jaxkern-native").get_payload())
    assert description.startswith("# jaxkern")
    assert re.findall(r"\]\((?!https://)[^)]*\)", description) == []


def test_cuda_module_carries_its_runtime():
    found = list(PACKAGE.glob("_cuda*.so"))
    if not found:
        pytest.skip("this wheel was built without a CUDA compiler")
    # libcuda is part of the driver and opened at run time, so the module loads without a driver.
    names = _needed(found[0])
    assert [n for n in names if n.startswith(("libcudart", "libcuda.so", "libnv"))] == []


def test_cuda_module_has_machine_code_and_ptx():
    found = list(PACKAGE.glob("_cuda*.so"))
    if not found:
        pytest.skip("this wheel was built without a CUDA compiler")
    native = importlib.import_module("jaxkern._cuda")
    promised = {tuple(name.split("_")) for name in native.architectures()}
    assert {kind for kind, _ in promised} == {"sm", "compute"}
    assert _device_code(found[0]) == promised


def test_stable_abi_from_3_12_on():
    suffixes = [p.name.split(".", 1)[1] for p in PACKAGE.glob("_cpu*.so")]
    free_threaded = hasattr(sys, "_is_gil_enabled") and "t" in sys.abiflags
    assert len(suffixes) == 1
    assert (suffixes[0] == "abi3.so") == (sys.version_info >= (3, 12) and not free_threaded)


def _needed(path: Path) -> list[str]:
    """Return DT_NEEDED of a 64-bit ELF file, without binutils, which may not be installed."""
    data = path.read_bytes()
    assert data[:5] == b"\x7fELF\x02", f"{path}: expected a 64-bit ELF file"

    def number(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], "little")

    programs, size, count = number(32, 8), number(54, 2), number(56, 2)
    headers = [programs + i * size for i in range(count)]
    # (virtual address, file offset, size) of PT_LOAD, and the file offset of PT_DYNAMIC.
    loads = [
        (number(h + 16, 8), number(h + 8, 8), number(h + 32, 8))
        for h in headers
        if number(h, 4) == 1
    ]
    dynamic = next(number(h + 8, 8) for h in headers if number(h, 4) == 2)
    entries = []
    while (tag := number(dynamic, 8)) != 0:
        entries.append((tag, number(dynamic + 8, 8)))
        dynamic += 16
    table = next(value for tag, value in entries if tag == 5)  # DT_STRTAB, a virtual address
    strings = next(o + table - a for a, o, n in loads if a <= table < a + n)
    names = [strings + value for tag, value in entries if tag == 1]  # DT_NEEDED
    return [data[at : data.index(b"\0", at)].decode() for at in names]


def _device_code(path: Path) -> set[tuple[str, str]]:
    """Return ("sm", "90") for machine code and ("compute", "90") for PTX in fat binaries."""
    data, code = path.read_bytes(), set()
    magic = (0xBA55ED50).to_bytes(4, "little") + (1).to_bytes(2, "little")
    at = data.find(magic)
    while at >= 0:
        size = int.from_bytes(data[at + 8 : at + 16], "little")
        entry, end = at + 16, at + 16 + size
        while entry < end:
            # kind u16 (1 PTX, 2 ELF), u16, header bytes u32, payload bytes u64, ..., architecture
            # u32 at 28.
            kind = int.from_bytes(data[entry : entry + 2], "little")
            header = int.from_bytes(data[entry + 4 : entry + 8], "little")
            payload = int.from_bytes(data[entry + 8 : entry + 16], "little")
            chip = int.from_bytes(data[entry + 28 : entry + 32], "little")
            code.add(({1: "compute", 2: "sm"}[kind], str(chip)))
            entry += header + payload
        at = data.find(magic, end)
    return code
