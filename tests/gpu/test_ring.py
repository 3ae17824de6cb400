"""Batches for a GPU.

Would catch: a slot that is reused before its copy has ended, and augmentation that differs between
host and device.
"""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from conftest import assert_same

import jaxkern as jk

COUNT, ROWS, WIDTH = 60, 64, 40_000  # 10 MB a batch: its copy takes a while
STRUCT = {"x": jax.ShapeDtypeStruct((ROWS, WIDTH), np.float32)}


def _batch(number: int) -> dict[str, np.ndarray]:
    x = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH) % 977
    return {"x": x + np.float32(number)}


def _feed(ring: Any) -> threading.Thread:
    def produce() -> None:
        for number in range(COUNT):
            ring.put(_batch(number))
        ring.finish()

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    return thread


def _bits(x: Any) -> Any:
    """Return an exact sum that depends on every item and its index."""
    words = jax.lax.bitcast_convert_type(x, jnp.uint32).reshape(-1)
    return jnp.sum(words * (jnp.arange(words.size, dtype=jnp.uint32) * 2 + 1), dtype=jnp.uint32)


def _expected() -> list[int]:
    with jax.default_device(jax.devices("cpu")[0]):
        return [int(jax.jit(_bits)(_batch(number)["x"])) for number in range(COUNT)]


def test_a_ring_delivers_to_the_device(device: Any) -> None:
    ring = jk.ring.Ring(STRUCT, capacity=2, device=device)
    thread = _feed(ring)
    got = []
    for batch in ring:
        assert batch["x"].devices() == {device}
        got.append(jax.jit(_bits)(batch["x"]))
    thread.join()
    assert [int(x) for x in got] == _expected()


def test_a_pipeline_augments_on_the_host_or_on_the_device(device: Any) -> None:
    rng = np.random.default_rng(0)
    source = {
        "image": rng.integers(0, 256, (300, 60, 70, 3), np.uint8),
        "record": np.arange(300, dtype=np.int32),
    }
    aug = jk.image.Compose([jk.image.RandomResizedCrop(48), jk.image.Normalize(0.5, 0.25)])
    base = jk.from_source(source, 32, shuffle=True, seed=1)
    places = {}
    with jax.default_device(device):
        for on in ("host", "device"):
            batches = list(base >> jk.OperatorNode(aug, on=on))
            assert {d for b in batches for d in b["image"].devices()} == {device}
            places[on] = jax.tree.map(np.asarray, batches)
        overview = (base >> aug).explain()
    for host, there in zip(places["host"], places["device"], strict=True):
        assert (host["record"] == there["record"]).all()
        assert_same(host["image"], there["image"])
    assert overview.nodes[-1][2] == "native threads"
