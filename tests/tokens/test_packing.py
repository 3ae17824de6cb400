"""Packing of documents into rows, against lists in Python.

Would catch: a token that is lost, doubled or in another document's segment, a bin chosen otherwise
than the method says, a position or a mask that does not restart, padding that is not marked, a
state that resumes elsewhere, offsets or values that are read although they cannot be right.
"""

from __future__ import annotations

import itertools
import json
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import raises
from support.slow_packer import slow_arrays, slow_rows

import jaxkern as jk
from jaxkern.tokens import Documents, RowPacker, pack, packed_rows

METHODS = ["first-fit", "best-fit", "concat-split"]
DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]

lengths_of_documents = st.lists(st.integers(0, 40), max_size=60)


def documents_of(lengths, dtype="int32", seed=0):
    """Values and offsets, with some values before the first document and after the last."""
    rng = np.random.default_rng(seed)
    offsets = 3 + np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    values = rng.integers(1, 120, offsets[-1] + 2).astype(dtype)
    return values, offsets


@settings(max_examples=150, deadline=None)
@given(
    lengths=lengths_of_documents,
    length=st.sampled_from([1, 2, 7, 16, 39, 64]),
    method=st.sampled_from(METHODS),
    long=st.sampled_from(["split", "truncate", "drop"]),
    bins=st.sampled_from([1, 2, 3, 8]),
    dtype=st.sampled_from(DTYPES),
)
def test_equals_lists(lengths, length, method, long, bins, dtype):
    values, offsets = documents_of(lengths, dtype)
    expected = slow_rows(lengths, length, method, long, bins)
    documents = [values[a:b].tolist() for a, b in itertools.pairwise(offsets)]
    found = pack(values, offsets, length, method, long=long, max_open_bins=bins, pad_id=-1)
    for name, array in slow_arrays(expected, documents, length, pad=-1).items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@settings(max_examples=60, deadline=None)
@given(
    lengths=lengths_of_documents,
    length=st.sampled_from([1, 7, 16, 39]),
    method=st.sampled_from(METHODS),
    long=st.sampled_from(["split", "truncate", "drop"]),
    bins=st.sampled_from([1, 3, 8]),
    cuts=st.lists(st.integers(1, 5), min_size=1, max_size=30),
)
def test_a_state_continues_with_the_same_rows(lengths, length, method, long, bins, cuts):
    """Some rows at a time, with a new packer from each state."""
    values, offsets = documents_of(lengths)
    documents = Documents(values, offsets)
    begins, sizes = documents.locate(np.arange(len(documents)))
    packer, rows = RowPacker(length, method, long=long, max_open_bins=bins), []
    for cut in cuts + [1] * 3000:
        packer.add(begins[packer.document :], sizes[packer.document :], cut)
        if packer.document == len(lengths):
            packer.flush(cut)
        taken = packer.take()
        pieces = [tuple(piece) for piece in taken.pieces[:, :3].tolist()]
        rows += [pieces[a:b] for a, b in zip([0, *taken.ends], taken.ends, strict=False)]
        state = json.loads(json.dumps(packer.get_state()))
        assert len(taken.ends) == cut or packer.document == len(lengths)
        if not packer.open and packer.document == len(lengths):
            break
        packer = RowPacker(length, method, long=long, max_open_bins=bins)
        packer.set_state(state, documents.locate)
    assert rows == slow_rows(lengths, length, method, long, bins)


def test_the_best_fit_has_the_least_room_whatever_else_is_open():
    values, offsets = documents_of([4, 7, 3])
    rows = {"first-fit": [7, 7], "best-fit": [4, 10]}
    for method, tokens in rows.items():
        found = pack(values, offsets, 10, method, max_open_bins=8)
        assert sorted((found["segment_ids"] > 0).sum(1).tolist()) == tokens


def test_a_bin_is_closed_when_its_first_document_is_far_back():
    assert [(0, 0, 1), (1, 0, 9)] in slow_rows([1, 9, 9], 10, "best-fit", max_open_bins=2)
    lengths = [2] + [9] * 2000  # no other fits with the first, nor two of them
    rows = slow_rows(lengths, 10, "best-fit", max_open_bins=2)
    values, offsets = documents_of(lengths)
    found = pack(values, offsets, 10, "best-fit", max_open_bins=2)
    (place,) = np.flatnonzero((found["segment_ids"] > 0).sum(1) == 2)
    assert place == rows.index([(0, 0, 2)])
    assert 400 < place < 600


def test_several_fields_are_packed_alike():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 30, 50)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = rng.integers(1, 1000, offsets[-1])
    weights = rng.normal(size=offsets[-1]).astype(np.float32)
    fields = {"tokens": tokens, "weights": weights, "next": tokens + 1}
    found = pack(fields, offsets, 64, pad_id={"weights": -0.5, "next": 7})
    real = found["segment_ids"] > 0
    assert found["weights"].dtype == np.float32
    np.testing.assert_array_equal(found["next"][real], found["tokens"][real] + 1)
    assert (found["tokens"][~real] == 0).all()
    assert (found["next"][~real] == 7).all()
    assert (found["weights"][~real] == -0.5).all()
    alone = pack(tokens, offsets, 64)["tokens"]
    np.testing.assert_array_equal(found["tokens"], alone)
    by_token = dict(zip(tokens.tolist(), weights.tolist(), strict=True))
    if len(by_token) == len(tokens):
        assert found["weights"][real].tolist() == [by_token[t] for t in alone[real].tolist()]


def test_an_order_is_taken():
    documents = [[1, 1, 1], [2, 2], [3]]
    found = pack(documents, length=4, order=[2, 0, 1])
    assert found["tokens"].tolist() == [[3, 1, 1, 1], [2, 2, 0, 0]]
    with raises(IndexError, "3 to 3"):
        pack(documents, length=4, order=[3])


@pytest.mark.parametrize(
    ("method", "least"), [("first-fit", 0.95), ("best-fit", 0.97), ("concat-split", 0.999)]
)
def test_efficiency(method, least):
    """Of documents of 20 to 2,000 tokens, of which about two make a row."""
    lengths = np.random.default_rng(0).integers(20, 2001, 8000)
    begins = np.concatenate([[0], np.cumsum(lengths)])
    packer = RowPacker(2048, method)
    packer.add(begins[:-1], lengths)
    packer.flush()
    stats = packer.take().stats
    assert stats.tokens == begins[-1]
    assert stats.efficiency > least, stats
    assert str(stats).endswith(f"efficiency {stats.efficiency:.2%}")


def test_no_documents():
    found = pack(np.empty(0, np.int32), [0], 8)
    assert {name: array.shape for name, array in found.items()} == dict.fromkeys(found, (0, 8))
    assert pack([], length=8)["tokens"].shape == (0, 8)
    assert pack([[], []], length=8)["tokens"].shape == (0, 8)


@pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="the test extra installs pyarrow below Python 3.14 only"
)
def test_files_and_arrow(tmp_path):
    import pyarrow as pa

    values, offsets = documents_of([3, 0, 9, 2], "uint16")
    np.save(tmp_path / "values.npy", values)
    np.save(tmp_path / "offsets.npy", offsets.astype(np.uint32))
    expected = pack(values, offsets, 8, long="split")
    documents = [values[a:b] for a, b in itertools.pairwise(offsets)]
    lists = pa.array([d.tolist() for d in documents], pa.large_list(pa.uint16()))
    for given_values, given_offsets in [
        (str(tmp_path / "values.npy"), tmp_path / "offsets.npy"),
        (values[::1], offsets.astype(np.int32)),
        (values.astype(">u2"), offsets),
        (documents, None),
        (lists, None),
        (pa.chunked_array([lists[:2], lists[2:]]), None),
        (lists.slice(0), None),
    ]:
        found = pack(given_values, given_offsets, 8, long="split")
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name])
    part = pack(lists.slice(2, 2), None, 8, long="split")
    np.testing.assert_array_equal(
        part["tokens"], pack(documents[2:], None, 8, long="split")["tokens"]
    )
    with raises(ValueError, "nulls"):
        pack(pa.array([[1], None]))
    with raises(TypeError, "lists"):
        pack(pa.array([1, 2]))


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 5, 4, 6], r"offsets\[2\] is 4 after 5"),
        ([-1, 5], r"offsets\[0\] is -1"),
        ([0, 2**62], rf"offsets\[1\] is {2**62} .* 10$"),
        ([11], r"offsets\[0\] is 11"),
        ([], "offsets is empty"),
        ([0.0, 1.0], "offsets .*float64"),
        ([[0, 1]], "one dimension"),
    ],
)
def test_bad_offsets(offsets, message):
    with pytest.raises((ValueError, TypeError), match=message):
        pack(np.arange(10), offsets, 8)


@pytest.mark.parametrize(
    ("values", "offsets", "options", "message"),
    [
        (np.arange(10), [0, 10], {}, '0 has 10 tokens, more than the 8 .*; .*long="split"'),
        (np.arange(10), [0, 4], {"length": 0}, "length is 0"),
        (np.arange(10), [0, 4], {"method": "worst"}, "method is 'worst'"),
        (np.arange(10), [0, 4], {"long": "keep"}, "long is 'keep'"),
        (np.arange(10), [0, 4], {"max_open_bins": 0}, "max_open_bins is 0"),
        (np.arange(10), [0, 4], {"pad_id": 2**31}, "pad_id is 2147483648"),
        (np.array([1, 2**31]), [0, 2], {}, "value 1 .* 2147483648"),
        (np.array([1, -(2**31) - 1]), [0, 2], {}, "value 1 .* -2147483649"),
        (np.array([2**31], np.uint32), [0, 1], {}, "value 0 .* 2147483648"),
        (np.array([0, 2**63], np.uint64), [0, 2], {}, "value 1 .* 9223372036854775808"),
        (np.zeros(4), [0, 4], {}, "dtype float64"),
        (np.zeros((4, 2), int), [0, 4], {}, r"int64\[4, 2\]"),
        ({}, [0], {}, "empty dict"),
        (7, None, {}, "expected offsets"),
        ({"a": [[1], [2]], "b": [[1, 2], [3]]}, None, {}, "'b' have documents"),
    ],
)  # fmt: skip
def test_bad_arguments(values, offsets, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        pack(values, offsets, **{"length": 8, **options})


def test_the_ends_of_int32_are_tokens():
    for dtype in (np.int64, np.int32):
        ends = np.array([-(2**31), 2**31 - 1, -100], dtype)
        assert pack(ends, [0, 3], 3)["tokens"].tolist() == [[-(2**31), 2**31 - 1, -100]]


def test_rows_that_cannot_be_are_refused():
    """Rows of a damaged state, or of an array that was modified concurrently."""
    values = np.arange(10, dtype=np.int32)
    packer = RowPacker(8)
    packer.add(np.array([0]), np.array([5]))
    packer.flush()
    good = packer.take()
    assert packed_rows(good, {"tokens": values})["tokens"].tolist() == [[0, 1, 2, 3, 4, 0, 0, 0]]
    for place, value in ((2, 9), (2, 0), (2, -1), (3, 6), (3, -1), (3, 2**62)):
        pieces = good.pieces.copy()
        pieces[0, place] = value
        with pytest.raises(ValueError, match=r"row has room for|there are 10"):
            packed_rows(good._replace(pieces=pieces), {"tokens": values})
    with raises(ValueError, "ends at piece"):
        packed_rows(good._replace(ends=np.array([2])), {"tokens": values})
    with raises(ValueError, "ends before"):
        packed_rows(good._replace(ends=np.array([0])), {"tokens": values})
    with raises(ValueError, "wrong shape"):
        packed_rows(good, {"tokens": values}, out={"tokens": np.empty((1, 7), np.int32)})
    with raises(ValueError, "rows of float32"):
        packed_rows(good, {"tokens": values}, out={"tokens": np.empty((1, 8), np.float32)})
    documents = Documents(values, [0, 5, 10, 10])
    for document, bins, numbers, start in (
        (-1, [], [], 0),
        (1, [0], [], 0),
        (0, [1] * 65, [0] * 65, 0),
        (3, [2], [0, 1], 0),  # 10 tokens in a row of 8
        (3, [1], [0], 7),
        (3, [2], [0], 0),
        (3, [-1, 2], [0], 0),
    ):
        state = {"document": document, "started": 0, "bins": bins, "documents": numbers}
        state["split"] = [[0], [start]] if start else [[], []]
        with pytest.raises(ValueError, match=r"."):
            packer.set_state(state, documents.locate)
    packer = RowPacker(8)
    with raises(ValueError, "-1 tokens"):
        packer.add(np.array([0]), np.array([-1]))
    with raises(ValueError, "9 tokens; a row has 8"):
        packer.add(np.array([0]), np.array([9]))


def test_a_file_that_was_cut_short_is_an_error(tmp_path):
    path = tmp_path / "values.npy"
    np.save(path, np.arange(100_000))
    documents = Documents(path, [0, 100_000])
    with path.open("r+b") as file:
        file.truncate(5000)
    with raises(OSError, "5000 bytes"):
        jk.tokens.pack(documents, length=100_000)
