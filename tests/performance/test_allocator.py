"""Would catch a tuned allocator that still maps large results in each call (heaps of other threads
are limited to 64 MiB), and a call that comes too late but reports success."""

from __future__ import annotations

import json
import sys

import jax
import jax.numpy as jnp
import pytest
from support.core.processes import python_output
from support.errors import raises, warns

from jaxkern.performance import tune_host_allocator

_CALLS = """
import json
import jax, jax.numpy as jnp, jaxkern, numpy as np
from jaxkern.performance import tune_host_allocator

def heap():
    with open("/proc/self/maps") as file:
        line = next(line for line in file if line.endswith("[heap]\\n"))
    return [int(address, 16) for address in line.split()[0].split("-")]

def in_heap(address):
    begin, end = heap()
    return begin <= address < end

before = in_heap(np.empty(40 << 20, np.uint8).ctypes.data)
assert tune_host_allocator()
add, after, ends = jax.jit(lambda x: x + 1), [], []
for size in 40, 80:
    x = jnp.zeros(size << 18)
    for _ in range(10):
        result = add(x).block_until_ready()
        after.append(in_heap(result.unsafe_buffer_pointer()))
        ends.append(heap()[1])
        del result
        ends.append(heap()[1])
assert tune_host_allocator()
print(json.dumps([before, after, ends]))
"""


def test_large_results_stay_mapped():
    """Results are in the heap, which never shrinks, and not in mappings."""
    without = ("XLA_", "MALLOC_", "GLIBC_TUNABLES")
    before, after, ends = json.loads(python_output(_CALLS, without=without, PYTHONWARNINGS="error"))
    assert not before
    assert all(after)
    assert ends == sorted(ends)


def test_too_late():
    jax.block_until_ready(jax.jit(lambda x: x @ x)(jnp.ones((300, 300))))
    with warns(RuntimeWarning, "heaps"):
        assert tune_host_allocator() is False


def test_another_c_library(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with warns(RuntimeWarning, "darwin"):
        assert tune_host_allocator() is False


@pytest.mark.parametrize("invalid", [-1, 1.5, True, "1"])
def test_invalid_keep_bytes(invalid):
    with raises(ValueError, "keep_bytes"):
        tune_host_allocator(invalid)
