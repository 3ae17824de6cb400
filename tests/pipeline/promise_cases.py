"""The pipelines that `test_promises.py` holds every promise against: one row a source or node.

A row's `build(tmp_path)` returns `make(**options)`, which builds the pipeline with the options of
`from_source` (batch_size, shuffle, seed, num_workers, drop_remainder, pad_remainder, shard ...).
Its batches have an integer field "id" [N] that names each row; nothing else is asked of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
from batches import arrays

import jaxkern as jk
from jaxkern.pipeline import HDF5Source, ImageFolder, Subset, pack
from jaxkern.pipeline.packed_files import PackedFile

RECORDS = 23
BAD = 7  # the record that `breaks` cannot read

Factory = Callable[..., "jk.Pipeline"]


@dataclasses.dataclass(frozen=True)
class Case:
    """One row.

    Attributes:
      build: from an empty folder to `make(**options)`.
      ids: the "id" of every row of an epoch, over all shards; in any order, with repetitions.
      breaks: like `build`, but the record with id BAD cannot be read; None where that cannot be.
      jitted: whether it runs JAX programs.
    """

    build: Callable[[Path], Factory]
    ids: tuple[int, ...] = tuple(range(RECORDS))
    breaks: Callable[[Path], Factory] | None = None
    jitted: bool = False


def fields() -> dict[str, np.ndarray]:
    """Small images, labels and ids."""
    found = arrays(RECORDS)
    return {"image": found["image"], "label": found["label"], "id": found["record"]}


def of_source(source: Any) -> Factory:
    """What makes pipelines of a source."""
    return lambda **options: jk.from_source(source, **options)


def _npy(folder: Path) -> Factory:
    for name, array in fields().items():
        np.save(folder / f"{name}.npy", array)
    return of_source({name: folder / f"{name}.npy" for name in fields()})


def _hdf5(folder: Path, **how: Any) -> Factory:
    import h5py

    with h5py.File(folder / "data.h5", "w") as file:
        for name, array in fields().items():
            file.create_dataset(name, data=array, **how)
    return of_source(HDF5Source({name: name for name in fields()}, folder / "data.h5"))


def _photos(folder: Path) -> ImageFolder:
    """Images of different sizes, whose class is the id."""
    for number, image in enumerate(fields()["image"]):
        (folder / f"{number:02}").mkdir(parents=True)
        picture = PIL.Image.fromarray(image[: 3 + number % 4])
        picture.save(folder / f"{number:02}" / "image.png")
    return ImageFolder(folder)


def _with_id(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "id": batch["label"]}


def _image_folder(folder: Path, broken: bool = False) -> Factory:
    source = _photos(folder)
    if broken:
        path = folder / f"{BAD:02}" / "image.png"
        path.write_bytes(path.read_bytes()[:-40])
    return lambda **options: jk.from_source(source, **options) >> _with_id


def _subset(folder: Path) -> Factory:
    del folder
    order = np.random.default_rng(0).permutation(2 * RECORDS)
    twice = {name: np.concatenate([value, value]) for name, value in fields().items()}
    return of_source(Subset(twice, np.flatnonzero(order >= 0)[RECORDS:][::-1]))


class _Records:
    """As Grain's `RandomAccessDataSource`: a length and records."""

    def __init__(self, bad: int | None = None) -> None:
        self._fields, self._bad = fields(), bad

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, record: int) -> dict[str, Any]:
        if record == self._bad:
            raise OSError(f"record {record} is damaged")
        return {name: array[record] for name, array in self._fields.items()}


def _augmented(folder: Path) -> Factory:
    del folder
    chain = jk.image.Compose([jk.image.RandomCrop(4), jk.image.RandomHorizontalFlip(0.5)])
    return lambda **options: jk.from_source(fields(), **options) >> chain


def _packed(folder: Path, source: Any, broken: str = "", **how: Any) -> str:
    """The name of a packed file, or pattern of shards; of `broken`, record BAD is damaged."""
    paths = pack(source, folder / "x.jkp", progress=False, **how)
    if broken:
        offsets = PackedFile(paths[0]).index.columns[broken]["offset"]
        with open(paths[0], "r+b") as file:
            file.seek(offsets[BAD] + 9)
            file.write(b"damaged")
    return str(paths[0] if len(paths) == 1 else folder / f"x-*-of-{len(paths):05}.jkp")


def _packed_arrays(folder: Path, broken: bool = False) -> Factory:
    return of_source(_packed(folder, fields(), "image" if broken else "", format="raw"))


def _packed_photos(folder: Path, broken: bool = False, **how: Any) -> Factory:
    source = _packed(folder, _photos(folder / "photos"), "image" if broken else "", **how)
    return lambda **options: jk.from_source(source, **options) >> _with_id


CASES: dict[str, Case] = {
    "arrays": Case(lambda folder: of_source(fields())),
    "npy": Case(_npy),
    "hdf5": Case(_hdf5),
    "hdf5 in chunks": Case(lambda folder: _hdf5(folder, chunks=True, compression="gzip")),
    "image folder": Case(_image_folder, breaks=lambda folder: _image_folder(folder, True)),
    "subset": Case(_subset),
    "records": Case(
        lambda folder: of_source(_Records()), breaks=lambda folder: of_source(_Records(BAD))
    ),
    "packed arrays": Case(_packed_arrays, breaks=lambda folder: _packed_arrays(folder, True)),
    "packed raw images": Case(
        lambda folder: _packed_photos(folder, format="raw"),
        breaks=lambda folder: _packed_photos(folder, True, format="raw"),
    ),
    "packed JPEG in shards": Case(
        lambda folder: _packed_photos(folder, format="jpeg", shards=3),
        breaks=lambda folder: _packed_photos(folder, True, format="jpeg"),
    ),
    "augmented natively": Case(_augmented, jitted=True),
}
