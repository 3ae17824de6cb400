"""Names of packed files while they are written.

Would catch: a finished file that is replaced without `overwrite`, a link next to it that is
followed, and a file of another writer that is resumed.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from support.errors import raises

from jaxkern.core import paths
from jaxkern.pipeline import PackedSource, pack

NUMBERS = {"x": np.arange(20.0)}
OTHERS = {"x": np.arange(20.0) + 100}


def finish_meanwhile(path, monkeypatch, moment):
    """Lets another call finish `path` at a moment of the call that the test makes."""
    import jaxkern.pipeline.packing.packing as packing

    found = getattr(packing, moment)

    def late(*arguments, **named):
        monkeypatch.setattr(packing, moment, found)
        made = found(*arguments, **named)
        path.write_bytes(b"finished by another call")
        return made

    monkeypatch.setattr(packing, moment, late)


@pytest.mark.parametrize("moment", ["_about", "_encode"])
@pytest.mark.parametrize("shards", [None, 2])
@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_is_finished_meanwhile(tmp_path, monkeypatch, moment, shards, links):
    """Before the part is opened, or while it is written."""
    path = tmp_path / ("x.jkp" if shards is None else "x-00000-of-00002.jkp")
    if not links:  # as on FAT
        monkeypatch.setattr(paths.os, "link", _no_links)
    finish_meanwhile(path, monkeypatch, moment)
    with pytest.raises((FileExistsError, ValueError), match=r"x.*\.jkp"):
        pack(NUMBERS, tmp_path / "x.jkp", shards=shards, progress=False)
    assert path.read_bytes() == b"finished by another call"
    path.unlink()
    for file in pack(NUMBERS, tmp_path / "x.jkp", shards=shards, progress=False):
        PackedSource(file.parent / "x*.jkp" if shards else file)
    assert sorted(tmp_path.glob("*.part")) == sorted(tmp_path.glob("*.journal")) == []


def _no_links(*_, **__):
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize("links", [True, False])
def test_overwrite_replaces_it(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(paths.os, "link", _no_links)
    path = tmp_path / "x.jkp"
    finish_meanwhile(path, monkeypatch, "_about")
    pack(NUMBERS, path, overwrite=True, progress=False)
    assert PackedSource(path)[3]["x"] == 3


def test_a_dangling_link_is_there(tmp_path):
    (tmp_path / "x.jkp").symlink_to(tmp_path / "nowhere")
    with raises(FileExistsError, "x.jkp"):
        pack(NUMBERS, tmp_path / "x.jkp", progress=False)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", ["x.jkp.part", "x.jkp.journal"])
@pytest.mark.parametrize("kind", ["symbolic", "dangling", "folder", "fifo"])
def test_a_path_that_is_not_a_regular_file(tmp_path, name, kind):
    target, place = tmp_path / "precious", tmp_path / name
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to(target)
    if kind == "symbolic":
        target.write_bytes(b"precious" * 1000)
    with raises(OSError, name):
        pack(NUMBERS, tmp_path / "x.jkp", progress=False)
    assert not (tmp_path / "x.jkp").exists()
    assert target.exists() == (kind == "symbolic")
    if kind == "symbolic":
        assert target.read_bytes() == b"precious" * 1000


@pytest.mark.parametrize("name", ["x.jkp.part", "x.jkp.journal"])
def test_a_hard_link_is_not_written_through(tmp_path, name):
    """Also what a kill between the link and the removal of the part leaves."""
    target = tmp_path / "precious"
    target.write_bytes(b"precious" * 1000)
    os.link(target, tmp_path / name)
    [path] = pack(NUMBERS, tmp_path / "x.jkp", progress=False)
    assert target.read_bytes() == b"precious" * 1000
    assert PackedSource(path)[3]["x"] == 3
    assert sorted(file.name for file in tmp_path.iterdir()) == ["precious", "x.jkp"]


def test_a_file_of_another_user_is_not_resumed(tmp_path, monkeypatch):
    (tmp_path / "x.jkp.part").write_bytes(b"of another user")
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with raises(PermissionError, "x.jkp.part"):
        pack(NUMBERS, tmp_path / "x.jkp", progress=False)
    assert (tmp_path / "x.jkp.part").read_bytes() == b"of another user"


def test_a_kill_before_the_part_is_removed(tmp_path, monkeypatch):
    """The part is the finished file then, under two names."""
    path = tmp_path / "x.jkp"
    unlink = os.unlink

    def killed(file, *more, **named):
        if str(file).endswith(".part"):
            raise KeyboardInterrupt
        unlink(file, *more, **named)

    monkeypatch.setattr(os, "unlink", killed)
    with pytest.raises(KeyboardInterrupt):
        pack(NUMBERS, path, progress=False)
    monkeypatch.setattr(os, "unlink", unlink)
    assert PackedSource(path)[3]["x"] == 3
    pack(OTHERS, path, overwrite=True, progress=False)
    assert PackedSource(path)[3]["x"] == 103
    assert [file.name for file in tmp_path.iterdir()] == ["x.jkp"]
