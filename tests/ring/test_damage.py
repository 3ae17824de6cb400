"""Changes by callers to memory that native threads read, each in a process that it may end.

Would catch: a crash because an order is checked and then read again, or because a mapped file was
cut short; an assembly that never ends because its indices do.
"""

from __future__ import annotations

import numpy as np
import pytest
from support import library
from support.errors import raises
from support.processes import run

import jaxkern as jk

ORDER = """
import threading, time
import numpy as np
import jaxkern as jk

order = np.zeros(1 << 20, np.int64)
rows = np.zeros((10, 1), np.float32)
stop = False
def write():
    while not stop:
        order[-1] = 1 << 40
        time.sleep(0)
        order[-1] = 0
        time.sleep(0)
threading.Thread(target=write, daemon=True).start()
outcomes = {"read": 0, "refused": 0}
for _ in range(15):
    try:
        with jk.ring.Assembly({"x": rows}, order, 1 << 18) as batches:
            list(batches)
        outcomes["read"] += 1
    except IndexError:
        outcomes["refused"] += 1
stop = True
print(sum(outcomes.values()))
"""

TRUNCATED = """
import os, sys
import h5py
import numpy as np
import jaxkern as jk

values = np.random.default_rng(0).normal(size=(64, 2048)).astype(np.float32)
places = {name: os.path.join(sys.argv[1], name) for name in ("x.npy", "x.h5")}
np.save(places["x.npy"], values)
with h5py.File(places["x.h5"], "w") as file:
    file["x"] = values
file = h5py.File(places["x.h5"], "r")
sources = {
    "rows": jk.from_source({"x": places["x.npy"]}, 8),
    "function": jk.from_source({"x": places["x.npy"]}, 8) >> (lambda batch: batch),
    "hdf5": jk.from_source({"x": file["x"]}, 8),
}
mapped = np.load(places["x.npy"], mmap_mode="r")
views = {"all": mapped, "rows": mapped[3:], "back": mapped[::-1]}
t = 0.1 * np.arange(32)
model = jk.xpcs.Static(jk.xpcs.Geometry(q=.0054, gap=2e6, dt=.1, t=t, phi=[0.0]))
for pipe in sources.values():
    assert len(list(pipe)) == 8
def assembled(array):
    return list(jk.ring.Assembly({"x": array}, np.arange(8), 4))
for array in views.values():
    assert len(assembled(array)) == 2
whole = open(places["x.npy"], "rb").read()
for place in places.values():
    os.truncate(place, os.path.getsize(place) // 2)
def outcome(call):
    try:
        call()
    except (OSError, jk.xpcs.BadDataError) as error:
        return "truncated to" in str(error) and "rename it" in str(error)
for name, pipe in sources.items():
    print(name, outcome(lambda: list(pipe)))
with open(places["x.npy"], "r+b") as again:
    again.write(whole)
print("again", len(list(sources["rows"])))
os.truncate(places["x.npy"], len(whole) // 2)
for name, array in views.items():
    print(name, outcome(lambda: assembled(array)))
print("part", len(assembled(mapped[:24])))
data = np.memmap(places["x.npy"], np.float32, "r", 8192, (1, 32, 32))
os.truncate(places["x.npy"], 4096)
print("fit", outcome(lambda: jk.xpcs.fit(model, data, progress=False)))
"""


def test_an_order_that_is_written_to_while_it_is_taken():
    assert run(ORDER) == "15\n"


def test_files_that_are_cut_short_while_they_are_mapped(tmp_path):
    library("h5py")
    assert run(TRUNCATED, str(tmp_path)).splitlines() == [
        *("rows True", "function True", "hdf5 True", "again 8"),
        *("all True", "rows True", "back True"),
        *("part 2", "fit True"),
    ]


LAST = 2**62


def test_indices_have_an_end():
    rows = {"x": np.arange(4)}
    with jk.ring.Assembly(rows, np.arange(4), 2, start=LAST - 2) as batches:
        assert [batch["x"].tolist() for batch in batches] == [[0, 1], [2, 3]]
    for start in (LAST - 1, LAST):
        with raises(ValueError, "2 more", f"index {start} "):
            jk.ring.Assembly(rows, np.arange(4), 2, start=start)
        with jk.ring.Assembly(rows, iter([np.arange(2), np.arange(4)]), 2, start=start) as batches:
            found = [batches.get(20)["x"].tolist() for _ in range(LAST - start)]
            assert found == [[0, 1]] * (LAST - start)
            with raises(ValueError, "largest index"):
                batches.get(20)
            with pytest.raises(StopIteration):
                batches.get(20)
    ring = jk.ring.Ring(np.zeros(1, np.int32), start=LAST)
    assert ring.put(np.ones(1, np.int32)) == LAST
    with raises(ValueError, "4611686018427387905"):
        ring.put(np.ones(1, np.int32))
    ring.finish()
    assert [batch.tolist() for batch in ring] == [[1]]
