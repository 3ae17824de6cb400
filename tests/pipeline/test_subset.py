"""Parts of a source: would catch a holdout that shares records with the rest, rows that native
threads take from elsewhere than Python does, and a state that is resumed with another split."""

from __future__ import annotations

import numpy as np
import pytest
from support.errors import raises
from support.pipeline.batches import arrays, assert_same, column, epoch_of, is_native

import jaxkern as jk
from jaxkern import image as im
from jaxkern.pipeline import ArraySource, BatchSource, Repeat, Subset

CROP = im.Compose([im.RandomCrop(4), im.RandomHorizontalFlip()])
INDICES = {
    "range": range(3, 20),
    "backwards": np.arange(22, -1, -2),
    "permuted": np.random.default_rng(0).permutation(23)[:15],
    "repeated": [4, 4, 4, 4, 4, 4, 4],
    "one": [7],
    "u8": np.array([1, 2, 22], np.uint8),
}


def rows_of(indices):
    return {field: array[np.asarray(indices).astype(int)] for field, array in arrays().items()}


@pytest.mark.parametrize("name", INDICES)
@pytest.mark.parametrize("workers", [0, 2])
def test_it_is_the_source_of_those_rows(name, workers):
    found, expected = (
        epoch_of(jk.from_source(source, 5, True, 3, num_workers=workers))
        for source in (Subset(arrays(), INDICES[name]), rows_of(INDICES[name]))
    )
    assert_same(found, expected)


def test_records_are_drawn_for_by_their_place_in_it():
    """By native threads and by the program alike."""
    indices = INDICES["permuted"]
    expected, *found = (
        jk.from_source(source, 5, True, 3, num_workers=workers) >> CROP
        for source, workers in (
            (rows_of(indices), 2), (Subset(arrays(), indices), 2), (Subset(arrays(), indices), 0),
        )
    )  # fmt: skip
    assert [is_native(pipe) for pipe in (expected, *found)] == [True, True, False]
    batches = epoch_of(expected)
    for pipe in found:
        assert_same(epoch_of(pipe), batches)


def test_native_threads_gather_any_indices():
    for indices in INDICES.values():
        assert is_native(jk.from_source(Subset(arrays(), indices), 1))
    part = Subset(Subset(arrays(), range(0, 20, 2)), [3, 7, 5])
    pipe = jk.from_source(part, 2)
    assert is_native(pipe)
    assert column(epoch_of(pipe), "record").tolist() == [6, 14, 10]


@pytest.mark.parametrize("name", INDICES)
def test_zipped_parts_are_gathered_natively(name):
    """If their rows have a constant step, and are a view of the source's."""
    indices = np.asarray(INDICES[name]).astype(int)
    images, records = ({k: arrays()[k]} for k in ("image", "record"))
    joined = jk.concat([{"label": arrays()["label"][:9]}, {"label": arrays()["label"][9:]}])
    pipe = jk.from_source(jk.zip(Subset(images, indices), Subset(records, indices), joined), 2)
    steps = set(np.diff(indices).tolist()) if len(indices) > 1 else {1}
    is_view = len(steps) == 1 and 0 not in steps
    assert is_native(pipe) == (is_view and len(indices) == 23)
    actual = epoch_of(pipe)
    for field in ("image", "record"):
        np.testing.assert_array_equal(column(actual, field), arrays()[field][indices])
    np.testing.assert_array_equal(column(actual, "label"), arrays()["label"][: len(indices)])


@pytest.mark.parametrize("workers", [0, 2])
def test_zipped_parts_are_read_when_they_are_delivered(workers):
    x = np.arange(6.0)
    source = jk.zip(Subset({"x": x}, [3, 1, 0, 5]), {"y": np.arange(4)})
    pipe = jk.from_source(source, 2, num_workers=workers)
    assert column(epoch_of(pipe), "x").tolist() == [3, 1, 0, 5]
    x[:] = 7
    assert column(epoch_of(pipe), "x").tolist() == [7] * 4


@pytest.mark.parametrize("workers", [0, 2])
def test_zip_of_repeated_pipelines(workers):
    """The ids of records in the second turn are larger than the sources."""
    x, y, z = (
        jk.from_source({name: np.arange(size)}, 2, num_workers=workers)
        for name, size in (("x", 6), ("y", 6), ("z", 15))
    )
    for pipe in (jk.zip(x >> Repeat(2), y >> Repeat(2)), jk.zip(x >> Repeat(2), z)):
        assert column(epoch_of(pipe), "x").tolist() == [*range(6), *range(6)]


def test_any_source_has_parts():
    class Squares(BatchSource):
        def __len__(self):
            return 9

        def gather(self, records, out=None):
            return {"x": records**2}

    records = [{"x": np.int32(i * i)} for i in range(9)]
    for source in (Squares(), records, {"x": np.arange(9) ** 2}):
        part = Subset(source, [8, 2, 5])
        assert part[0]["x"] == 64
        assert column(epoch_of(jk.from_source(part, 2)), "x").tolist() == [64, 4, 25]
    assert Subset(ArraySource({"x": [1]}), [0]).fresh
    assert not Subset(Squares(), [0]).fresh


def test_a_state_knows_its_split():
    parts = ([1, 2, 3], [1, 2, 4], [1, 2, 3])
    first, second, again = (iter(jk.from_source(Subset(arrays(), part), 4)) for part in parts)
    again.set_state(first.get_state())
    with raises(ValueError, "node 0", "'Subset#", "(ArraySource)'"):
        second.set_state(first.get_state())
    part = Subset(arrays(), np.array([1, 2, 3]))
    with raises(ValueError, "read-only"):
        part.indices[0] = 7


@pytest.mark.parametrize(
    ("indices", "kind", "message"),
    [
        ([0, 23, 5], IndexError, r"indices\[1\] is 23; .* has the records 0 to 22"),
        ([-1], IndexError, r"indices\[0\] is -1"),
        ([2**63], IndexError, r"indices\[0\] is 9223372036854775808"),
        ([1.5], TypeError, "indices is"),
        (np.ones(23, bool), TypeError, r"np\.flatnonzero\(mask\)"),
        ([[1, 2]], TypeError, r"integers \[M\]"),
        (3, TypeError, "indices is"),
    ],
)
def test_what_names_no_records(indices, kind, message):
    with pytest.raises(kind, match=message):
        Subset(arrays(), indices)


def test_an_empty_part_is_an_empty_source():
    with raises(ValueError, "empty"):
        jk.from_source(Subset(arrays(), []), 1)
