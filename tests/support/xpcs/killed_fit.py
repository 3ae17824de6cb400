"""A fit that is killed with SIGKILL repeatedly; test_fit_checkpoints runs it as a program.

    python killed_fit.py FOLDER KILLS SEED

Forks a child for each attempt from a process that has imported JAX but not initialized it. A child
dies at a random time, or while it writes a checkpoint; the next one resumes. Prints a JSON object:
the kills by kind, the number of finished fits, and how many of these reached the minimum of an
undisturbed fit.
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

import jaxkern as jk
from support.xpcs import fit_checks
from support.xpcs import fit_problems as problems

N = 96
KINDS = ("time", "inside the write", "before the rename", "after the rename")


def fit(folder: Path | None, case: problems.Simulated) -> float:
    options = {"p0": problems.START[:3], "strategy": "stream", "chunk_points": 32 * N}
    if folder is not None:
        options |= {"enable_checkpoints": True, "checkpoint_dir": folder}
    # Slow reads, so that kills happen during passes.
    source = fit_checks.WatchedSource(case.data, lambda *_: time.sleep(0.001))
    return fit_checks.fit(fit_checks.flow(N, case.phi, jk.xpcs.Static), source, **options).cost


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def plan_death(kind: str, number: int) -> None:
    """Kill this process in its `number`-th write of a checkpoint."""
    remaining = [number]
    replace, fsync = os.replace, os.fsync

    def last() -> bool:
        remaining[0] -= 1
        return remaining[0] == 0

    def dying_replace(source, target):
        if kind == "before the rename" and last():
            die()
        replace(source, target)
        if kind == "after the rename" and last():
            die()

    def dying_fsync(handle):
        is_file = stat.S_ISREG(os.fstat(handle).st_mode)  # the folder is synced too
        if kind == "inside the write" and is_file and last():
            # As if only a part had been written to the disk.
            os.ftruncate(handle, max(os.fstat(handle).st_size // 2, 1))
            die()
        fsync(handle)

    os.replace, os.fsync = dying_replace, dying_fsync


def live(folder: Path, result: Path, case: problems.Simulated, kind: str, number: int) -> None:
    """Resume the fit in a child, and either die or write the cost."""
    if kind != "time":
        plan_death(kind, number)
    result.write_text(repr(fit(folder, case)))


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
        assert ended(child(lambda: reference.write_text(repr(fit(None, case))))) == 0
        durations.append(time.monotonic() - start)
    counts = dict.fromkeys(KINDS, 0)
    ends = equal = resumed = attempts = 0
    while sum(counts.values()) < kills or ends == 0:
        kind = KINDS[attempts % len(KINDS)] if sum(counts.values()) < kills else "none"
        attempts += 1
        path = folder / "state" / "fit.checkpoint"
        resumed += path.exists()
        number = draw.randint(1, 6)
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
        costs = [float(path.read_text()) for path in (result, reference)]
        equal += abs(costs[0] / costs[1] - 1) < 1e-9
    print(json.dumps({"kills": counts, "ends": ends, "equal": equal, "resumed": resumed}))


if __name__ == "__main__":
    main()
