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

import jaxkern as jk
from jaxkern.benchmarking.plots import bar_chart
from jaxkern.core.threads import schedulable_cpus

COUNT, SIDE, SIZE = 64, 256, 224
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def photographs() -> np.ndarray:
    """Return 64 crops of photographs of scikit-image, u8 [64, 256, 256, 3]."""
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


def same(got: Any, expected: Any, name: str, levels: float, border: int = 0) -> float:
    """Checks values; ``levels`` is in 1/255 of the range; returns the largest difference."""
    difference = np.abs(np.asarray(got, np.float32) - np.asarray(expected, np.float32)) * STD * 255
    if border:
        difference = difference[:, border:-border, border:-border]
    worst = float(difference.max())
    if not worst <= levels:
        raise SystemExit(f"{name} differs by {worst:.2f} levels; expected at most {levels}")
    return worst


def xla_normalize(images: Any) -> Callable[[], Any]:
    scale = (1 / (255 * STD)).astype(np.float32)
    bias = (-MEAN / STD).astype(np.float32)
    fn = jax.jit(lambda x: x.astype(jnp.float32) * scale + bias)
    return lambda: fn(images).block_until_ready()


def rows(rounds: int) -> tuple[list[harness.Row], list[str], dict[str, float]]:
    images_np = photographs()
    images = jnp.asarray(images_np)
    aug = chain(antialias=False)
    keys = jk.random.record_keys(0, 0, np.arange(COUNT))
    params = jax.jit(lambda k: aug.sample(k, (SIDE, SIDE)))(keys)
    boxes = np.stack([np.asarray(params[0][k]) for k in _BOX], 1)
    flips = np.asarray(params[1]["flip"])
    work = peers.Work(images_np, boxes, flips, SIZE, MEAN, STD)

    normalize = jk.image.Compose([jk.image.Normalize(MEAN.tolist(), STD.tolist())])
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
        xla: xla_normalize(images),
    }
    reference, reference_smooth = arms[ours](), arms[smooth]()
    errors = {
        pure[0]: same(arms[pure[0]](), reference, pure[0], 0.06),
        half: same(arms[half](), reference, half, 1.0),
        # It shades the outermost pixels of a crop differently: taps beyond the crop are allowed.
        pure[1]: same(arms[pure[1]](), reference, pure[1], 1.0, border=8),
        xla: same(arms[xla](), arms[cast](), xla, 0.01),
    }
    compared = [
        ("pure JAX (the faster of two)", ours, pure, 4.0),
        (pure[1], ours, pure[1:], 4.0),
    ]
    missing = []
    bars = {"albumentations": 6.0, "OpenCV": 9.0, "DALI": 12.0, "torchvision": 40.0}
    for name, package, make, antialias in peers.PEERS:
        try:
            arms[name] = make(work)
            result = arms[name]()
        except ImportError as error:
            arms.pop(name, None)
            missing.append(f"{name}: {package} is not installed ({error})")
            continue
        mine = smooth if antialias else ours
        expected = reference_smooth if antialias else reference
        errors[name] = same(result, expected, name, peers.LEVELS)
        bar = next(b for n, b in bars.items() if name.startswith(n))
        compared.append((name, mine, [name], bar))
    compared.append(("XLA, normalize and cast alone", cast, [xla], 1.0))
    compared.append(("our f32 output against our bf16", half, [ours], 1.0))
    samples = harness.interleave(arms, rounds)
    table = [harness.Row(name, samples, mine, theirs, b) for name, mine, theirs, b in compared]
    return table, missing, errors


def main() -> None:
    options = harness.parse(__doc__)
    kept = jk.performance.tune_host_allocator()
    table, missing, errors = rows(5 if options.quick else 25)
    lines = [*harness.rates(table, COUNT), *(f"| {name} | missing | | | | |" for name in missing)]
    text = "\n".join(lines)
    samples = table[0].samples
    record = {
        "allocator_keeps_memory": kept,
        "images": COUNT,
        "samples": samples,
        "ratios": harness.ratios(table),
        "largest_difference_in_levels": errors,
        "missing": missing,
    }
    note = (
        f"64 u8 images 256x256x3 to 224x224 f32; SIMD {jk.doctor().simd_level}. Medians of "
        f"interleaved rounds; freed memory kept for all arms: {kept}."
    )
    packages = [package for _, package, _, _ in peers.PEERS]
    title = "Random resized crop, flip and normalize"
    path = harness.write("image-augment", title, text, record, packages, note, quick=options.quick)
    if path is None:
        return
    shown = [name for name in samples if "normalize only" not in name]
    shown.sort(key=lambda name: samples[name].median)
    bar_chart(
        path.with_suffix(".png"),
        shown,
        [COUNT / samples[name].median for name in shown],
        f"Crop, resize, flip, normalize on {schedulable_cpus()} cores",
        "images/s",
        own="jaxkern",
    )


if __name__ == "__main__":
    main()
