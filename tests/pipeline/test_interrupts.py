"""Interrupts: would catch a batch that is taken and not delivered, or delivered twice, when Ctrl-C
comes anywhere in a call and the loop goes on; a state that counts a batch that did not arrive; and
threads that get the same batch, or lose one, when they iterate together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import jax.numpy as jnp
import numpy as np
import pytest
from support import SUPPORT

import jaxkern as jk
from jaxkern.pipeline.program import NodeProgram

BATCHES = 60


@pytest.fixture(scope="module")
def interrupted():
    script = SUPPORT / "pipeline" / "interrupted.py"
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


KINDS = (
    "rows function program no_workers in_order in_order_without_workers stream "
    "stream_without_workers ring assembly prefetcher generator put"
)


@pytest.mark.parametrize("kind", KINDS.split())
def test_nothing_is_lost_to_an_interrupt(interrupted, kind):
    reports = interrupted[kind.replace("_", " ")]
    for report in reports:
        assert report["found"] == list(range(BATCHES))
        assert report["wrong"] == 0
    if kind != "rows":  # which are there at once
        assert sum(report["interrupts"] for report in reports) >= 10


# Worker threads, which run what is on the host, get no signals.
@pytest.mark.parametrize(("on", "num_workers"), [("device", 0), ("device", 2), ("host", 0)])
def test_an_interrupt_that_jax_hides_loses_nothing(monkeypatch, on, num_workers):
    """It makes a ValueError of one that comes while it compares static arguments."""
    pipe = jk.from_source({"x": np.arange(12)}, 4, num_workers=num_workers)
    iterator = iter(pipe >> jk.OperatorNode(shifted, on=on))
    plain, calls = NodeProgram.__call__, []

    def interrupted_once(self, *args):
        calls.append(args)
        if len(calls) == 2:
            raise ValueError("while checking equality") from KeyboardInterrupt()
        return plain(self, *args)

    monkeypatch.setattr(NodeProgram, "__call__", interrupted_once)
    found, interrupts = [], 0
    while len(found) < 3:
        try:
            found.append(next(iterator)["x"].tolist())
        except KeyboardInterrupt:
            interrupts += 1
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert interrupts == 1


def in_threads(threads, iterator):
    """What so many threads take of one iterator, each until its end; errors are re-raised."""
    found: list[list] = [[] for _ in range(threads)]
    errors: list[BaseException] = []
    start = threading.Barrier(threads)

    def take(mine):
        start.wait()
        try:
            for batch in iterator:
                mine.append(batch)
                time.sleep(0)
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=take, args=(mine,), daemon=True) for mine in found]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
    return found


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
    found = in_threads(4, iterator)
    records = [int(x) for mine in found for batch in mine for x in batch["x"]]
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
        seen, failed = [], []

        def take(iterator=iterator, seen=seen, failed=failed):
            while True:
                try:
                    seen.append(int(next(iterator)["x"][0]))
                except LookupError as error:
                    failed.append(error.args[0])
                except StopIteration:
                    return

        running = [threading.Thread(target=take, daemon=True) for _ in range(4)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(60)
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

    running = [threading.Thread(target=take, daemon=True) for _ in range(3)]
    for thread in running:
        thread.start()
    for _ in range(10):
        time.sleep(0.003)
        iterator.set_state(state)
    stop.set()
    for thread in running:
        thread.join(60)
        assert not thread.is_alive()
    iterator.set_state(state)
    assert [int(batch["x"][0]) for batch in iterator] == list(range(0, 400, 4))


def test_a_state_is_set_between_a_batch_and_its_delivery():
    iterator = iter(jk.from_source({"x": np.arange(40)}, 4, num_workers=0))
    start = iterator.get_state()
    list(zip(range(2), iterator, strict=False))
    claim = iterator._claim

    def claim_and_go_back(thread):
        claim(thread)
        iterator._claim = claim
        iterator.set_state(start)  # as another thread's, which has waited for the lock

    iterator._claim = claim_and_go_back
    assert int(next(iterator)["x"][0]) == 8
    assert iterator.get_state() == start
    assert [int(batch["x"][0]) for batch in iterator] == list(range(0, 40, 4))


def test_a_prefetcher_is_set_between_an_item_and_its_delivery():
    fetched = jk.prefetch_to_device(iter(jk.from_source({"x": np.arange(40)}, 4)))
    start = fetched.get_state()
    ring = fetched._stream.ring
    outcome = ring._outcome

    def outcome_and_go_back(*args):
        found = outcome(*args)
        fetched.set_state(start)  # as another thread's
        return found

    ring._outcome = outcome_and_go_back
    assert int(fetched.get()["x"][0]) == 0
    assert fetched.get_state() == start
    assert [int(batch["x"][0]) for batch in fetched] == list(range(0, 40, 4))
    fetched.close()
    assert fetched.get_state()["finished"]


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
    told = 0
    for iterator in iterators:
        for call in (lambda: next(iterator), lambda: iterator.set_state(iterator.get_state())):
            try:
                call()
            except RuntimeError as error:
                told += "before the process forked" in str(error)
        iterator.close()
    os._exit(told)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), *(len(list(it)) for it in iterators))
"""


def test_a_forked_child_does_not_read_on():
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", FORK],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["8", "4", "3", "4", "3"], done
