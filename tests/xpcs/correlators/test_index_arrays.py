"""Index arrays that another thread writes to while a kernel runs without the interpreter's lock.

Would catch a kernel that reads the caller's array after it was checked: it would look up bins and
sums of frames that there are not, outside its own memory.
"""

from __future__ import annotations

import subprocess
import sys

from jaxkern.xpcs.correlators.native import native_module

# The library is loaded without jaxkern, which would import JAX. Each kernel runs alone, then once
# more while its index arrays are overwritten as soon as it has begun to count its progress: most of
# its work is then still to come.
SCRIPT = """
import importlib.util, sys, threading
import numpy as np

spec = importlib.util.spec_from_file_location("_cpu", sys.argv[1])
native = importlib.util.module_from_spec(spec)
spec.loader.exec_module(native)
P, N, M = 8192, 600, 400_000
draw = np.random.default_rng(0)
frames = draw.poisson(0.5, (N, P)).astype(np.uint8)
events = draw.integers(0, P, M), draw.integers(0, N, M), np.ones(M, np.int64)

def multitau(sums, *pixels, progress):
    return native.multitau(frames, *pixels, P // 8, P // 64, threads=1, progress=progress)

def multitau_events(sums, *pixels, progress):
    # Sorted events have room for a few buckets: the others are sorted later.
    return native.multitau_events(
        None, 0, False, *events, N, N, 0, sums, None, P, *pixels, P // 8, P // 64, 4, 2e5, 1,
        progress
    )

def run(kernel, overwritten):
    pixel = np.arange(P, dtype=np.int32)
    arrays = [np.arange(N, dtype=np.int32), pixel, pixel // 8, pixel // 64]
    cells, result = np.zeros(2, np.int64), []
    worker = threading.Thread(target=lambda: result.append(kernel(*arrays, progress=cells)))
    worker.start()
    while overwritten and worker.is_alive() and cells[0] == 0:
        pass
    for array in arrays if overwritten else ():
        array[...] = 2**30
    worker.join()
    return result[0]

for kernel in (multitau, multitau_events):
    print(kernel.__name__, flush=True)
    expected, result = (run(kernel, overwritten) for overwritten in (False, True))
    assert all(np.array_equal(*pair) for pair in zip(result, expected, strict=True))
"""


def test_arrays_that_change_during_a_call():
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, native_module().__file__],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
