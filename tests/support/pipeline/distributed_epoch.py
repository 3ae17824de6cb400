"""An epoch over two processes: run as a program by test_sharding.

    python distributed_epoch.py PROCESS PORT RESULT

Each process has two devices; batches are global arrays over all four.
"""

from __future__ import annotations

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import numpy as np

import jaxkern as jk
from jaxkern.pipeline import Rebatch
from support.pipeline.batches import arrays


def double(batch):
    return {**batch, "label": 2 * batch["label"]}


def main() -> None:
    process, port, result = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=process)
    sharding = jax.NamedSharding(jax.make_mesh((4,), ("data",)), jax.P("data"))
    draw = jk.ElementOperator(
        jk.ElementOperatorConfig(stochastic=True),
        lambda element, key: element.update_data({"key": jax.random.key_data(key)}),
    )
    # 23 records leave the second process one record less: the last batch is padded there only.
    pipe = jk.from_source(arrays(), 6, True, 8, pad_remainder=True, sharding=sharding)
    pipe = pipe >> double >> Rebatch(4) >> jk.OperatorNode(draw)
    total = jax.jit(lambda batch: (batch["label"] * batch["mask"]).sum())  # a collective
    pipe.epoch = 1
    iterator = iter(pipe)
    found: dict[str, list[np.ndarray]] = {"record": [], "mask": [], "key": [], "total": []}
    batches = 0
    for batch in iterator:
        assert batch["image"].shape == (8, 6, 6, 3)
        assert batch["image"].sharding.is_equivalent_to(sharding, 4)
        found["total"].append(np.asarray(total(batch)))
        for field in ("record", "mask", "key"):
            shards = sorted(batch[field].addressable_shards, key=lambda s: s.index[0].start)
            found[field].append(np.concatenate([shard.data for shard in shards]))
        batches += 1
        if batches == 2:  # to resume in the middle must not hang a collective either
            state = iterator.get_state()
            assert state["pipeline"]["shard"] == [process, 2]
            iterator.set_state(state)
    assert batches == len(pipe)
    np.savez(result, **{name: np.array(values) for name, values in found.items()})


if __name__ == "__main__":
    main()
