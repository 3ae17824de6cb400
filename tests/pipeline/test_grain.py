"""Grain's sources in a pipeline: would catch records that are read in another way than Grain's."""

from __future__ import annotations

import numpy as np
import pytest
from support import FORMATS
from support.pipeline.batches import column, epoch_of

import jaxkern as jk

pytestmark = pytest.mark.skipif(
    not FORMATS, reason="the test extra installs Grain below Python 3.14 and with the GIL only"
)


def test_array_records(tmp_path):
    from array_record.python.array_record_module import ArrayRecordWriter
    from grain.sources import ArrayRecordDataSource

    path = str(tmp_path / "data.array_record")
    writer = ArrayRecordWriter(path, "group_size:1")
    rows = np.arange(23 * 4, dtype=np.float32).reshape(23, 4)
    for row in rows:
        writer.write(row.tobytes())
    writer.close()

    class Decoded(ArrayRecordDataSource):
        def __getitem__(self, record):
            return {"x": np.frombuffer(super().__getitem__(record), np.float32)}

    pipe = jk.from_source(Decoded(path), 5, shuffle=True, num_workers=2)
    found = column(epoch_of(pipe), "x")
    np.testing.assert_array_equal(found[np.argsort(found[:, 0])], rows)
    assert (found != rows).any()


def test_grain_datasets_are_sources():
    import grain

    dataset = grain.MapDataset.range(20).map(lambda i: {"square": i**2})
    batches = epoch_of(jk.from_source(dataset, 6, num_workers=2))
    assert column(batches, "square").tolist() == [i**2 for i in range(20)]
