"""The code blocks of the README and the documentation, and what each page takes for granted.

python tests/support/pages.py     prints how many blocks are run and how many are not
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "PACKAGE.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if "api" not in page.parts),
]

# What only a GPU or a cluster can run, `make test-huggingface` or PyTorch, says so in its text.
_ELSEWHERE = re.compile(
    r"\bgpu-check|cuda|devices\(.gpu.\)|require=.gpu|slurm|srun|sbatch|distributed\.initialize"
    r"|import datasets|import torch|s3://",
    re.IGNORECASE,
)

_IMAGES = """
import jax, jax.numpy as jnp, numpy as np
import jaxkern as jk
images = np.random.default_rng(0).integers(0, 256, (64, 24, 20, 3), np.uint8)
labels = np.arange(64) % 10
record_ids = np.arange(64)
"""

# JPEG files of two classes; and simplejpeg, where it is not installed.
_PHOTOS = """
import pathlib, sys, types
import numpy as np, PIL.Image
for k in range(41):
    path = pathlib.Path("photos", "ab"[k // 21], f"{k:02}.jpg")
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(k).integers(0, 256, (48, 64, 3), np.uint8)
    PIL.Image.fromarray(pixels).save(path)
try:
    import simplejpeg
except ImportError:
    sys.modules["simplejpeg"] = types.ModuleType("simplejpeg")
    def _decode(data):
        import io
        return np.asarray(PIL.Image.open(io.BytesIO(data)).convert("RGB"))
    sys.modules["simplejpeg"].decode_jpeg = _decode
def train(image, label): assert image.shape[1:] == (224, 224, 3)
"""

# Frames of a detector, and the map of its bins.
_FRAMES = """
import h5py, numpy as np
import jaxkern as jk
_model = jk.xpcs.LaminarFlow(jk.xpcs.Geometry(.0054, 2e6, .1, .1 * np.arange(60), [0.0, 40.0]))
_frames = jk.xpcs.simulate_frames(_model, _model.defaults, pixels=100)
_frames.qmap.write("qmap.h5")
with h5py.File("run.h5", "w") as _file:
    _file["entry/data/data"] = _frames.array
"""

# Code that stands for the reader's own, run before the block of that number.
BEFORE = {
    "README.md": {0: _PHOTOS + _FRAMES},
    "index.md": {0: _PHOTOS, 1: _FRAMES},
    "read-image-files.md": {0: _PHOTOS},
    "augment-images.md": {
        0: _IMAGES + "list_of_uint8_images = [images[i, : 20 + i] for i in range(4)]"
    },
    "build-pipelines.md": {
        1: _PHOTOS
        + """
path.write_bytes(b"no image")
def step(images, labels, weight): assert images.shape == (16, 224, 224, 3)
def predict(images): return jnp.zeros(len(images), jnp.int32)
"""
    },
    "pack-files.md": {0: _PHOTOS},
    "use-a-ring.md": {
        1: "weights = jnp.zeros(3)\ndef update(w, b): return w + b['image'].mean((0, 1, 2))"
    },
    "transform-targets.md": {
        4: """
import pathlib, PIL.Image
photo_paths = [pathlib.Path(f"{k}.jpg") for k in range(4)]
mask_paths = [path.with_suffix(".png") for path in photo_paths]
for k, path in enumerate(photo_paths):
    PIL.Image.fromarray(images[k, 8 * k :]).save(path)
    PIL.Image.fromarray(np.uint8(images[k, 8 * k :, :, 0] > 99)).save(mask_paths[k])
"""
    },
}

# What a page prints, by parts.
SHOWN = {
    "benchmark.md": ["augment/jaxkern.image_chain.v1"],
    "read-image-files.md": [
        "Compose  native threads: Compose#",
        "image: 41 JPEG by libjpeg-turbo",
        "(4, 32, 32, 1)",
        "(4, 224, 224, 3) [ True False False False]",
        "1 PNG by Pillow in worker threads; no native threads: 1 of 42 images are not JPEG",
    ],
    "build-pipelines.md": [
        "5\n",
        "1 of this epoch did not decode; so far {PosixPath(",
        "of 4 are right; classes ['a', 'b']",
        "16 images as Ragged",
        "['brightness', 'image', 'label', 'thumbnail']",
        "record 17 in epoch 1",
    ],
    "speed-up-programs.md": ["x: shape (8,) -> (9,)", "1 hits, 1 misses"],
    "run-graphs.md": ["Both: 3 operators in 3 parts"],
    "use-rooflines.md": ["fma_f32"],
    "transform-targets.md": ["(4, 24, 24, 3) (4, 24, 24)"],
    "threads.md": ["Compose  native threads: Compose#", "augmentation runs on the"],
    "pack-tokens.md": [
        "rows of 1000 segments, ",
        "(8, 512, 512)\n10.8",
        "[[1, 2, 3], [4, -1, -1], [5, 6, -1]]",
        "'tokens': (8, 512)",
        "[[4, 5, 6, 7], [1, 2, 3, 8]] [[0, 1, 2, 3], [0, 1, 2, 0]]",
    ],
    "select-a-device.md": ["fma_f32"],
}


class Block(NamedTuple):
    """A fenced block: its language, its text, and the line of the page on which it begins."""

    language: str
    text: str
    line: int

    @property
    def here(self) -> bool:
        """True if any machine can run the block."""
        return not _ELSEWHERE.search(self.text)


def blocks(page: Path, *languages: str) -> list[Block]:
    """A page's blocks in these languages; blocks of directives are Sphinx's."""
    text = page.read_text()
    return [
        Block(m[1], m[2], text.count("\n", 0, m.start()) + 2)
        for m in re.finditer(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        if m[1] in languages
    ]


def main() -> None:
    found = [block for page in PAGES for block in blocks(page, "python", "sh", "cpp")]
    here = sum(block.here for block in found)
    print(f"{here} code blocks of the documentation run, {len(found) - here} need more")


if __name__ == "__main__":
    main()
