"""tune_host_allocator keeps its promise, or says that it cannot.

Would catch: True from a call after which large results are mapped anew all the same (other threads'
heaps hold 64 MiB at most), and a call that comes too late and looks successful.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from jaxkern.performance import tune_host_allocator

_CALLS = """
import json
import jax, jax.numpy as jnp, jaxkern, numpy as np
from jaxkern.performance import tune_host_allocator

def heap():
    with open("/proc/self/maps") as file:
        line = next(line for line in file if line.endswith("[heap]\\n"))
    return [int(at, 16) for at in line.split()[0].split("-")]

def within(address):
    begin, end = heap()
    return begin <= address < end

before = within(np.empty(40 << 20, np.uint8).ctypes.data)
assert tune_host_allocator()
add, found, ends = jax.jit(lambda x: x + 1), [], []
for size in 40, 80:
    x = jnp.zeros(size << 18)
    for _ in range(10):
        result = add(x).block_until_ready()
        found.append(within(result.unsafe_buffer_pointer()))
        ends.append(heap()[1])
        del result
        ends.append(heap()[1])
assert tune_host_allocator()
print(json.dumps([before, found, ends]))
"""


def test_large_results_stay_mapped():
    """They lie in the heap, which never gets smaller, and not in mappings of their own."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("XLA_", "MALLOC_"))}
    environment.pop("GLIBC_TUNABLES", None)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _CALLS],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    before, found, ends = json.loads(done.stdout)
    assert not before
    assert all(found)
    assert ends == sorted(ends)


def test_too_late():
    jax.block_until_ready(jax.jit(lambda x: x @ x)(jnp.ones((300, 300))))
    with pytest.warns(RuntimeWarning, match=r"no effect: threads have allocated from \d+ heaps"):
        assert tune_host_allocator() is False


def test_another_c_library(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.warns(RuntimeWarning, match="it is for glibc, and this is darwin"):
        assert tune_host_allocator() is False


def test_negative_bytes():
    for wrong in (-1, 1.5, True, "1"):
        with pytest.raises(ValueError, match=f"keep_bytes is {wrong!r}; expected an integer from"):
            tune_host_allocator(wrong)
