"""How the native threads of an assembly live and end, and that they do without the interpreter.

Would catch: a close that hangs or leaves threads that read freed arrays, a dropped assembly that
stays, memory that each one leaves, threads that wait for the interpreter's lock, a program that
does not get the batches, a forked child that hangs, an exit that crashes.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from support.processes import growth, run

import jaxkern as jk
from jaxkern.image import ChainProducer, Compose, Normalize, RandomHorizontalFlip, RandomResizedCrop

CHAIN = Compose([RandomResizedCrop(16), RandomHorizontalFlip(), Normalize(0.4, 0.3)])


def threads() -> int:
    """Return the number of assembly threads of this process, without those of other libraries."""
    found = 0
    for name in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it has ended since
            found += name.read_text() == "jaxkern-batch\n"
    return found


def threads_end() -> bool:
    """A joined thread leaves the system's list a little later than the join returns."""
    deadline = time.monotonic() + 60
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not threads()


@pytest.mark.parametrize("streamed", [False, True])
def test_close_at_every_point(streamed):
    images = np.random.default_rng(0).integers(0, 256, (64, 16, 16, 3), np.uint8)
    producers = {"x": ChainProducer(CHAIN, images[0])} if streamed else None
    list(jk.ring.Assembly({"x": images}, np.arange(64), 4, producers=producers))
    gc.collect()
    assert threads_end()
    python = threading.active_count()
    for taken in range(17):
        options = {"capacity": 2, "workers": 3, "producers": producers}
        batches = jk.ring.Assembly({"x": images}, np.arange(64), 4, **options)
        for _ in range(taken):
            next(batches)
        if taken % 3 == 0:
            time.sleep(0.002)
        batches.close()
        batches.close()
        with pytest.raises(jk.ring.RingClosed):
            next(batches)
    assert threads_end()
    assert threading.active_count() <= python


def test_dropped_without_a_close():
    rows = np.zeros((1000, 1000), np.float32)
    gc.collect()
    for order in (np.arange(1000), itertools.repeat(np.arange(1000))):
        batches = jk.ring.Assembly({"x": rows}, order, 10, capacity=2)
        kept = next(batches)
        assert threads()
        del batches
        gc.collect()
        assert not np.asarray(kept["x"]).any()
    assert threads_end()


def test_a_thousand_assemblies_leave_nothing():
    rows = np.ones((64, 4096), np.float32)

    def use(count):
        for i in range(count):
            batches = jk.ring.Assembly({"x": rows}, np.arange(64), 16, capacity=2)
            next(batches)
            if i % 2:
                batches.close()

    assert growth(use) < 16 << 20
    assert threads_end()


def test_jitted_programs_take_the_batches():
    rows = np.arange(40, dtype=np.float32).reshape(20, 2)
    order = np.random.default_rng(0).permutation(20)
    with jk.ring.Assembly({"x": rows}, order, 4) as batches:

        @jax.jit
        def epoch(token):
            def step(token, _):
                batch, token = batches.pop(token)
                return token, batch["x"].sum()

            return jax.lax.scan(step, token, length=5)[1]

        sums = epoch(batches.token())
    np.testing.assert_array_equal(sums, rows[order].reshape(5, 8).sum(1))


def test_batches_are_made_while_a_thread_holds_the_interpreter():
    """The whole ring fills in one C call that never lets go of the lock."""
    rows = np.random.default_rng(0).normal(size=(256, 1000)).astype(np.float32)
    libc = ctypes.PyDLL(None)  # its calls keep the lock
    with jk.ring.Assembly({"x": rows}, np.tile(np.arange(256), 8), 16, capacity=8) as batches:
        for i in range(12):
            np.testing.assert_array_equal(batches.get()["x"], rows[16 * i % 256 :][:16])
        assert batches.stats().ready <= 8
        for _ in range(100):  # long enough however slow the machine is
            libc.usleep(20_000)
            if batches.stats().ready >= 7:
                break
        assert batches.stats().ready >= 7
        assert len(list(batches)) == 128 - 12


def test_an_epoch_passes_while_a_thread_spins():
    rows = np.random.default_rng(0).normal(size=(256, 1000)).astype(np.float32)
    images = np.random.default_rng(0).integers(0, 256, (256, 16, 16, 3), np.uint8)
    producer = ChainProducer(CHAIN, images[0])
    stop = threading.Event()

    def spin():
        while not stop.is_set():
            sum(range(10_000))

    order = np.random.default_rng(1).permutation(256)
    threading.Thread(target=spin, daemon=True).start()
    arrays = {"x": rows, "image": images}
    with jk.ring.Assembly(arrays, order, 16, producers={"image": producer}) as batches:
        got = np.concatenate([batch["x"] for batch in batches])
    stop.set()
    np.testing.assert_array_equal(got, rows[order])


FORK = """
import os, numpy as np, jaxkern as jk
rows = np.zeros((10, 2), np.float32)
with jk.ring.Assembly({"x": rows}, np.arange(10), 2) as batches:
    next(batches)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        output = ""
        for call in (lambda: batches.get(1), lambda: batches._native.submit(np.arange(2), [[]])):
            try:
                call()
            except RuntimeError as error:
                output += str(error) + " / "
        batches.close()
        del batches
        os.write(write, output.encode())
        os._exit(0)
    os.close(write)
    print(os.read(read, 10_000).decode(), os.waitpid(child, 0)[1], len(list(batches)))
"""

EXIT = """
import itertools, threading, numpy as np, jaxkern as jk
rows = np.zeros((1000, 100000), np.float32)
batches = jk.ring.Assembly({"x": rows}, itertools.repeat(np.arange(1000)), 100, workers=3)
threading.Thread(target=lambda: [None for _ in batches], daemon=True).start()
next(batches)
print("leaves")
"""

# Native work of a daemon thread that ends while the interpreter does.
LATE = """
import sys, threading, time
from jaxkern import _cpu
class Late:
    def __del__(self, sleep=time.sleep):
        sleep(1.0)
sys.late = Late()
level = _cpu.simd_levels()[-1]
work = lambda: _cpu.measure_compute(level, 1, 0.3)
threading.Thread(target=work, daemon=True).start()
print("leaves")
"""


def test_a_fork_gets_a_clear_error():
    output = run(FORK).strip()
    assert "create a new ring in the child" in output
    assert "create a new one in the child" in output
    assert output.endswith("0 4")


def test_an_exit_in_the_middle():
    for _ in range(3):
        assert "leaves" in run(EXIT).splitlines()


def test_an_exit_while_a_thread_works_natively():
    assert run(LATE) == "leaves\n"
