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
import json, resource
import jax, jax.numpy as jnp, jaxkern
from jaxkern.performance import tune_host_allocator
assert tune_host_allocator()
add, found = jax.jit(lambda x: x + 1), []
for size in 40, 80:
    x, counts = jnp.zeros(size << 18), []
    for _ in range(40):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        add(x).block_until_ready()
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    found.append(counts)
assert tune_host_allocator()
print(json.dumps(found))
"""


def test_large_results_stay_mapped():
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("XLA_", "MALLOC_"))}
    environment.pop("GLIBC_TUNABLES", None)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _CALLS],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    found = json.loads(done.stdout)
    assert found[0][0] > 5000  # all of a fresh result's pages; larger ones may find those kept
    for counts in found:
        # The heap grows until it holds what is alive at the same time, which other threads decide.
        # A call without effect faults in every result.
        assert sum(count > 100 for count in counts[-20:]) <= 10, counts


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
        with pytest.raises(
            ValueError, match=f"keep_bytes is {wrong!r}; wanted a whole number from"
        ):
            tune_host_allocator(wrong)
