"""64 u8 images 256x256x3: random resized crop to 224, flip, normalize to f32, against other ways.

    python benchmarks/image_augment.py            # prints, and writes benchmarks/results/
    python benchmarks/image_augment.py --quick    # fewer rounds, writes nothing

All arms get the same boxes and flips, run warm in one process under the same allocator state (the
allocator keeps freed memory, for every arm), take turns, and are checked to return the same values.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Two cores: XLA's pool and every peer.
os.environ.setdefault("OMP_NUM_THREADS", "2")

import harness
import jax
import jax.numpy as jnp
import numpy as np
import peers

import jaxkern as jk

COUNT, SIDE, SIZE = 64, 256, 224
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


@dataclass
class Row:
    """A comparison: ours over theirs, and the bar that it has to reach."""

    name: str
    ours: harness.Arm
    theirs: harness.Arm
    bar: float

    @property
    def ratio(self) -> float:
        return self.theirs.median / self.ours.median


def photographs() -> np.ndarray:
    """64 crops of 256x256 from the photographs that scikit-image ships, u8 [64, 256, 256, 3]."""
    from skimage import data

    shots = [data.astronaut(), data.chelsea(), data.coffee(), data.rocket()]
    random = np.random.default_rng(0)
    crops = []
    for i in range(COUNT):
        shot = shots[i % len(shots)]
        top = random.integers(0, shot.shape[0] - SIDE + 1)
        left = random.integers(0, shot.shape[1] - SIDE + 1)
        crops.append(shot[top : top + SIDE, left : left + SIDE])
    return np.ascontiguousarray(crops, np.uint8)


def chain(**options: Any) -> jk.image.Compose:
    dtype = options.pop("dtype", jnp.float32)
    return jk.image.Compose(
        [
            jk.image.RandomResizedCrop(SIZE, **options),
            jk.image.RandomHorizontalFlip(0.5),
            jk.image.Normalize(MEAN.tolist(), STD.tolist()),
        ],
        dtype=dtype,
    )


def jitted(
    aug: jk.image.Compose, images: Any, params: Any, backend: str = "native"
) -> Callable[[], Any]:
    """A compiled call of a chain: the backend is chosen while it is traced."""
    with jk.backend(backend):  # type: ignore[arg-type]
        compiled = jax.jit(aug.apply).lower(images, params).compile()
    return lambda: compiled(images, params).block_until_ready()


def scale_and_translate(images: Any, params: Any) -> Callable[[], Any]:
    """``jax.image.scale_and_translate`` of each crop, vmapped, as users write it."""

    def one(image: Any, box: Any, flip: Any) -> Any:
        top, left, height, width = (box[k].astype(jnp.float32) for k in _BOX)
        scale = jnp.stack([SIZE / height, SIZE / width])
        shift = jnp.stack([-top, -left]) * scale
        out = jax.image.scale_and_translate(
            image.astype(jnp.float32) / 255, (SIZE, SIZE, 3), (0, 1), scale, shift,
            method="linear", antialias=False,
        )  # fmt: skip
        out = jnp.where(flip["flip"], out[:, ::-1], out)
        return (out - MEAN.astype(np.float32)) / STD.astype(np.float32)

    fn = jax.jit(jax.vmap(one))
    return lambda: fn(images, params[0], params[1]).block_until_ready()


_BOX = ("top", "left", "height", "width")


def same(got: Any, wanted: Any, name: str, levels: float, border: int = 0) -> float:
    """Checks values; ``levels`` is in 1/255 of the range; returns the largest difference."""
    difference = np.abs(np.asarray(got, np.float32) - np.asarray(wanted, np.float32)) * STD * 255
    if border:
        difference = difference[:, border:-border, border:-border]
    worst = float(difference.max())
    if not worst <= levels:
        raise SystemExit(f"{name} differs by {worst:.2f} levels; wanted at most {levels}")
    return worst


def xla_normalize(images: Any) -> Callable[[], Any]:
    scale = (1 / (255 * STD)).astype(np.float32)
    bias = (-MEAN / STD).astype(np.float32)
    fn = jax.jit(lambda x: x.astype(jnp.float32) * scale + bias)
    return lambda: fn(images).block_until_ready()


def rows(rounds: int) -> tuple[list[Row], list[str], dict[str, float]]:
    images_np = photographs()
    images = jnp.asarray(images_np)
    aug = chain(antialias=False)
    keys = jk.random.record_keys(0, 0, np.arange(COUNT))
    params = jax.jit(lambda k: aug.sample(k, (SIDE, SIDE)))(keys)
    boxes = np.stack([np.asarray(params[0][k]) for k in _BOX], 1)
    flips = np.asarray(params[1]["flip"])
    work = peers.Work(images_np, boxes, flips, SIZE, MEAN, STD)

    ours = harness.Arm("jaxkern", jitted(aug, images, params))
    smooth = harness.Arm("jaxkern, antialias", jitted(chain(antialias=True), images, params))
    half = harness.Arm(
        "jaxkern, bf16", jitted(chain(antialias=False, dtype=jnp.bfloat16), images, params)
    )
    gathers = harness.Arm("JAX gathers, jitted", jitted(aug, images, params, "jax"))
    translate = harness.Arm("jax.image.scale_and_translate", scale_and_translate(images, params))
    normalize = jk.image.Compose([jk.image.Normalize(MEAN.tolist(), STD.tolist())])
    cast = harness.Arm("jaxkern, normalize only", jitted(normalize, images, [{}]))
    xla = harness.Arm("XLA, normalize only", xla_normalize(images))

    reference, reference_smooth = ours.run(), smooth.run()
    errors = {
        gathers.name: same(gathers.run(), reference, gathers.name, 0.06),
        half.name: same(half.run(), reference, half.name, 1.0),
        # It shades the outermost pixels of a crop differently: taps beyond the crop are allowed.
        translate.name: same(translate.run(), reference, translate.name, 1.0, border=8),
        xla.name: same(xla.run(), cast.run(), xla.name, 0.01),
    }
    arms, missing = [ours, smooth, half, gathers, translate, cast, xla], []
    table = [
        Row("pure JAX (the faster of two)", ours, gathers, 4),
        Row("jax.image.scale_and_translate", ours, translate, 4),
    ]
    bars = {"albumentations": 6.0, "OpenCV": 9.0, "DALI": 12.0, "torchvision": 40.0}
    for name, package, make, antialias in peers.PEERS:
        try:
            arm = harness.Arm(name, make(work))
            result = arm.run()
        except ImportError as error:
            missing.append(f"{name}: {package} is not installed ({error})")
            continue
        mine = smooth if antialias else ours
        wanted = reference_smooth if antialias else reference
        errors[name] = same(result, wanted, name, peers.LEVELS)
        arms.append(arm)
        table.append(Row(name, mine, arm, next(b for n, b in bars.items() if name.startswith(n))))
    table.append(Row("XLA, normalize and cast alone", cast, xla, 1))
    table.append(Row("our f32 output against our bf16", half, ours, 1))
    harness.interleave(arms, rounds)
    if translate.median < gathers.median:
        table[0].theirs = translate
    return table, missing, errors


def report(table: list[Row], missing: list[str]) -> str:
    lines = [
        "| against | theirs, images/s | ours, images/s | ratio (quartiles) | bar | |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for row in table:
        low = row.theirs.spread[0] / row.ours.spread[1]
        high = row.theirs.spread[1] / row.ours.spread[0]
        verdict = "reached" if row.ratio >= row.bar else "**below**"
        lines.append(
            f"| {row.name} | {COUNT / row.theirs.median:,.0f} | {COUNT / row.ours.median:,.0f} "
            f"| {row.ratio:.2f} ({low:.2f} to {high:.2f}) | {row.bar:g} | {verdict} |"
        )
    lines += [f"| {name} | missing | | | | |" for name in missing]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds, and write nothing")
    options = parser.parse_args()
    kept = jk.performance.tune_host_allocator()
    table, missing, errors = rows(5 if options.quick else 25)
    machine = harness.machine()
    versions = harness.versions(
        "jaxkern", "jax", "jaxlib", "numpy", *(package for _, package, _, _ in peers.PEERS)
    )
    text = report(table, missing)
    print(text)
    if options.quick:
        return
    head = (
        f"# Random resized crop, flip and normalize\n\n64 u8 images 256x256x3 to 224x224 f32. "
        f"{machine['cpu']}, {machine['cores']} cores; SIMD {jk.doctor().simd_level}; "
        f"{', '.join(f'{k} {v}' for k, v in versions.items())}. Medians of interleaved rounds; "
        f"freed memory kept for all arms: {kept}.\n\n"
    )
    record = {
        "machine": machine,
        "versions": versions,
        "allocator_keeps_memory": kept,
        "images": COUNT,
        "seconds": {
            arm.name: {"median": arm.median, "quartiles": arm.spread, "all": arm.seconds}
            for row in table
            for arm in (row.ours, row.theirs)
        },
        "ratios": {row.name: {"ratio": row.ratio, "bar": row.bar} for row in table},
        "largest_difference_in_levels": errors,
        "missing": missing,
    }
    path = harness.write("image-augment", record, head + text + "\n")
    arms = {arm.name: arm for row in table for arm in (row.ours, row.theirs)}
    shown = [a for a in arms.values() if "normalize only" not in a.name]
    shown.sort(key=lambda a: a.median)
    harness.bar_chart(
        path.with_suffix(".png"),
        [a.name for a in shown],
        [COUNT / a.median for a in shown],
        f"Crop, resize, flip, normalize on {machine['cores']} cores",
        "images/s",
    )
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
