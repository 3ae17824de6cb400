"""A fit that is killed with SIGKILL again and again: run as a program by test_fit_checkpoints.

    python killed_fit.py FOLDER KILLS SEED

Forks a child for each life of the fit from a process that has imported JAX but not started it.
A child dies at a random time, or at a place inside a checkpoint's write; the next one resumes.
Prints one JSON object: the kills by kind, how often a fit came to its end, and whether every end
had the bits of the fit that was left alone.
"""

from __future__ import annotations

import json
import os
import random
import signal
import stat
import sys
import time
from pathlib import Path

import jax
import numpy as np

import jaxkern as jk
from support.xpcs import fit_problems as problems

N = 96
KINDS = ("time", "inside the write", "before the rename", "after the rename")


class SlowSource:
    """Rows that take a moment to read, so that a kill finds the fit inside a pass."""

    symmetric = True

    def __init__(self, data):
        self.shape, self.dtype, self._data = data.shape, data.dtype, data

    def read(self, angle, first_row, stop_row):
        time.sleep(0.001)
        return self._data[angle, first_row:stop_row]


def fit(folder: Path | None, case: problems.Simulated) -> bytes:
    t = problems.DT * np.arange(N)
    geometry = jk.xpcs.Geometry(problems.Q, problems.GAP, problems.DT, t, case.phi)
    streaming = jk.xpcs.StreamingOptions(
        enable_checkpoints=folder is not None,
        checkpoint_frequency=1,
        checkpoint_dir=folder or "unused",
        max_checkpoint_overhead=1.0,
        chunk_points=32 * N,
    )
    found = jk.xpcs.fit(
        jk.xpcs.Static(geometry),
        SlowSource(case.data),
        p0=problems.START[:3],
        strategy="STREAMING",
        streaming=streaming,
        progress=False,
    )
    return b"".join(np.asarray(x).tobytes() for x in (found.popt, found.pcov, found.chi2))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def plan_death(kind: str, number: int) -> None:
    """Makes the `number`-th write of a checkpoint the last thing that this process does."""
    left = [number]
    replace, fsync = os.replace, os.fsync

    def last() -> bool:
        left[0] -= 1
        return left[0] == 0

    def dying_replace(source, target):
        if kind == "before the rename" and last():
            die()
        replace(source, target)
        if kind == "after the rename" and last():
            die()

    def dying_fsync(handle):
        is_file = stat.S_ISREG(os.fstat(handle).st_mode)  # the folder is synced too
        if kind == "inside the write" and is_file and last():
            # As if only a part had reached the disk.
            os.ftruncate(handle, max(os.fstat(handle).st_size // 2, 1))
            die()
        fsync(handle)

    os.replace, os.fsync = dying_replace, dying_fsync


def live(folder: Path, result: Path, case: problems.Simulated, kind: str, number: int) -> None:
    """A child's life: resume, and either die or leave the result."""
    if kind != "time":
        plan_death(kind, number)
    bits = fit(folder, case)
    result.write_bytes(bits)


def main() -> None:
    folder, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    jax.config.update("jax_compilation_cache_dir", str(folder / "programs"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    import scipy.optimize  # noqa: F401  # once, before the forks

    case = problems.simulate(N, seed=31)
    draw = random.Random(seed)

    def child(work) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                work()
                os._exit(0)
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
        return pid

    def ended(pid: int) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    reference, result = folder / "reference", folder / "result"
    durations = []
    for _ in range(2):  # the second finds the compiled programs
        start = time.monotonic()
        assert ended(child(lambda: reference.write_bytes(fit(None, case)))) == 0
        durations.append(time.monotonic() - start)
    counts = dict.fromkeys(KINDS, 0)
    ends = identical = resumed = lives = 0
    while sum(counts.values()) < kills or ends == 0:
        kind = KINDS[lives % len(KINDS)] if sum(counts.values()) < kills else "none"
        lives += 1
        path = folder / "state" / "fit.checkpoint"
        resumed += path.exists()
        number = draw.randint(1, 40)
        result.unlink(missing_ok=True)
        pid = child(lambda k=kind, m=number: live(folder / "state", result, case, k, m))
        if kind == "time":
            time.sleep(draw.uniform(0.3, 1.2) * durations[1])
            os.kill(pid, signal.SIGKILL)
        code = ended(pid)
        if code == -signal.SIGKILL:
            counts[kind] += 1
            continue
        assert code == 0, f"a child failed with {code}"
        ends += 1
        identical += result.read_bytes() == reference.read_bytes()
    print(json.dumps({"kills": counts, "ends": ends, "identical": identical, "resumed": resumed}))


if __name__ == "__main__":
    main()
