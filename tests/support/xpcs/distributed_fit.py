"""A fit of data on two processes; test_fit_distribution runs it as a program.

    python distributed_fit.py PROCESS PORT RESULT

Each process has half of the rows on its two devices.
"""

from __future__ import annotations

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import numpy as np

from support.xpcs import fit_checks
from support.xpcs import fit_problems as problems


def main() -> None:
    process, port, result = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=process)
    case = problems.simulate(64, seed=71)
    mesh = jax.make_mesh((4,), ("rows",), devices=jax.devices())
    sharding = jax.NamedSharding(mesh, jax.P(None, "rows"))
    with jax.enable_x64(True):
        data = jax.make_array_from_callback(
            case.data.shape, sharding, lambda index: case.data[index]
        )
    fitted = fit_checks.fit(fit_checks.model_of(case), data, p0=problems.START)
    np.savez(result, popt=fitted.popt, pcov=fitted.pcov, local=len(data.addressable_shards))


if __name__ == "__main__":
    main()
