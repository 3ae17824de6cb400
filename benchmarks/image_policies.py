"""64 u8 images through colours, policies, warps and recipes of them, compared with other libraries.

    python benchmarks/image_policies.py --only RandAugment AugMix

Every arm draws new parameters for each image in each call, from the same distribution, and uses two
cores: jaxkern two threads, the others two processes with half of the batch each. Draws differ, so
only shapes, dtypes and mean levels are compared first; `tests/image/torchvision` compares images
for the same parameters. The arms of a recipe take turns. Images are 224x224x3, or 256x256x3 where
they are cropped; u8 to u8, but training to normalized f32.
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
import policy_peers
from photographs import crops
from policy_peers import AFFINE, ALBUMENTATIONS, JITTER, PEERS, PIL, SIZE, TENSORS

import jaxkern as jk
from jaxkern import image as ji

COUNT = 64
OURS, BEFORE = "jaxkern", "jaxkern, without RandAugment"
TORCHVISION = (TENSORS, PIL)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A recipe to time.

    Attributes:
      steps: transforms of jaxkern.
      bars: names of arms (empty for all peers), and the required speed relative to the fastest.
      side: height and width of the images; those of 256 are cropped to 224.
    """

    steps: Sequence[ji.Transform]
    bars: Sequence[tuple[Sequence[str], float]]
    side: int = SIZE


CROP = [ji.RandomResizedCrop(SIZE), ji.RandomHorizontalFlip()]
NORMALIZE = [ji.Normalize(policy_peers.MEAN, policy_peers.STD), ji.RandomErasing(0.25)]
COLOURS = [
    ji.RandomApply([ji.ColorJitter(**JITTER)], 0.8),
    ji.RandomGrayscale(0.2),
    ji.RandomApply([ji.GaussianBlur(policy_peers.KERNEL, policy_peers.SIGMA)], 0.5),
]
OTHER = (ALBUMENTATIONS,)
RECIPES = {
    "RandAugment": Recipe([ji.RandAugment(2, 9)], [(TORCHVISION, 15.0), (OTHER, 6.0)]),
    "training": Recipe(
        [*CROP, ji.RandAugment(2, 9), *NORMALIZE], [((), 7.0), ((BEFORE,), 1 / 3)], 256
    ),
    "TrivialAugmentWide": Recipe([ji.TrivialAugmentWide()], [(TORCHVISION, 15.0)]),
    "AugMix": Recipe([ji.AugMix()], [((PIL,), 15.0)]),
    "ColorJitter": Recipe([ji.ColorJitter(**JITTER)], [(TORCHVISION, 15.0), (OTHER, 6.0)]),
    "SimCLR": Recipe([*CROP, *COLOURS], [((), 5.0)], 256),
    "RandomAffine": Recipe(
        [ji.RandomAffine(**AFFINE, interpolation="bilinear")], [(TORCHVISION, 8.0)]
    ),
    "RandomPerspective": Recipe(
        [ji.RandomPerspective(0.5, p=1.0, interpolation="bilinear")], [(TORCHVISION, 8.0)]
    ),
}
MEAN_LIMIT = 20.0  # levels


def drawing(steps: Sequence[ji.Transform], images: np.ndarray) -> Callable[[], Any]:
    """A compiled call that draws and applies, with other draws each time."""
    augment = ji.Compose(list(steps))

    @jax.jit
    def run(images: Any, epoch: Any) -> Any:
        return augment(jk.random.record_keys(0, epoch, jnp.arange(images.shape[0])), images)

    batch, epochs = jnp.asarray(images), iter(range(1 << 30))
    return lambda: run(batch, np.int32(next(epochs))).block_until_ready()


def check(name: str, ours: Any, theirs: np.ndarray) -> None:
    """Compare results that have other draws."""
    ours = np.asarray(ours)
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        raise SystemExit(f"{name}: expected {ours.dtype}{ours.shape}, got {theirs.dtype}")
    scale = 255 * np.mean(policy_peers.STD) if ours.dtype == np.float32 else 1.0
    harness.within(name, scale * abs(ours.mean() - theirs.mean()), MEAN_LIMIT, "levels")


def compare_peers(name: str, rounds: int) -> list[harness.Row]:
    """Return rows of the table, after a comparison of the results."""
    recipe = RECIPES[name]
    edge = (256 - recipe.side) // 2
    inner = slice(edge, edge + recipe.side)
    images = np.ascontiguousarray(crops(COUNT, 256)[:, inner, inner])
    workers = policy_peers.Workers(images)
    try:
        arms = {OURS: drawing(recipe.steps, images)}
        if name == "training":
            kept = [step for step in recipe.steps if not isinstance(step, ji.RandAugment)]
            arms[BEFORE] = drawing(kept, images)
        for peer in PEERS:
            with harness.optional(peer):
                if workers.run(peer, name):
                    check(f"{name}: {peer}", arms[OURS](), workers.result(peer, name))
                    arms[peer] = partial(workers.run, peer, name)
        if len(arms) == 1:
            raise SystemExit(f"{name}: no other library is installed")
        # Turns of many calls where they are short: the first ones find caches and cores cold.
        samples = harness.interleave(arms, rounds, warmup=1, turn_seconds=0.1)
    finally:
        workers.close()
    rows = []
    for names, bar in recipe.bars:
        if theirs := [peer for peer in names or PEERS if peer in arms]:
            row = harness.Row(name, samples, OURS, theirs, bar)
            row.name += f": {row.fastest}"
            rows.append(row)
    return rows


def main() -> None:
    only = {"nargs": "+", "choices": RECIPES}
    bench = harness.Benchmark(__doc__, {"--only": only}, rounds=(15, 3))
    kept = jk.performance.tune_host_allocator()
    table = []
    for name in harness.progress(bench.options.only or RECIPES, "recipes"):
        table += compare_peers(name, bench.rounds)
    note = (
        "All arms draw new parameters in each call and use two cores; freed memory kept: "
        f"{kept}. Medians of interleaved rounds."
    )
    packages = ["torch", "pillow", "torchvision", "albumentations", "opencv-python-headless"]
    bench.write(harness.rates(table, COUNT), packages, note)


if __name__ == "__main__":
    main()
