"""Random resized crop, flip and normalize of 64 images, compared with other libraries.

    python benchmarks/image_augment.py            # prints, and writes benchmarks/results/
    python benchmarks/image_augment.py --quick    # fewer rounds, writes nothing

The images are u8, 256x256x3, the results f32, 224x224x3. All arms use the same boxes and flips, and
run warm in one process that reuses freed memory. Their values are compared first; then they take
turns.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

# Two cores: XLA's pool and every peer.
os.environ.setdefault("OMP_NUM_THREADS", "2")

import harness
import jax
import jax.numpy as jnp
import numpy as np
import peers
from peers import BIAS, BOX, MEAN, SCALE, STD
from photographs import pictures

import jaxkern as jk
from jaxkern.benchmarking.plots import bar_chart
from jaxkern.core.threads import schedulable_cpus

COUNT, SIDE, SIZE = 64, 256, 224
BARS = {"albumentations": 6.0, "OpenCV": 9.0, "DALI": 12.0, "torchvision": 40.0}


def photographs() -> np.ndarray:
    """Return 64 crops of photographs of scikit-image, u8 [64, 256, 256, 3]."""
    shots, random, crops = pictures()[:4], np.random.default_rng(0), []
    for i in range(COUNT):
        shot = shots[i % len(shots)]
        top = random.integers(0, shot.shape[0] - SIDE + 1)
        left = random.integers(0, shot.shape[1] - SIDE + 1)
        crops.append(shot[top : top + SIDE, left : left + SIDE])
    return np.ascontiguousarray(crops, np.uint8)


def chain(dtype: Any = jnp.float32, **options: Any) -> jk.image.Compose:
    steps = [
        jk.image.RandomResizedCrop(SIZE, **options),
        jk.image.RandomHorizontalFlip(0.5),
        jk.image.Normalize(MEAN.tolist(), STD.tolist()),
    ]
    return jk.image.Compose(steps, dtype=dtype)


def jitted(
    aug: jk.image.Compose, images: Any, params: Any, backend: Any = "native"
) -> Callable[[], Any]:
    """Return a compiled call of a chain."""
    with jk.backend(backend):
        compiled = jax.jit(aug.apply).lower(images, params).compile()
    return lambda: compiled(images, params).block_until_ready()


def scale_and_translate(images: Any, params: Any) -> Callable[[], Any]:
    """``jax.image.scale_and_translate`` of each crop, vmapped, as users write it."""

    def one(image: Any, box: Any, flip: Any) -> Any:
        top, left, height, width = (box[k].astype(jnp.float32) for k in BOX)
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


def same(got: Any, expected: Any, name: str, levels: float, border: int = 0) -> float:
    """Return the largest difference in 1/255 of the range, which is at most ``levels``."""
    difference = np.abs(np.asarray(got, np.float32) - np.asarray(expected, np.float32)) * STD * 255
    if border:
        difference = difference[:, border:-border, border:-border]
    return harness.within(name, float(difference.max()), levels, "levels")


def rows(rounds: int) -> tuple[list[harness.Row], list[str], dict[str, float]]:
    images_np = photographs()
    images, aug = jnp.asarray(images_np), chain(antialias=False)
    keys = jk.random.record_keys(0, 0, np.arange(COUNT))
    params = jax.jit(lambda k: aug.sample(k, (SIDE, SIDE)))(keys)
    boxes, flips = np.stack([params[0][k] for k in BOX], 1), np.asarray(params[1]["flip"])
    work = peers.Work(images_np, boxes, flips, SIZE, COUNT)

    normalize = jk.image.Compose([jk.image.Normalize(MEAN.tolist(), STD.tolist())])
    by_xla = jax.jit(lambda x: x.astype(jnp.float32) * SCALE + BIAS)
    ours, smooth, half = "jaxkern", "jaxkern, antialias", "jaxkern, bf16"
    cast, xla = "jaxkern, normalize only", "XLA, normalize only"
    pure = ["JAX gathers, jitted", "jax.image.scale_and_translate"]
    arms: dict[str, Callable[[], Any]] = {
        ours: jitted(aug, images, params),
        smooth: jitted(chain(antialias=True), images, params),
        half: jitted(chain(antialias=False, dtype=jnp.bfloat16), images, params),
        pure[0]: jitted(aug, images, params, "jax"),
        pure[1]: scale_and_translate(images, params),
        cast: jitted(normalize, images, [{}]),
        xla: lambda: by_xla(images).block_until_ready(),
    }
    reference, reference_smooth = arms[ours](), arms[smooth]()
    errors = {
        pure[0]: same(arms[pure[0]](), reference, pure[0], 0.06),
        half: same(arms[half](), reference, half, 1.0),
        # It shades the outermost pixels of a crop differently: taps beyond the crop are allowed.
        pure[1]: same(arms[pure[1]](), reference, pure[1], 1.0, border=8),
        xla: same(arms[xla](), arms[cast](), xla, 0.01),
    }
    compared = [("pure JAX (the faster of two)", ours, pure, 4.0), (pure[1], ours, pure[1:], 4.0)]
    others, missing = peers.available(peers.BATCH, work)
    for name, arm in others.items():
        arms[name], antialias = arm, peers.BATCH[name][2]
        expected = reference_smooth if antialias else reference
        errors[name] = same(arm(), expected, name, peers.LEVELS)
        bar = next(bar for start, bar in BARS.items() if name.startswith(start))
        compared.append((name, smooth if antialias else ours, [name], bar))
    compared.append(("XLA, normalize and cast alone", cast, [xla], 1.0))
    compared.append(("our f32 output against our bf16", half, [ours], 1.0))
    samples = harness.interleave(arms, rounds)
    table = [harness.Row(name, samples, mine, theirs, b) for name, mine, theirs, b in compared]
    return table, missing, errors


def main() -> None:
    options = harness.parse(__doc__)
    kept = jk.performance.tune_host_allocator()
    table, missing, errors = rows(5 if options.quick else 25)
    note = (
        f"64 u8 images 256x256x3 to 224x224 f32; SIMD {jk.doctor().simd_level}. Medians of "
        f"interleaved rounds; freed memory kept for all arms: {kept}."
    )
    record = harness.record(table, largest_difference_in_levels=errors, missing=missing)
    path = harness.write(
        "image-augment", "Random resized crop, flip and normalize",
        harness.rates(table, COUNT, missing), record, peers.PACKAGES, note, options.quick,
    )  # fmt: skip
    if path is not None:
        samples = {n: s for n, s in table[0].samples.items() if "normalize only" not in n}
        shown = sorted(samples, key=lambda name: samples[name].median)
        rates = [COUNT / samples[name].median for name in shown]
        title = f"Crop, resize, flip, normalize on {schedulable_cpus()} cores"
        bar_chart(path.with_suffix(".png"), shown, rates, title, "images/s", own="jaxkern")


if __name__ == "__main__":
    main()
