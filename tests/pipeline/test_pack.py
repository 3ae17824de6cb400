"""Pack in a pipeline, after a source of documents and after other nodes.

Would catch: a document that is lost, doubled or torn in the middle of an epoch, rows that depend on
how documents arrive, on the workers or on the position of a state, a state that contains tokens, an
error in the wrong batch or one that loses other documents, a remainder that counts
padding as tokens.
"""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from support.errors import raises
from support.pipeline.batches import assert_same, column, epoch_of
from support.slow_packer import slow_arrays, slow_rows

import jaxkern as jk
from jaxkern.pipeline import Filter, Pack, Subset, TokenSource

METHODS = ["first-fit", "best-fit", "concat-split"]
LENGTHS = np.random.default_rng(1).integers(0, 30, 80)


def documents(lengths=LENGTHS, dtype=np.uint16):
    """Return documents whose tokens all differ, so that each can be identified."""
    values = np.arange(1, lengths.sum() + 1).astype(dtype)
    return np.split(values, np.cumsum(lengths)[:-1])


def source(lengths=LENGTHS, **options):
    values = np.arange(1, lengths.sum() + 1).astype(np.uint16)
    return TokenSource(values, np.concatenate([[0], np.cumsum(lengths)]), **options)


def same(batch):
    """A node that keeps the batch, so that Pack reads batches and not the source."""
    return batch


def piped(way, pack, **options):
    """The same documents on each way to a Pack."""
    options = {"batch_size": 4, "num_workers": 2, "prefetch_size": 2} | options
    if way == "source":
        return jk.from_source(source(), **options) >> pack
    if way == "subset":
        twice = np.concatenate([LENGTHS, LENGTHS])
        part = Subset(source(twice), np.arange(len(LENGTHS)))
        return jk.from_source(part, **options) >> pack
    if way == "filter":
        return jk.from_source(source(), **options) >> Filter(lambda r: r["length"] >= 0) >> pack
    if way == "stream":
        rows = source()
        del options["batch_size"]
        return (
            jk.from_stream(lambda: iter([rows[i] for i in range(len(rows))]), 4, **options) >> pack
        )
    if way == "concat":
        halves = np.split(np.arange(len(LENGTHS)), 2)
        part = [jk.from_source(Subset(source(), half), **options) for half in halves]
        return jk.concat(*part) >> pack
    return jk.from_source(source(), **options) >> same >> pack


WAYS = ["source", "subset", "function", "filter"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("way", [*WAYS, "stream", "concat"])
def test_equals_lists(way, method):
    rows = slow_rows(LENGTHS.tolist(), 32, method, max_open_bins=3)
    expected = slow_arrays(rows, documents(), 32)
    batches = epoch_of(piped(way, Pack(32, method=method, max_open_bins=3)))
    assert {len(batch["tokens"]) for batch in batches[:-1]} == {4}
    for name, array in expected.items():
        np.testing.assert_array_equal(column(batches, name), array)
        assert batches[0][name].dtype == array.dtype


@pytest.mark.parametrize("way", ["source", "concat", "filter"])
@pytest.mark.parametrize("method", METHODS)
def test_resume_after_every_batch(way, method):
    """In the middle of bins and of documents, also with another number of workers."""
    pack = Pack(16, method=method, long="split", max_open_bins=3)
    options = {"shuffle": True, "seed": 2, "shard": (1, 2)}
    expected = epoch_of(piped(way, pack, num_workers=0, **options))
    assert_same(epoch_of(piped(way, pack, **options)), expected)
    running = iter(piped(way, pack, **options))
    for stop in range(len(expected) + 1):
        state = json.loads(json.dumps(running.get_state()))
        assert len(json.dumps(state)) < 1500
        resumed = iter(piped(way, pack, num_workers=stop % 2, **options))
        resumed.set_state(state)
        assert resumed.get_state() == state
        assert_same(epoch_of(resumed), expected[stop:])
        if stop < len(expected):
            next(running)
    assert running.packing == resumed.packing
    segments = column(expected, "segment_ids")
    assert running.packing.rows == len(segments)
    assert running.packing.tokens == (segments > 0).sum()
    assert running.packing.segments == segments.max(1).sum()


@pytest.mark.parametrize("remainder", ["partial", "drop_remainder", "pad_remainder"])
def test_every_token_once_over_all_shards(remainder):
    lengths = LENGTHS.clip(1)
    found, tails = [], []
    for index in range(3):
        options = {"shuffle": True, "seed": 4, "shard": (index, 3)}
        options |= {} if remainder == "partial" else {remainder: True}
        pipe = jk.from_source(source(lengths), 4, **options) >> Pack(64)
        epochs = [epoch_of(pipe), epoch_of(pipe)]
        assert not np.array_equal(epochs[0][0]["tokens"], epochs[1][0]["tokens"])
        batches = epochs[index % 2 == 2]
        tails.append(len(batches[-1]["tokens"]))
        for batch in batches:
            for row, segments in zip(batch["tokens"], batch["segment_ids"], strict=True):
                for segment in range(1, segments.max() + 1):
                    found.append(tuple(row[segments == segment].tolist()))
            real = batch["segment_ids"] > 0
            first = (batch["positions"] == 0) & real
            np.testing.assert_array_equal(batch["loss_mask"], real & ~first)
            assert not batch["tokens"][~real].any()
            if remainder == "pad_remainder":
                np.testing.assert_array_equal(batch["mask"], real.any(1))
    expected = Counter(tuple(document.tolist()) for document in documents(lengths))
    if remainder == "drop_remainder":
        assert Counter(found) < expected
        assert set(tails) == {4}
    else:
        assert Counter(found) == expected
        assert set(tails) == {4} if remainder == "pad_remainder" else {*tails} - {4}


@pytest.mark.parametrize("way", WAYS)
def test_a_document_longer_than_a_row(way):
    lengths = LENGTHS.copy()
    lengths[40] = 29
    expected = [d for d in documents() if len(d) <= 28]
    assert len(expected) < len(LENGTHS)
    messages = set()
    for state_at in (0, 1, 2, 5, None):
        iterator, outcomes = iter(piped(way, Pack(28, max_open_bins=3))), []
        while True:
            if len(outcomes) == state_at:
                state = iterator.get_state()
                iterator = iter(piped(way, Pack(28, max_open_bins=3)))
                iterator.set_state(state)
            try:
                outcomes.append(next(iterator))
            except StopIteration:
                break
            except ValueError as error:
                messages.add(str(error).partition(" ")[2].partition(";")[0])
                outcomes.append(None)
        rows = np.concatenate([np.asarray(o["tokens"]) for o in outcomes if o is not None])
        assert sorted(rows[rows > 0].tolist()) == np.concatenate(expected).tolist()
        if state_at is None:
            assert sum(o is None for o in outcomes) == len(LENGTHS) - len(expected)
    assert all("has 29 tokens" in text and " 28 " in text for text in messages)
    pipe = piped(way, Pack(28, long="drop"))
    iterator = iter(pipe)
    rows = column(epoch_of(iterator), "tokens")
    assert sorted(rows[rows > 0].tolist()) == np.concatenate(expected).tolist()
    assert iterator.counts["pack"]["dropped"] == len(LENGTHS) - len(expected)
    rows = column(epoch_of(piped(way, Pack(28, long="truncate"))), "tokens")
    assert sorted(rows[rows > 0].tolist()) == np.concatenate([d[:28] for d in documents()]).tolist()


def broken(batch):
    """Raise an error for the batch that contains token 500."""
    if 500 in batch["tokens"]:
        raise ArithmeticError("a bad document")
    return batch


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_before_it_costs_its_documents_only(num_workers):
    def made():
        options = {"num_workers": num_workers, "prefetch_size": 2}
        return jk.from_source(source(), 4, **options) >> broken >> Pack(32, max_open_bins=3)

    (lost,) = (i for i, d in enumerate(documents()) if 500 in d)
    first = lost // 4 * 4
    kept = documents()[:first] + documents()[first + 4 :]
    whole = []
    for stop in range(0, 12, 3):
        iterator, failed, rows = iter(made()), 0, []
        for step in range(100):
            if step == stop:
                state = json.loads(json.dumps(iterator.get_state()))
                iterator = iter(made())
                iterator.set_state(state)
            try:
                rows.append(np.asarray(next(iterator)["tokens"]))
            except StopIteration:
                break
            except ArithmeticError:
                failed += 1
        tokens = np.concatenate(rows)
        assert sorted(tokens[tokens > 0].tolist()) == np.concatenate(kept).tolist()
        assert failed >= 1
        whole.append(tokens)
    for tokens in whole[1:]:
        np.testing.assert_array_equal(tokens, whole[0])


def test_a_mixture_is_packed_in_its_proportions():
    short = [TokenSource([[n] * 4] * 40, max_length=4) for n in (1, 2)]
    pipes = [jk.from_source(documents, 4, shuffle=True) for documents in short]
    mixed = jk.mix([(pipes[0], 3), (pipes[1], 1)]) >> Pack(8)
    tokens = column(epoch_of(mixed), "tokens")
    ones, twos = (tokens == 1).sum() / 4, (tokens == 2).sum() / 4
    assert ones == 40
    assert abs(twos - ones / 3) <= 1


def test_an_error_at_the_very_end():
    def late(batch):
        if batch["tokens"].max() == LENGTHS.sum():
            raise ArithmeticError("a bad document")
        return batch

    iterator = iter(jk.from_source(source(), 4) >> late >> Pack(500))
    with pytest.raises(ArithmeticError):
        next(iterator)
    tokens = column(epoch_of(iterator), "tokens")
    assert sorted(tokens[tokens > 0].tolist()) == np.concatenate(documents()[:-4]).tolist()


def test_several_fields_and_a_value_that_is_no_int32():
    values = np.arange(1, 101)
    values[57] = 2**40
    offsets = np.arange(0, 101, 10)
    fields = {"tokens": np.arange(100, dtype=np.uint8), "next": values}
    pipe = jk.from_source(TokenSource(fields, offsets), 2) >> Pack(20, ("tokens", "next"))
    iterator, outcomes = iter(pipe), []
    while True:
        try:
            outcomes.append(next(iterator))
        except StopIteration:
            break
        except ValueError as error:
            outcomes.append(error)
    assert "value 57 of 'next' is 1099511627776" in str(outcomes[1])
    assert [isinstance(o, ValueError) for o in outcomes] == [False, True, False]
    np.testing.assert_array_equal(outcomes[0]["next"], outcomes[0]["tokens"] + 1)
    one = epoch_of(jk.from_source(TokenSource(fields, offsets), 2) >> Pack(20))
    assert sorted(one[0]) == ["loss_mask", "positions", "segment_ids", "tokens"]


def test_a_source_alone_pads():
    pipe = jk.from_source(source(pad_id=9), 50, num_workers=1)
    found = epoch_of(pipe)
    lengths = column(found, "length")
    np.testing.assert_array_equal(lengths, LENGTHS)
    tokens = column(found, "tokens")
    assert tokens.shape == (len(LENGTHS), LENGTHS.max())
    for row, document in zip(tokens, documents(), strict=True):
        assert row.tolist() == document.tolist() + [9] * (len(row) - len(document))
    short = epoch_of(jk.from_source(source(max_length=5), 60))
    assert short[0]["tokens"].shape == (60, 5)
    np.testing.assert_array_equal(column(short, "length"), LENGTHS.clip(max=5))
    packed = epoch_of(jk.from_source(source(max_length=5), 4) >> Pack(5))
    assert (column(packed, "tokens") > 0).sum() == LENGTHS.clip(max=5).sum()
    assert source()[3]["length"] == LENGTHS[3]
    with raises(IndexError, "80 to 80"):
        source().gather(np.array([80]))


def test_explain_tells_how_documents_come():
    assert "in place by native code: TokenSource(tokens; 80" in str(
        piped("source", Pack(32)).explain()
    )
    assert "native code: Subset(80 of TokenSource" in str(piped("subset", Pack(32)).explain())
    assert "one by one from the batches" in str(piped("function", Pack(32)).explain())


def test_batch_size_and_nodes_after_it():
    def double(batch):
        return {"twice": 2 * batch["tokens"]}

    pipe = jk.from_source(source(), 7) >> Pack(32, batch_size=3) >> double
    rows = slow_rows(LENGTHS.tolist(), 32, "first-fit")
    expected = 2 * slow_arrays(rows, documents(), 32)["tokens"]
    found = epoch_of(pipe)
    assert {len(batch["twice"]) for batch in found[:-1]} == {3}
    np.testing.assert_array_equal(column(found, "twice"), expected)
    assert pipe.element_spec["twice"].shape == (3, 32)
    with raises(TypeError, "'pack'"):
        len(pipe)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Pack(0), "length is 0"),
        (lambda: Pack(8, method="next-fit"), "method is 'next-fit'"),
        (lambda: Pack(8, ("tokens", "positions")), "none of them named 'segment_ids', 'positions'"),
        (lambda: Pack(8, ()), "fields is"),
        (lambda: Pack(8, batch_size=0), "batch_size is 0"),
        (lambda: Pack(8, pad_id={"text": 1}), "pad_id is for 'text'"),
        (lambda: jk.from_source(source(), 2) >> Pack(8, "text"), "no field 'text'; it has"),
        (lambda: TokenSource({"length": [1, 2]}, [0, 2]), "'length'"),
    ],
)  # fmt: skip
def test_bad_arguments(made, message):
    with pytest.raises(ValueError, match=message):
        made()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: {"tokens": b["tokens"]}, "no field 'length'; it has"),
        (lambda b: {**b, "tokens": b["tokens"][:, 0]}, r"'tokens' is int32\[4\] with lengths"),
        (lambda b: {**b, "length": b["length"] + 1000}, "0 to"),
        (lambda b: {**b, "length": -b["length"] - 1}, "0 to"),
    ],
)
def test_batches_that_are_no_documents(change, message):
    with pytest.raises(ValueError, match=message):
        next(iter(jk.from_source(source(), 4) >> change >> Pack(32)))


def test_a_state_of_another_pack_is_refused():
    iterator = iter(piped("source", Pack(32)))
    next(iterator)
    state = iterator.get_state()
    for other in (Pack(33), Pack(32, method="best-fit"), Pack(32, max_open_bins=2)):
        with raises(ValueError, "node 1"):
            iter(piped("source", other)).set_state(state)


def test_states_stay_small_where_a_bin_stays_open():
    """A bin with room that nothing fits in is closed some documents later."""
    lengths = np.array([3] + [9] * 3000)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    pipe = jk.from_source(TokenSource(np.ones(offsets[-1], np.int8), offsets), 64) >> Pack(
        10, max_open_bins=2
    )
    iterator = iter(pipe)
    for _ in range(20):
        next(iterator)
    place = iterator.get_state()["position"]
    assert place["at"] > 0
    assert len(place["packer"]["documents"]) <= 2
