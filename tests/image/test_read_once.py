"""Would catch: a kernel that checks offsets in memory and then reads them there again."""

from __future__ import annotations

import threading

import jax
import numpy as np

from jaxkern import image as im
from jaxkern.core.arrays import aligned_array


def test_offsets_that_change_during_a_call():
    count, length = 50_000, 4096
    memory, offset = (
        aligned_array(n, t, np.zeros) for n, t in ((2 * length, np.uint8), (count, np.int32))
    )
    memory[length:] = 255  # mapped, but outside the buffer
    sizes = np.ones(count, np.int32)
    buffer, shared = jax.dlpack.from_dlpack(memory[:length]), jax.dlpack.from_dlpack(offset)
    batch = im.Ragged(buffer, shared, sizes, sizes, 1, 1, 1)
    run = jax.jit(im.Compose([im.Resize((1, 1), "nearest")]).apply)
    np.testing.assert_array_equal(run(batch, ({},)), 0)
    ended = threading.Event()

    def change():
        while not ended.is_set():
            offset[:] = length
            offset[:] = 0

    thread = threading.Thread(target=change)
    thread.start()
    errors = 0
    try:
        for _ in range(60):
            try:
                out = np.asarray(run(batch, ({},)))
            except jax.errors.JaxRuntimeError as error:
                errors += "operand 'buffer'" in str(error)
            else:
                assert not out.any(), "read beyond the buffer"
    finally:
        ended.set()
        thread.join()
    assert errors > 0  # the memory changed during calls
