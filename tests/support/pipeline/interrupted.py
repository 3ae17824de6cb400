"""Takes batches while signals raise KeyboardInterrupt at random times, and prints what arrived.

    python interrupted.py

A process of its own: an interrupt may also hit what is not under test, as a callback of the garbage
collector, which Python reports and forgets.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax._src.core import reset_trace_state

import jaxkern as jk

BATCHES = 60
LEAST = 10  # interrupts of each kind
MOST_RUNS = 20  # batches of rows are there at once: hardly any
ROWS = {"x": np.arange(2 * BATCHES, dtype=np.int32)}
RANDOM = random.Random(0)


armed = False


def interrupt(signum: int, frame: Any) -> None:
    if armed:  # else one of a timer that ran out before it was stopped, told after it
        raise KeyboardInterrupt


def arm() -> None:
    """One interrupt, soon; waits of the ring look for signals every 50 ms, a batch takes 2 ms."""
    global armed
    armed = True
    soon = RANDOM.choice([2e-4, 1e-3, 4e-3]) * (0.5 + RANDOM.random())
    signal.setitimer(signal.ITIMER_REAL, soon)


def disarm() -> None:
    global armed
    armed = False
    signal.setitimer(signal.ITIMER_REAL, 0)


def slow(batch: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.002)
    return batch


#: keeps one of each two records
EVERY_OTHER = jk.pipeline.Filter(lambda record: record["keep"])


def stream(num_workers: int) -> Any:
    read = lambda: (slow({"x": np.int32(n // 2 * 2)}) for n in range(2 * BATCHES))  # noqa: E731
    return iter(jk.from_stream(read, 2, num_workers=num_workers, prefetch_size=2))


def on_device(batch: dict[str, Any]) -> dict[str, Any]:
    return {"x": jnp.sort(batch["x"])}


def first(batch: Any) -> int:
    return int(batch["x"][0]) // 2


def pipeline(num_workers: int, *nodes: Any) -> Any:
    rows = ROWS
    if EVERY_OTHER in nodes:
        rows = {"x": np.repeat(ROWS["x"], 2), "keep": np.arange(4 * BATCHES) % 2 == 0}
    pipe = jk.from_source(rows, 2, num_workers=num_workers, prefetch_size=2)
    for node in nodes:
        pipe = pipe >> node
    list(pipe)  # compiles
    return iter(pipe)


def items() -> Iterator[dict[str, Any]]:
    for i in range(BATCHES):
        yield {"x": np.full(2, 2 * i, np.int32)}


def ring() -> jk.ring.Ring:
    made = jk.ring.Ring({"x": np.zeros(2, np.int32)}, capacity=2)

    def produce() -> None:
        for item in items():
            made.put(slow(item))
        made.finish()

    threading.Thread(target=produce, daemon=True).start()
    return made


def assembly() -> jk.ring.Assembly:
    def order() -> Iterator[np.ndarray]:
        for i in range(BATCHES):
            time.sleep(0.001)
            yield np.arange(2 * i, 2 * i + 2)

    return jk.ring.Assembly(ROWS, order(), 2, capacity=2)


KINDS: dict[str, Callable[[], Any]] = {
    "rows": lambda: pipeline(2),
    "function": lambda: pipeline(2, slow),
    "program": lambda: pipeline(2, slow, jk.OperatorNode(on_device)),
    "no workers": lambda: pipeline(0, slow, jk.OperatorNode(on_device)),
    "in order": lambda: pipeline(2, EVERY_OTHER, slow),
    "in order without workers": lambda: pipeline(0, EVERY_OTHER, slow),
    "stream": lambda: stream(2),
    "stream without workers": lambda: stream(0),
    "ring": ring,
    "assembly": assembly,
    "prefetcher": lambda: jk.prefetch_to_device(pipeline(2, slow), 2),
    "generator": lambda: jk.prefetch_to_device(map(slow, items())),
}


def interrupted(kind: str) -> dict[str, Any]:
    batches = KINDS[kind]()
    found: list[Any] = []
    wrong_states = interrupts = 0
    while True:
        try:
            arm()
            for batch in batches:
                found.append(batch)
            disarm()
            break
        except KeyboardInterrupt:
            interrupts += 1
            # One between two instructions of JAX's own `bind` leaves this thread without a trace,
            # and no JAX code would run here any more, whoever calls it.
            reset_trace_state()
            if kind not in ("rows", "ring", "assembly", "generator"):
                wrong_states += batches.get_state()["batch"] != len(found)
    return {"found": [first(b) for b in found], "interrupts": interrupts, "wrong": wrong_states}


def putting() -> dict[str, Any]:
    """A producer that tries an index again when it was interrupted."""
    made = jk.ring.Ring({"x": np.zeros(2, np.int32)}, capacity=2)
    found: list[int] = []
    consumer = threading.Thread(target=lambda: found.extend(first(slow(b)) for b in made))
    consumer.start()
    put = interrupts = 0
    while put < BATCHES:
        try:
            arm()
            while put < BATCHES:
                put = made.put({"x": np.full(2, 2 * put, np.int32)}, index=put) + 1
            disarm()
        except KeyboardInterrupt:
            interrupts += 1
    made.finish()
    consumer.join()
    return {"found": found, "interrupts": interrupts, "wrong": 0}


def often(run: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs until there were enough interrupts, which a busy machine spreads over several."""
    reports = [run()]
    while sum(report["interrupts"] for report in reports) < LEAST and len(reports) < MOST_RUNS:
        reports.append(run())
    return reports


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, interrupt)
    report = {kind: often(lambda kind=kind: interrupted(kind)) for kind in KINDS}
    report["put"] = often(putting)
    json.dump(report, sys.stdout)
