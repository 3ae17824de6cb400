"""``profile SCRIPT``: run a script under JAX's profiler and show where its time is spent."""

from __future__ import annotations

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

import click

from jaxkern.cli.output import (
    PATH,
    Command,
    check_output,
    combine,
    flag,
    json_option,
    option,
    print_json,
    print_table,
)


@click.command(cls=Command, context_settings={"allow_interspersed_args": False})
@combine(
    option("--output-dir", "DIR", "Default ./benchmark-results/profile-SCRIPT.", PATH),
    option("--top", "N", "Rows of the table.", default=15),
    flag("--python", "Record every Python call too."),
    option("--plot", "FILE", "Draw the longest operations.", PATH),
    json_option,
    click.argument("script", type=PATH),
    click.argument("arguments", nargs=-1, type=click.UNPROCESSED),
    click.pass_obj,
)
def profile(
    exits_afterwards: bool,
    output_dir: Path | None,
    top: int,
    python: bool,
    plot: Path | None,
    as_json: bool,
    script: Path,
    arguments: tuple[str, ...],
) -> int:
    """Run a script and show the times of the operations of its compiled programs.

    ARGUMENTS are passed to the script. With --json its output goes to standard error.
    """
    check_output(not as_json, plot)
    from jaxkern.benchmarking.saved import DIRECTORY
    from jaxkern.benchmarking.tracing import trace
    from jaxkern.core.client import start_backend
    from jaxkern.core.timing import CompileClock

    if not script.is_file():
        raise FileNotFoundError(f"no such script: {script}")
    if top < 1:
        raise ValueError(f"--top: expected at least 1, got {top}")
    # The script may change the working directory.
    folder = (output_dir or DIRECTORY / f"profile-{script.stem}").absolute()
    plot = plot.absolute() if plot is not None else None
    start_backend()
    wait = _make_wait()
    redirection = _stdout_to_stderr() if as_json else contextlib.nullcontext()
    # The script's daemon threads may print until the profile has been read.
    with (
        redirection,
        trace(folder, top=0, python=python) as recorded,
        CompileClock() as compile_clock,
    ):
        started = time.perf_counter()
        code = _execute(script, list(arguments), wait)
        wall = time.perf_counter() - started
    own = f"jit_{jaxkern_profile_end.__name__}"
    recorded.ops = [op for op in recorded.ops if op.program != own]
    if plot is not None and recorded.ops:
        from jaxkern.benchmarking.plots import bar_chart

        longest = recorded.ops[:top]
        bar_chart(
            plot,
            [f"{op.name}\n{_shorten(op.scope or op.program)}" for op in longest],
            [1e3 * op.seconds for op in longest],
            f"Where {script.name} spends its time",
            "ms in the operation, all threads",
        )
    if as_json:
        figures = {
            "wall_seconds": wall,
            "compile_seconds": compile_clock.seconds,
            "op_seconds": recorded.seconds,
        }
        print_json({"script": str(script), "exit_code": code, **figures, **recorded.as_dict()})
        if exits_afterwards:
            _redirect_stdout_at_exit()
    else:
        _print_ops(script, wall, compile_clock.seconds, recorded, top)
    return code


def _shorten(text: str, length: int = 44) -> str:
    return text if len(text) <= length else "\N{HORIZONTAL ELLIPSIS}" + text[1 - length :]


def _execute(script: Path, arguments: list[str], wait: Callable[[], None]) -> int:
    """Run a script as ``python SCRIPT ARGUMENTS`` would, join its threads, and call ``wait``."""
    main = types.ModuleType("__main__")
    path = str(script.absolute())
    main.__dict__.update(__file__=path, __builtins__=__builtins__, __cached__=None)
    saved = sys.argv, list(sys.path), sys.modules["__main__"]
    threads, executors = set(threading.enumerate()), _executors()
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, os.path.dirname(path))
    sys.modules["__main__"] = main
    try:
        code = _exit_code(path, main.__dict__)
        while running := [t for t in threading.enumerate() if t not in threads and not t.daemon]:
            # Idle threads of an executor end at its shutdown; Python shuts it down only at exit.
            for executor in _executors():
                if executor not in executors:
                    executor.shutdown()
            for thread in running:
                thread.join()
        wait()
        return code
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = saved


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
        # An error of the script, not of the command's input.
        traceback.print_exc()
        if "Profile has already been started" in str(error):
            print(
                "error: the script uses JAX's profiler, which records one profile at a time, and "
                "this command records one; run the script without this command, or without its "
                "profile",
                file=sys.stderr,
            )
        return 1
    return 0


def _executors() -> list[concurrent.futures.Executor]:
    kinds = (concurrent.futures.ThreadPoolExecutor, concurrent.futures.ProcessPoolExecutor)
    # type() instead of isinstance(), which calls the __class__ property of proxy objects.
    return [one for one in gc.get_objects() if issubclass(type(one), kinds)]


def _make_wait() -> Callable[[], None]:
    """Return a function that waits for all pending computations of JAX."""
    import jax
    import numpy as np

    devices = jax.local_devices()
    if jax.default_backend() != "cpu":
        # JAX_PLATFORMS may exclude the CPU.
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
                # The script did not wait for this result, so its error is ignored.
                with contextlib.suppress(RuntimeError):
                    array.block_until_ready()
        with contextlib.suppress(RuntimeError):
            jax.effects_barrier()
            # Deleted results are not live arrays. A device finishes the programs of a thread in
            # order, so they have finished when this program has.
            jax.block_until_ready([program(x) for program, x in programs])

    return wait


def jaxkern_profile_end(x: Any) -> Any:
    return x + 1


def _redirect_stdout_at_exit() -> None:
    """Redirect the output of the script's atexit handlers, which run after this, to stderr."""

    def redirect() -> None:
        sys.stdout.flush()
        os.dup2(2, 1)
        sys.stdout = sys.stderr

    atexit.register(redirect)


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Redirect the output of Python, native code and child processes to standard error."""
    sys.stdout.flush()
    saved = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 1)
        os.close(saved)


def _print_ops(script: Path, wall: float, compiling: float, recorded: Any, top: int) -> None:
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
        columns = ["source", "operation", "calls", "total", "per call", "share"]
        print_table(f"Operations of the compiled programs of {script.name}", columns, rows)
    if (rest := len(recorded.ops) - len(rows)) > 0:
        other = sum(op.seconds for op in recorded.ops[top:])
        print(f"and {rest:,} more operations: {format_duration(other)}, {100 * other / total:.1f}%")
    print(
        f"the script took {format_duration(wall)}, including {format_duration(compiling)} of "
        "tracing and compiling in its main thread; operations of compiled programs took "
        f"{format_duration(total)}, summed over all threads"
    )
    print(f"open {recorded.perfetto} in https://ui.perfetto.dev,")
    print(f"or {recorded.directory} in TensorBoard's profiler")
