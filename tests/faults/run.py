"""Puts small faults into the sources, one at a time, and shows that `make test` catches each.

`make faults` runs it: each fault of faults.toml replaces a few lines in a copy of the tree, which
is built where they are C++, and the tests of the fault's package run until the first fails. A fault
that no test catches is an error, and so is a test that fails without any.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "faults"
TREE = WORK / "tree"
# Beyond it a fault's tests hang, which nobody would overlook.
LONGEST = 900.0
NATIVE = {".h", ".cc"}


@dataclasses.dataclass(frozen=True)
class Fault:
    """A few lines of a file that are replaced by others.

    Attributes:
      name: says what is wrong.
      file: from the root of the tree.
      before, after: `before` is in the file once.
      tests: below tests/, of the package.
    """

    name: str
    file: str
    before: str
    after: str
    tests: str

    def applied(self, text: str) -> str:
        """The file's text with the fault; ValueError where it does not hold `before` once."""
        found = text.count(self.before)
        if found != 1:
            raise ValueError(
                f"{self.file} holds the lines of {self.name!r} {found} times; wanted 1"
            )
        return text.replace(self.before, self.after)


def all_faults() -> list[Fault]:
    with open(Path(__file__).with_name("faults.toml"), "rb") as file:
        found = [Fault(**fault) for fault in tomllib.load(file)["fault"]]
    for fault in found:
        fault.applied((ROOT / fault.file).read_text())
    return found


def copy_tree() -> None:
    """Tracked files and new ones; those that are as before keep their time for the build."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    wanted = {name for name in names if name and (ROOT / name).exists()}
    for old in [path for path in TREE.rglob("*") if path.is_file()]:
        name = str(old.relative_to(TREE))
        if name not in wanted and "_cpu" not in old.name:
            old.unlink()
    for name in wanted:
        source, copy = ROOT / name, TREE / name
        if copy.exists() and copy.read_bytes() == source.read_bytes():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, copy)


def build() -> None:
    """The CPU module of the copy, in its place."""
    build = WORK / "native"
    tools = {"env": {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}}
    if not (build / "build.ninja").exists():
        subprocess.run(
            ["cmake", "-S", TREE, "-B", build, "-G", "Ninja", "-DJAXKERN_CUDA=OFF",
             f"-DPython_EXECUTABLE={sys.executable}"],
            check=True, stdout=subprocess.DEVNULL, **tools,
        )  # fmt: skip
    subprocess.run(["cmake", "--build", build], check=True, stdout=subprocess.DEVNULL, **tools)
    (module,) = build.glob("_cpu*.so")
    shutil.copy(module, TREE / "jaxkern")
    headers = TREE / "jaxkern" / "include" / "jaxkern" / "core"
    headers.mkdir(parents=True, exist_ok=True)
    for header in (TREE / "csrc" / "core").glob("*.h"):
        shutil.copy(header, headers)


def failing_test(tests: str) -> str | None:
    """The first test that fails; None where all pass."""
    # From elsewhere, so that only the copy is importable.
    outside = WORK / "outside"
    outside.mkdir(exist_ok=True)
    command = [
        sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider",
        "-c", TREE / "pyproject.toml", "--rootdir", TREE / "tests",
        *(TREE / "tests" / name for name in tests.split()),
    ]  # fmt: skip
    own = {"PYTHONPATH": str(TREE), "PYTHONSAFEPATH": "1", "JAXKERN_REQUIRE": "cpu"}
    try:
        ran = subprocess.run(
            command, cwd=outside, env={**os.environ, **own}, timeout=LONGEST,
            capture_output=True, text=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "the tests hang"
    if ran.returncode == 0:
        return None
    named = re.search(r"^(?:FAILED|ERROR) (.*)", ran.stdout, re.MULTILINE)
    # 2: stopped at the first failure. Otherwise nothing was tested, or pytest itself failed.
    if ran.returncode not in (1, 2) or named is None:
        crashed = re.search(r"worker 'gw\d+' crashed while running '(.*)'", ran.stdout)
        if crashed is None:
            said = ran.stdout[-3000:] + ran.stderr[-2000:]
            sys.exit(f"pytest {tests} ended with {ran.returncode}:\n{said}")
        return f"{crashed[1]} (the process dies)"
    return named[1].split(" - ")[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="parts of the names of the faults to try")
    parser.add_argument("--list", action="store_true", help="list them and try none")
    parser.add_argument(
        "--faults-only", action="store_true", help="without the tests of the sound tree before"
    )
    options = parser.parse_args()
    faults = [
        f for f in all_faults() if not options.only or any(part in f.name for part in options.only)
    ]
    if options.list or not faults:
        print("\n".join(f"{fault.tests:<14} {fault.name}" for fault in faults) or "none such")
        return 0 if faults else 1
    copy_tree()
    build()
    if not options.faults_only:
        for tests in sorted({fault.tests for fault in faults}):
            if failed := failing_test(tests):
                print(f"{failed} fails without any fault")
                return 1
    survived = []
    for number, fault in enumerate(faults, 1):
        start, path = time.monotonic(), TREE / fault.file
        native = path.suffix in NATIVE
        sound = path.read_text()
        path.write_text(fault.applied(sound))
        try:
            if native:
                build()
            failed = failing_test(fault.tests)
        finally:
            path.write_text(sound)
            if native:
                build()
        if failed is None:
            survived.append(fault.name)
        print(
            f"{number:>3}/{len(faults)} {time.monotonic() - start:4.0f} s  {fault.name}: "
            f"{'caught by ' + failed if failed else 'NOT CAUGHT'}",
            flush=True,
        )
    print(f"{len(faults) - len(survived)} of {len(faults)} faults are caught")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
