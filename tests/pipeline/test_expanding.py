"""FlatMap, Window, and Take and Repeat after sequential nodes.

Would catch: records that are lost or doubled at the edges of batches, windows over the wrong
records, parts with the same id and thus the same random draws, and positions that resume at the
wrong part of a record.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest
from support.pipeline.batches import assert_resumes, column, epoch_of

import jaxkern as jk
from jaxkern.pipeline import Element, Filter, FlatMap, Rebatch, Repeat, Take, Window

RECORDS = 29


def base(num_workers=0, **options):
    sequence = np.arange(RECORDS * 7).reshape(RECORDS, 7).astype(np.float32)
    source = {"id": np.arange(RECORDS), "sequence": sequence}
    options = {"batch_size": 4, "shuffle": True, "seed": 1, **options}
    return jk.from_source(source, num_workers=num_workers, **options)


def parts(record):
    """Expand a record into zero to three records."""
    for n in range(int(record["id"]) % 4):
        yield {"id": record["id"], "part": np.int32(n), "x": record["sequence"][n : n + 2]}


def numbered(batch):
    return batch


KINDS = {
    "flat": lambda pipe: pipe >> FlatMap(parts),
    "flat twice": lambda pipe: (
        pipe
        >> FlatMap(lambda r: [{"id": r["id"], "sequence": r["sequence"][n:]} for n in (0, 0)])
        >> Rebatch(5)
        >> FlatMap(parts)
    ),
    "windows": lambda pipe: pipe >> Window(3, 2),
    "gaps": lambda pipe: pipe >> Window(2, 5, fields=("id",)),
    "long": lambda pipe: pipe >> Window(11, 1, fields=("id",)) >> numbered,
    "sequences": lambda pipe: pipe >> Window(3, 2, fields=("sequence",), axis="sequence"),
    "taken": lambda pipe: pipe >> Filter(lambda r: r["id"] % 3 > 0) >> Take(10),
    "repeated": lambda pipe: pipe >> Filter(lambda r: r["id"] % 3 > 0) >> Repeat(3) >> Rebatch(5),
}


def order(epoch=0):
    pipe = base()
    pipe.epoch = epoch
    return np.concatenate([batch["id"] for batch in epoch_of(pipe)])


def expected_ids(kind, epoch=0):
    """The "id" of every row in order, from the order of the records alone."""
    ids = order(epoch)
    kept = [i for i in ids if i % 3]
    return {
        "flat": [i for i in ids for _ in range(i % 4)],
        "flat twice": [i for i in ids for _ in range(2) for _ in range(i % 4)],
        "windows": [ids[k : k + 3].tolist() for k in range(0, RECORDS - 2, 2)],
        "gaps": [ids[k : k + 2].tolist() for k in range(0, RECORDS - 1, 5)],
        "long": [ids[k : k + 11].tolist() for k in range(RECORDS - 10)],
        "sequences": [i for i in ids for _ in range(3)],
        "taken": kept[:10],
        "repeated": [i for t in range(3) for i in order(3 * epoch + t) if i % 3],
    }[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_once_in_order(kind):
    pipe = KINDS[kind](base(2))
    for epoch in range(2):
        batches = epoch_of(pipe)
        size = 5 if kind == "repeated" or kind == "flat twice" else 4
        assert {len(batch["id"]) for batch in batches[:-1]} <= {size}
        found = np.concatenate([batch["id"] for batch in batches])
        np.testing.assert_array_equal(found, np.array(expected_ids(kind, epoch)))


@pytest.mark.parametrize("kind", KINDS)
def test_resumes_after_every_batch_with_any_workers(kind):
    assert_resumes(lambda workers: KINDS[kind](base(workers)), epoch_of(KINDS[kind](base())))


@pytest.mark.parametrize("kind", KINDS)
def test_padding_and_dropping(kind):
    ids = np.array(expected_ids(kind))
    padded = epoch_of(KINDS[kind](base(pad_remainder=True)))
    mask = np.concatenate([batch["mask"] for batch in padded])
    found = np.concatenate([batch["id"] for batch in padded])
    np.testing.assert_array_equal(found[mask], ids)
    dropped = epoch_of(KINDS[kind](base(drop_remainder=True)))
    found = np.concatenate([batch["id"] for batch in dropped])
    np.testing.assert_array_equal(
        found, ids[: len(ids) // len(padded[0]["id"]) * len(padded[0]["id"])]
    )


def test_values_of_parts_and_of_windows_of_sequences():
    for batch in epoch_of(KINDS["flat"](base())):
        first = batch["id"] * 7 + batch["part"]
        np.testing.assert_array_equal(batch["x"], np.stack([first, first + 1], 1))
    seen = {}
    for batch in epoch_of(KINDS["sequences"](base())):
        for i, window in zip(batch["id"].tolist(), batch["sequence"], strict=True):
            start = i * 7 + 2 * seen.setdefault(i, 0)
            assert window.tolist() == [start, start + 1, start + 2]
            seen[i] += 1


def draws_of(pipe):
    """Return the random draws of the records of an epoch, 32 bits each, by record id."""
    config = jk.ElementOperatorConfig(stochastic=True)
    draw = jk.ElementOperator(config, lambda e, key: Element({"draw": jax.random.bits(key)}))
    return column(epoch_of(pipe >> jk.OperatorNode(draw)), "draw").tolist()


def test_record_ids_decide_draws():
    ids = np.arange(65536 * RECORDS, dtype=np.int32)
    drawn = draws_of(jk.from_source({"id": ids}, 65536, seed=1))

    def check(pipe, records):
        assert draws_of(pipe) == [drawn[record] for record in records]

    check(base() >> Filter(lambda r: r["id"] % 3 > 0), [i for i in order() if i % 3])
    parts_of = [65536 * i + n for i in order() for n in range(i % 4)]
    check(KINDS["flat"](base()), parts_of)
    check(KINDS["windows"](base()), order()[0 : RECORDS - 2 : 2].tolist())
    assert len(set(draws_of(KINDS["flat twice"](base())))) == len(parts_of) * 2
    repeated = [3 * i + t for t in range(3) for i in order(t) if i % 3]
    check(KINDS["repeated"](base()), repeated)


def test_take_reads_no_more_than_it_needs():
    read = []

    def numbers():
        for number in range(1000):
            read.append(number)
            yield {"id": number}

    pipe = jk.from_stream(numbers, 4, num_workers=0) >> Take(10)
    assert [len(batch["id"]) for batch in pipe] == [4, 4, 2]
    assert len(read) <= 12


def test_invalid_arguments():
    def fails(make, kind, text):
        with pytest.raises(kind, match=text):
            list(make())

    fails(lambda: [FlatMap(3)], TypeError, "a function")
    fails(lambda: base() >> FlatMap(lambda r: r), TypeError, "list")
    fails(lambda: base() >> FlatMap(lambda r: [3]), TypeError, r"record 11 of .* is 3")
    fails(lambda: base() >> FlatMap(lambda r: [r] * 65537), ValueError, "more than 65,536")
    uneven = FlatMap(lambda r: [{"x": np.zeros(int(r["id"]) // 20 + 1)}])
    fails(
        lambda: base(shuffle=False) >> uneven,
        ValueError,
        r"float32\[N, 2\] and was float32\[N, 1\]",
    )
    deep = FlatMap(lambda r: [r])
    fails(lambda: base() >> deep >> deep >> deep >> deep, ValueError, "too large for ids")
    fails(lambda: [Window(0)], ValueError, "size")
    fails(lambda: [Window(2, fields="id")], ValueError, "names")
    fails(lambda: [Window(2, axis=0)], ValueError, "axis")
    fails(lambda: base() >> Window(2, fields=("y",)), ValueError, "the batch has")
    fails(lambda: base() >> Window(2, axis="sequence"), ValueError, "name the fields")
    assert epoch_of(base() >> Window(RECORDS + 1)) == []
    short = Window(8, fields=("sequence",), axis="sequence")
    assert epoch_of(base() >> short) == []
