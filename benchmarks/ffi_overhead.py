"""What a call costs between Python's jitted function and the C++ arithmetic.

    python benchmarks/ffi_overhead.py build/bench/native.json

``make bench-native`` runs it after the native benchmark. The overhead of a call is what an 8x8
image takes inside jit, where the arithmetic itself takes a fraction of a microsecond. Below it, the
native time of a batch stands beside the time of the same work inside jit.
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


def main(native: Path) -> None:
    jk.performance.tune_host_allocator()
    normalize = jk.image.Compose(
        [jk.image.Normalize(bench.MEAN.tolist(), bench.STD.tolist())], dtype=jnp.float32
    )
    large = jnp.asarray(bench.photographs()[:, : bench.SIZE, : bench.SIZE])
    tiny, empty = large[:1, :8, :8], jax.jit(lambda x: x + 1).lower(large[:1, :8, :8]).compile()
    arms = [
        harness.Arm("a jitted x + 1", lambda: empty(tiny).block_until_ready()),
        harness.Arm("one image of 8x8", bench.jitted(normalize, tiny, [{}])),
        harness.Arm("64 images of 224x224", bench.jitted(normalize, large, [{}])),
    ]
    harness.interleave(arms, rounds=25)
    threads = int(harness.machine()["cores"])
    rows = json.loads(native.read_text())["rows"]
    level = jk.doctor().simd_level
    matching = [row for row in rows if row["case"] == "normalize 224 f32" and row["level"] == level]
    row = max(matching, key=lambda r: r["threads"])
    inside = arms[2].median * 1e6 / bench.COUNT
    print(f"\nnormalize and cast 64 u8 images of 224x224x3 to f32, SIMD level {level}")
    print(f"  native, {row['threads']} threads  {row['us_per_image']:8.2f} us an image")
    print(f"  inside jit, {threads} threads {inside:7.2f} us an image")
    print(f"  one 8x8 image inside jit    {arms[1].median * 1e6:8.2f} us a call")
    print(f"  a jitted x + 1 of its size  {arms[0].median * 1e6:8.2f} us a call")
    overhead = (arms[1].median - arms[0].median) * 1e6
    print(f"FFI overhead: {overhead:.2f} us a call beyond a jitted x + 1")
    harness.write(
        "native",
        {
            "machine": harness.machine(),
            "versions": harness.versions("jaxkern", "jax", "jaxlib"),
            "rows": rows,
            "inside_jit_us_per_image": inside,
            "call_us": {arm.name: arm.median * 1e6 for arm in arms[:2]},
            "ffi_overhead_us": overhead,
        },
        _table(rows, overhead),
    )


def _table(rows: list[dict[str, object]], overhead: float) -> str:
    lines = [
        "# Native kernels, without Python or XLA",
        "",
        "| case | level | threads | us an image | ns a value | GB/s | share of the ceiling |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    lines += [
        "| {case} | {level} | {threads} | {us_per_image:.2f} | {ns_per_value:.3f} "
        "| {gigabytes_per_second:.2f} | {share_of_ceiling:.0%} |".format(**row)
        for row in rows
    ]
    return "\n".join([*lines, "", f"FFI overhead: {overhead:.2f} us a call.", ""])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
