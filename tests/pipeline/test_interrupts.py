"""Interrupts and threads: would catch a state that counts a batch that was not delivered, an
iteration that continues after an interrupt, and threads that share an iterator and receive the same
batch or lose one."""

from __future__ import annotations

import json
import threading
import time

import jax.numpy as jnp
import numpy as np
import pytest
from support import run_python
from support.errors import raises
from support.pipeline.batches import outcomes

import jaxkern as jk
from jaxkern.pipeline import Filter

BATCHES = 12


class Interrupts:
    """A function of a batch that is interrupted once, at the batch that holds the record."""

    def __init__(self, record):
        self.record = record

    def __call__(self, batch):
        if self.record in batch["x"]:
            self.record = None
            raise KeyboardInterrupt
        return batch


def every_record(num_workers, *nodes):
    pipe = jk.from_source({"x": np.arange(2 * BATCHES)}, 2, num_workers=num_workers)
    for node in nodes:
        pipe = pipe >> node
    return pipe


PIPELINES = {
    "function": lambda node: every_record(0, node),
    "program": lambda node: every_record(0, node, jk.OperatorNode(shifted)),
    "filter": lambda node: every_record(0, Filter(lambda record: True), node),
    "before a filter": lambda node: every_record(0, node, Filter(lambda record: True)),
}


@pytest.mark.parametrize("kind", PIPELINES)
def test_a_new_iterator_resumes_an_interrupted_one(kind):
    """The state counts what was delivered; the interrupted iterator ends."""
    pipe = PIPELINES[kind](Interrupts(record=9))
    iterator = iter(pipe)
    found = [x for _ in range(4) for x in next(iterator)["x"].tolist()]
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    state = json.loads(json.dumps(iterator.get_state()))
    with raises(jk.ring.RingClosed, "get_state"):
        next(iterator)
    assert iterator.get_state() == state
    again = iter(pipe)
    again.set_state(state)
    found += [x for batch in again for x in batch["x"].tolist()]
    assert found == list(range(2 * BATCHES))


WAITING = """
import _thread, json, sys, threading
import numpy as np
import jaxkern as jk

waits, release = threading.Event(), threading.Event()
def node(batch):
    if batch["x"][0] == 4 and not release.is_set():
        waits.wait(20)
        _thread.interrupt_main()  # while the main thread waits for this batch
        release.wait(20)
    return batch

pipe = jk.from_source({"x": np.arange(12)}, 2, num_workers=2) >> node
if sys.argv[1] == "prefetcher":
    pipe = jk.prefetch_to_device(pipe, 2)
iterator, found = iter(pipe), []
try:
    for batch in iterator:
        found += batch["x"].tolist()
        if len(found) == 4:
            waits.set()
except KeyboardInterrupt:
    found.append("interrupted")
release.set()
state = json.loads(json.dumps(iterator.get_state()))
again = iter(jk.from_source({"x": np.arange(12)}, 2) >> node)
again.set_state(state)
print(json.dumps(found + [x for batch in again for x in batch["x"].tolist()]))
"""


@pytest.mark.parametrize("kind", ["workers", "prefetcher"])
def test_a_wait_for_workers_is_interrupted(kind):
    done = run_python(WAITING, kind)
    found = json.loads(done.stdout or "[]")
    assert "interrupted" in found, done.stderr
    found.remove("interrupted")
    assert found == list(range(12)), done.stderr


def in_threads(threads, iterator):
    """Exhaust an iterator from `threads` threads; return all batches and errors."""
    found: list = []
    start = threading.Barrier(threads)

    def take():
        start.wait()
        found.extend(outcomes(iterator))

    join([threading.Thread(target=take, daemon=True) for _ in range(threads)])
    return found


def join(threads, between=lambda: None):
    for thread in threads:
        thread.start()
    between()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def shifted(batch):
    return {"x": batch["x"] + 0}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("nodes", ["rows", "function", "program", "host"])
def test_threads_share_an_iterator(nodes, num_workers):
    pipe = jk.from_source(
        {"x": np.arange(1000)}, 4, shuffle=True, num_workers=num_workers, prefetch_size=2
    )
    added = {
        "rows": [],
        "function": [shifted],
        "program": [shifted, jk.OperatorNode(lambda b: {"x": jnp.flip(b["x"])})],
        "host": [jk.OperatorNode(shifted, on="host")],
    }
    for node in added[nodes]:
        pipe = pipe >> node
    iterator = iter(pipe)
    records = [int(x) for batch in in_threads(4, iterator) for x in batch["x"]]
    assert sorted(records) == list(range(1000))
    assert iterator.get_state()["finished"]
    with pytest.raises(StopIteration):
        next(iterator)


def test_threads_share_errors_and_a_prefetcher():
    def broken(batch):
        if batch["x"][0] % 40 == 0:
            raise LookupError(int(batch["x"][0]))
        return batch

    pipe = jk.from_source({"x": np.arange(400)}, 4, num_workers=2) >> broken
    for iterator in (iter(pipe), jk.prefetch_to_device(pipe, 3)):
        found = in_threads(4, iterator)
        failed = [error.args[0] for error in found if isinstance(error, LookupError)]
        seen = [int(batch["x"][0]) for batch in found if isinstance(batch, dict)]
        assert sorted(failed) == list(range(0, 400, 40))
        assert sorted(seen + failed) == list(range(0, 400, 4))
        assert iterator.get_state()["finished"]


def test_a_state_is_set_while_threads_take():
    iterator = iter(jk.from_source({"x": np.arange(400)}, 4, num_workers=2) >> shifted)
    state = iterator.get_state()
    stop = threading.Event()

    def take():
        while not stop.is_set():
            try:
                next(iterator)
            except (StopIteration, jk.ring.RingClosed):  # it is closed between two states
                time.sleep(0.001)

    def set_states():
        for _ in range(10):
            time.sleep(0.003)
            iterator.set_state(state)
        stop.set()

    join([threading.Thread(target=take, daemon=True) for _ in range(3)], set_states)
    iterator.set_state(state)
    assert [int(batch["x"][0]) for batch in iterator] == list(range(0, 400, 4))


FORK = """
import os, sys, warnings
import numpy as np
import jaxkern as jk
warnings.simplefilter("ignore")
iterators = []
for workers in (0, 2):
    pipe = jk.from_source({"x": np.arange(8)}, 2, num_workers=workers) >> (lambda batch: batch)
    iterators += [iter(pipe), iter(pipe)]
    next(iterators[-1])
child = os.fork()
if child == 0:
    n_errors = 0
    for iterator in iterators:
        for call in (lambda: next(iterator), lambda: iterator.set_state(iterator.get_state())):
            try:
                call()
            except RuntimeError as error:
                n_errors += "that the parent began" in str(error)
        iterator.close()
    os._exit(n_errors)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), *(len(list(it)) for it in iterators))
"""


def test_a_forked_child_does_not_read_on():
    done = run_python(FORK)
    assert done.stdout.split() == ["8", "4", "3", "4", "3"], done
