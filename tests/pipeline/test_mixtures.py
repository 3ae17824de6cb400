"""mix, concat, zip, Repeat and Take: would catch records in other orders than their pipelines
give, epochs that end elsewhere, keys that two records share, native threads that mix otherwise than
workers, and inputs or states that do not fit and are taken."""

from __future__ import annotations

import weakref

import jax
import numpy as np
import PIL.Image
import pytest
from support.errors import raises
from support.pipeline.batches import assert_same, column, epoch_of

import jaxkern as jk
from jaxkern import image as im
from jaxkern.pipeline import Cache, Filter, ImageFolder, Rebatch, Repeat, Take, Window
from jaxkern.pipeline.arrangement import (
    Concatenation,
    Mixture,
    Pairing,
    PendingShards,
    Repetition,
    ReshardedOrder,
    SourceOrder,
    Span,
    TakeOrder,
)
from jaxkern.pipeline.order import Schedule


def numbers(first, last, **options):
    """A pipeline of the numbers of a range, with 8x8 images that hold them."""
    ids = np.arange(first, last, dtype=np.int32)
    images = np.broadcast_to(ids[:, None, None, None], (len(ids), 8, 8, 3)).astype(np.uint8)
    images = images + np.arange(8, dtype=np.uint8)[:, None, None]
    options = {"batch_size": 5, "shuffle": True, "seed": 2, "num_workers": 0, **options}
    return jk.from_source({"id": ids, "image": images}, **options)


def order(pipe):
    return column(epoch_of(pipe), "id").tolist()


def same(batch):
    return dict(batch)


def test_record_ids_stay_the_same_over_releases():
    """States and random draws depend on them, so that a change must change the version."""
    a, b, c = (SourceOrder(n, s, k) for n, s, k in ((23, 1, True), (5, 2, True), (9, 3, False)))
    mixed = Mixture((a, b, c), Schedule((5, 2, 3), 7), "last")
    ids = {
        mixed: [
            [
                27, 4, 28, 17, 30, 12, 23, 3, 32, 2, 26, 5, 34, 1, 36, 9, 62, 11, 65, 8,
                64, 13, 67, 10,
            ],
            [25, 18, 29, 16, 31, 22, 24, 20, 33, 21, 61, 14, 35, 6, 66, 0, 60, 19, 68, 15, 98, 7],
        ],
        Mixture((a, b), Schedule((2, 1), 0), "first"): [
            [15, 27, 5, 16, 24, 14, 13, 26, 3, 18],
            [17, 25, 10, 6, 23, 8, 22],
        ],
        TakeOrder((Concatenation((Repetition((b,), 2), mixed)),), 30): [
            [2, 4, 0, 9, 5, 8, 37, 14, 38, 27, 40, 22, 33, 13, 42],
            [1, 3, 7, 6, 35, 28, 39, 26, 41, 32, 34, 30, 43, 31, 71],
        ],
        Pairing((a, c)): [[15, 5, 16, 14, 13], [17, 10, 6, 8]],
        ReshardedOrder((mixed,), PendingShards(3, (Span(0, 9, 14), Span(2, 4, 8)))): [
            [1, 62, 0, 65, 8],
            [33, 2, 64, 14],
        ],
    }  # fmt: skip
    for order, expected in ids.items():
        shards = [(index, 2) for index in range(2)]
        found = [order.records(s, 3, np.arange(order.rows_in(s))).tolist() for s in shards]
        assert found == expected


@pytest.mark.parametrize("nodes", [False, True])
@pytest.mark.parametrize("stop", ["first", "last"])
def test_a_mixture_takes_each_pipelines_records_in_turn(nodes, stop):
    """Against the pipelines themselves, one record at a time."""
    lengths = {0: 14, 1: 6, 2: 25}
    pipes = [numbers(0, 14), numbers(50, 56, seed=7), numbers(100, 125)]
    given = [pipe >> same for pipe in pipes] if nodes else pipes
    mixture = jk.mix(list(zip(given, (3, 1, 2), strict=True)), seed=4, stop=stop)
    which = Schedule((3, 1, 2), 4).at(np.arange(300))[0].tolist()
    for epoch in range(2):
        # How many epochs of each pipeline one of the mixture takes.
        ends = [np.flatnonzero(np.array(which) == s) for s in range(3)]
        if stop == "first":
            length = min(ends[s][lengths[s]] for s in range(3))
            turns = [1, 1, 1]
        else:
            length = max(ends[s][lengths[s] - 1] for s in range(3)) + 1
            turns = [-(-which[:length].count(s) // lengths[s]) for s in range(3)]
        expected = []
        feeds = []
        for s, pipe in enumerate(pipes):
            feed = []
            for turn in range(turns[s]):
                pipe.epoch = epoch * turns[s] + turn
                feed += order(pipe)
            feeds.append(iter(feed))
        expected = [next(feeds[s]) for s in which[:length]]
        mixture.epoch = epoch
        assert order(mixture) == expected
        assert len(mixture) == -(-length // 5)


CHAIN = im.Compose([im.RandomCrop(4), im.RandomHorizontalFlip(0.5), im.Normalize(0.5, 0.5)])


SLOW = pytest.mark.slow  # compiles what the others compile too


@pytest.mark.parametrize(
    "combine", ["mix", *(pytest.param(c, marks=SLOW) for c in ("concat", "repeat"))]
)
def test_native_threads_are_bit_identical_to_workers(combine):
    """After a function that returns its batch, Python joins the rows and JAX augments them."""

    def put(workers, *nodes):
        options = {"num_workers": workers, "drop_remainder": True}
        pipes = [numbers(0, 14, **options), numbers(50, 70, **options)]
        for node in nodes:
            pipes = [pipe >> node for pipe in pipes]
        if combine == "mix":
            return jk.mix({pipes[0]: 2, pipes[1]: 1}, seed=3, stop="last") >> CHAIN
        if combine == "concat":
            return jk.concat(pipes) >> CHAIN
        return pipes[0] >> Repeat(3) >> CHAIN

    native, joined = put(2), put(2, same)
    places = [where for _, _, where in native.explain().nodes]
    assert places == ["native threads"] * 2
    assert "native threads" not in [where for _, _, where in joined.explain().nodes]
    for _ in range(2):
        assert_same(epoch_of(native), epoch_of(joined))


@pytest.mark.parametrize("kind", [pytest.param("mix", marks=SLOW), "repeat"])
def test_encoded_images_are_mixed_natively(tmp_path, kind):
    rng = np.random.default_rng(0)
    folders = []
    for name, count in (("a", 7), ("b", 4)):
        folders.append(tmp_path / name)
        (tmp_path / name / "x").mkdir(parents=True)
        for k in range(count):
            image = rng.integers(0, 256, (16 + k, 20 - k, 3), np.uint8)
            PIL.Image.fromarray(image).save(tmp_path / name / "x" / f"{k}.jpg", quality=95)
    chain = im.Compose([im.RandomResizedCrop(8), im.Normalize(0.5, 0.5)])

    def put(*nodes):
        pipes = [jk.from_source(ImageFolder(f, max_size=(30, 30)), 4, True, 1) for f in folders]
        for node in nodes:
            pipes = [pipe >> node for pipe in pipes]
        whole = jk.mix({pipes[0]: 1, pipes[1]: 1}, stop="last")
        return (whole if kind == "mix" else pipes[0] >> Repeat(2)) >> chain

    native, python = epoch_of(put()), epoch_of(put(same))
    for one, other in zip(native, python, strict=True):
        np.testing.assert_array_equal(one["label"], other["label"])
        np.testing.assert_allclose(one["image"], other["image"], atol=0.02)


@pytest.mark.parametrize("nodes", [(), (same,)])
def test_no_two_records_share_a_key(nodes):
    pipes = [numbers(0, 12), numbers(0, 7)]
    for node in nodes:
        pipes = [pipe >> node for pipe in pipes]
    noise = jk.ElementOperator(
        jk.ElementOperatorConfig(stochastic=True),
        lambda element, key: element.update_data({"key": jax.random.key_data(key)}),
    )
    keys = column(epoch_of(jk.mix({pipes[0]: 1, pipes[1]: 3}, stop="last") >> noise), "key")
    assert len(keys) > 30
    assert len({tuple(key) for key in keys.tolist()}) == len(keys)


def test_a_mixture_and_its_nodes_are_explained():
    pipes = [numbers(0, 12) >> same, numbers(50, 57) >> same]
    pipe = jk.mix({pipes[0]: 1, pipes[1]: 2}) >> Rebatch(4) >> CHAIN
    record = 12 + 3  # of the second input, whose ids follow those of the first
    found = pipe.explain(record)
    last = found.stages[-1]
    pipe.epoch = 0
    assert int(last.fields["id"]) == 53
    np.testing.assert_array_equal(
        epoch_of(pipe)[last.batch]["image"][last.row], last.fields["image"]
    )
    assert [stage.name for stage in found.stages][-3:] == ["mix", "rebatch", "Compose"]
    with raises(ValueError, "record 500 of 19"):
        pipe.explain(500)


@pytest.mark.parametrize("num_workers", [0, 3])
def test_each_batch_of_an_input_is_made_once_and_let_go(num_workers):
    """Of more inputs than any fixed number of them that is kept."""
    made = []

    def negative(batch):
        result = -batch["id"]
        made.append((abs(int(result[0])), weakref.ref(result)))
        return {"id": result}

    firsts = range(1, 2001, 100)
    pipes = [numbers(at, at + 24, num_workers=num_workers) >> negative for at in firsts]
    batches = iter(jk.mix([(pipe, 1) for pipe in pipes], stop="last"))
    found = column([{"id": np.asarray(batch["id"])} for batch in batches], "id")
    assert sorted(-found) == [at + k for at in firsts for k in range(24)]
    assert len(made) == len(dict(made)) == len(firsts) * 5
    assert [first for first, batch in made if batch() is not None] == []


def test_batches_unlike_the_first_are_not_cast_to_it():
    def halves(batch):
        return {"id": batch["id"] if batch["id"][0] % 50 < 5 else batch["id"] / np.float32(2)}

    pipes = [numbers(at, at + 15, shuffle=False, num_workers=2) >> halves for at in (0, 50)]
    *_, last = jk.mix([(pipe, 1) for pipe in pipes])
    expected = [half + at for half in (6, 6.5, 7) for at in (0, 25)]
    assert set(np.asarray(last["id"]).tolist()) < set(expected)


def test_a_cache_after_a_mixture():
    calls = []

    def counted(batch):
        calls.append(len(batch["id"]))
        return batch

    pipe = jk.mix({numbers(0, 12) >> counted: 1, numbers(50, 62): 1}) >> Cache()
    first = order(pipe)
    made = sum(calls)
    pipe.epoch = 0
    assert order(pipe) == first
    assert sum(calls) == made


def test_repetition_is_the_next_epochs():
    base = numbers(0, 12)
    expected = order(base) + order(base) + order(base)
    assert order(numbers(0, 12) >> Repeat(3)) == expected
    again = numbers(0, 12) >> same >> Repeat(3)
    assert order(again) == expected
    base.epoch = 3
    assert order(again)[:12] == order(base)


@pytest.mark.parametrize("nodes", [(), (same,)])
@pytest.mark.parametrize("records", [1, 7, 99])
def test_take_is_the_beginning_over_all_shards(nodes, records):
    expected = order(numbers(0, 23))[:records]
    found = []
    for index in range(3):
        pipe = numbers(0, 23, shard=(index, 3), pad_remainder=True)
        for node in nodes:
            pipe = pipe >> node
        batches = epoch_of(pipe >> Take(records))
        found += column(batches, "id")[column(batches, "mask")].tolist()
    assert sorted(found) == sorted(expected)


def test_zip_pairs_rows():
    left, right = numbers(0, 20), numbers(100, 120)
    for names in (None, ("a", "b")):
        for node in (None, same):
            inputs = [left if node is None else left >> node, right]
            if names is None:
                inputs[1] = right >> (lambda batch: {"other": batch["id"]})
                batches = epoch_of(jk.zip(*inputs))
                pairs = column(batches, "id"), column(batches, "other")
            else:
                batches = epoch_of(jk.zip(dict(zip(names, inputs, strict=True))))
                pairs = tuple(np.concatenate([b[name]["id"] for b in batches]) for name in names)
            np.testing.assert_array_equal(pairs[0] + 100, pairs[1])
            assert len(pairs[0]) == 20
    sources = jk.zip({"x": np.arange(5)}, {"y": np.arange(7)})
    assert len(sources) == 5
    assert [int(x) for x in sources[3].values()] == [3, 3]


def test_concatenated_sources_are_shuffled_as_a_whole():
    parts = [{"id": np.arange(30)}, {"id": np.arange(30, 40)}]
    found = order(jk.from_source(jk.concat(parts), 7, shuffle=True, num_workers=2))
    assert found == order(jk.from_source({"id": np.arange(40)}, 7, shuffle=True))


def mixture(*pipes, **options):
    return jk.mix([(pipe, 1) for pipe in pipes], **options)


def test_inputs_must_agree():
    with raises(ValueError, "batch_size", "5 in input 0", "6 in input 1"):
        mixture(numbers(0, 20), numbers(0, 20, batch_size=6))
    assert len(epoch_of(mixture(numbers(0, 9), numbers(0, 9, batch_size=6), batch_size=3))) == 6
    with raises(ValueError, "remainder", "'partial'", "'drop'"):
        jk.concat(numbers(0, 20), numbers(0, 20, drop_remainder=True))
    with raises(ValueError, "num_workers", "0 in input 0", "1 in input 1"):
        jk.zip(numbers(0, 20), numbers(0, 20, num_workers=1))
    with raises(ValueError, "shard", "None in input 0"):
        mixture(numbers(0, 20), numbers(0, 20, shard=(0, 2)))


@pytest.mark.parametrize("node", [None, same])
@pytest.mark.parametrize("workers", [0, 2])
def test_fields_must_agree(node, workers):
    other = jk.from_source(
        {"id": np.arange(9.0), "more": np.arange(9)}, 5, True, 2, num_workers=workers
    )
    pipes = [numbers(0, 20, num_workers=workers), other]
    if node:
        pipes[0] = pipes[0] >> node
    message = (
        r"the inputs of mix differ: \['id'\] is int32\[N\] in input 0 and float32\[N\] in input 1; "
        r"\['image'\] is uint8\[N, 8, 8, 3\] in input 0 and absent in input 1; \['more'\] is absent"
    )
    with pytest.raises(ValueError, match=message):
        epoch_of(mixture(*pipes))


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_of_two_dtypes_make_no_batch(workers):
    """None is cast to what the others are, whatever the batches before were."""

    def halved(batch):
        whole = batch["id"].max() < 10
        return {"id": batch["id"] if whole else batch["id"] / np.float32(2)}

    pipes = [numbers(0, 20, shuffle=False, num_workers=workers) >> halved]
    pipes.append(numbers(0, 20, num_workers=workers) >> (lambda batch: {"id": batch["id"]}))
    mixture = iter(jk.mix([(pipe, 1) for pipe in pipes], batch_size=10))
    assert [next(mixture)["id"].dtype for _ in range(2)] == [np.int32] * 2
    with raises(ValueError, "['id']", "32[N]"):
        next(mixture)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: jk.mix({}), ValueError, "mix expected.*none"),
        (lambda p: jk.mix([p, p]), TypeError, "pairs"),
        (lambda p: jk.mix({p: 0}), ValueError, "weight 0 is 0.*positive"),
        (lambda p: jk.mix({p: 1}, stop="all"), ValueError, "stop is 'all'"),
        (lambda p: jk.mix({"p": 1}), TypeError, "input 0 of mix is 'p'"),
        (lambda p: jk.concat(), ValueError, "concat expected.*none"),
        (lambda p: jk.concat(p, {"x": [1]}), TypeError, "input 1 of concat is"),
        (lambda p: jk.concat({"x": [1]}, p), TypeError, "pipelines or only sources"),
        (lambda p: jk.zip(p, p >> Take(3), strict=True), ValueError, r"have \[20, 3\] records"),
        (lambda p: list(jk.zip(p, p)), ValueError, "'id' is in input 1 of zip"),
        (lambda p: jk.mix({p >> Filter(bool): 1}), ValueError, "after mix"),
        (lambda p: jk.concat(p, p >> Window(2)), ValueError, "after concat"),
        (lambda p: jk.zip(p, jk.from_stream([{"x": 1}], 4)), ValueError, "'stream'.*end"),
        (lambda p: Repeat(0), ValueError, "times"),
        (lambda p: Take(-1), ValueError, "records"),
    ],
)
def test_invalid_combinations_raise(call, error, message):
    with pytest.raises(error, match=message):
        call(numbers(0, 20))


def test_states_of_other_mixtures_are_refused():
    def pipe(*weights, **options):
        given = (numbers(0, 12), numbers(50, 62))
        return jk.mix(list(zip(given, weights, strict=True)), **options)

    state = iter(pipe(1, 2)).get_state()
    for other in (pipe(2, 1), pipe(1, 2, stop="last")):
        with raises(ValueError, "node 0", "'mix"):
            iter(other).set_state(state)


def shards(count, batches, **options):
    states = []
    for index in range(count):
        iterator = iter(numbers(0, 23, shard=(index, count), **options))
        for _, _ in zip(range(batches), iterator, strict=False):
            pass
        states.append(iterator.get_state())
    return states


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ([], "there are no states"),
        (shards(3, 1)[:2], "each of the 3 once.*shard 2"),
        ([*shards(2, 1), *shards(2, 1)], "each of the 2 once"),
        ([shards(2, 1)[0], {**shards(2, 1)[1], "epoch": 4}], "have epoch 0 and 4"),
        ([shards(2, 1)[0], {**shards(2, 1)[1], "rows": None}], "shard 1 is between rows"),
        (shards(2, 1, seed=5), "seed is 5 there and 2 here"),
        ([{**s, "pending": {"shards": 1}} for s in shards(2, 1)], "the state's pending is"),
    ],
)
def test_states_that_do_not_fit_together_are_refused(states, message):
    with pytest.raises(ValueError, match=message):
        iter(numbers(0, 23)).set_state(states)


@pytest.mark.parametrize("remainder", ["pad_remainder", "drop_remainder"])
def test_all_new_shards_get_equally_many_batches(remainder):
    states = shards(3, 1, batch_size=2, **{remainder: True})
    found, lengths = [], set()
    for index in range(4):
        iterator = iter(numbers(0, 23, batch_size=3, shard=(index, 4), **{remainder: True}))
        iterator.set_state(states)
        batches = epoch_of(iterator)
        lengths.add(len(batches))
        for batch in batches:
            found += batch["id"][batch.get("mask", ...)].tolist()
    assert len(lengths) == 1
    left = 23 - 3 * 2
    assert len(found) == len(set(found)) == (left if remainder == "pad_remainder" else 12)


def test_draws_stay_the_same_with_other_shards():
    """Each record's augmentation is the one of an uninterrupted epoch."""
    whole = epoch_of(numbers(0, 23) >> CHAIN)
    images = dict(zip(column(whole, "id").tolist(), column(whole, "image"), strict=True))
    states = []
    for index in range(2):
        iterator = iter(numbers(0, 23, shard=(index, 2), num_workers=2) >> CHAIN)
        next(iterator)
        states.append(iterator.get_state())
    for index in range(3):
        iterator = iter(numbers(0, 23, shard=(index, 3), num_workers=2) >> CHAIN)
        iterator.set_state(states)
        for batch in epoch_of(iterator):
            for number, image in zip(batch["id"].tolist(), batch["image"], strict=True):
                np.testing.assert_array_equal(image, images.pop(number))
    assert len(images) == 10  # delivered before the states


def test_the_next_epoch_is_complete():
    pipe = numbers(0, 23)
    iterator = iter(pipe)
    iterator.set_state(shards(2, 1))
    assert len(column(epoch_of(iterator), "id")) == 13
    assert sorted(order(pipe)) == list(range(23))
    assert pipe.epoch == 2
    ended = iter(pipe)
    ended.set_state(shards(2, 99))
    assert list(ended) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resume_with_fewer_records_than_a_batch(workers):
    """The shapes of the epoch before are those of full batches."""

    def part(*shard):
        records = [{"x": np.int32(n)} for n in range(10)]
        return jk.from_source(records, 4, shard=shard, num_workers=workers)

    states, actual = [], []
    for index in range(2):
        iterator = iter(part(index, 2))
        actual += np.asarray(next(iterator)["x"]).tolist()
        states.append(iterator.get_state())
    whole = part(0, 1)
    assert len(list(whole)) == 3
    iterator = iter(whole)
    iterator.set_state(states)
    (batch,) = iterator
    assert sorted(actual + np.asarray(batch["x"]).tolist()) == list(range(10))
