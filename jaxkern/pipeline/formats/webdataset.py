"""WebDataset shards: tar files whose members are the fields of samples."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from jaxkern.core.failures import note
from jaxkern.core.progress import ProgressBar
from jaxkern.pipeline.formats.columns import Bytes, Column, ColumnSource, Decode, ImageOptions
from jaxkern.pipeline.formats.files import Paths, files_of

_IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "ppm", "gif", "tif", "tiff")
_NUMBERS = ("cls", "cls2", "class", "count", "index", "inx", "id")


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
      decoders: ending -> function from bytes to a number, an array or a dict of those, the same
        shapes in every sample; for other endings, and before what is said above.
      images: `channels`, `max_size`, `max_pixels` and `on_bad_record`, as for `Encoded`.

    Attributes:
      files: the shards.
      bad_images: (field, record) -> error of each image that did not decode, where masked.

    Raises: FileNotFoundError; ValueError that names the shard for one that is compressed, damaged
      or cut short, and for a sample without one of the fields; TypeError for endings that nothing
      decodes.
    """

    def __init__(
        self,
        paths: Paths,
        fields: Mapping[str, str] | Sequence[str] | None = None,
        decoders: Mapping[str, Decode] | None = None,
        **images: Unpack[ImageOptions],
    ) -> None:
        self.files = files_of(paths, (".tar",), "WebDataset shards")
        index = _Index(self.files)
        wanted = _wanted(fields, index.samples)
        given = decoders or {}
        known = {**_DECODERS, **given}
        columns: dict[str, Column] = {}
        for name, endings in wanted.items():
            place = index.places(name, endings)
            if all(ending in _IMAGES and ending not in given for ending in map(_last, endings)):
                columns[name] = Bytes(index.blobs, place)
                continue
            ending = endings[0]
            function = known.get(ending) or known.get(_last(ending))
            if function is None:
                raise TypeError(
                    f"nothing decodes the members {'.' + ending!r} of {self.files[0]}; wanted "
                    f"decoders={{{ending!r}: a function of bytes}}, or fields={{...}} without them"
                )
            column = Bytes(index.blobs, place, function)
            columns[name] = index.numbers(column, name) if function is _whole else column
        super().__init__(columns, index.name_of, **images)

    def __repr__(self) -> str:
        shards = f"{len(self.files)} shard{'' if len(self.files) == 1 else 's'}"
        return f"WebDatasetSource({', '.join(self._names)}; {shards}, {len(self)} samples)"


class _Index:
    """Where the members of all samples lie."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self.blobs: list[np.ndarray] = []
        #: of each sample: its shard, its name, and (offset, length) by ending
        self.samples: list[tuple[int, str, dict[str, tuple[int, int]]]] = []
        with ProgressBar(len(files) > 1, "index", "shards") as bar:
            for number, file in enumerate(files):
                self.blobs.append(_mapped(file))
                for key, members in _samples(file, self.blobs[-1]):
                    self.samples.append((number, key, members))
                bar.update(number + 1, len(files))
        if not self.samples:
            raise ValueError(f"{', '.join(map(str, files))[:200]}: no samples in these shards")

    def name_of(self, record: int) -> str:
        """A sample's shard and name."""
        shard, key, _ = self.samples[record]
        return f"{self._files[shard]}: {key}"

    def places(self, name: str, endings: Sequence[str]) -> np.ndarray:
        """int64 [N, 3] of a field, as in `EncodedImages`."""
        place = np.empty((len(self.samples), 3), np.int64)
        for record, (shard, _, members) in enumerate(self.samples):
            found = [ending for ending in endings if ending in members]
            if len(found) != 1:
                raise ValueError(
                    f"{self.name_of(record)} has the members {sorted(members)}; wanted one of "
                    f"{list(endings)} for {name!r}, as in other samples: give fields={{...}}"
                )
            place[record] = shard, *members[found[0]]
        return place

    def numbers(self, column: Bytes, name: str) -> np.ndarray:
        """int64 [N] of members that are a whole number each."""
        values = np.empty(len(column), np.int64)
        for record in range(len(column)):
            try:
                values[record] = _whole(column.at(record))
            except (ValueError, OverflowError) as error:
                note(error, "while reading {!r} of {}", name, self.name_of(record))
                raise
        return values


def _mapped(file: Path) -> np.ndarray:
    if file.stat().st_size == 0:
        raise ValueError(f"{file} is empty; wanted a tar file")
    return np.memmap(file, np.uint8, "r")


def _samples(file: Path, data: np.ndarray) -> list[tuple[str, dict[str, tuple[int, int]]]]:
    """Name, and ending -> (offset, length), of the samples of a shard."""
    found: list[tuple[str, dict[str, tuple[int, int]]]] = []
    end = 0
    try:
        with tarfile.open(file, "r:") as tar:
            for member in tar:
                end = member.offset_data + (-(-member.size // 512) * 512 if member.isreg() else 0)
                folder, _, last = member.name.rpartition("/")
                stem, dot, ending = last.partition(".")
                if not member.isreg() or not dot or not stem or stem.startswith("__"):
                    continue
                if member.issparse() or member.offset_data + member.size > len(data):
                    raise tarfile.ReadError(f"{member.name} does not lie in it as it is")
                key = f"{folder}/{stem}" if folder else stem
                if not found or found[-1][0] != key:
                    found.append((key, {}))
                if ending in found[-1][1]:
                    raise tarfile.ReadError(f"{member.name} is in it twice")
                found[-1][1][ending.lower()] = (member.offset_data, member.size)
    except (tarfile.TarError, ValueError, OverflowError) as error:
        packed = data[:2].tobytes() in (b"\x1f\x8b", b"BZ", b"\xfd7", b"\x28\xb5")
        raise ValueError(
            f"{file} is no tar file that can be read: {error}"
            + ("; it is compressed: unpack it first, samples are read in any order" * packed)
        ) from error
    if len(data) < end + 512 or data[end : end + 512].any():
        # tarfile takes what it does not understand behind the first member for the end.
        raise ValueError(
            f"{file} is damaged or cut short: its members end at byte {end} of {len(data)}, where "
            "the zeros that end a tar file are wanted"
        )
    return found


def _wanted(
    fields: Mapping[str, str] | Sequence[str] | None,
    samples: Sequence[tuple[int, str, dict[str, tuple[int, int]]]],
) -> dict[str, tuple[str, ...]]:
    """Field -> the endings that it may have."""
    if isinstance(fields, str):
        raise TypeError(f"fields is {fields!r}; wanted a sequence of endings, or a dict")
    if isinstance(fields, Mapping):
        return {name: tuple(endings.split(";")) for name, endings in fields.items()}
    found: dict[str, tuple[str, ...]] = {}
    for ending in samples[0][2] if fields is None else fields:
        if ending in _IMAGES and fields is None:
            found["image"] = _IMAGES
        elif ending == "cls" and fields is None:
            found["label"] = (ending,)
        else:
            found[ending] = (ending,)
    return found


def _last(ending: str) -> str:
    return ending.rpartition(".")[2]


def _whole(data: bytes) -> int:
    return int(data.decode("ascii", "replace"))


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
    array: np.ndarray = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    return array


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(_NUMBERS, _whole),
    "npy": _array,
    "txt": _number,
    "json": json.loads,
}
