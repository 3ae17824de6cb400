"""Random resized crop, flip and normalize of 64 images, compared with other libraries.

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
from photographs import crops

import jaxkern as jk

COUNT, SIDE, SIZE = 64, 256, 224
NORMALIZE = jk.image.Normalize(MEAN.tolist(), STD.tolist())
BARS = {"albumentations": 6.0, "OpenCV": 9.0, "DALI": 12.0, "torchvision": 40.0}
LEVELS = 255 * STD  # per unit of a normalized image


def chain(size: int = SIZE, antialias: bool = False, dtype: Any = jnp.float32) -> jk.image.Compose:
    crop = jk.image.RandomResizedCrop(size, antialias=antialias)
    return jk.image.Compose([crop, jk.image.RandomHorizontalFlip(0.5), NORMALIZE], dtype=dtype)


def draw(aug: jk.image.Compose, count: int, size: Any = (SIDE, SIDE)) -> Any:
    """Return the parameters that a chain draws for the records of its first epoch."""
    keys = jk.random.record_keys(0, 0, np.arange(count))
    return jax.jit(lambda keys: aug.sample(keys, size))(keys)


def boxes_and_flips(params: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the parameters of `chain` for other libraries, int32 [N, 4] and bool [N]."""
    return np.stack([params[0][k] for k in BOX], 1), np.asarray(params[1]["flip"])


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


def compare_all(rounds: int) -> list[harness.Row]:
    """Return the rows of the table, after a comparison of the values."""
    pixels, aug = crops(COUNT, SIDE), chain()
    images = jnp.asarray(pixels)
    params = draw(aug, COUNT)
    by_xla = jax.jit(lambda x: x.astype(jnp.float32) * SCALE + BIAS)
    ours, smooth, half = "jaxkern", "jaxkern, antialias", "jaxkern, bf16"
    cast, xla = "jaxkern, normalize only", "XLA, normalize only"
    pure = ["JAX gathers, jitted", "jax.image.scale_and_translate"]
    arms: dict[str, Callable[[], Any]] = {
        ours: jitted(aug, images, params),
        smooth: jitted(chain(antialias=True), images, params),
        half: jitted(chain(dtype=jnp.bfloat16), images, params),
        pure[0]: jitted(aug, images, params, "jax"),
        pure[1]: scale_and_translate(images, params),
        cast: jitted(jk.image.Compose([NORMALIZE]), images, [{}]),
        xla: lambda: by_xla(images).block_until_ready(),
    }
    # An arm, the arm with the expected values, and the largest difference.
    checks = [(pure[0], ours, 0.06), (pure[1], ours, 1.0), (half, ours, 1.0), (xla, cast, 0.01)]
    compared = [("pure JAX (the faster of two)", ours, pure, 4.0), (pure[1], ours, pure[1:], 4.0)]
    work = peers.Work(pixels, *boxes_and_flips(params), SIZE, COUNT)
    for name, arm in peers.available(peers.BATCH, work).items():
        arms[name] = lambda arm=arm: next(arm())
        mine = smooth if peers.BATCH[name][1] else ours
        checks.append((name, mine, peers.LEVELS))
        compared.append((name, mine, [name], BARS[name.split()[0].strip(",")]))
    compared.append(("XLA, normalize and cast alone", cast, [xla], 1.0))
    compared.append(("our f32 output against our bf16", half, [ours], 1.0))
    for name, mine, limit in checks:
        # scale_and_translate shades the outermost pixels of a crop differently: taps beyond the
        # crop are allowed.
        inner = slice(8, -8) if name == pure[1] else slice(None)
        got, expected = (np.asarray(arms[arm]())[:, inner, inner] for arm in (name, mine))
        harness.check_levels(name, got, expected, limit, scale=LEVELS)
    samples = harness.interleave(arms, rounds)
    return [harness.Row(name, samples, *rest) for name, *rest in compared]


def main() -> None:
    bench = harness.Benchmark(__doc__, rounds=(25, 5))
    kept = jk.performance.tune_host_allocator()
    rows = compare_all(bench.rounds)
    note = f"Medians of interleaved rounds; freed memory kept for all arms: {kept}."
    path = bench.write(harness.rates(rows, COUNT), peers.PACKAGES, note)
    if path is not None:
        shown = {n: times for n, times in rows[0].samples.items() if "normalize only" not in n}
        title = "Crop, resize, flip, normalize"
        harness.chart_rates(path.with_suffix(".png"), shown, COUNT, title)


if __name__ == "__main__":
    main()
