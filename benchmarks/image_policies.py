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
    JITTER,
    KERNEL,
    MEAN,
    PEERS,
    SIGMA,
    SIZE,
    STD,
    NotThereError,
    Workers,
)

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
    return [
        Recipe("RandAugment", [ji.RandAugment(2, 9)], [(TORCHVISION, 15.0), (others, 6.0)]),
        # torchvision's crop rounds twice, so that some pixels begin a level apart.
        Recipe(
            "training",
            [*crop, ji.RandAugment(2, 9), *normalize],
            [((), 8.0), ((BEFORE,), 1 / 3)],
            levels=1.0,
            side=256,
        ),
        Recipe("TrivialAugmentWide", [ji.TrivialAugmentWide()], [(TORCHVISION, 15.0)]),
        Recipe("AugMix", [ji.AugMix()], [(TORCHVISION, 15.0)], levels=0.1),
        Recipe("SimCLR", simclr, [((), 10.0)], levels=1.0, side=256),
        Recipe(
            "RandomAffine",
            [ji.RandomAffine(**AFFINE, interpolation="bilinear")],
            warp_bars,
        ),
        Recipe(
            "RandomPerspective",
            [ji.RandomPerspective(0.5, p=1.0, interpolation="bilinear")],
            warp_bars,
        ),
    ]


def drawing(steps: Sequence[ji.Transform], images: np.ndarray) -> Callable[[], Any]:
    """A compiled call that draws and applies, with other draws each time."""
    augment = ji.Compose(list(steps))

    @jax.jit
    def run(images: Any, epoch: Any) -> Any:
        return augment(jk.random.record_keys(0, epoch, jnp.arange(images.shape[0])), images)

    batch, epochs = jnp.asarray(images), iter(range(1 << 30))
    return lambda: run(batch, np.int32(next(epochs))).block_until_ready()


def warp_matrices(recipe: str, params: Any) -> list[np.ndarray]:
    """From pixels of the output to pixels of the input, both counted from the first's centre."""
    size, given = (SIZE, SIZE), params[0]
    if recipe == "RandomAffine":
        names = ("angle", "translate_x", "translate_y", "scale", "shear_x", "shear_y")
        found = affine_coefficients(*(given[name] for name in names), size=size)
        first = (1 - SIZE) / 2  # from the middle
    else:
        found = perspective_coefficients(given["endpoints"], size=size)
        first = 0.5  # from the corner
    theirs = np.array([[1, 0, first], [0, 1, first], [0, 0, 1]])
    full = np.concatenate([np.asarray(found, np.float64), np.ones((len(found), 1))], 1)
    matrices = np.linalg.inv(theirs) @ full.reshape(-1, 3, 3) @ theirs
    rows = 2 if recipe == "RandomAffine" else 3
    return list(np.ascontiguousarray(matrices[:, :rows]))


def checked(recipe: Recipe, images: np.ndarray, workers: Workers) -> dict[str, float]:
    """Mean differences, in levels, from torchvision and OpenCV with the same parameters."""
    augment = ji.Compose(list(recipe.steps))
    keys = jk.random.record_keys(1, 0, np.arange(len(images)))
    params = augment.sample(keys, images.shape[1:3])
    ours = np.asarray(augment.apply(jnp.asarray(images), params), np.float32)
    plain = [{name: np.asarray(value) for name, value in step.items()} for step in params]
    names = next((step.OPS for step in recipe.steps if hasattr(step, "OPS")), ())
    given: dict[str, Any] = {"params": plain, "names": tuple(names)}
    levels = 255 * np.asarray(STD, np.float32) if recipe.name == "training" else 1.0
    found = {}
    for place, (peer, *_) in enumerate(PEERS):
        if peer == "OpenCV warps" and recipe.name.startswith(("RandomAffine", "RandomPersp")):
            given["matrices"] = np.stack(warp_matrices(recipe.name, params))
        elif peer != TORCHVISION[0]:
            continue
        try:
            theirs = workers.result(place, recipe.name, given)
        except NotThereError:
            continue
        found[peer] = float(np.abs((ours - theirs) * levels).mean())
        limit = recipe.levels if peer in TORCHVISION else 1.0
        if not found[peer] <= limit:
            raise SystemExit(
                f"{recipe.name}: {peer} expected a difference of at most {limit} levels, "
                f"got {found[peer]:.3f}"
            )
    return found


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
    workers.give(images)
    differences = checked(recipe, images, workers)
    arms = {OURS: drawing(recipe.steps, images)}
    if recipe.name == "training":
        kept = [step for step in recipe.steps if not isinstance(step, ji.RandAugment)]
        arms[BEFORE] = drawing(kept, images)
    missing = []
    for place, (name, package, *_) in enumerate(PEERS):
        try:
            if workers.has(place, recipe.name):
                arms[name] = partial(workers.run, place, recipe.name)
        except NotThereError as error:
            missing.append(f"{name}: {package} is not installed ({error})")
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


def rates(found: dict[str, RecipeResult], count: int) -> list[str]:
    """Images a second of each arm in each recipe, with the quartiles."""
    names = [OURS, BEFORE, *(name for name, *_ in PEERS)]
    lines = [f"| images/s (quartiles) | {' | '.join(found)} |", "|---|" + "--:|" * len(found)]
    for name in names:
        cells = []
        for one in found.values():
            samples = one.samples.get(name)
            spread = () if samples is None else [samples.percentile(q) for q in (50, 75, 25)]
            rate = [f"{count / seconds:,.0f}" for seconds in spread]
            cells.append(f"{rate[0]} ({rate[1]} to {rate[2]})" if rate else "")
        if any(cells):
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


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
        found = {
            name: measured(known[name], workers, 3 if options.quick else 15)
            for name in harness.progress(chosen, "recipes")
        }
    finally:
        workers.close()
    count = len(photographs())
    table = [row for one in found.values() for row in one.rows]
    missing = sorted({line for one in found.values() for line in one.missing})
    lines = [*harness.rates(table, count), *(f"| {line} | | | | | |" for line in missing)]
    text = "\n".join([*lines, "", *rates(found, count)])
    for name, one in found.items():
        print(f"{name}: mean differences in levels {one.differences}")
    record = {
        "allocator_keeps_memory": kept,
        "images": count,
        "samples": {name: one.samples for name, one in found.items()},
        "ratios": harness.ratios(table),
        "mean_difference_in_levels": {name: one.differences for name, one in found.items()},
        "missing": missing,
    }
    note = (
        f"{count} u8 images {SIZE}x{SIZE}x3, 256x256 where they are cropped; u8 to u8, but "
        f"training to normalized f32; SIMD {jk.doctor().simd_level}. All arms draw new "
        "parameters in each call and use two cores. Medians of interleaved rounds."
    )
    packages = ["torch", "pillow", *dict.fromkeys(package for _, package, *_ in PEERS)]
    harness.write(
        "image-policies",
        "Policies, colours and warps",
        text,
        record,
        packages,
        note,
        quick=options.quick,
    )


if __name__ == "__main__":
    main()
