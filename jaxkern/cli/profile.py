"""``profile SCRIPT``: run a script under JAX's profiler and show where its time is spent.

The script runs in a new process, in which this module is the program.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import click

from jaxkern.cli.output import (
    PATH,
    Command,
    check_plot,
    flag,
    json_option,
    option,
    print_error,
    print_json,
)

_FIGURES = "figures.json"


@click.command(cls=Command, context_settings={"allow_interspersed_args": False})
@option("--output-dir", "DIR", "Default ./benchmark-results/profile-SCRIPT.", PATH)
@option("--top", "N", "Rows of the table.", click.IntRange(1), default=15)
@flag("--python", "Record every Python call too.")
@option("--plot", "FILE", "Draw the longest operations.", PATH)
@json_option
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def profile(
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
    check_plot(plot)
    from jaxkern.benchmarking.saved import DIRECTORY
    from jaxkern.benchmarking.tracing import OpTime, Trace
    from jaxkern.core.quantities import format_duration

    # The script may change the working directory.
    folder = (output_dir or DIRECTORY / f"profile-{script.stem}").absolute()
    (folder / _FIGURES).unlink(missing_ok=True)
    command = [sys.executable, "-P", "-m", __name__, str(folder), str(int(python)), str(script)]
    sys.stdout.flush()
    process = subprocess.Popen([*command, *arguments], stdout=2 if as_json else None)
    code = None
    while code is None:
        with contextlib.suppress(KeyboardInterrupt):  # the script receives it too
            code = process.wait()
    code = code if code >= 0 else 128 - code
    if not (folder / _FIGURES).exists():
        print(f"no profile: the script ended with the exit code {code}", file=sys.stderr)
        return code or 1
    figures = json.loads((folder / _FIGURES).read_text())
    ops = [OpTime(**op) for op in figures["ops"]]
    if plot is not None and ops:
        from jaxkern.benchmarking.plots import bar_chart

        names = [f"{op.name}\n{(op.scope or op.program)[-44:]}" for op in ops[:top]]
        title = f"Where {script.name} spends its time"
        times = [1e3 * op.seconds for op in ops[:top]]
        bar_chart(plot, names, times, title, "ms in the operation, all threads")
    if as_json:
        print_json({"script": str(script), "exit_code": code, **figures})
        return code
    print(Trace(folder, ops=ops, top=top))
    wall, compiling, total = (
        format_duration(figures[name]) for name in ("wall_seconds", "compile_seconds", "op_seconds")
    )
    print(
        f"the script took {wall}, including {compiling} of tracing and compiling in its main "
        f"thread; operations of compiled programs took {total}, summed over all threads\n"
        f"open {figures['perfetto']} in https://ui.perfetto.dev,\n"
        f"or {folder} in TensorBoard's profiler"
    )
    return code


def _run(folder: Path, python: bool, script: str, arguments: list[str]) -> None:
    """Run a script as ``python SCRIPT ARGUMENTS`` would; write its figures when it exits."""
    from jaxkern.benchmarking.saved import json_text
    from jaxkern.benchmarking.tracing import trace
    from jaxkern.core.client import BackendError, start_backend
    from jaxkern.core.timing import CompileClock

    try:
        start_backend()
    except BackendError as error:
        raise SystemExit(print_error(error)) from None
    stack = contextlib.ExitStack()
    recorded = stack.enter_context(trace(folder, top=0, python=python))
    clock = stack.enter_context(CompileClock())
    started = time.perf_counter()

    # Runs after the script's threads have ended and its own handlers have run.
    @atexit.register
    def end() -> None:
        _wait()
        figures = {"wall_seconds": time.perf_counter() - started, "compile_seconds": clock.seconds}
        stack.close()
        own = f"jit_{jaxkern_profile_end.__name__}"
        recorded.ops = [op for op in recorded.ops if op.program != own]
        record = {**figures, "op_seconds": recorded.seconds, **recorded.as_dict()}
        (folder / _FIGURES).write_text(json_text(record))

    main = types.ModuleType("__main__")
    main.__file__ = os.path.abspath(script)
    sys.modules["__main__"] = main
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(main.__file__))
    try:
        with io.open_code(main.__file__) as file:
            exec(compile(file.read(), main.__file__, "exec", dont_inherit=True), vars(main))
    except Exception as error:
        if "Profile has already been started" in str(error):
            error.add_note(
                "the script uses JAX's profiler, which records one profile at a time, and this "
                "command records one; run the script without this command, or without its profile"
            )
        raise


def _wait() -> None:
    """Wait for all pending computations of JAX."""
    import jax
    import numpy as np

    devices = jax.local_devices()
    with contextlib.suppress(RuntimeError):  # JAX_PLATFORMS may exclude the CPU
        devices += jax.local_devices(backend="cpu")
    # The script did not wait for these results, so their errors are ignored.
    for array in [x for name in {d.platform for d in devices} for x in jax.live_arrays(name)]:
        with contextlib.suppress(RuntimeError):
            array.block_until_ready()
    with contextlib.suppress(RuntimeError):
        jax.effects_barrier()
        # Deleted results are not live arrays. A device finishes the programs of a thread in order,
        # so they have finished when this program has.
        run = jax.jit(jaxkern_profile_end)
        jax.block_until_ready([run(jax.device_put(np.float32(0), device)) for device in devices])


def jaxkern_profile_end(x: Any) -> Any:
    return x + 1


if __name__ == "__main__":
    _run(Path(sys.argv[1]), sys.argv[2] == "1", sys.argv[3], sys.argv[4:])
