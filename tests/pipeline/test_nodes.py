"""Nodes: would catch operators that see the wrong fields or keys, draws that depend on the batch
or are shared between nodes, JAX nodes that do not compile into one program or compile again for
nothing, and rows that are mixed up by rebatching, caching and merging."""

from __future__ import annotations

import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import raises
from support.pipeline.batches import arrays, assert_same, column, epoch_of

import jaxkern as jk
from jaxkern import image as im
from jaxkern.pipeline import Cache, Conditional, Probabilistic, Rebatch, RecompilationWarning


def base(records=23, batch_size=6, **options):
    return jk.from_source(arrays(records), batch_size, **options)


class Scale(jk.ElementOperator):
    def __init__(self, factor):
        super().__init__(jk.ElementOperatorConfig())
        self.factor = factor

    def apply(self, element, key=None):
        assert key is None
        assert element["image"].shape == (6, 6, 3)
        return element.update_data({"scaled": element["image"].astype(jnp.float32) * self.factor})


class Draw(jk.ElementOperator):
    def __init__(self, field, stream_name=None):
        super().__init__(jk.ElementOperatorConfig(stochastic=True, stream_name=stream_name))
        self.field = field

    def apply(self, element, key=None):
        return element.update_data({self.field: jax.random.key_data(key)[0]})


def test_element_operator_maps_over_records():
    batches = epoch_of(base() >> jk.OperatorNode(Scale(0.5)))
    expected = arrays()["image"].astype(np.float32) * 0.5
    np.testing.assert_array_equal(column(batches, "scaled"), expected)
    np.testing.assert_array_equal(column(batches, "image"), arrays()["image"])


def test_apply_batch_can_be_overridden():
    class Reverse(jk.ElementOperator):
        def apply_batch(self, batch, keys=None):
            return {"reversed": batch["image"][:, ::-1]}

    batches = epoch_of(base() >> jk.OperatorNode(Reverse()))
    np.testing.assert_array_equal(column(batches, "reversed"), arrays()["image"][:, ::-1])
    assert batches[0].keys() == {"reversed"}


def draws(*operators, batch_size=6, epoch=0, **options):
    pipe = base(batch_size=batch_size, **options)
    for op in operators:
        pipe = pipe >> jk.OperatorNode(op)
    pipe.epoch = epoch
    batches = epoch_of(pipe)
    order = np.argsort(column(batches, "record"))
    return [column(batches, op.field)[order] for op in operators]


def test_draws_belong_to_records():
    (plain,) = draws(Draw("u"))
    assert len(np.unique(plain)) == 23
    for options in ({"batch_size": 23, "num_workers": 0}, {"shuffle": True}):
        np.testing.assert_array_equal(draws(Draw("u"), **options)[0], plain)
    for options in ({"epoch": 1}, {"seed": 1}):
        assert (draws(Draw("u"), batch_size=23, **options)[0] != plain).all()


def test_nodes_draw_independently():
    a, b, c = draws(Draw("a"), Draw("b"), Draw("c", "crop"))
    assert (a != b).all()
    assert (a != c).all()
    (alone,) = draws(Draw("c", "crop"), batch_size=23)
    np.testing.assert_array_equal(alone, c)


def test_second_compose_draws_anew():
    flip = im.Compose([im.RandomHorizontalFlip(0.5)])
    keys = jk.random.record_keys(0, 0, np.arange(23))
    once = epoch_of(base() >> jk.OperatorNode(flip))
    np.testing.assert_array_equal(column(once, "image"), flip(keys, arrays()["image"]))
    # With the same draws twice every image would be as at the start.
    twice = epoch_of(base() >> jk.OperatorNode(flip) >> jk.OperatorNode(flip))
    assert (column(twice, "image") != arrays()["image"]).any()


def test_mixing_takes_the_labels():
    mixed = im.Compose([im.MixUp(1.0, per_sample=True)], dtype=jnp.float32)

    def one_hot(element, key):
        return element.update_data({"label": jax.nn.one_hot(element["label"], 5)})

    pipe = base(24) >> jk.ElementOperator(fn=one_hot) >> jk.OperatorNode(mixed)
    source = arrays(24)
    keys = jk.random.record_keys(0, 0, np.arange(6))
    images, soft = mixed(keys, source["image"][:6], jax.nn.one_hot(source["label"][:6], 5))
    batch = next(iter(pipe))
    np.testing.assert_allclose(batch["label"], soft, atol=1e-6)
    np.testing.assert_allclose(batch["image"], images, atol=1e-6)
    np.testing.assert_allclose(np.sum(batch["label"], 1), 1, atol=1e-6)
    assert (np.max(batch["label"], 1) < 0.999).any()


def test_other_image_fields():
    node = jk.OperatorNode(im.Compose([im.CenterCrop(2)]), image="picture")
    pipe = jk.from_source({"picture": arrays()["image"]}, 23) >> node
    np.testing.assert_array_equal(next(iter(pipe))["picture"], arrays()["image"][:, 2:4, 2:4])
    with raises(ValueError, "'picture'"):
        next(iter(base() >> node))


def test_probabilistic():
    pipe = jk.from_source({"record": np.arange(2000)}, 64, shuffle=True, seed=3)
    pipe = pipe >> Probabilistic(lambda b: {"record": -b["record"]}, 0.25)
    first, second = epoch_of(pipe), epoch_of(pipe)
    chosen = [{abs(r) for r in column(e, "record").tolist() if r < 0} for e in (first, second)]
    assert all(abs(len(c) - 500) < 5 * np.sqrt(2000 * 0.25 * 0.75) for c in chosen)
    assert abs(len(chosen[0] & chosen[1]) - 125) < 60
    again = jk.from_source({"record": np.arange(2000)}, 2000, seed=3, num_workers=0)
    again = again >> Probabilistic(lambda b: {"record": -b["record"]}, 0.25)
    assert {-r for r in column(epoch_of(again), "record").tolist() if r < 0} == chosen[0]


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_probabilistic_limits(probability):
    pipe = base() >> Probabilistic(lambda b: {**b, "label": b["label"] + 10}, probability)
    expected = arrays()["label"] + 10 * int(probability)
    np.testing.assert_array_equal(column(epoch_of(pipe), "label"), expected)


def test_probabilistic_gives_keys_to_its_operator():
    flip = im.Compose([im.RandomHorizontalFlip(0.5)])
    images = column(epoch_of(base(200) >> Probabilistic(flip, 0.5)), "image")
    flipped = (images == arrays(200)["image"][:, :, ::-1]).all((1, 2, 3))
    kept = (images == arrays(200)["image"]).all((1, 2, 3))
    assert (flipped ^ kept).all()
    assert abs(flipped.sum() - 50) < 5 * np.sqrt(200 * 0.25 * 0.75)


def test_conditional():
    def odd(element):
        return element["label"] % 2 == 1

    def negate(batch):
        return {**batch, "image": 255 - batch["image"]}

    def zero(batch):
        return {**batch, "image": batch["image"] * 0}

    source = arrays()
    is_odd = (source["label"] % 2 == 1)[:, None, None, None]
    for otherwise, other in ((None, source["image"]), (zero, 0 * source["image"])):
        batches = epoch_of(base() >> Conditional(odd, negate, otherwise))
        expected = np.where(is_odd, 255 - source["image"], other)
        np.testing.assert_array_equal(column(batches, "image"), expected)


def test_choices_of_two_shapes_are_refused():
    node = Probabilistic(im.Compose([im.CenterCrop(2)]), 0.5)
    with raises(ValueError, "'image'", "uint8[6, 2, 2, 3]", "uint8[6, 6, 6, 3"):
        next(iter(base() >> node))
    node = Conditional(lambda e: e["label"] > 0, lambda b: {"label": b["label"]})
    with raises(ValueError, "['label']", "['image', 'label', 'record']"):
        next(iter(base() >> node))


def test_neighbours_are_one_program_and_host_functions_run_in_workers():
    threads = set()

    def host(batch):
        threads.add(threading.current_thread().name)
        assert all(isinstance(value, np.ndarray) for value in batch.values())
        return {**batch, "sum": batch["image"].sum((1, 2, 3))}

    pipe = base(24) >> jk.OperatorNode(Scale(2), name="a") >> jk.OperatorNode(Scale(3), name="b")
    pipe = pipe >> host >> jk.OperatorNode(Draw("u"), name="c")
    pipe = pipe >> Conditional(lambda e: e["u"] % 2 == 1, Scale(1), name="d")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            batches = epoch_of(pipe)
    assert pipe.compilations == {"a >> b": 1, "c >> d": 1}
    assert all(name.startswith("jaxkern-pipeline-") for name in threads - {"MainThread"})
    assert len(threads) > 1
    np.testing.assert_array_equal(column(batches, "sum"), arrays(24)["image"].sum((1, 2, 3)))


def test_a_smaller_last_batch_is_no_surprise():
    pipe = base() >> jk.OperatorNode(Scale(2), name="a")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        epoch_of(pipe), epoch_of(pipe)
    assert pipe.compilations == {"a": 2}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_changing_shape_is_reported_with_its_node(num_workers):
    def grow(batch):
        width = 1 + int(batch["record"][0]) // 6 % 2
        return {"x": np.ones((len(batch["record"]), width), np.float32)}

    pipe = base(24, num_workers=num_workers) >> grow >> jk.OperatorNode(lambda b: {"x": b["x"] + 1})
    with pytest.warns(
        RecompilationWarning, match=r"grow\['x'\]: float32\[N, 1\], now float32\[N, 2"
    ):
        shapes = [batch["x"].shape for batch in pipe]
    assert shapes == [(6, 1), (6, 2)] * 2
    (count,) = pipe.compilations.values()
    assert count == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(pipe)


@settings(deadline=None, max_examples=40)
@given(
    records=st.integers(1, 40),
    first=st.integers(1, 9),
    second=st.integers(1, 20),
    pad=st.booleans(),
)
def test_rebatching_keeps_rows_in_order(records, first, second, pad):
    options = {"shuffle": True, "num_workers": 0, "pad_remainder": pad}
    source = {"record": np.arange(records), "pair": np.arange(2 * records).reshape(-1, 2)}
    rows = epoch_of(jk.from_source(source, records, **{**options, "pad_remainder": False}))[0]
    batches = epoch_of(jk.from_source(source, first, **options) >> Rebatch(second))
    found = {name: column(batches, name) for name in batches[0]}
    if pad:
        assert {len(batch["mask"]) for batch in batches} == {second}
        np.testing.assert_array_equal(found["mask"], np.arange(len(found["mask"])) < records)
    for name, values in rows.items():
        np.testing.assert_array_equal(found[name][:records], values)
    if not pad:
        sizes = [len(batch["record"]) for batch in batches]
        assert sizes[:-1] == [second] * (len(sizes) - 1)
        assert sum(sizes) == records


def test_rebatching_keeps_the_mask_of_a_function():
    padded = base(7, 3, pad_remainder=True)
    halved = epoch_of(padded >> (lambda b: {"mask": b["mask"] * 0.5}) >> Rebatch(4))
    assert [batch["mask"].tolist() for batch in halved] == [[0.5] * 4, [0.5] * 3 + [0]]
    dropped = epoch_of(padded >> (lambda b: {"label": b["label"]}) >> Rebatch(4))
    assert [batch.keys() for batch in dropped] == [{"label"}] * 2


def test_rebatching_reads_each_batch_once():
    calls = []

    def counted(batch):
        calls.append(0)
        return batch

    pipe = base(48, 8, num_workers=3, shuffle=True) >> counted >> Rebatch(2)
    list(pipe)
    assert len(calls) == 6


def test_cache_computes_each_record_once():
    calls = []

    def counted(batch):
        calls.extend(batch["record"].tolist())
        return {**batch, "label": batch["label"] + 1}

    def pipe_of(*cache, num_workers=2):
        pipe = base(shuffle=True, seed=1, num_workers=num_workers) >> counted
        for node in cache:
            pipe = pipe >> node
        return pipe >> jk.OperatorNode(Draw("u"))

    plain = pipe_of()
    expected = [epoch_of(plain) for _ in range(3)]
    calls.clear()
    pipe = pipe_of(Cache())
    for epoch in expected:
        assert_same(epoch_of(pipe), epoch)
    assert sorted(calls) == list(range(23))


def test_cache_behind_chance_is_refused():
    pipe = base() >> jk.OperatorNode(Draw("u"), name="draw")
    with raises(ValueError, "Cache()", "'draw'"):
        pipe >> Cache()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_host_computes_what_the_device_does(num_workers):
    """The host's program is one, ends where the device's begins, and gives the same values."""
    flip = im.Compose([im.RandomHorizontalFlip(0.5)])

    def pipe_of(on):
        pipe = base(24, num_workers=num_workers) >> jk.OperatorNode(Draw("u"), "draw", on=on)
        pipe = pipe >> jk.OperatorNode(flip, "flip", on=on)
        return pipe >> jk.OperatorNode(lambda b: {**b, "label": -b["label"]}, "negate")

    device, host = pipe_of("device"), pipe_of("host")
    assert_same(epoch_of(host), epoch_of(device))
    assert device.compilations == {"draw >> flip >> negate": 1}
    assert host.compilations == {"draw >> flip": 1, "negate": 1}
    assert [stage.where for stage in host.explain(0).stages] == ["host"] * 3 + ["device"]
    with raises(ValueError, "node 1", "on the host"):
        iter(host).set_state(iter(device).get_state())
    with raises(ValueError, "on", "'gpu'"):
        jk.OperatorNode(flip, on="gpu")


@pytest.mark.parametrize("host", [False, True])
def test_branches_meet(host):
    reads = []

    class Source:
        def __len__(self):
            return 12

        def __getitem__(self, i):
            reads.append(i)
            return {"x": np.float32(i)}

    start = jk.from_source(Source(), 4, shuffle=True)
    double, square = (lambda b: {"double": 2 * b["x"]}), (lambda b: {**b, "square": b["x"] ** 2})
    right = start >> square if host else start >> jk.OperatorNode(square)
    pipe = start >> jk.OperatorNode(double) & right & start
    batches = epoch_of(pipe)
    x = column(batches, "x")
    np.testing.assert_array_equal(column(batches, "double"), 2 * x)
    np.testing.assert_array_equal(column(batches, "square"), x**2)
    assert sorted(reads) == sorted(range(12))
    assert list(pipe.compilations.values()) == [1]


def test_fields_of_several_arrays_meet():
    def nested(batch):
        ragged = im.Ragged.from_list(list(batch["image"]), max_height=6, max_width=6)
        return {"pair": {"a": batch["label"], "b": batch["record"]}, "ragged": ragged}

    start = base() >> nested
    batches = epoch_of(start & start >> (lambda b: {**b, "sum": b["pair"]["a"] + b["pair"]["b"]}))
    for batch in batches:
        np.testing.assert_array_equal(batch["sum"], batch["pair"]["a"] + batch["pair"]["b"])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_branch_cannot_change_what_another_reads(num_workers):
    def in_place(batch):
        batch["label"] += 1
        return {"more": batch["label"]}

    start = base(num_workers=num_workers)
    for pipe in (start & start >> in_place, (start >> in_place) & start):
        with raises(ValueError, "read-only") as caught:
            next(iter(pipe))
        assert any("branches" in note for note in caught.value.__notes__)
    # Alone, it may: the batch is its own.
    found = column(epoch_of(start >> in_place), "more")
    np.testing.assert_array_equal(found, arrays()["label"] + 1)


def test_branches_that_cannot_meet():
    start = base()
    with raises(ValueError, "batch_size = 6 and branch 1 3;"):
        len(start & start >> Rebatch(3))
    with raises(ValueError, "seed = 0 and branch 1 5;"):
        len(start & base(seed=5))
    changed = start >> (lambda b: {**b, "label": b["label"] + 1})
    with raises(ValueError, "'label'"):
        next(iter(start & changed))
    with raises(ValueError, "workers"):
        start & base(num_workers=0)


def test_pipelines_are_not_changed_by_what_follows():
    start = base()
    start >> (lambda batch: {"x": batch["label"]})
    assert next(iter(start)).keys() == {"image", "label", "record"}


@pytest.mark.parametrize("records", [1, 9, 10, 16])
@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("sizes", [(8, 5), (8, 3), (3, 8), (5, 2, 7), (2, 5)])
def test_no_batch_is_nothing_but_padding(records, shards, sizes):
    seen, masks = [], []
    for index in range(shards):
        source = {"record": np.arange(records)}
        pipe = jk.from_source(
            source, sizes[0], True, 3, num_workers=0, pad_remainder=True, shard=(index, shards)
        )
        for size in sizes[1:]:
            pipe = pipe >> Rebatch(size)
        batches = epoch_of(pipe)
        assert len(batches) == len(pipe) == -(-records // (shards * sizes[-1]))
        masks.append(column(batches, "mask"))
        seen += column(batches, "record")[masks[-1]].tolist()
        assert all(len(batch["record"]) == sizes[-1] for batch in batches)
    assert sorted(seen) == list(range(records))
    whole = np.any(masks, 0).reshape(-1, sizes[-1])
    assert whole.any(1).all()  # over all shards together


def test_a_cache_and_the_mask():
    source = {"x": np.arange(10)}
    padded = jk.from_source(source, 4, pad_remainder=True)
    for before, fields in (
        (lambda b: {"x": b["x"]}, {"x"}),
        (lambda b: {**b, "y": b["x"]}, {"x", "y", "mask"}),
    ):
        pipe = padded >> before >> Cache()
        first, again = epoch_of(pipe), epoch_of(pipe)
        assert first[-1].keys() == fields
        assert_same(again, first)
    changed = padded >> (lambda b: {**b, "mask": b["mask"] * 2.0}) >> Cache()
    with raises(ValueError, "'mask'", "Cache"):
        next(iter(changed))
