"""Children of fork after pipelines ran in the parent.

Would catch: a child that hangs or aborts when it leaves, because a destructor waits for threads
that it does not have; one that leaves with another status or without its functions of `atexit`; one
that waits for ever for a program to be compiled.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

START = """
import atexit, os, signal, sys, time, warnings
import jax, numpy as np
import jaxkern as jk
warnings.simplefilter("ignore")

def pipelines():
    base = jk.from_source({"x": np.arange(8, dtype=np.float32)}, 2, num_workers=2)
    yield base
    yield base >> (lambda batch: batch)
    yield base >> jk.OperatorNode(lambda batch: {"x": batch["x"] * 2})

def status_of(child):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"
"""

LEAVING = """
def main(leave):
    kept = [*pipelines()]
    iterators = [iter(pipe) for pipe in kept]
    batches = [next(it) for it in iterators] + [batch for it in iterators[1:] for batch in it]
    atexit.register(print, "before", leave)
    child = os.fork()
    if child == 0:
        atexit.register(print, "after", leave)
        print("buffered", leave)
        if leave == "sys.exit":
            sys.exit(7)
        if leave == "SystemExit":
            raise SystemExit(8)
        if leave == "text":
            sys.exit("a text")
        if leave == "error":
            raise ValueError("an error")
        return
    print(leave, status_of(child), flush=True)
    os._exit(0)

main(sys.argv[1])
"""

READING = """
kept = [*pipelines()]
len(kept[0]), kept[0].element_spec
if sys.argv[1] == "after":
    for pipe in kept:
        list(pipe)
child = os.fork()
if child == 0:
    for pipe in [*kept, *pipelines()]:
        try:
            print(len(list(pipe)))
        except RuntimeError as error:
            print("fork" in str(error) and "'spawn' or 'forkserver'" in str(error))
    sys.exit(0)
print(status_of(child), flush=True)
os._exit(0)
"""


def run(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", START + code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done
    return done


@pytest.mark.parametrize(
    ("leave", "status"),
    [
        ("sys.exit", 7),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [("SystemExit", 8), ("text", 1), ("error", 1), ("end", 0)]
        ),
    ],
)
def test_a_child_leaves_with_its_status(leave, status):
    done = run(LEAVING, leave)
    assert done.stdout.splitlines() == [
        *(f"{word} {leave}" for word in ("buffered", "after", "before")),
        f"{leave} {status}",
    ]
    assert "pthread_join" not in done.stderr
    assert ("an error" in done.stderr) == (leave == "error")


def test_a_child_does_not_read():
    assert run(READING, "after").stdout.split() == [*["True"] * 6, "0"]
