"""Sources on servers: would catch records that are lost, doubled or mixed by failing connections, a
file that is replaced in mid-epoch without an error, failures that hang or hide their cause, states
that differ between local and remote copies, and caches that remove files in use."""

from __future__ import annotations

import asyncio
import os
import threading

import numpy as np
import PIL.Image
import pytest
from support.errors import raises
from support.pipeline.batches import arrays, assert_same, epoch_of, is_native
from support.pipeline.server import FAULTS, serving
from support.pipeline.written import (
    encoded,
    savez,
    write_array_record,
    write_arrow,
    write_tar,
    write_tfrecord,
)

import jaxkern as jk
from jaxkern.pipeline import PackedSource, ParquetSource, TFRecordSource, cached, pack
from jaxkern.pipeline.rows import images_of
from jaxkern.pipeline.sources import remote

pytest.importorskip("aiohttp")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(remote, "_FIRST_WAIT", 0.001)
    monkeypatch.setattr(remote, "_TIMEOUT", 10)


@pytest.fixture
def images():
    """Records with images of one size and of several sizes, JPEG, numbers and arrays."""
    random = np.random.default_rng(0)
    shapes = random.integers(3, 40, (41, 2))
    return [
        {
            "image": random.integers(0, 256, (*shape, 3), np.uint8),
            "x": random.random(700, np.float32),
            "k": np.int32(k),
        }
        for k, shape in enumerate(shapes)
    ]


def pattern(server, count=3):
    return f"{server.url}/x-{{00000..{count - 1:05}}}-of-{count:05}.jkp"


def shuffled(source, **options):
    return jk.from_source(source, 4, shuffle=True, seed=3, **options)


@pytest.mark.parametrize("format", ["npy", "raw", "jpeg"])
def test_packed_records_are_those_of_the_local_files(tmp_path, images, format):
    pack(images, tmp_path / "x.jkp", format=format, shards=3, progress=False)
    local = PackedSource(tmp_path / "x-*.jkp")
    with serving(tmp_path) as server:
        for name in (pattern(server), f"{server.url}/x-*-of-00003.jkp", server.url + "/"):
            source = PackedSource(name)
            assert source.describe() == local.describe()
        expected = epoch_of(shuffled(local, num_workers=0))
        server.requests.clear()
        assert_same(epoch_of(shuffled(source, num_workers=3)), expected)
        assert not any(request.startswith("HEAD") for request in server.requests)
        # Records are adjacent and in order: one request a batch and shard, or two.
        server.requests.clear()
        ordered = jk.from_source(source, 16, num_workers=0)
        assert_same(epoch_of(ordered), epoch_of(jk.from_source(local, 16, num_workers=0)))
        assert len(server.requests) <= 5
        assert source.encoded_bytes("image", 7) == local.encoded_bytes("image", 7)
        assert not list(source.damaged())
    assert {f"{server.url}/x-00001-of-00003.jkp"} <= {*source.info()["files"]}


def test_a_state_moves_between_local_and_remote_files(tmp_path):
    pack(arrays(23), tmp_path / "x.jkp", progress=False)
    with serving(tmp_path) as server:
        names = [tmp_path / "x.jkp", f"{server.url}/x.jkp?token=1"]
        expected = epoch_of(shuffled(names[0]))
        for one, other in (names, names[::-1]):
            running, resumed = iter(shuffled(one)), iter(shuffled(other))
            next(running), next(running)
            resumed.set_state(running.get_state())
            assert_same(epoch_of(resumed), expected[2:])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failing_server_loses_and_doubles_nothing(tmp_path, images, monkeypatch, fault):
    monkeypatch.setattr(remote, "_TIMEOUT", 0.3)
    pack(images, tmp_path / "x.jkp", shards=2, progress=False)
    expected = epoch_of(shuffled(tmp_path / "x-*.jkp"))
    with serving(tmp_path, lambda n, path: fault if n % 3 == 0 and n < 40 else "") as server:
        name = f"{server.url}/x-*-of-00002.jkp"
        assert_same(epoch_of(shuffled(name, num_workers=4)), expected)
        copies = cached(pattern(server, 2), tmp_path / "cache")
        assert [c.read_bytes() for c in copies] == [
            c.read_bytes() for c in sorted(tmp_path.glob("*.jkp"))
        ]
        assert server.gets > 10


@pytest.mark.parametrize("fault", ["cut", "short", "slow", "503"])
def test_a_lasting_failure_names_file_range_attempts_and_cause(tmp_path, monkeypatch, fault):
    monkeypatch.setattr(remote, "_ATTEMPTS", 3)
    monkeypatch.setattr(remote, "_TIMEOUT", 0.2)
    pack(arrays(8, 40), tmp_path / "x.jkp", progress=False)
    failing = []
    with serving(tmp_path, lambda *_: fault if failing else "") as server:
        batches = iter(jk.from_source(f"{server.url}/x.jkp", 4, num_workers=1, prefetch_size=1))
        failing.append(True)
        cause = {"cut": "", "short": "got 14688", "slow": "no answer within 0.2 s", "503": "503"}
        delivered = []
        with raises(OSError, f"{server.url}/x.jkp, bytes ", "3 attempts failed", cause[fault]):
            for batch in batches:
                delivered += batch["record"].tolist()
        resumed = iter(jk.from_source(tmp_path / "x.jkp", 4))
        resumed.set_state(batches.get_state())
        for batch in resumed:
            delivered += batch["record"].tolist()
        assert delivered == [*range(8)]


def test_errors_that_last_are_raised_at_once(tmp_path, monkeypatch):
    for name in "xyz":
        (tmp_path / name).write_bytes(b"data")
    with (
        serving(tmp_path, lambda n, path: "403" if path == "/y" else "slow") as server,
        raises(OSError, f"{server.url}/y, bytes 0 to 4, cannot be read", "403"),
    ):
        cached(f"{server.url}/{{x,y,z}}", tmp_path / "cache")
    assert not list(tmp_path.glob("cache/*/*"))
    with serving(tmp_path, lambda *_: "403") as server:
        with raises(remote.RemoteError, f"{server.url}/x.jkp cannot be read", "403"):
            PackedSource(f"{server.url}/x.jkp")
        assert len(server.requests) == 2  # HEAD and GET of fsspec
        with raises(ValueError, "WebDataset shards are read from local files", "cached"):
            jk.from_source(f"{server.url}/x.tar", 4)
        with raises(ValueError, "images are read from local files", "cached"):
            jk.pipeline.ImageFiles([f"{server.url}/x.jpg"])
        with raises(ValueError, "expected a local file", "cached"):
            jk.from_source({"x": f"{server.url}/x.npy"}, 4)
        with raises(ValueError, "both URLs and local paths"):
            (tmp_path / "y.jkp").touch()
            PackedSource([f"{server.url}/x.jkp", tmp_path / "y.jkp"])
        with raises(FileNotFoundError, f"{server.url}/no.jkp: no such file"):
            server.fault = lambda *_: ""
            PackedSource(f"{server.url}/no.jkp")
    monkeypatch.setattr(remote, "_ATTEMPTS", 2)
    with raises(remote.RemoteError, "2 attempts failed", "Cannot connect"):
        PackedSource("http://127.0.0.1:1/x.jkp")


@pytest.mark.parametrize("mask", ["raise", "mask"])
def test_a_file_replaced_in_mid_epoch_is_an_error(tmp_path, mask):
    pack(arrays(23, 40), tmp_path / "x.jkp", progress=False)
    with serving(tmp_path) as server:
        source = PackedSource(f"{server.url}/x.jkp", on_bad_record=mask, verify="never")
        batches = iter(shuffled(source, num_workers=1, prefetch_size=1))
        first = epoch_of([next(batches)])
        other = {name: values[::-1].copy() for name, values in arrays(23, 40).items()}
        pack(other, tmp_path / "y.jkp", progress=False)
        os.replace(tmp_path / "y.jkp", tmp_path / "x.jkp")
        with raises(OSError, f"{server.url}/x.jkp was replaced while it was read"):
            for batch in batches:
                first += epoch_of([batch])
        for batch in first:
            np.testing.assert_array_equal(batch["image"], arrays(23, 40)["image"][batch["record"]])
        (tmp_path / "x.jkp").write_bytes(b"")
        with raises(OSError, "was replaced"):
            source[3]


def test_damaged_records_of_a_server_are_found(tmp_path):
    pack(arrays(9, 40), tmp_path / "x.jkp", progress=False)
    data = bytearray((tmp_path / "x.jkp").read_bytes())
    data[4096] ^= 1
    (tmp_path / "x.jkp").write_bytes(data)
    with serving(tmp_path) as server:
        source = PackedSource(f"{server.url}/x.jkp", on_bad_record="mask")
        assert [damage.record for damage in source.damaged()] == [0]
        (batch,) = epoch_of(jk.from_source(source, 9))
        assert batch["valid"].tolist() == [False] + [True] * 8
        with raises(ValueError, "record 0, field 'image', is damaged"):
            PackedSource(f"{server.url}/x.jkp")[0]


def test_parquet_reads_only_its_columns(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    random = np.random.default_rng(0)
    table = pa.table({"x": np.arange(50_000), "unused": random.random(50_000)})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=20_000)
    with serving(tmp_path, lambda n, path: "cut" if n == 1 else "") as server:
        source = ParquetSource(f"{server.url}/x.parquet", columns=["x"])
        np.testing.assert_array_equal(source.gather(np.arange(50_000))["x"], np.arange(50_000))
        spans = [request.rpartition("=")[2] for request in server.requests if "bytes=" in request]
        sizes = [1 + int(b) - int(a) for a, b in (span.split("-") for span in spans)]
        assert sum(sizes) < 0.7 * (tmp_path / "x.parquet").stat().st_size
        server.fault = lambda n, path: (tmp_path / "x.parquet").write_bytes(b"PAR1") and ""
        with raises(OSError, "was replaced"):
            ParquetSource(f"{server.url}/x.parquet")


def test_every_format_is_read_from_a_cache(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    images = [np.full((8, 9, 3), k, np.uint8) for k in range(5)]
    write_tar(folder / "x.tar", [(f"{k:03}", {"png": encoded(i)}) for k, i in enumerate(images)])
    np.save(folder / "x.npy", np.stack(images))
    for k, image in enumerate(images):
        PIL.Image.fromarray(image).save(folder / f"{k}.jpg", quality=100)
    pack({"image": np.stack(images)}, folder / "x.jkp", progress=False)
    makers = {
        "x.tar": jk.pipeline.WebDatasetSource,
        "x.npy": lambda paths: jk.pipeline.ArraySource({"image": paths[0]}),
        "[0-4].jpg": jk.pipeline.ImageFiles,
        "x.jkp": PackedSource,
    }
    try:
        write_array_record(folder / "x.array_record", [savez(image=image) for image in images])
        write_tfrecord(folder / "x.tfrecord", [{"image": encoded(image)} for image in images])
        import pyarrow as pa

        table = pa.table({"image": [encoded(image) for image in images]})
        write_arrow(folder / "x.arrow", table)
        makers |= {
            "x.array_record": jk.pipeline.ArrayRecordSource,
            "x.tfrecord": TFRecordSource,
            "x.arrow": jk.pipeline.ArrowSource,
        }
    except ImportError as error:
        print(f"not tested without {error.name}")
    with serving(folder) as server:
        for name, make in makers.items():
            source = make(cached(f"{server.url}/{name}", tmp_path / "cache"))
            (batch,) = epoch_of(jk.from_source(source, 5))
            values = batch["image"]
            if isinstance(values, jk.image.Ragged):
                values = images_of(values, range(5))
            np.testing.assert_array_equal(np.stack(values), np.stack(images), name)
        assert is_native(jk.from_source(cached(f"{server.url}/x.jkp", tmp_path / "cache"), 5))


def test_the_cache_downloads_once_and_notices_replaced_files(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    data = np.random.default_rng(0).bytes(9_000_000)
    (folder / "x").write_bytes(data)
    (folder / "empty").write_bytes(b"")
    with serving(folder) as server:
        urls = [f"{server.url}/x", tmp_path / "local", f"{server.url}/empty"]
        (tmp_path / "local").touch()
        copies = cached(urls, tmp_path / "cache")
        assert [each.name for each in copies] == ["x", "local", "empty"]
        assert [each.read_bytes() for each in copies] == [data, b"", b""]
        assert server.gets == 5  # pieces of 2 MiB
        assert cached(urls, tmp_path / "cache") == copies
        assert server.gets == 5
        assert {*cached(f"{server.url}/*", tmp_path / "cache")} == {copies[0], copies[2]}
        copies[0].write_bytes(b"damaged")
        assert cached(urls, tmp_path / "cache")[0].read_bytes() == data
        (folder / "x").write_bytes(data[::-1])
        assert cached(urls[0], tmp_path / "cache")[0].read_bytes() == data[::-1]
        assert copies[0].read_bytes() == data  # an open source is not disturbed
        server.fault = lambda n, path: (folder / "x").write_bytes(b"%d" % n) and ""
        (folder / "x").write_bytes(data[1:])
        with raises(OSError, "was replaced"):
            cached(urls[0], tmp_path / "cache")
        assert not list(tmp_path.glob("cache/*/*.tmp"))


def test_a_failed_download_writes_to_no_file_that_is_opened_later(tmp_path, monkeypatch):
    (tmp_path / "x").write_bytes(bytes(5_000_000))
    begun, failed, ended = (threading.Event() for _ in range(3))
    to_thread = asyncio.to_thread

    def late(function, *arguments):
        def call():
            begun.set()
            failed.wait(10)
            try:
                function(*arguments)
            finally:
                ended.set()

        return to_thread(call)

    monkeypatch.setattr(asyncio, "to_thread", late)
    with serving(tmp_path, lambda n, path: "403" if n and begun.wait(10) else "") as server:
        with raises(OSError, "403"):
            cached(f"{server.url}/x", tmp_path / "cache")
        later = [(tmp_path / f"later{k}").open("w+b") for k in range(8)]
        failed.set()
        assert ended.wait(10)
        assert not any(os.fstat(file.fileno()).st_size for file in later)
        for file in later:
            file.close()


def test_the_cache_removes_the_least_recently_used_files(tmp_path, monkeypatch):
    for name in "abcd":
        (tmp_path / name).write_bytes(name.encode() * 1000)
    monkeypatch.setattr(remote, "_in_use", set())
    cache = tmp_path / "cache"
    with serving(tmp_path) as server:

        def copy(names, limit=None):
            urls = [f"{server.url}/{name}" for name in names]
            return cached(urls, cache, limit)

        def names():
            return "".join(sorted(path.name for path in cache.glob("*/*")))

        copy("abc")
        copy("a")  # more recently used than b and c
        with raises(ValueError, "max_bytes is 3500", "4000 bytes"):
            copy("d", 3500)
        remote._in_use.clear()
        copy("d", 3500)
        assert names() == "acd"
        remote._in_use.clear()
        copy("b", 2000)
        assert names() == "bd"


def test_ranges_are_read_together():
    files = [np.random.default_rng(k).bytes(100_000) for k in range(2)]
    requests = []

    class File(remote.RemoteFile):
        async def read(self, begin, end):
            requests.append((self.path, begin, end))
            return files[self._path][begin:end]

    made = [File(remote.Url(f"http://{k}"), 100_000, "", None, k) for k in range(2)]
    File.path = property(lambda self: self._path)
    ranges = np.array([[1, 5, 10], [0, 0, 3], [1, 15, 5], [0, 99_990, 10], [0, 2, 4], [1, 9, 0]])
    views = remote.read_ranges(made, ranges)
    assert {k: bytes(v) for k, v in views.items()} == {
        (f, o, n): files[f][o : o + n] for f, o, n in ranges.tolist() if n
    }
    assert sorted(requests) == [(0, 0, 6), (0, 99_990, 100_000), (1, 5, 20)]
    assert remote.read_ranges(made, ranges[5:]) == {}  # empty arrays only
    reader = remote.RemoteReader(made[1])
    reader.seek(-20, os.SEEK_END)
    assert [reader.read(), reader.read()] == [files[1][-20:], b""]
