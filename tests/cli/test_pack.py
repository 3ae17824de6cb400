"""`python -m jaxkern pack`: would catch a file that differs from that of `jk.pipeline.pack`, a
damaged file with exit code 0, and errors that are tracebacks."""

from __future__ import annotations

import json
import os
import signal
import sys

import numpy as np
import PIL.Image
import pytest

from jaxkern.cli import main
from jaxkern.pipeline import ImageFolder, PackedSource, Subset, pack
from jaxkern.pipeline.packing.packing import RecordEncoder
from jaxkern.pipeline.sources.packed.layout import open_packed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Six photographs in two classes."""
    root = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for k in range(6):
        path = root / ["cat", "dog"][k % 2] / f"{k}.jpg"
        path.parent.mkdir(exist_ok=True)
        PIL.Image.fromarray(random.integers(0, 256, (20 + k, 30, 3), np.uint8)).save(path)
    return root


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ([], {"format": "jpeg:90"}),
        (["--format", "raw", "--max-side", "16"], {"format": "raw", "max_side": 16}),
        (["--format", "npy", "--shards", "2", "--threads", "1"], {"format": "npy", "shards": 2}),
    ],
)
def test_folder(folder, tmp_path, capsys, arguments, options):
    expected = pack(ImageFolder(folder), tmp_path / "expected" / "x.jkp", progress=False, **options)
    assert main(["pack", str(folder), str(tmp_path / "x.jkp"), *arguments]) == 0
    assert f"wrote {tmp_path}/x" in capsys.readouterr().out
    for path in expected:
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_info(folder, tmp_path, capsys):
    path = tmp_path / "x.jkp"
    assert main(["pack", str(folder), str(path), "--max-side", "21", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == {"files": [str(path)], "records": 6, "bytes": path.stat().st_size}
    assert main(["pack", "--info", str(path)]) == 0
    text = capsys.readouterr().out
    assert "6 records" in text
    assert "classes: cat, dog" in text
    assert "field image: jpeg, uint8[14, 21] to [18, 21], " in text
    assert main(["pack", "--info", str(path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    with PackedSource(path) as source:
        assert result["digest"] == source.digest
    assert result["metadata"]["max_side"] == 21
    assert [field["name"] for field in result["fields"]] == ["image", "label"]


def test_verify(folder, tmp_path, capsys):
    path = tmp_path / "x.jkp"
    assert main(["pack", str(folder), str(path), "--quiet"]) == 0
    assert main(["pack", "--verify", str(path)]) == 0
    assert capsys.readouterr().out == "0 of 6 records are damaged\n"
    offset = int(open_packed(path)[1].columns["image"]["offset"][4])
    with open(path, "r+b") as file:
        file.seek(offset + 100)
        file.write(b"damaged")
    assert main(["pack", "--verify", str(path)]) == 1
    out = capsys.readouterr().out
    assert f"{path}: record 4, field 'image', is damaged" in out
    assert "1 of 6 records are damaged" in out
    assert main(["pack", "--verify", str(path), "--json"]) == 1
    (result,) = json.loads(capsys.readouterr().out)["damaged"]
    assert (result["record"], result["field"], result["begin"]) == (4, "image", offset)


def test_packed_file_as_a_source(folder, tmp_path, capsys):
    assert main(["pack", str(folder), str(tmp_path / "x.jkp"), "--shards", "3"]) == 0
    arguments = [str(tmp_path / "x-*-of-00003.jkp"), str(tmp_path / "one.jkp")]
    assert main(["pack", *arguments]) == 0
    capsys.readouterr()
    sources = [PackedSource(name) for name in (arguments[0], arguments[1])]
    assert sources[0].digest == sources[1].digest  # JPEG is not compressed again
    assert sources[0].metadata["classes"] == sources[1].metadata["classes"]
    part = Subset(ImageFolder(folder), [2, 0])
    (path,) = pack(part, tmp_path / "part.jkp", progress=False)
    assert PackedSource(path).metadata["classes"] == sources[0].metadata["classes"]


def test_files_that_do_not_decode(folder, tmp_path, capsys):
    (tmp_path / "f" / "cat").mkdir(parents=True)
    (tmp_path / "f" / "cat" / "0.jpg").write_bytes((folder / "cat" / "0.jpg").read_bytes())
    broken = tmp_path / "f" / "cat" / "1.jpg"
    broken.write_bytes((folder / "cat" / "0.jpg").read_bytes()[:-50])
    arguments = ["pack", str(tmp_path / "f"), str(tmp_path / "x.jkp")]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert str(broken) in error
    assert "while packing record 1 of" in error
    assert main([*arguments, "--on-bad-record", "mask"]) == 0
    source = PackedSource(tmp_path / "x.jkp")
    assert [bool(source[k]["valid"]) for k in (0, 1)] == [True, False]
    assert source[0]["image"].any()
    assert not source[1]["image"].any()


def test_folder_of_packed_files(folder, tmp_path, capsys):
    assert main(["pack", str(folder), str(tmp_path / "f" / "x.jkp"), "--shards", "2"]) == 0
    assert main(["pack", str(tmp_path / "f"), str(tmp_path / "y.jkp")]) == 2
    error = capsys.readouterr().err
    assert f"'{tmp_path}/f/*.jkp'" in error
    assert main(["pack", f"{tmp_path}/f/*.jkp", str(tmp_path / "y.jkp")]) == 0


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ([], "NAME.jkp"),
        (["nowhere", "x.jkp"], "nowhere"),
        (["nowhere.jkp", "x.jkp"], "nowhere.jkp"),
        (["--info", "nowhere.jkp"], "nowhere.jkp"),
        (["a", "b.jkp", "--verify", "x.jkp"], "--verify"),
        (["FOLDER", "x.jkp", "--format", "png"], "'png'"),
        (["FOLDER", "x.npy"], ".jkp"),
    ],
)
def test_invalid_input(folder, capsys, tmp_path, monkeypatch, arguments, fact):
    monkeypatch.chdir(tmp_path)
    assert main(["pack", *(str(folder) if a == "FOLDER" else a for a in arguments)]) == 2
    error = capsys.readouterr().err
    assert fact in error
    assert error.startswith("error: ")
    assert not list(tmp_path.iterdir())


def test_existing_file_is_replaced_only_by_force(folder, tmp_path, capsys):
    arguments = ["pack", str(folder), str(tmp_path / "x.jkp")]
    assert main(arguments) == 0
    assert main([*arguments, "--format", "raw"]) == 2
    assert "x.jkp" in capsys.readouterr().err
    assert main([*arguments, "--format", "raw", "--force"]) == 0
    assert PackedSource(tmp_path / "x.jkp").metadata["format"] == "raw"


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the test extra has no zarr there")
def test_zarr_group(tmp_path):
    import zarr

    zarr.create_group(tmp_path / "x.zarr").create_array("x", data=np.arange(4))
    arguments = [str(tmp_path / "x.zarr"), str(tmp_path / "x.jkp"), "--format", "npy", "--quiet"]
    assert main(["pack", *arguments]) == 0
    assert PackedSource(tmp_path / "x.jkp")[3]["x"] == 3


def test_interrupted_command_resumes(folder, tmp_path, capsys, monkeypatch):
    encoded = RecordEncoder.encode

    def interrupted(self, records):
        if records.start == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return encoded(self, records)

    command = ["pack", str(folder), str(tmp_path / "x.jkp")]
    with monkeypatch.context() as patch:
        patch.setattr(RecordEncoder, "encode", interrupted)
        assert main([*command, "--quiet", "--threads", "1"]) == 130
    result = capsys.readouterr()
    assert result.out == ""
    assert result.err.count("\n") == 1
    assert "interrupted" in result.err
    assert "of 6 records" in result.err
    assert main([*command, "--quiet"]) == 0
    assert len(PackedSource(tmp_path / "x.jkp")) == 6
