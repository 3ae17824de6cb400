"""64 u8 images through colours, policies, warps and recipes of them, against other libraries.

    python benchmarks/image_policies.py               # prints, and writes benchmarks/results/
    python benchmarks/image_policies.py --quick       # fewer rounds, writes nothing
    python benchmarks/image_policies.py --only RandAugment,AugMix

Every arm draws new parameters for each image in each call, from the same distribution
(policy_peers.py lists the exceptions), and uses two cores: jaxkern and DALI two threads, all others
two processes with half of the batch each. First, torchvision's functions (and OpenCV with the same
matrices) must return the same images for the parameters that jaxkern drew. The arms of a recipe
take turns.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

# Two cores: XLA's pool, and the peers'.
os.environ.setdefault("OMP_NUM_THREADS", "2")

import harness
import jax
import jax.numpy as jnp
import numpy as np
from image_augment import photographs
from policy_peers import (
    AFFINE,
    AFFINE_PARAMETERS,
    JITTER,
    KERNEL,
    MEAN,
    PEERS,
    SIGMA,
    SIZE,
    STD,
    Workers,
)  # fmt: skip

import jaxkern as jk
from jaxkern import image as ji
from jaxkern.benchmarking import Samples
from jaxkern.image.program.program import affine_coefficients, perspective_coefficients

OURS, BEFORE = "jaxkern", "jaxkern, without RandAugment"
TORCHVISION = ("torchvision v2, tensors", "torchvision v2, PIL")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A recipe to time.

    Attributes:
      steps: transforms of jaxkern.
      bars: names of arms (empty for all peers), and the required speed relative to the fastest.
      levels: tolerance of the mean difference, in levels.
      side: height and width of the images; those of 256 are cropped to 224.
    """

    name: str
    steps: Sequence[ji.Transform]
    bars: Sequence[tuple[Sequence[str], float]]
    levels: float = 0.02
    side: int = SIZE


def recipes() -> list[Recipe]:
    crop = [ji.RandomResizedCrop(SIZE), ji.RandomHorizontalFlip()]
    normalize = [ji.Normalize(MEAN, STD), ji.RandomErasing(0.25)]
    simclr = [
        *crop,
        ji.RandomApply([ji.ColorJitter(**JITTER)], 0.8),
        ji.RandomGrayscale(0.2),
        ji.RandomApply([ji.GaussianBlur(KERNEL, SIGMA)], 0.5),
    ]
    others = tuple(name for name, *_ in PEERS if name not in TORCHVISION)
    warp_bars = [(TORCHVISION, 8.0), (("OpenCV warps",), 1.0)]
    affine = ji.RandomAffine(**AFFINE, interpolation="bilinear")
    perspective = ji.RandomPerspective(0.5, p=1.0, interpolation="bilinear")
    policy, by_policy = ji.RandAugment(2, 9), [(TORCHVISION, 15.0)]
    # torchvision's crop rounds twice, so that some pixels begin a level apart.
    training = [*crop, policy, *normalize], [((), 8.0), ((BEFORE,), 1 / 3)]
    return [
        Recipe("RandAugment", [policy], [*by_policy, (others, 6.0)]),
        Recipe("training", *training, levels=1.0, side=256),
        Recipe("TrivialAugmentWide", [ji.TrivialAugmentWide()], by_policy),
        Recipe("AugMix", [ji.AugMix()], by_policy, levels=0.1),
        Recipe("SimCLR", simclr, [((), 10.0)], levels=1.0, side=256),
        Recipe("RandomAffine", [affine], warp_bars),
        Recipe("RandomPerspective", [perspective], warp_bars),
    ]


def drawing(steps: Sequence[ji.Transform], images: np.ndarray) -> Callable[[], Any]:
    """A compiled call that draws and applies, with other draws each time."""
    augment = ji.Compose(list(steps))

    @jax.jit
    def run(images: Any, epoch: Any) -> Any:
        return augment(jk.random.record_keys(0, epoch, jnp.arange(images.shape[0])), images)

    batch, epochs = jnp.asarray(images), iter(range(1 << 30))
    return lambda: run(batch, np.int32(next(epochs))).block_until_ready()


def warp_matrices(recipe: str, params: Any) -> np.ndarray:
    """Return matrices from output to input pixels, counted from the centre of the first pixel."""
    size, drawn = (SIZE, SIZE), params[0]
    if recipe == "RandomAffine":
        values = affine_coefficients(*(drawn[name] for name in AFFINE_PARAMETERS), size=size)
        origin, rows = (1 - SIZE) / 2, 2  # from the middle
    else:
        values = perspective_coefficients(drawn["endpoints"], size=size)
        origin, rows = 0.5, 3  # from the corner
    shift = np.array([[1, 0, origin], [0, 1, origin], [0, 0, 1]])
    full = np.concatenate([np.asarray(values, np.float64), np.ones((len(values), 1))], 1)
    return (np.linalg.inv(shift) @ full.reshape(-1, 3, 3) @ shift)[:, :rows].copy()


def checked(recipe: Recipe, images: np.ndarray, workers: Workers) -> dict[str, float]:
    """Return mean differences, in levels, from torchvision and OpenCV with the same parameters."""
    augment = ji.Compose(list(recipe.steps))
    keys = jk.random.record_keys(1, 0, np.arange(len(images)))
    params = augment.sample(keys, images.shape[1:3])
    ours = np.asarray(augment.apply(jnp.asarray(images), params), np.float32)
    names = next((step.OPS for step in recipe.steps if hasattr(step, "OPS")), ())
    given: dict[str, Any] = {"params": jax.tree.map(np.asarray, list(params))}
    given["names"] = tuple(names)
    levels = 255 * np.asarray(STD, np.float32) if recipe.name == "training" else 1.0
    differences = {}
    for number, (peer, *_) in enumerate(PEERS):
        if peer == "OpenCV warps" and recipe.name.startswith(("RandomAffine", "RandomPersp")):
            given["matrices"] = warp_matrices(recipe.name, params)
        elif peer != TORCHVISION[0]:
            continue
        try:
            theirs = workers.result(number, recipe.name, given)
        except ImportError:
            continue
        difference = float(np.abs((ours - theirs) * levels).mean())
        limit = recipe.levels if peer in TORCHVISION else 1.0
        differences[peer] = harness.within(f"{recipe.name}: {peer}", difference, limit, "levels")
    return differences


@dataclasses.dataclass(frozen=True)
class RecipeResult:
    """Times of the arms of a recipe, and differences of their values."""

    samples: dict[str, Samples]
    rows: list[harness.Row]
    missing: list[str]
    differences: dict[str, float]


def measured(recipe: Recipe, workers: Workers, rounds: int) -> RecipeResult:
    images = photographs()
    edge = (images.shape[1] - recipe.side) // 2
    images = np.ascontiguousarray(images[:, edge : edge + recipe.side, edge : edge + recipe.side])
    workers.load(images)
    differences = checked(recipe, images, workers)
    arms = {OURS: drawing(recipe.steps, images)}
    if recipe.name == "training":
        kept = [step for step in recipe.steps if not isinstance(step, ji.RandAugment)]
        arms[BEFORE] = drawing(kept, images)
    missing = []
    for number, (name, package, *_) in enumerate(PEERS):
        try:
            if workers.has(number, recipe.name):
                arms[name] = partial(workers.run, number, recipe.name)
        except ImportError as error:
            missing.append(f"{name}: {package} is not installed ({error})")
    if len(arms) == 1:
        raise SystemExit(f"{recipe.name}: no other library is installed: {'; '.join(missing)}")
    # Turns of many calls where they are short: the first ones find caches and cores cold.
    samples = harness.interleave(arms, rounds, warmup=1, turn_seconds=0.1)
    peers = [name for name in arms if name not in (OURS, BEFORE)]
    rows = []
    for names, bar in recipe.bars:
        theirs = [name for name in names or peers if name in arms]
        if theirs:
            label = f"{recipe.name}: {min(theirs, key=lambda name: samples[name].median)}"
            rows.append(harness.Row(label, samples, OURS, theirs, bar))
    return RecipeResult(samples, rows, missing, differences)


def rates(results: dict[str, RecipeResult], count: int) -> list[str]:
    """Return a table of the images per second of each arm in each recipe, with quartiles."""
    rows = []
    for name in (OURS, BEFORE, *(name for name, *_ in PEERS)):
        cells = []
        for result in results.values():
            samples = result.samples.get(name)
            spread = () if samples is None else [samples.percentile(q) for q in (50, 75, 25)]
            rate = [f"{count / seconds:,.0f}" for seconds in spread]
            cells.append(f"{rate[0]} ({rate[1]} to {rate[2]})" if rate else "")
        if any(cells):
            rows.append((name, *cells))
    header = f"images/s (quartiles) | {' | '.join(results)}"
    return harness.table(header, "l" + "r" * len(results), rows)


def main() -> None:
    options = harness.parse(
        __doc__, ("--only", {"default": "", "help": "names of recipes, separated by commas"})
    )
    known = {recipe.name: recipe for recipe in recipes()}
    chosen = options.only.split(",") if options.only else list(known)
    if unknown := sorted({*chosen} - {*known}):
        raise SystemExit(f"--only: expected some of {', '.join(known)}, got {', '.join(unknown)}")
    kept = jk.performance.tune_host_allocator()
    workers = Workers()
    try:
        results = {
            name: measured(known[name], workers, 3 if options.quick else 15)
            for name in harness.progress(chosen, "recipes")
        }
    finally:
        workers.close()
    count = len(photographs())
    table = [row for result in results.values() for row in result.rows]
    missing = sorted({line for result in results.values() for line in result.missing})
    lines = [*harness.rates(table, count, missing), "", *rates(results, count)]
    record: dict[str, Any] = {}
    for name, result in results.items():
        print(f"{name}: mean differences in levels {result.differences}")
        record[name] = {"samples": result.samples, "differences": result.differences}
    note = (
        f"{count} u8 images {SIZE}x{SIZE}x3, 256x256 where they are cropped; u8 to u8, but "
        f"training to normalized f32; SIMD {jk.doctor().simd_level}. All arms draw new "
        f"parameters in each call and use two cores; freed memory kept: {kept}. Medians of "
        "interleaved rounds."
    )
    packages = ["torch", "pillow", *dict.fromkeys(package for _, package, *_ in PEERS)]
    title = "Policies, colours and warps"
    harness.write("image-policies", title, lines, record, packages, note, options.quick)


if __name__ == "__main__":
    main()
