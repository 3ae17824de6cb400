"""Writes the results of a native benchmark under benchmarks/results/.

    python benchmarks/native.py image build/bench/native.json
    python benchmarks/native.py xpcs build/bench/native-xpcs.json

``make bench-native`` runs it after the benchmark itself, which needs neither Python nor XLA. For
images, the overhead of a call is measured too: the time of an 8x8 image inside jit, where the
arithmetic takes a fraction of a microsecond. The native time of a batch is compared with the time
of the same work inside jit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import harness

Rows = list[dict[str, Any]]


def image(rows: Rows, quick: bool) -> None:
    import image_augment as bench
    import jax
    import jax.numpy as jnp

    import jaxkern as jk
    from jaxkern.core.threads import schedulable_cpus

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
    lines = harness.table(
        "case | level | threads | us an image | ns a value | GB/s | share of the ceiling",
        "llrrrrr",
        (
            (
                *(row[key] for key in ("case", "level", "threads")),
                f"{row['us_per_image']:.2f}",
                f"{row['ns_per_value']:.3f}",
                f"{row['gigabytes_per_second']:.2f}",
                f"{row['share_of_ceiling']:.0%}",
            )
            for row in rows
        ),
    )
    record = {
        "rows": rows,
        "inside_jit_us_per_image": inside,
        "call_us": {"a jitted x + 1": nothing, "one image of 8x8": one},
        "ffi_overhead_us": overhead,
    }
    text = "\n".join([*lines, "", f"FFI overhead: {overhead:.2f} us a call."])
    harness.write("native", "Native kernels, without Python or XLA", text, record, quick=quick)


def xpcs(rows: Rows, quick: bool) -> None:
    lines = harness.table(
        "case | level | threads | ns a point | Mpoints/s | share of the ceiling",
        "llrrrr",
        (
            (
                *(row[key] for key in ("case", "level", "threads")),
                f"{row['ns_per_point']:.3f}",
                f"{row['million_points_per_second']:,.0f}",
                f"{row['share_of_ceiling']:.0%}",
            )
            for row in rows
        ),
    )
    title = "Native XPCS kernels, without Python or XLA"
    harness.write("xpcs-native", title, "\n".join(lines), {"rows": rows}, note="", quick=quick)


def main() -> None:
    kinds = {"image": image, "xpcs": xpcs}
    options = harness.parse(
        __doc__, ("kind", {"choices": kinds}), ("native", {"type": Path, "metavar": "FILE"})
    )
    kinds[options.kind](json.loads(options.native.read_text())["rows"], options.quick)


if __name__ == "__main__":
    main()
