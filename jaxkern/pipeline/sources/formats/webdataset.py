"""WebDataset shards: tar files whose members are the fields of samples."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from jaxkern.pipeline.sources.files import Paths, expand_paths
from jaxkern.pipeline.sources.formats.columns import (
    NUMPY_HEADERS,
    Bytes,
    Column,
    ColumnSource,
    Decode,
    ImageOptions,
)
from jaxkern.pipeline.sources.formats.tar_index import NUMBERS, ShardIndex, shard_indices

_IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "ppm", "gif", "tif", "tiff")


class WebDatasetSource(ColumnSource):
    """Samples of WebDataset shards: tar files on this machine, which are mapped into memory.

    The members of a sample have one name up to the first dot of their last part, and stand one
    behind the other: ``000017.jpg``, ``000017.cls``. Any sample can be read at once, so that a
    shuffle is one of all samples and not of a buffer.

    ============================ ======================================================
    ending                       field of a batch
    ============================ ======================================================
    jpg, jpeg, png, webp, ...    "image": a `jaxkern.image.Ragged`, which a Compose takes
    cls                          "label": int
    id, index, count, ...        int, by its ending
    npy                          the array, by its ending
    txt                          a number, by its ending
    json                         a number or a list of them; of an object, "json.KEY" each
    ============================ ======================================================

    Args:
      paths: a tar file, a list of them, a folder, or a pattern: ``train-{000..003}.tar``.
      fields: which, and their names: field -> ending, or several of which a sample has one,
        ``{"image": "jpg;png", "label": "cls"}``; or a sequence of endings. By default those of the
        first sample, as above.
      decoders: ending (one of a field's stands for all of them) -> function from bytes to a number,
        an array or a dict of those, the same shapes in every sample; for other endings, and before
        what is said above.
      images: `channels`, `max_size`, `max_pixels`, `on_bad_record`, `decode`: as for `Encoded`.

    Attributes:
      files: the shards.
      bad_images: (field, record) -> error of each image that did not decode, where masked.

    Raises: FileNotFoundError; ValueError that names the shard for one that is compressed, damaged
      or cut short, and for a sample without one of the fields; TypeError for endings that nothing
      decodes; KeyError for decoders of endings that no field has.
    """

    def __init__(
        self,
        paths: Paths,
        fields: Mapping[str, str] | Sequence[str] | None = None,
        decoders: Mapping[str, Decode] | None = None,
        **images: Unpack[ImageOptions],
    ) -> None:
        self.files = expand_paths(paths, (".tar",), "WebDataset shards")
        index = _Index(self.files)
        given = decoders or {}
        wanted = _wanted(fields, index.first_endings())
        used: set[str | None] = set()
        columns: dict[str, Column] = {}
        for name, endings in wanted.items():
            kinds = {_last(ending) for ending in endings}
            keys = (key for ending in endings for key in (ending, _last(ending)))
            decoder = next((key for key in keys if key in given), None)
            function = None if decoder is None else given[decoder]
            used.add(decoder)
            if function is None and kinds <= {*_IMAGES}:
                columns[name] = Bytes(index.blobs, index.places(name, endings))
            elif function is None and kinds <= {*NUMBERS}:
                columns[name] = index.numbers(name, endings)
            else:
                function = function or _DECODERS.get(_last(endings[0]))
                if function is None:
                    raise TypeError(
                        f"nothing decodes the members {'.' + endings[0]!r} of {self.files[0]}; "
                        f"wanted decoders={{{endings[0]!r}: a function of bytes}}, or "
                        "fields={...} without them"
                    )
                columns[name] = Bytes(index.blobs, index.places(name, endings), function)
        if unknown := sorted(given.keys() - used):
            there = sorted({ending for endings in wanted.values() for ending in endings})
            raise KeyError(
                f"decoders has {unknown}; the endings of the fields are {there}, and one function "
                "decodes a field"
            )
        super().__init__(columns, index.name_of, **images)

    def __repr__(self) -> str:
        shards = f"{len(self.files)} shard{'' if len(self.files) == 1 else 's'}"
        return f"WebDatasetSource({', '.join(self._names)}; {shards}, {len(self)} samples)"


class _Index:
    """Where the members of the samples of all shards lie."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self.blobs = [_mapped(file) for file in files]
        self._shards = shard_indices(files, self.blobs)
        self._ends = np.cumsum([shard.samples for shard in self._shards])
        if not self._ends[-1]:
            raise ValueError(f"{', '.join(map(str, files))[:200]}: no samples in these shards")

    def first_endings(self) -> list[str]:
        """Of the members of the first sample."""
        shard = next(shard for shard in self._shards if shard.samples)
        return [str(shard.endings[k]) for k in shard.ending[shard.sample == 0]]

    def name_of(self, record: int) -> str:
        """A sample's shard and name."""
        shard = int(np.searchsorted(self._ends, record, "right"))
        first = int(self._ends[shard - 1]) if shard else 0
        return f"{self._files[shard]}: {self._shards[shard].keys[record - first]}"

    def places(self, name: str, endings: Sequence[str]) -> np.ndarray:
        """int64 [N, 3] of a field, as in `EncodedImages`."""
        parts = []
        for number, (shard, found) in enumerate(self._members(name, endings)):
            offsets = shard.offset[found]
            parts.append(np.stack([np.full_like(offsets, number), offsets, shard.length[found]], 1))
        return np.concatenate(parts)

    def numbers(self, name: str, endings: Sequence[str]) -> np.ndarray:
        """int64 [N] of a field whose members are a whole number each."""
        parts: list[np.ndarray] = []
        for shard, found in self._members(name, endings):
            wrong = np.flatnonzero(~shard.is_number[found])
            if wrong.size:
                record = sum(len(part) for part in parts) + int(wrong[0])
                raise ValueError(
                    f"{name!r} of {self.name_of(record)} is no whole number; wanted decoders={{"
                    f"{endings[0]!r}: a function of bytes}}, or fields={{...}} without it"
                )
            parts.append(shard.number[found])
        return np.concatenate(parts)

    def _members(
        self, name: str, endings: Sequence[str]
    ) -> Iterator[tuple[ShardIndex, np.ndarray]]:
        """Of each shard, the member of each sample that is a field."""
        first = 0
        for shard in self._shards:
            found = shard.of(endings)
            count = np.bincount(shard.sample[found], minlength=shard.samples)
            if (count != 1).any():
                sample = int(np.flatnonzero(count != 1)[0])
                has = sorted(str(shard.endings[k]) for k in shard.ending[shard.sample == sample])
                raise ValueError(
                    f"{self.name_of(first + sample)} has the members {has}; wanted one of "
                    f"{list(endings)} for {name!r}, as in other samples: give fields={{...}}"
                )
            first += shard.samples
            yield shard, found


def _mapped(file: Path) -> np.ndarray:
    if file.stat().st_size == 0:
        raise ValueError(f"{file} is empty; wanted a tar file")
    return np.memmap(file, np.uint8, "r")


def _wanted(
    fields: Mapping[str, str] | Sequence[str] | None,
    first: Sequence[str],
) -> dict[str, tuple[str, ...]]:
    """Field -> the endings that it may have; `first` are those of the first sample."""
    if isinstance(fields, str):
        raise TypeError(f"fields is {fields!r}; wanted a sequence of endings, or a dict")
    if isinstance(fields, Mapping):
        return {name: tuple(endings.split(";")) for name, endings in fields.items()}
    found: dict[str, tuple[str, ...]] = {}
    for ending in first if fields is None else fields:
        if ending in _IMAGES and fields is None:
            found["image"] = _IMAGES
        elif ending == "cls" and fields is None:
            found["label"] = (ending,)
        else:
            found[ending] = (ending,)
    return found


def _last(ending: str) -> str:
    """Its part that tells the format."""
    return ending.rpartition(".")[2]


def _number(data: bytes) -> int | float:
    text = data.decode("utf-8", "replace").strip()
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"{text[:80]!r} is no number; wanted decoders={{'txt': a function of bytes}}, or "
            "fields={...} without it"
        ) from None


def _array(data: bytes) -> np.ndarray:
    stream = io.BytesIO(data)
    with NUMPY_HEADERS:
        array: np.ndarray = np.lib.format.read_array(stream, allow_pickle=False)
    if stream.tell() != len(data):
        raise ValueError(
            f"an array {array.dtype}{list(array.shape)} ends at byte {stream.tell()} of "
            f"{len(data)}; expected it to end with its member: it is damaged"
        )
    return array


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "npy": _array,
    "txt": _number,
    "json": json.loads,
}
