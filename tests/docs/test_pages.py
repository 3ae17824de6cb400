"""Would catch a code block of the README or the documentation that does not run.

A page's Python blocks run from top to bottom in one namespace, as a reader would type them.
"""

from __future__ import annotations

import contextlib
import fnmatch
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import jax
import pytest
from support.core.short_probes import shorten
from support.pages import BEFORE, PAGES, ROOT, SHOWN, blocks
from support.programs import no_compilation_cache

from jaxkern.cli import main
from jaxkern.cli.commands import cli

PYTHON = [page for page in PAGES if blocks(page, "python")]
# For a pytest process that is not a worker of this one.
_OUTSIDE_PYTEST = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
COMMANDS = [page for page in PAGES if blocks(page, "sh")]


@pytest.fixture(autouse=True)
def short_probes(tmp_path, monkeypatch):
    """Shorten the measurements of machine speed, and use a temporary cache."""
    shorten(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def default_device():
    """Restore the default device, which the page on devices changes."""
    before = jax.config.jax_default_device
    yield
    jax.config.update("jax_default_device", before)


@pytest.fixture
def compiled_here(page):
    """Traces show the scopes of programs that are compiled, not loaded from the cache."""
    traced = "trace(" in page.read_text()
    with no_compilation_cache() if traced else contextlib.nullcontext():
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("default_device", "compiled_here")
@pytest.mark.parametrize("page", PYTHON, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    before = BEFORE.get(page.name, {})
    for number, block in enumerate(blocks(page, "python")):
        exec(before.get(number, ""), names)
        if block.here:
            # Keep the line numbers of the page.
            text = "\n" * (block.line - 1) + block.text
            exec(compile(text, str(page), "exec"), names)
    shown = capsys.readouterr().out
    for part in SHOWN.get(page.name, []):
        assert part in shown


def parse(arguments):
    """Parse a command line without running it; raises click.UsageError."""
    command: click.Command = cli
    while isinstance(command, click.Group):
        command, arguments = command.commands[arguments[0]], arguments[1:]
    command.make_context(command.name, list(arguments))


@pytest.mark.slow
@pytest.mark.parametrize("page", COMMANDS, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_run(page, tmp_path, monkeypatch):
    """Run `python -m jaxkern`; check that targets of make exist. CI runs the commands of pip.

    Lines of `jaxkern` are only parsed: tests/cli runs these commands.
    """
    monkeypatch.chdir(tmp_path)
    for block in blocks(page, "sh"):
        if not block.here:
            continue
        for line in block.text.splitlines():
            command = line.split("#")[0].split()
            if not command:
                continue
            folder, process = tmp_path, [sys.executable, *command[1:]]
            if command[0] == "make":
                folder, process = ROOT, ["make", "-n", *command[1:]]
            elif command[:4] == ["python", "-m", "jaxkern", "xpcs"]:
                # The function that `python -m jaxkern` calls; tests/cli starts the process.
                assert main(command[3:]) == 0, line
                if (settings := tmp_path / "config.yaml").exists():  # with smaller data
                    text = settings.read_text().replace("frames: 400 ", "frames: 200 ")
                    settings.write_text(text.replace("noise: 0.02 ", "noise: 0.002 "))
                continue
            elif command[0] == "jaxkern":
                for script in fnmatch.filter(command, "*.py"):
                    Path(script).touch()
                parse(command[1:])
                continue
            elif command[0] == "pytest":
                # Collect only; comparing without saved timings is a warning.
                tests = ROOT / "tests" / "benchmarking" / "test_marked_ops.py"
                options = ["-p", "no:cacheprovider", "-W", "ignore", "--collect-only", "-q"]
                where = ["-c", ROOT / "pyproject.toml", "--rootdir", ROOT / "tests", tests]
                process = [sys.executable, "-P", "-m", *command, *options, *where]
            elif command[:3] != ["python", "-m", "jaxkern"]:
                assert command[0] == "pip", f"{page.name}: unknown command {line!r}"
                continue
            # In a new process, since `doctor` would list the ops of other tests.
            done = subprocess.run(
                process, cwd=folder, env=_OUTSIDE_PYTEST, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def test_the_cpp_block_compiles(tmp_path):
    (block,) = blocks(ROOT / "docs" / "how-to" / "use-a-ring.md", "cpp")
    source = tmp_path / "producer.cc"
    source.write_text(
        '#include <memory>\n#include <utility>\n#include "ring/ring.h"\n'
        "using namespace jaxkern::ring;\nvoid fill(int64_t, void*, void*);\n"
        f"void produce(std::shared_ptr<Ring> ring) {{\n{block.text}}}\n"
    )
    compiler = shutil.which("g++") or shutil.which("c++")
    assert compiler is not None
    subprocess.run(
        [compiler, "-std=c++17", "-fsyntax-only", "-I", ROOT / "csrc", source], check=True
    )


def test_every_block_is_known():
    """Blocks in other languages, and indented blocks of code, would not be tested."""
    for page in PAGES:
        fenceless = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        indented = re.findall(
            r"\n\n {4}((?:jaxkern|python|pip|pytest|make|import|from) .*)", fenceless
        )
        assert not indented, f"{page.name} has {indented} outside a fence"
        tested = {"python", "sh", "cpp"}
        languages = set(re.findall(r"^```(\w+)\n", Path(page).read_text(), re.MULTILINE))
        unknown = languages - tested - {"text"}  # diagrams
        assert not unknown, f"{page.name} has blocks in {unknown}"


def test_files_named_by_the_page_on_development_exist():
    text = "".join(page.read_text() for page in (ROOT / "docs" / "development").glob("*.md"))
    named = set(re.findall(r"(?<![\w/-])\w[\w/-]*\.(?:py|cc|h|cu|md)\b", text))
    folders = ("jaxkern", "csrc", "tests", "docs", "benchmarks", "examples")
    existing = [str(file) for folder in folders for file in (ROOT / folder).rglob("*.*")]
    missing = [name for name in named if not any(f.endswith("/" + name) for f in existing)]
    assert len(named) > 40
    assert not missing


def test_links_of_pages_outside_of_docs():
    """Sphinx checks the links within docs/."""
    for page in [*ROOT.glob("*.md"), *(ROOT / "examples").rglob("README.md")]:
        links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        missing = [link for link in links if not (page.parent / link).exists()]
        assert not missing, f"{page.name} links to {missing}"


def test_public_names_have_examples():
    """An example of a class may be that of one of its methods; names without one are few."""
    conf = (ROOT / "docs" / "conf.py").read_text()
    modules = re.findall(r'^    "(jaxkern[\w.]*)": "', conf, re.MULTILINE)
    assert len(modules) > 10
    without = set()
    for module in map(importlib.import_module, modules):
        for value in map(vars(module).get, module.__all__):
            texts = [value, *(vars(value).values() if isinstance(value, type) else ())]
            if callable(value) and not any(">>>" in (x.__doc__ or "") for x in texts):
                without.add(f"{value.__module__}.{value.__qualname__}")
    assert len(without) <= 20, sorted(without)
