"""Children of fork after pipelines ran in the parent.

Would catch: a child that hangs or aborts when it leaves, because a destructor waits for threads
that it does not have; one that leaves with another status, without its functions of `atexit`, or
without writing the buffers of its files; one that waits for ever for a program to be compiled.
"""

from __future__ import annotations

import pytest
from support import run_python

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
        for pipe in [*kept, *pipelines()]:
            try:
                print(len(list(pipe)))
            except RuntimeError as error:
                print("fork" in str(error) and "'spawn' or 'forkserver'" in str(error))
        global file
        file = open(sys.argv[2], "w")
        file.write("written")
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

# While another thread forks, and before it is done, this one does.
THREADS = """
import threading
from jaxkern.core import compat
jax.block_until_ready(jax.numpy.ones(3))
running_objects = compat.running_objects
started, done = threading.Event(), threading.Event()

def fork():
    child = os.fork()
    if child == 0:
        try:
            list(jk.from_source({"x": np.arange(8)}, 2))
        except RuntimeError:
            os._exit(3)
        os._exit(4)
    return status_of(child)

def running():
    objects = running_objects()
    if threading.current_thread() is not threading.main_thread():
        started.set()
        done.wait()
    return objects

compat.running_objects = running
statuses = []
thread = threading.Thread(target=lambda: statuses.append(fork()))
thread.start()
started.wait()
statuses.append(fork())
done.set()
thread.join()
print(statuses, flush=True)
os._exit(0)
"""


def run(code, *arguments):
    done = run_python(START + code, *arguments, timeout=120)
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
def test_a_child_reads_nothing_and_leaves_with_its_status(leave, status, tmp_path):
    written = tmp_path / "written.txt"
    done = run(LEAVING, leave, str(written))
    assert done.stdout.splitlines() == [
        *["True"] * 6,
        *(f"{word} {leave}" for word in ("buffered", "after", "before")),
        f"{leave} {status}",
    ]
    assert "pthread_join" not in done.stderr
    assert ("an error" in done.stderr) == (leave == "error")
    assert written.read_text() == "written"


@pytest.mark.slow  # another start of Python and JAX
def test_threads_fork_at_the_same_time():
    assert run(THREADS).stdout == "[3, 3]\n"
