"""Damage that readers of tables and shards are asked to find: would catch `verify=True` that checks
nothing, an error that does not name the file, and a shard that is read to its end to be refused."""

from __future__ import annotations

import io

import numpy as np
import pytest
from support import library
from support.errors import raises
from support.pipeline.written import write_arrow, write_tar

from jaxkern.pipeline import ArrowSource, ParquetSource, WebDatasetSource

pa = library("pyarrow")
pq = library("pyarrow.parquet")

VALUES = np.arange(1000, dtype=np.int32) * 7919


def change(path, pattern, new):
    content = path.read_bytes()
    assert content.count(pattern) == 1
    path.write_bytes(content.replace(pattern, new))


@pytest.mark.parametrize("checksums", [True, False])
def test_a_changed_number_in_parquet(tmp_path, checksums):
    """By the page's checksum, or where it is outside the statistics."""
    path = tmp_path / "x.parquet"
    how = {"use_dictionary": False, "compression": "none", "write_page_checksum": checksums}
    pq.write_table(pa.table({"x": VALUES}), path, **how)
    ParquetSource(path, verify=True)
    new = VALUES[501] + 1 if checksums else VALUES.max() + 1
    change(path, VALUES[500:502].tobytes(), np.array([VALUES[500], new], np.int32).tobytes())
    assert ParquetSource(path).gather(np.array([501]))["x"] == new
    with pytest.raises(ValueError, match=r"x\.parquet"):
        ParquetSource(path, verify=True)


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_text_that_is_no_utf8(tmp_path, kind):
    path = tmp_path / f"x.{kind}"
    table = pa.table({"x": ["one", "twé", "three"]})
    if kind == "parquet":
        pq.write_table(table, path, compression="none", write_statistics=False)
    else:
        write_arrow(path, table)
    read = ArrowSource if kind == "arrow" else ParquetSource
    read(path, decoders={"x": len}, verify=True)
    change(path, "twé".encode(), b"tw\xff\xff")
    read(path, decoders={"x": len})
    with pytest.raises(ValueError, match=rf"x\.{kind}.*UTF"):
        read(path, decoders={"x": len}, verify=True)


def test_a_large_shard_with_a_damaged_header(tmp_path):
    """Of 64 GiB, of which all but the beginning is a hole: to read it would take minutes."""
    path = tmp_path / "x.tar"
    write_tar(path, [("0", {"cls": b"1"}), ("1", {"cls": b"2"})])
    with path.open("rb+") as file:
        file.seek(1024 + 148)  # the checksum of the second header
        file.write(b"9")
        file.truncate(1 << 36)
    with raises(ValueError, "x.tar", "byte 1024 of"):
        WebDatasetSource(path)


def test_an_array_that_ends_before_its_member(tmp_path):
    array = io.BytesIO()
    np.save(array, np.arange(10.0))
    path = tmp_path / "x.tar"
    write_tar(path, [("0", {"npy": array.getvalue().replace(b"(10,)", b"(1,) ")})])
    with pytest.raises(ValueError, match="ends at byte") as caught:
        WebDatasetSource(path).gather(np.array([0]))
    assert "x.tar" in "\n".join([str(caught.value), *caught.value.__notes__])
