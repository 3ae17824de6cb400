"""Packing that is interrupted: would catch a file that appears before it is whole, a continued one
whose bytes are others, records that are read again, a part of another source that is continued, and
two processes that write one file."""

from __future__ import annotations

import fcntl
import functools
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from support import environment
from support.errors import raises

import jaxkern.pipeline.packing.writer as writer
from jaxkern.pipeline import PackedSource, pack

COUNT = 40


class Photos:
    """Records of several sizes that can be made to fail, and say which were read."""

    def __init__(self, bad=None, error=OSError, seed=0):
        self.bad, self.error, self.seed, self.read = bad, error, seed, []

    def __len__(self):
        return COUNT

    def __getitem__(self, record):
        if record == self.bad:
            raise self.error(f"record {record} is gone")
        self.read.append(record)
        random = np.random.default_rng([self.seed, record])
        image = random.integers(0, 256, (20 + record, 50, 3), np.uint8)
        return {"image": image, "id": record, "text": np.arange(record % 5)}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The bytes of a file, and of three shards, that nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    pack(Photos(), folder / "x.jkp", progress=False)
    pack(Photos(), folder / "x.jkp", shards=3, progress=False)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt, SystemExit])
def test_a_call_continues_an_interrupted_one(tmp_path, expected, monkeypatch, error):
    monkeypatch.setattr(writer, "_STEP_BYTES", 20_000)
    path = tmp_path / "x.jkp"
    reached = -1
    for bad in (0, 3, 17, 18, 38):
        source = Photos(bad, error)
        with pytest.raises(error, match="is gone") as caught:
            pack(source, path, threads=2, progress=False)
        assert not path.exists()
        if bad:  # record 0 says what the fields are
            assert f"{bad} of 40 records are written" in "\n".join(caught.value.__notes__)
            assert f"while packing record {bad} of" in "\n".join(caught.value.__notes__)
        # After the three reads that determine the settings, no record is read twice.
        assert not set(source.read[3:]) & set(range(1, reached))
        reached = bad
    pack(Photos(), path, progress=False)
    assert content(tmp_path) == {"x.jkp": expected["x.jkp"]}


def test_shards_are_continued(tmp_path, expected):
    for bad in (5, 20, 38):
        with raises(OSError, f"record {bad}"):
            pack(Photos(bad), tmp_path / "x.jkp", shards=3, progress=False)
    assert len(list(tmp_path.glob("*.jkp"))) == 2
    source = Photos()
    pack(source, tmp_path / "x.jkp", shards=3, progress=False)
    assert set(source.read) == {0, 38, 39}
    assert content(tmp_path) == {n: b for n, b in expected.items() if n != "x.jkp"}
    with raises(FileExistsError, "x-00000-of-00003.jkp"):
        pack(Photos(), tmp_path / "x.jkp", shards=3, progress=False)


def test_shards_of_another_source_are_not(tmp_path):
    with raises(OSError, "record"):
        pack(Photos(20), tmp_path / "x.jkp", shards=3, progress=False)
    with raises(FileExistsError, "x-00000"):
        pack(Photos(seed=1), tmp_path / "x.jkp", shards=3, progress=False)
    pack(Photos(seed=1), tmp_path / "x.jkp", shards=3, overwrite=True, progress=False)
    found = PackedSource(tmp_path / "x-*-of-00003.jkp")
    for record in (0, 20, 39):
        np.testing.assert_array_equal(found[record]["image"], Photos(seed=1)[record]["image"])


@pytest.mark.parametrize("change", ["source", "format", "torn part", "torn journal", "no journal"])
def test_a_part_that_does_not_match_is_written_again(tmp_path, expected, monkeypatch, change):
    """Or the whole steps of it are kept; either way with the bytes of an uninterrupted call."""
    monkeypatch.setattr(writer, "_STEP_BYTES", 20_000)
    path, part, journal = (tmp_path / f"x.jkp{end}" for end in ("", ".part", ".journal"))
    other = {"source": {"seed": 1}}.get(change, {})
    how = {"format": "raw", "max_side": 30} if change == "format" else {}
    with raises(OSError, "record"):
        pack(Photos(30, **other), path, progress=False, **how)
    if change == "torn part":
        os.truncate(part, part.stat().st_size // 2)
    elif change == "torn journal":
        for cut in range(1, 200, 7):  # shorter, or as long and with zeros at the end
            kept = journal.read_bytes()
            journal.write_bytes(kept[:-cut] + bytes(cut if cut % 2 else cut // 2))
            with raises(OSError, "record 31"):
                pack(Photos(31), path, progress=False)
    elif change == "no journal":
        journal.unlink()
    pack(Photos(), path, progress=False)
    assert content(tmp_path) == {"x.jkp": expected["x.jkp"]}


def test_two_writers_of_one_file(tmp_path):
    path = tmp_path / "x.jkp"

    class Nested(Photos):
        def __getitem__(self, record):
            if record == 7:
                pack(Photos(), path, progress=False)
            return super().__getitem__(record)

    with raises(BlockingIOError, "part"):
        pack(Nested(), path, progress=False)
    pack(Photos(), path, progress=False)
    assert len(PackedSource(path)) == COUNT


def test_a_file_that_was_finished_meanwhile(tmp_path, monkeypatch):
    """By who held the lock, between the opening of its part and the lock."""
    path = tmp_path / "x.jkp"
    pack(Photos(), path, progress=False)
    whole = path.read_bytes()
    lock = fcntl.flock

    def late(file, how):
        path.rename(tmp_path / "x.jkp.part.was")
        (tmp_path / "x.jkp.part").rename(path)
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(BlockingIOError):
        pack(Photos(), path, overwrite=True, progress=False)
    assert path.read_bytes() == b""  # what was opened is not written to any more
    assert (tmp_path / "x.jkp.part.was").read_bytes() == whole


SCRIPT = """\
import sys, time
import jaxkern.pipeline.packing.writer as writer
from pipeline.test_packing_resumed import Photos
from jaxkern.pipeline import pack
writer._STEP_BYTES = 20_000
class Slow(Photos):
    def __getitem__(self, record):
        time.sleep(0.01)
        return super().__getitem__(record)
pack(Slow(), sys.argv[1], shards=3, threads=2, progress=False)
"""


@pytest.mark.slow
def test_kills_at_any_moment(tmp_path, expected):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "x.jkp")]
    kills = 0
    for turn in range(30):
        with subprocess.Popen(command, env=environment()) as process:
            before = {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
            while process.poll() is None:  # until it writes
                time.sleep(0.002)
                if {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()} != before:
                    break
            time.sleep(0.04 + 0.013 * (turn % 7))
            process.kill()
        for path in tmp_path.glob("*.jkp"):  # what has its name is whole
            assert path.read_bytes() == expected[path.name]
        if len(list(tmp_path.glob("*.jkp"))) == 3:
            break
        assert process.returncode == -signal.SIGKILL
        kills += 1
    assert kills >= 3
    assert content(tmp_path) == {n: b for n, b in expected.items() if n != "x.jkp"}


@pytest.fixture
def cluster():
    """A function that starts a cluster, without limits and without a web page."""
    distributed = pytest.importorskip("distributed")

    def start(**options):
        return distributed.LocalCluster(
            memory_limit=0,
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            silence_logs=60,
            threads_per_worker=1,
            **options,
        )

    return start


def test_workers_write_the_same_bytes(tmp_path, expected, cluster):
    with cluster(processes=False, n_workers=2) as own, own.get_client() as client:
        options = {"shards": 3, "engine": client, "progress": False}
        paths = pack(functools.partial(Photos), tmp_path / "x.jkp", **options)
        assert content(tmp_path) == {path.name: expected[path.name] for path in paths}
        paths[1].unlink()
        pack(functools.partial(Photos), tmp_path / "x.jkp", **options)
        assert content(tmp_path) == {path.name: expected[path.name] for path in paths}
        with raises(FileExistsError, "already exists"):
            pack(functools.partial(Photos), tmp_path / "x.jkp", **options)
        with raises(OSError, "record 17 is gone", "the same call resumes"):
            pack(functools.partial(Photos, 17), tmp_path / "y.jkp", **options)
        with raises(TypeError, "a function without arguments that opens the source"):
            pack(Photos(), tmp_path / "z.jkp", **options)
        with raises(ValueError, "shards is None"):
            pack(functools.partial(Photos), tmp_path / "z.jkp", engine=client)


@pytest.mark.slow
def test_a_killed_worker_loses_nothing(tmp_path, cluster):
    pack(Photos(), tmp_path / "source.jkp", progress=False)
    pack(str(tmp_path / "source.jkp"), tmp_path / "x.jkp", shards=3, progress=False)
    (tmp_path / "new").mkdir()

    def install(mark):
        import jaxkern.pipeline.packing.packing as packing

        real = packing.RecordEncoder.encode

        def encode(self, records):
            if records.start == 17 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return real(self, records)

        packing.RecordEncoder.encode = encode

    with cluster(n_workers=2) as own, own.get_client() as client:
        client.run(install, tmp_path / "mark")
        source = str(tmp_path / "source.jkp")
        paths = pack(source, tmp_path / "new" / "x.jkp", shards=3, engine=client, progress=False)
    assert (tmp_path / "mark").exists()
    assert content(tmp_path / "new") == {p.name: (tmp_path / p.name).read_bytes() for p in paths}
