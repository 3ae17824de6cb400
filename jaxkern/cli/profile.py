"""``profile SCRIPT``: runs a script under JAX's profiler and tells where its time went."""

from __future__ import annotations

import argparse
import atexit
import concurrent.futures
import contextlib
import gc
import io
import os
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jaxkern.cli.output import print_json, print_table


def add_parser(commands: Any) -> None:
    about = "run a script and tell which operations of its compiled programs took how long"
    parser = commands.add_parser("profile", help=about, description=about)
    parser.add_argument(
        "--output-dir",
        type=Path,
        metavar="DIR",
        help="by default ./benchmark-results/profile-SCRIPT",
    )
    parser.add_argument("--top", type=int, default=15, metavar="N", help="rows of the table")
    parser.add_argument("--python", action="store_true", help="record every Python call too")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the longest operations")
    parser.add_argument(
        "--json", action="store_true", help="print JSON; the script's own output goes to stderr"
    )
    parser.add_argument("script", type=Path)
    rest = parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    rest.required = False  # argparse would name it beside a script that is missing


def run(chosen: argparse.Namespace) -> int:
    from jaxkern.benchmarking.saved import DIRECTORY
    from jaxkern.benchmarking.tracing import trace
    from jaxkern.core.client import start_backend
    from jaxkern.core.compile_clock import CompileClock

    script: Path = chosen.script
    if not script.is_file():
        raise FileNotFoundError(f"there is no script {script}")
    if chosen.top < 1:
        raise ValueError(f"--top is {chosen.top}; wanted 1 or more")
    # The script may change the working directory.
    folder = (chosen.output_dir or DIRECTORY / f"profile-{script.stem}").absolute()
    plot = chosen.plot.absolute() if chosen.plot is not None else None
    start_backend()
    wait = _waiting()
    shown = _stdout_to_stderr() if chosen.json else contextlib.nullcontext()
    # The script's daemons may print until the profile is read.
    with shown, trace(folder, top=0, python=chosen.python) as recorded, CompileClock() as compiling:
        started = time.perf_counter()
        code = _execute(script, chosen.arguments, wait)
        wall = time.perf_counter() - started
    recorded.ops = [
        op for op in recorded.ops if op.program != f"jit_{jaxkern_profile_end.__name__}"
    ]
    shares = {
        "wall_seconds": wall,
        "compile_seconds": compiling.seconds,
        "op_seconds": recorded.seconds,
    }
    if plot is not None and recorded.ops:
        longest = recorded.ops[: chosen.top]
        from jaxkern.benchmarking.plots import bar_chart

        bar_chart(
            plot,
            [f"{op.name}\n{_ending(op.scope or op.program)}" for op in longest],
            [1e3 * op.seconds for op in longest],
            f"Where the time of {script.name} goes",
            "ms in the operation, all threads together",
        )
    if chosen.json:
        print_json({"script": str(script), "exit_code": code, **shares, **recorded.as_dict()})
        return code
    _print(script, shares, recorded, chosen.top)
    return code


def _ending(text: str, most: int = 44) -> str:
    return text if len(text) <= most else "\N{HORIZONTAL ELLIPSIS}" + text[1 - most :]


def _execute(script: Path, arguments: list[str], wait: Callable[[], None]) -> int:
    """Runs a script as ``python SCRIPT ARGUMENTS`` would; returns its exit code.

    As Python does before it exits, joins the threads that are no daemons; then calls ``wait``,
    while what the script computed is still referenced.
    """
    main = types.ModuleType("__main__")
    path = str(script.absolute())
    main.__dict__.update(__file__=path, __builtins__=__builtins__, __cached__=None)
    kept = sys.argv, list(sys.path), sys.modules["__main__"]
    threads, executors = set(threading.enumerate()), _executors()
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, os.path.dirname(path))
    sys.modules["__main__"] = main
    try:
        code = _exit_code(path, main.__dict__)
        while left := [t for t in threading.enumerate() if t not in threads and not t.daemon]:
            # Idle threads of an executor end when it is shut down, which Python does at its exit.
            for executor in _executors():
                if executor not in executors:
                    executor.shutdown()
            for thread in left:
                thread.join()
        wait()
        return code
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = kept


def _exit_code(path: str, names: dict[str, Any]) -> int:
    try:
        with io.open_code(path) as file:
            source = file.read()
        exec(compile(source, path, "exec", dont_inherit=True), names)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except Exception as error:
        # The script's own error, which is none of the command's input.
        traceback.print_exc()
        if "Profile has already been started" in str(error):
            print(
                "error: the script uses JAX's profiler, which records one profile at a time, and "
                "this command records one: run the script by itself, or leave its profile away",
                file=sys.stderr,
            )
        return 1
    return 0


def _executors() -> list[concurrent.futures.Executor]:
    kinds = (concurrent.futures.ThreadPoolExecutor, concurrent.futures.ProcessPoolExecutor)
    # By type(): isinstance() would ask objects that pretend to be of another class.
    return [one for one in gc.get_objects() if issubclass(type(one), kinds)]


def _waiting() -> Callable[[], None]:
    """A function that waits for all that JAX still computes."""
    import jax
    import numpy as np

    devices = jax.local_devices()
    if jax.default_backend() != "cpu":
        # JAX_PLATFORMS may leave the CPU out.
        with contextlib.suppress(RuntimeError):
            devices += jax.local_devices(backend="cpu")
    platforms = {device.platform for device in devices}
    programs = []
    for device in devices:
        x = jax.device_put(np.float32(0), device)
        programs.append((jax.jit(jaxkern_profile_end).lower(x).compile(), x))

    def wait() -> None:
        for platform in platforms:
            for array in jax.live_arrays(platform):
                # An error of what the script did not wait for is none of the script.
                with contextlib.suppress(RuntimeError):
                    array.block_until_ready()
        with contextlib.suppress(RuntimeError):
            jax.effects_barrier()
            # Results that were dropped are no live arrays. A device ends a thread's programs in
            # their order, so that they have ended when this one has.
            jax.block_until_ready([program(x) for program, x in programs])

    return wait


def jaxkern_profile_end(x: Any) -> Any:
    return x + 1


def end_stdout_at_exit() -> None:
    """From the process's exit on, what the script's atexit handlers print goes to stderr.

    Handlers run in the reverse of their order: call it after the script.
    """

    def end() -> None:
        sys.stdout.flush()
        os.dup2(2, 1)
        sys.stdout = sys.stderr

    atexit.register(end)


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """What Python, native code and child processes print goes to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _print(script: Path, shares: dict[str, float], recorded: Any, top: int) -> None:
    from jaxkern.core.quantities import format_duration

    total = recorded.seconds
    rows = [
        [
            op.scope or op.program,
            op.name,
            f"{op.calls:,}",
            format_duration(op.seconds),
            format_duration(op.seconds / op.calls),
            f"{100 * op.seconds / total:.1f}%",
        ]
        for op in recorded.ops[:top]
    ]
    if rows:
        columns = ["from", "operation", "calls", "total", "a call", "share"]
        print_table(f"Where the time of {script.name} goes: compiled programs", columns, rows)
    if (rest := len(recorded.ops) - len(rows)) > 0:
        left = sum(op.seconds for op in recorded.ops[top:])
        print(f"and {rest:,} more operations: {format_duration(left)}, {100 * left / total:.1f}%")
    print(
        f"the script took {format_duration(shares['wall_seconds'])}, of which its main thread "
        "traced and "
        f"compiled for {format_duration(shares['compile_seconds'])}; operations of compiled "
        "programs took "
        f"{format_duration(total)} of all threads together"
    )
    print(f"open {recorded.perfetto} in https://ui.perfetto.dev,")
    print(f"or {recorded.directory} in TensorBoard's profiler")
