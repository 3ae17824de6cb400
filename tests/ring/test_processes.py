"""Ctrl-C, fork, interpreter exit and garbage collection, each in a separate process.

Would catch: a get that cannot be interrupted, a child that hangs on its parent's ring, an exit that
waits for a producer or crashes under one, a dropped ring whose producers wait for ever.
"""

from __future__ import annotations

import pytest
from support import processes

PREAMBLE = """
import gc, os, signal, sys, threading, time
import numpy as np
import jaxkern as jk
x = np.zeros(4, np.float32)
"""


def run(code: str, **options) -> str:
    return processes.run(PREAMBLE + code, **options)


@pytest.mark.parametrize(
    "call",
    [
        "ring.get()",
        "full.put(x)",
        "next(jk.prefetch_to_device(time.sleep(60) for _ in range(1)))",
    ],
)
def test_control_c_interrupts(call):
    output = run(
        f"""
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
ring, full = jk.ring.Ring(x), jk.ring.Ring(x, capacity=1)
full.put(x)
start = time.monotonic()
try:
    print("waiting")
    {call}
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - start < 30)  # of 60
ring.put(x)
print(ring.get().tolist())
""",
        interrupt_after="waiting",
    )
    assert output.splitlines() == ["interrupted True", "[0.0, 0.0, 0.0, 0.0]"]


def test_a_forked_child_gets_an_error():
    output = run(
        """
ring = jk.ring.Ring(x, capacity=1)
ring.put(x)
empty = jk.ring.Ring(x)
threads = [threading.Thread(target=w, daemon=True) for w in (lambda: ring.put(x), empty.get)]
for thread in threads:
    thread.start()
for thread in threads:
    while sys._current_frames()[thread.ident].f_code.co_name not in ("put", "take"):
        time.sleep(0.001)
array = ring.get()
child = os.fork()
if child == 0:
    for call in (ring.get, lambda: ring.put(x), ring.slot, ring.finish):
        try:
            call()
        except jk.ring.RingError as error:
            print(error)
    ring.close()
    del array, ring, empty
    gc.collect()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(array.tolist(), ring.get().tolist())
"""
    )
    lines = output.splitlines()
    assert all("before the process forked" in line for line in lines[:4])
    assert lines[4] == "[0.0, 0.0, 0.0, 0.0] [0.0, 0.0, 0.0, 0.0]"


@pytest.mark.parametrize("daemon", [True, False])
def test_exit_with_live_producers_and_consumers(daemon):
    output = run(
        f"""
def repeat(call):
    try:
        while True:
            call()
    except jk.ring.RingClosed:
        pass
rings = [jk.ring.Ring(x) for _ in range(4)]
for call in [lambda ring=ring: ring.put(x) for ring in rings[:3] * 2] + [rings[3].get]:
    threading.Thread(target=repeat, args=(call,), daemon={daemon}).start()
kept = [rings[0].get() for _ in range(3)]
fetched = jk.prefetch_to_device(np.zeros(3) for _ in iter(int, 1))
next(fetched)
unstarted = threading.Thread(daemon=True)
threading._limbo[unstarted] = unstarted  # as where its start was interrupted
print("end")
"""
    )
    assert output.splitlines() == ["end"]


def test_exit_while_a_program_waits():
    run(
        """
import jax
from jaxkern.core import registry
ring = jk.ring.Ring(x)
pop = jax.jit(lambda token: jk.ring.pop(ring, token))
threading.Thread(target=lambda: pop(ring.token()), daemon=True).start()
while registry.module("cpu").join_waiters(0.0):
    time.sleep(0.01)
"""
    )


def test_exit_while_daemon_threads_return_from_native_code():
    run(
        """
from jaxkern.ring.rows import gather_rows
source, rows = np.zeros((1 << 14, 64), np.uint8), np.zeros(1 << 14, int)
started = threading.Barrier(5)
def work():
    out = np.empty_like(source)
    started.wait()
    while True:
        gather_rows([source], rows, out)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
started.wait()
"""
    )


def test_exit_while_the_thread_of_a_dropped_pipeline_returns_from_a_program():
    run(
        """
import jax
from jaxkern.pipeline import Filter
square = jax.jit(lambda m: jax.lax.fori_loop(0, 1000, lambda _, y: jax.numpy.tanh(y @ y), m))
matrix = jax.numpy.eye(200)
keep = lambda record: bool(jax.block_until_ready(square(matrix))[0, 0] < 2)
for batch in jk.from_source({"x": np.zeros(64)}, 2) >> Filter(keep):
    break
"""
    )


def test_threads_of_programs_that_waited_are_joined():
    run(
        """
import jax
from jaxkern.core import registry
cpu = registry.module("cpu")
assert cpu.join_waiters(20.0)
ring = jk.ring.Ring(x)
pop = jax.jit(lambda token: jk.ring.pop(ring, token)[0])
popped = []
thread = threading.Thread(target=lambda: popped.append(np.asarray(pop(ring.token()))))
thread.start()
while cpu.join_waiters(0.0):
    time.sleep(0.01)
ring.put(x)
thread.join(60)
assert len(popped) == 1
assert cpu.join_waiters(20.0)
"""
    )


def test_a_ring_that_is_dropped_closes():
    output = run(
        """
ring = jk.ring.Ring(x)
others = set(threading.enumerate())
fetched = jk.prefetch_to_device(np.zeros(3) for _ in iter(int, 1))
next(fetched)
(thread,) = set(threading.enumerate()) - others
ring.itself = ring  # only the garbage collector frees it
del ring, fetched
gc.collect()
thread.join()
while jk.ring.ring._open:
    gc.collect()
    time.sleep(0.01)
print("closed")
"""
    )
    assert output.splitlines() == ["closed"]
