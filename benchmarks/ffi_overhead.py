"""Overhead of a call between a jitted Python function and the C++ arithmetic.

    python benchmarks/ffi_overhead.py build/bench/native.json

``make bench-native`` runs it after the native benchmark. The overhead of a call is the time of an
8x8 image inside jit, where the arithmetic takes a fraction of a microsecond. The native time of a
batch is compared with the time of the same work inside jit.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import harness
import image_augment as bench
import jax
import jax.numpy as jnp

import jaxkern as jk
from jaxkern.core.threads import schedulable_cpus


def main(native: Path) -> None:
    jk.performance.tune_host_allocator()
    normalize = jk.image.Compose(
        [jk.image.Normalize(bench.MEAN.tolist(), bench.STD.tolist())], dtype=jnp.float32
    )
    large = jnp.asarray(bench.photographs()[:, : bench.SIZE, : bench.SIZE])
    tiny, empty = large[:1, :8, :8], jax.jit(lambda x: x + 1).lower(large[:1, :8, :8]).compile()
    arms = {
        "a jitted x + 1": lambda: empty(tiny),
        "one image of 8x8": bench.jitted(normalize, tiny, [{}]),
        "64 images of 224x224": bench.jitted(normalize, large, [{}]),
    }
    samples = harness.interleave(arms, rounds=25)
    nothing, one, many = (1e6 * samples[name].median for name in arms)
    threads = schedulable_cpus()
    rows = json.loads(native.read_text())["rows"]
    level = jk.doctor().simd_level
    matching = [row for row in rows if row["case"] == "normalize 224 f32" and row["level"] == level]
    row = max(matching, key=lambda r: r["threads"])
    inside = many / bench.COUNT
    print(f"\nnormalize and cast 64 u8 images of 224x224x3 to f32, SIMD level {level}")
    print(f"  native, {row['threads']} threads  {row['us_per_image']:8.2f} us an image")
    print(f"  inside jit, {threads} threads {inside:7.2f} us an image")
    print(f"  one 8x8 image inside jit    {one:8.2f} us a call")
    print(f"  a jitted x + 1 of its size  {nothing:8.2f} us a call")
    overhead = one - nothing
    print(f"FFI overhead: {overhead:.2f} us a call beyond a jitted x + 1")
    harness.write(
        "native",
        "Native kernels, without Python or XLA",
        _table(rows, overhead),
        {
            "rows": rows,
            "inside_jit_us_per_image": inside,
            "call_us": {"a jitted x + 1": nothing, "one image of 8x8": one},
            "ffi_overhead_us": overhead,
        },
    )


def _table(rows: list[dict[str, object]], overhead: float) -> str:
    lines = [
        "| case | level | threads | us an image | ns a value | GB/s | share of the ceiling |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    lines += [
        "| {case} | {level} | {threads} | {us_per_image:.2f} | {ns_per_value:.3f} "
        "| {gigabytes_per_second:.2f} | {share_of_ceiling:.0%} |".format(**row)
        for row in rows
    ]
    return "\n".join([*lines, "", f"FFI overhead: {overhead:.2f} us a call."])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
