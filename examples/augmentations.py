"""A contact sheet of every transform and policy of jaxkern.image, on photographs.

    make figures-images      # or: python examples/augmentations.py

Each name shows three photographs, with one draw each. All public transforms are included; one whose
defaults have little effect, or that needs arguments, has a line in ARGUMENTS.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from skimage import data

import jaxkern as jk
from jaxkern import image as ji

SIDE, TILE, COLUMNS, TITLE = 192, 84, 4, 30
SHIFT, TURN = (0.15, 0.15), 30

ARGUMENTS: dict[str, dict[str, Any]] = {
    "AugMix": {"severity": 10},
    "CenterCrop": {"size": SIDE // 2},
    "ColorJitter": {"brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2},
    "GaussianBlur": {"kernel_size": 23, "sigma": (1.0, 5.0)},
    "Pad": {"padding": 24},
    "RandomAdjustSharpness": {"sharpness_factor": 6.0, "p": 1.0},
    "RandomAffine": {"degrees": TURN, "translate": SHIFT, "scale": (0.7, 1.3), "shear": 15},
    "RandomApply": {"transforms": [ji.RandomInvert(1.0)], "p": 0.5},
    "RandomChoice": {"transforms": [ji.RandomInvert(1.0), ji.RandomGrayscale(1.0)]},
    "RandomCrop": {"size": SIDE // 2},
    "RandomOrder": {"transforms": [ji.RandomSolarize(128, 1.0), ji.RandomInvert(1.0)]},
    "RandomPhotometricDistort": {"hue": (-0.4, 0.4), "p": 1.0},
    "RandomPosterize": {"bits": 2, "p": 1.0},
    "RandomResizedCrop": {"size": SIDE},
    "RandomRotation": {"degrees": TURN},
    "RandomShortestSize": {"min_size": (72, 108, 144)},
    "RandomSolarize": {"threshold": 128, "p": 1.0},
    "Resize": {"size": SIDE // 3},
    "ScaleJitter": {"target_size": (SIDE, SIDE), "scale_range": (0.3, 1.0)},
}
# They change dtypes, units or targets, without a visible effect.
HIDDEN = {"Normalize", "SanitizeBoundingBoxes", "ToDtype", "Transform"}


def photographs() -> np.ndarray:
    """Return three photographs of scikit-image in the public domain: u8 [3, SIDE, SIDE, 3]."""
    corners = ((data.astronaut(), 0, 90), (data.chelsea(), 40, 90), (data.coffee(), 60, 130))
    crops = [shot[top : top + 256, left : left + 256] for shot, top, left in corners]
    resize = ji.Compose([ji.Resize(SIDE)])
    return np.asarray(resize.apply(np.stack(crops), ({},)))


def transforms() -> Iterator[tuple[str, ji.Transform]]:
    """Yield every public transform, with probability 1."""
    for name in sorted(ji.__all__):
        cls = getattr(ji, name)
        if name in HIDDEN or not (isinstance(cls, type) and issubclass(cls, ji.Transform)):
            continue
        arguments = ARGUMENTS.get(name)
        if arguments is None:
            arguments = {"p": 1.0} if "p" in getattr(cls, "__dataclass_fields__", {}) else {}
        yield name, cls(**arguments)


def arguments_of(transform: ji.Transform) -> str:
    """Return the arguments of a transform that differ from their defaults, or all of them."""

    def text(value: Any) -> str:
        if isinstance(value, tuple):
            return f"({', '.join(map(text, value))})"
        return f"{value:.3g}" if isinstance(value, float) else str(value).split("(")[0]

    fields = getattr(transform, "__dataclass_fields__", {})
    values = {name: getattr(transform, name) for name in fields if name != "parameters"}
    values = {name: value for name, value in values.items() if name[0] != "_"}
    changed = {n: v for n, v in values.items() if repr(v) != repr(fields[n].default)}
    return ", ".join(f"{name}={text(value)}" for name, value in (changed or values).items())


def draw_tiles(transform: ji.Transform, images: np.ndarray) -> list[Image.Image]:
    """Return a tile for each transformed image; smaller images are centred."""
    keys = jk.random.record_keys(3, 0, np.arange(len(images)))
    augment = ji.Compose([transform], dtype="uint8")
    if isinstance(transform, ji.RandomIoUCrop):  # it needs boxes
        boxes = np.tile(np.float32([[[60, 60, 130, 130]]]), (len(images), 1, 1))
        out = np.asarray(augment(keys, {"image": images, "boxes": boxes})["image"])
    else:
        out = np.asarray(augment(keys, images))
    out = np.broadcast_to(out, (*out.shape[:3], 3))
    tiles = []
    for one in out:
        extent = max(*one.shape[:2], SIDE)
        height, width = (max(1, round(side * TILE / extent)) for side in one.shape[:2])
        tile = Image.new("RGB", (TILE, TILE), "white")
        small = Image.fromarray(np.ascontiguousarray(one)).resize((width, height))
        tile.paste(small, ((TILE - width) // 2, (TILE - height) // 2))
        tiles.append(tile)
    return tiles


def sheet() -> Image.Image:
    images = photographs()
    rows = [("photographs", "", draw_tiles(ji.RandomHorizontalFlip(0.0), images))]
    for name, transform in transforms():
        try:
            rows.append((name, arguments_of(transform), draw_tiles(transform, images)))
        except (TypeError, ValueError) as error:
            raise SystemExit(f"{name}: {error}; add a line to ARGUMENTS or HIDDEN") from error
    width, height = (TILE + 2) * len(images) + 10, TILE + TITLE + 6
    lines = -(-len(rows) // COLUMNS)
    page = Image.new("RGB", (COLUMNS * width - 10, lines * height), "white")
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(size=12)
    small = ImageFont.load_default(size=9)
    for index, (name, arguments, tiles) in enumerate(rows):
        left, top = index % COLUMNS * width, index // COLUMNS * height
        draw.text((left, top), name, "black", font)
        while draw.textlength(arguments, small) > width - 12:
            arguments = arguments.removesuffix("...")[:-1] + "..."
        draw.text((left, top + 16), arguments, "dimgray", small)
        for k, tile in enumerate(tiles):
            page.paste(tile, (left + k * (TILE + 2), top + TITLE))
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", type=Path, default=Path("docs/images/augmentations.jpg"))
    path = parser.parse_args().plot
    path.parent.mkdir(parents=True, exist_ok=True)
    with jax.default_device(jax.devices("cpu")[0]):
        sheet().save(path, quality=72, optimize=True)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
