"""Writes the results of a native benchmark under benchmarks/results/.

    python benchmarks/native.py image build/bench/native.json
    python benchmarks/native.py xpcs build/bench/native-xpcs.json

``make bench-native`` runs it after the benchmark itself, which needs neither Python nor XLA. For
images, the overhead of a call is measured too: the time of an 8x8 image inside jit, where the
arithmetic takes a fraction of a microsecond, and of the same batch inside jit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import harness

Column = tuple[str, str, str]  # title, key, format
COMMON: list[Column] = [("case", "case", ""), ("level", "level", ""), ("threads", "threads", "")]
SHARE: Column = ("share of the ceiling", "share_of_ceiling", ".0%")
COLUMNS: dict[str, list[Column]] = {
    "image": [
        ("us an image", "us_per_image", ".2f"),
        ("ns a value", "ns_per_value", ".3f"),
        ("GB/s", "gigabytes_per_second", ".2f"),
    ],
    "xpcs": [
        ("ns a point", "ns_per_point", ".3f"),
        ("Mpoints/s", "million_points_per_second", ",.0f"),
    ],
}


def inside_jit() -> tuple[dict[str, float], str]:
    """Return microseconds of calls inside jit, and the sentence about the overhead."""
    import image_augment as bench
    import jax
    import jax.numpy as jnp

    import jaxkern as jk

    jk.performance.tune_host_allocator()
    steps = [jk.image.Normalize(bench.MEAN.tolist(), bench.STD.tolist())]
    normalize = jk.image.Compose(steps, dtype=jnp.float32)
    large = jnp.asarray(bench.photographs()[:, : bench.SIZE, : bench.SIZE])
    tiny = large[:1, :8, :8]
    empty = jax.jit(lambda x: x + 1).lower(tiny).compile()
    arms = {
        "a jitted x + 1": lambda: empty(tiny),
        "one image of 8x8": bench.jitted(normalize, tiny, [{}]),
        "64 images of 224x224": bench.jitted(normalize, large, [{}]),
    }
    samples = harness.interleave(arms, rounds=25)
    us = {name: 1e6 * samples[name].median for name in arms}
    nothing, one, many = us.values()
    return us, (
        f"FFI overhead: {one - nothing:.2f} us a call. Normalizing and casting 64 images inside "
        f"jit takes {many / bench.COUNT:.2f} us an image."
    )


def main() -> None:
    options = harness.parse(
        __doc__, ("kind", {"choices": COLUMNS}), ("native", {"type": Path, "metavar": "FILE"})
    )
    native: list[dict[str, Any]] = json.loads(options.native.read_text())["rows"]
    columns = [*COMMON, *COLUMNS[options.kind], SHARE]
    header, align = " | ".join(title for title, *_ in columns), "ll" + "r" * (len(columns) - 2)
    rows = ([f"{row[key]:{form}}" for _, key, form in columns] for row in native)
    lines, record = harness.table(header, align, rows), {"rows": native}
    title, name = "Native XPCS kernels, without Python or XLA", "xpcs-native"
    if options.kind == "image":
        title, name = "Native kernels, without Python or XLA", "native"
        record["inside_jit_us"], sentence = inside_jit()
        lines += ["", sentence]
    harness.write(name, title, lines, record, quick=options.quick)


if __name__ == "__main__":
    main()
