"""The pipelines for which `test_promises.py` tests every guarantee: one row per source or node.

A row's `build(tmp_path)` returns `make(**options)`, which builds the pipeline with the options of
`from_source` (batch_size, shuffle, seed, num_workers, drop_remainder, pad_remainder, shard ...).
Its batches have an integer field "id" [N] that names each row; nothing else is asked of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

import jaxkern as jk
from jaxkern.pipeline import (
    Cache,
    Encoded,
    EncodedRecords,
    Filter,
    FlatMap,
    HDF5Source,
    ImageFiles,
    ImageFolder,
    Pack,
    Probabilistic,
    Rebatch,
    Subset,
    TokenSource,
    Window,
    pack,
)
from jaxkern.pipeline.sources.packed.layout import open_packed
from support import FORMATS
from support.pipeline.batches import NOISE, arrays
from support.pipeline.written import (
    encoded,
    savez,
    write_array_record,
    write_arrow,
    write_tar,
    write_tfrecord,
)

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
      spares: largest number of records that each of several shards skips in an epoch.
      divides: True if another number of shards can resume within an epoch.
    """

    build: Callable[[Path], Factory]
    ids: tuple[int, ...] = tuple(range(RECORDS))
    breaks: Callable[[Path], Factory] | None = None
    spares: int = 0
    divides: bool = True


def fields() -> dict[str, np.ndarray]:
    """Small images, labels and ids."""
    columns = arrays(RECORDS)
    return {"image": columns["image"], "label": columns["label"], "id": columns["record"]}


def of_source(source: Any) -> Factory:
    """Return a factory of pipelines of a source."""
    return lambda **options: jk.from_source(source, **options)


def _npy(folder: Path) -> Factory:
    for name, array in fields().items():
        np.save(folder / f"{name}.npy", array)
    return of_source({name: folder / f"{name}.npy" for name in fields()})


def _hdf5(folder: Path, **how: Any) -> Factory:
    h5py = pytest.importorskip("h5py")  # no wheels for free-threaded Python 3.13

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
        offsets = open_packed(paths[0])[1].columns[broken]["offset"]
        with open(paths[0], "r+b") as file:
            file.seek(offsets[BAD] + 9)
            file.write(b"damaged")
    return str(paths[0] if len(paths) == 1 else folder / f"x-*-of-{len(paths):05}.jkp")


def _packed_arrays(folder: Path, broken: bool = False) -> Factory:
    return of_source(_packed(folder, fields(), "image" if broken else "", format="raw"))


def _packed_photos(folder: Path, broken: bool = False, **how: Any) -> Factory:
    source = _packed(folder, _photos(folder / "photos"), "image" if broken else "", **how)
    return lambda **options: jk.from_source(source, **options) >> _with_id


def _encoded(broken: bool) -> list[bytes]:
    """Photographs of different sizes, of which that of BAD may be cut short."""
    found = [
        encoded(np.repeat(image[: 3 + number % 4], 4, 0), "jpeg")
        for number, image in enumerate(fields()["image"])
    ]
    if broken:
        found[BAD] = found[BAD][:-200]
    return found


def _encoded_bytes(broken: bool = False) -> Factory:
    return of_source({"image": Encoded(_encoded(broken)), "id": fields()["id"]})


class _EncodedRecords:
    def __init__(self, broken: bool) -> None:
        self._images = _encoded(broken)

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, record: int) -> dict[str, Any]:
        return {"image": self._images[record], "id": record}


def _encoded_records(broken: bool = False) -> Factory:
    return of_source(EncodedRecords(_EncodedRecords(broken), max_size=(30, 30)))


def _files_decoded_natively(folder: Path, broken: bool = False) -> Factory:
    paths = [folder / f"{number}.jpg" for number in range(RECORDS)]
    for number, image in enumerate(fields()["image"]):
        # Of two shapes and one area: without workers a program is compiled for each size of batch.
        tall, wide = (4, 2) if number % 2 else (2, 4)
        data = encoded(np.kron(image, np.ones((tall, wide, 1), np.uint8)), "jpeg")
        paths[number].write_bytes(data[:-200] if broken and number == BAD else data)
    source = Subset(ImageFiles(paths, {"id": np.arange(RECORDS)}), np.arange(RECORDS)[::-1])
    chain = jk.image.Compose([jk.image.RandomCrop(4), jk.image.RandomHorizontalFlip(0.5)])
    return lambda **options: jk.from_source(source, **options) >> chain


def _tar(folder: Path, broken: bool = False) -> Factory:
    samples = [
        (f"{number:04}", {"jpg": data, "cls": b"%d" % (number % 5), "id": b"%d" % number})
        for number, data in enumerate(_encoded(broken))
    ]
    for shard in range(3):
        write_tar(folder / f"train-{shard:03}.tar", samples[8 * shard : 8 * shard + 8])
    return of_source(folder / "train-{000..002}.tar")


def _table(broken: bool) -> Any:
    import pyarrow as pa

    images = [{"bytes": data, "path": None} for data in _encoded(broken)]
    pairs = [[number, -number] for number in range(RECORDS)]
    return pa.table({"id": fields()["id"], "pair": pairs, "image": images})


def _arrow(folder: Path, broken: bool = False) -> Factory:
    write_arrow(folder / "a.arrow", _table(broken)[:10], 4)
    write_arrow(folder / "b.arrow", _table(broken)[10:], stream=True)
    return of_source(folder / "*.arrow")


def _parquet(folder: Path) -> Factory:
    import pyarrow.parquet

    table = _table(False).drop_columns("image")
    pyarrow.parquet.write_table(table, folder / "x.parquet", row_group_size=7)
    return of_source(folder / "x.parquet")


def _zarr(folder: Path, chunk: int, broken: bool = False) -> Factory:
    import zarr

    group = zarr.create_group(folder / "x.zarr")
    for name, array in fields().items():
        group.create_array(name, data=array, chunks=(chunk, *array.shape[1:]))
    if broken:
        (folder / "x.zarr" / "image" / "c" / f"{BAD}" / "0" / "0" / "0").write_bytes(b"no chunk")
    return of_source(folder / "x.zarr")


def _array_record(folder: Path, broken: bool = False) -> Factory:
    records = [savez(id=number, x=np.full(3, number)) for number in range(RECORDS)]
    if broken:
        records[BAD] = records[BAD][:50]
    write_array_record(folder / "x.array_record-00000-of-00002", records[:9])
    write_array_record(folder / "x.array_record-00001-of-00002", records[9:])
    return of_source(folder / "x.array_record-*-of-00002")


def _tfrecord(folder: Path, broken: bool = False) -> Factory:
    records = [
        {"id": number, "x": [float(number), 0.5], "image": data}
        for number, data in enumerate(_encoded(broken))
    ]
    write_tfrecord(folder / "x.tfrecord", records)
    return of_source(folder / "x.tfrecord")


def _stream(folder: Path) -> Factory:
    """A generator's records, shuffled in a buffer."""
    del folder
    records = _Records()

    def read() -> Iterator[dict[str, Any]]:
        yield from (records[number] for number in range(RECORDS))

    def make(shuffle: bool = False, **options: Any) -> jk.Pipeline:
        return jk.from_stream(read, shuffle_buffer=9 * shuffle, **options)

    return make


def _filtered(folder: Path) -> Factory:
    del folder
    keep = Filter(lambda record: record["id"] % 4 != 1)
    return lambda **options: jk.from_source(fields(), **options) >> keep


def _filtered_twice(folder: Path) -> Factory:
    """Filters with other batch sizes between them, and in a branch that others share."""
    del folder
    second = Filter(lambda batch: batch["id"] % 3 != 1, batched=True)

    def make(**options: Any) -> jk.Pipeline:
        base = _filtered(Path())(**options) >> Rebatch(5) >> _double >> second >> Rebatch(4)
        return base & base >> (lambda batch: {"twice": batch["label"] * 2}) & base >> NOISE

    return make


def _flat(folder: Path) -> Factory:
    """As many records of each one as its number has of ones in base 2."""
    del folder
    flat = FlatMap(lambda record: [record] * int(record["id"]).bit_count())
    return lambda **options: jk.from_source(fields(), **options) >> Rebatch(3) >> flat >> Rebatch(4)


def _windows(folder: Path) -> Factory:
    """Windows over the sequence in each record; those over records differ between shards."""
    del folder
    images = Window(3, fields=("image",), axis="sequence")
    return lambda **options: jk.from_source(fields(), **options) >> images


def _tokens(folder: Path, *nodes: Any) -> Factory:
    """Documents of 4 to 7 tokens that are their id, of which a row of 7 has one."""
    lengths = 4 + np.arange(RECORDS) % 4
    np.save(folder / "tokens.npy", np.repeat(np.arange(RECORDS, dtype=np.uint16), lengths))
    np.save(folder / "offsets.npy", np.concatenate([[0], np.cumsum(lengths)]))
    source = TokenSource(folder / "tokens.npy", folder / "offsets.npy")

    def make(**options: Any) -> Any:
        pipe = jk.from_source(source, **options)
        for node in nodes:
            pipe = pipe >> node
        return pipe >> (lambda batch: {**batch, "id": batch["tokens"][:, 0]})

    return make


CASES: dict[str, Case] = {
    "token source": Case(_tokens),
    "tokens packed": Case(lambda folder: _tokens(folder, Pack(7, max_open_bins=2)), divides=False),
    "tokens packed after a function": Case(
        lambda folder: _tokens(folder, dict.copy, Pack(7, method="best-fit", max_open_bins=3)),
        divides=False,
    ),
    "arrays": Case(lambda folder: of_source(fields())),
    "npy": Case(_npy),
    "hdf5": Case(_hdf5),
    "hdf5 in chunks": Case(lambda folder: _hdf5(folder, chunks=True, compression="gzip")),
    "image folder": Case(_image_folder, breaks=lambda folder: _image_folder(folder, True)),
    "encoded bytes": Case(
        lambda folder: _encoded_bytes(), breaks=lambda folder: _encoded_bytes(True)
    ),
    "encoded records": Case(
        lambda folder: _encoded_records(), breaks=lambda folder: _encoded_records(True)
    ),
    "image files decoded natively": Case(
        _files_decoded_natively,
        breaks=lambda folder: _files_decoded_natively(folder, True),
    ),
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
    "stream": Case(_stream, divides=False),
    "filter": Case(_filtered, ids=tuple(i for i in range(RECORDS) if i % 4 != 1)),
    "filters": Case(
        _filtered_twice,
        ids=tuple(i for i in range(RECORDS) if i % 4 != 1 and i % 3 != 1),
        divides=False,
    ),
    "flat map": Case(
        _flat, ids=tuple(i for i in range(RECORDS) for _ in range(i.bit_count())), divides=False
    ),
    "windows": Case(
        _windows, ids=tuple(i for i in range(RECORDS) for _ in range(2)), divides=False
    ),
    "augmented natively": Case(_augmented),
    "tar shards": Case(_tar, breaks=lambda folder: _tar(folder, True)),
}
if FORMATS:
    CASES |= {
        "zarr": Case(lambda folder: _zarr(folder, 4), breaks=lambda folder: _zarr(folder, 1, True)),
        "arrow": Case(_arrow, breaks=lambda folder: _arrow(folder, True)),
        "parquet": Case(_parquet),
        "array record": Case(_array_record, breaks=lambda folder: _array_record(folder, True)),
        "tfrecord": Case(_tfrecord, breaks=lambda folder: _tfrecord(folder, True)),
    }


def _parts() -> list[dict[str, np.ndarray]]:
    """The records in three parts of 14, 6 and 3."""
    return [
        {k: v[first:last] for k, v in fields().items()}
        for first, last in [(0, 14), (14, 20), (20, 23)]
    ]


def _double(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "image": batch["image"] * 2}


def _of_parts(combine: Callable[[list[Any]], Any], *nodes: Any) -> Callable[[Path], Factory]:
    """Return a builder that combines pipelines of the three parts."""

    def make(**options: Any) -> jk.Pipeline:
        pipelines = []
        for part in _parts():
            pipe = jk.from_source(part, **options)
            for node in nodes:
                pipe = pipe >> node
            pipelines.append(pipe)
        return combine(pipelines)

    return lambda folder: make


def _mixed(pipelines: list[Any]) -> Any:
    return jk.mix(dict(zip(pipelines, (14, 6, 3), strict=True)), seed=5)


def _odd(record: dict[str, Any]) -> bool:
    return bool(record["id"] % 2)


def _nested(pipelines: list[Any]) -> Any:
    first, second, third = pipelines
    return jk.mix([(jk.mix({first: 14, second: 6}), 20), (third, 3)])


def _zipped(*nodes: Any) -> Callable[[Path], Factory]:
    def make(**options: Any) -> jk.Pipeline:
        whole = fields()
        pipelines = [jk.from_source({k: whole[k]}, **options) for k in ("id", "image")]
        for node in nodes:
            pipelines = [pipelines[0], pipelines[1] >> node]
        return jk.zip(*pipelines)

    return lambda folder: make


def _followed_by(*nodes: Any) -> Callable[[Path], Factory]:
    def make(**options: Any) -> jk.Pipeline:
        pipe = jk.from_source(fields(), **options)
        for node in nodes:
            pipe = pipe >> node
        return pipe

    return lambda folder: make


def _branches(**options: Any) -> jk.Pipeline:
    base = jk.from_source(fields(), **options)
    negated = base >> jk.OperatorNode(lambda batch: {"negated": 255 - batch["image"]})
    return base & negated >> Probabilistic(lambda batch: {"negated": -batch["negated"]}, 0.5)


def _padded(build: Callable[[Path], Factory]) -> Callable[[Path], Factory]:
    """Pad the remainder unless it is dropped."""

    def make(**options: Any) -> jk.Pipeline:
        padded = {"pad_remainder": not options.get("drop_remainder")}
        return build(Path())(**{**padded, **options})

    return lambda folder: make


CASES |= {
    "branches": Case(lambda folder: _branches),
    "branches and padding": Case(_padded(lambda folder: _branches)),
    "cache": Case(_followed_by(_double, Cache(), Rebatch(2), jk.OperatorNode(NOISE), Rebatch(4))),
    "rebatched and padded": Case(_padded(_followed_by(NOISE, _double, Rebatch(4)))),
    "mixture": Case(_of_parts(_mixed), spares=2),
    "mixture after functions": Case(_of_parts(_mixed, _double), spares=2),
    "mixture of mixtures": Case(_of_parts(_nested), spares=2),
    "mixture of a mixture and functions": Case(_of_parts(_nested, _double), spares=2),
    "concatenation": Case(_of_parts(lambda pipelines: jk.concat(*pipelines))),
    "concatenation after functions": Case(_of_parts(lambda given: jk.concat(given), _double)),
    "mixture and a filter": Case(
        _of_parts(lambda given: _mixed(given) >> jk.pipeline.Filter(_odd)),
        ids=tuple(range(1, RECORDS, 2)),
        spares=2,
    ),
    "concatenated sources": Case(lambda folder: of_source(jk.concat(_parts()))),
    "zip": Case(_zipped()),
    "zip after functions": Case(_zipped(_double)),
    "rebatched": Case(_followed_by(_double, Rebatch(2), Rebatch(4))),
    "repetition": Case(_followed_by(jk.pipeline.Repeat(2)), ids=tuple(range(RECORDS)) * 2),
    "repetition after functions": Case(
        _followed_by(_double, jk.pipeline.Repeat(2), _double), ids=tuple(range(RECORDS)) * 2
    ),
}
