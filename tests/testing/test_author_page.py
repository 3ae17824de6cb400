"""Would catch C++ code or commands in the guide for op authors that do not work."""

import os
import re
import shutil
import subprocess
import tomllib

from support.pages import ROOT, blocks

import jaxkern as jk

EXAMPLE = ROOT / "examples" / "my_op"


def test_the_handler_of_the_page_compiles(tmp_path):
    (block,) = blocks(ROOT / "docs" / "how-to" / "write-an-op.md", "cpp")
    source = tmp_path / "handler.cc"
    source.write_text(
        "#include <jaxkern/core/ffi.h>\nusing namespace jaxkern;\n"
        f"{block.text}"
        "XLA_FFI_DEFINE_HANDLER(Bound, LookUp, ffi::Ffi::Bind().Ctx<ffi::ThreadPool>()"
        ".Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());\n"
        "XLA_FFI_Handler* used() { return &NamedHandler<Bound>::call; }\n"
    )
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    assert compiler is not None
    subprocess.run(
        [compiler, "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
         "-isystem", jk.get_include(), source],
        check=True,
    )  # fmt: skip


def test_the_example_installs_neither_another_jaxkern_nor_another_jaxlib():
    """`jaxkern` on the package index is another project, and a pinned jaxlib breaks JAX."""
    settings = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    project = settings["project"]
    named = [
        *settings["build-system"]["requires"],
        *project["dependencies"],
        *(x for extra in project["optional-dependencies"].values() for x in extra),
    ]
    assert {re.split(r"[^\w-]", name)[0] for name in named}.isdisjoint({"jaxkern", "jaxlib"})
    commands = [
        line
        for page in (EXAMPLE / "README.md", ROOT / "docs" / "development" / "index.md")
        for block in blocks(page, "sh")
        for line in block.text.splitlines()
        if line.startswith("pip install")
    ]
    assert commands
    for line in commands:
        assert not re.search(r"jaxlib|\bjaxkern\b(?!-)", line)


def test_the_sources_of_the_example_are_not_importable_from_its_folder():
    assert not list(EXAMPLE.glob("*/__init__.py"))
    assert (EXAMPLE / "src" / "my_op" / "__init__.py").exists()
