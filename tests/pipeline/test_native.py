"""Batches that native threads make for a pipeline, and where a Compose runs that is left open.

Would catch: native batches that differ from those of the JAX program, a source or chain that runs
natively and should not, a place that the rule does not say, random parameters that every pipeline
and every remainder compiles again, or that a changed Compose still has.
"""

from __future__ import annotations

import itertools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import library
from support.pipeline.batches import arrays, assert_same, epoch_of, is_native, outcomes

import jaxkern as jk
from jaxkern import image as im
from jaxkern import performance
from jaxkern.core.backend import current_backend
from jaxkern.pipeline import ArraySource, pipeline

CHAINS = {
    "crop, flip, normalize": im.Compose(
        [im.RandomResizedCrop(5), im.RandomHorizontalFlip(), im.Normalize(0.4, 0.3)]
    ),
    "u8": im.Compose([im.RandomCrop(4, padding=2), im.RandomVerticalFlip()]),
    "bf16 NCHW": im.Compose(
        [im.RandomResizedCrop(9, antialias=False), im.Normalize([0.1, 0.2, 0.3], 0.5)],
        dtype=jnp.bfloat16,
        layout="NCHW",
    ),
    "nothing drawn": im.Compose([im.Resize(8), im.Normalize(0.5, 0.5)]),
    "erase": im.Compose([im.Pad(2), im.Normalize(0.5, 0.5), im.RandomErasing(0.5)]),
    "colours": im.Compose(
        [im.RandomCrop(4), im.ColorJitter(0.4, 0.4, 0.4, 0.1), im.Normalize(0, 1)]
    ),
    "colours first": im.Compose(
        [im.RandomInvert(), im.RandomCrop(5), im.RandomPosterize(3), im.RandomErasing(0.7)]
    ),
}


def places_of(pipe):
    return [where for *_, where in pipe.explain().nodes]


def of_program(pipe, epochs):
    """The epochs as the JAX program makes them, in this thread."""
    alone = pipe.with_workers(0)
    return [batch for _ in range(epochs) for batch in epoch_of(alone)]


@pytest.mark.parametrize(
    ("name", "remainder"),
    [
        *zip(CHAINS, itertools.cycle(["partial", "drop", "pad"]), strict=False),
        ("u8", "partial"),
        ("u8", "pad"),
    ],
)
def test_native_batches_are_the_programs(name, remainder):
    pipe = jk.from_source(
        arrays(50), 8, True, 3, drop_remainder=remainder == "drop",
        pad_remainder=remainder == "pad", shard=(1, 2),
    )  # fmt: skip
    pipe = pipe >> CHAINS[name] >> jk.OperatorNode(lambda b: {**b, "double": b["label"] * 2})
    assert is_native(pipe)
    found = [batch for _ in range(3) for batch in epoch_of(pipe)]
    assert_same(found, of_program(pipe, 3))
    assert any((a["image"] != b["image"]).any() for a, b in zip(found[:3], found[4:], strict=False))


def test_fewer_channels_are_a_program_with_the_same_bits():
    """Native threads run images of as many channels; others they must not be given."""
    chain = im.Compose([im.RandomCrop(4), im.Grayscale(), im.Normalize(0, 1)])
    pipe = jk.from_source(arrays(30), 8, True, 3) >> jk.OperatorNode(chain, on="host")
    *_, where = pipe.explain().nodes[-1]
    assert where == "host program"
    whole = epoch_of(pipe)
    assert_same(whole, of_program(pipe, 1))


def test_many_records_draw_the_same():
    """Crops are rounded: one that is computed in another way would differ somewhere."""
    chain = im.Compose([im.RandomResizedCrop(3, antialias=False), im.RandomHorizontalFlip()])
    source = {"image": np.random.default_rng(0).integers(0, 256, (4000, 23, 31, 1), np.uint8)}
    pipe = jk.from_source(source, 100, True) >> chain
    assert is_native(pipe)
    assert_same(epoch_of(pipe), of_program(pipe, 1))


def test_the_second_draw_of_a_pipeline_has_its_own_keys():
    flip = im.Compose([im.RandomHorizontalFlip()])
    pipe = jk.from_source(arrays(), 6) >> jk.OperatorNode(flip, on="host") >> flip
    assert_same(epoch_of(pipe), of_program(pipe, 1))


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float64, np.float16, jnp.bfloat16, bool])
def test_rows_of_any_dtype(dtype):
    values = np.arange(30).reshape(10, 3).astype(dtype)
    pipe = jk.from_source({"x": values[::-1], "one": values[:, 0]}, 4, True)
    assert is_native(pipe)
    assert_same(epoch_of(pipe), of_program(pipe, 1))


def test_maps_of_files(tmp_path):
    h5py = library("h5py")
    source = arrays()
    np.save(tmp_path / "image.npy", source["image"])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["label"] = source["label"]
        file.create_dataset("chunked", data=source["record"], chunks=(4,))
    files = {"image": str(tmp_path / "image.npy")}
    pipe = jk.from_source(files, 5, True)
    assert is_native(pipe)
    assert_same(epoch_of(pipe), of_program(pipe, 1))
    with h5py.File(tmp_path / "a.h5") as file:
        whole = jk.from_source({"label": file["label"]}, 5, True)
        assert is_native(whole)
        assert_same(epoch_of(whole), of_program(whole, 1))
        part = jk.from_source({"label": file["label"], "x": file["chunked"]}, 5, True)
        assert not is_native(part)
        assert_same(epoch_of(part), of_program(part, 1))


class Reversed(ArraySource):
    def gather(self, records, out=None):
        return {name: array[::-1] for name, array in super().gather(records).items()}


@pytest.mark.parametrize(
    "make",
    [
        lambda: jk.from_source(Reversed(arrays()), 6),
        lambda: jk.from_source(arrays(), 6) >> (lambda batch: batch),
        lambda: jk.from_source({"x": np.arange(9).astype(">i4")}, 6),
        lambda: jk.from_source({"x": np.zeros((9, 4, 3)).transpose(0, 2, 1)}, 6),
        lambda: jk.from_source(arrays(), 6) >> jk.OperatorNode(CHAINS["u8"], on="host")
        >> (lambda batch: batch),
        lambda: jk.from_source({**arrays(), "label": np.eye(23, 5, dtype=np.float32)}, 6)
        >> jk.OperatorNode(im.Compose([im.MixUp(5)]), on="host"),
    ],
    ids=["own gather", "function", "byte order", "gaps", "after host node", "mixing"],
)  # fmt: skip
def test_what_needs_python_stays_there(make):
    pipe = make()
    assert not is_native(pipe)
    assert_same(epoch_of(pipe), of_program(pipe, 1))


def test_pure_jax_is_honoured():
    pipe = jk.from_source(arrays(), 6) >> CHAINS["u8"]
    with jk.backend("jax"):
        assert not is_native(pipe)
        found = epoch_of(pipe)
    assert_same(found, of_program(pipe, 1))


def test_pure_jax_is_honoured_in_worker_threads(monkeypatch):
    """A context belongs to a thread, and the workers are others."""
    seen = set()

    class Seen(im.RandomCrop):
        def fold(self, *args):
            seen.add((threading.current_thread() is threading.main_thread(), current_backend()))
            return super().fold(*args)

    pipe = jk.from_source(arrays(), 6) >> jk.OperatorNode(im.Compose([Seen(4)]), on="host")
    with jk.backend("jax"):
        assert pipe.element_spec  # traced here
        epoch_of(pipe.with_workers(2))
    assert (False, "jax") in seen
    assert {name for _, name in seen} == {"jax"}


@pytest.mark.parametrize("node", [lambda batch: batch, CHAINS["crop, flip, normalize"]])
def test_64_bits_are_those_of_the_thread_that_iterates(node):
    numbers = np.arange(23) + 2**40
    pipe = jk.from_source({**arrays(), "number": numbers}, 6) >> node
    with jax.enable_x64(True):
        found = epoch_of(pipe)
        assert {str(batch["number"].dtype) for batch in found} == {"int64"}
        assert_same(found, of_program(pipe, 1))


class Inverted(im.Compose):
    def apply(self, images, params=None, labels=None):
        return 255 - super().apply(images, params, labels)


class InvertedNode(jk.OperatorNode):
    def apply_batch(self, batch, keys):
        found = super().apply_batch(batch, keys)
        return {**found, "image": 255 - found["image"]}


class Named(im.Compose):
    """Does what a Compose does, and says so."""

    native = True


class Unnamed(im.Compose):
    """Does what a Compose does, and does not say so."""


def test_a_subclass_runs_natively_if_it_says_so():
    plain = im.Compose([im.Resize(5)])
    for node, taken in (
        (jk.OperatorNode(Inverted([im.Resize(5)]), on="host"), False),
        (InvertedNode(plain, on="host"), False),
        (jk.OperatorNode(Unnamed([im.Resize(5)]), on="host"), False),
        (jk.OperatorNode(Named([im.Resize(5)]), on="host"), True),
    ):
        pipe = jk.from_source(arrays(), 6) >> node
        assert is_native(pipe) == taken
        assert_same(epoch_of(pipe), of_program(pipe, 1))


def test_batches_after_a_failed_draw_are_delivered(monkeypatch):
    """A chunk of records is drawn together; the batches after its first one are not lost."""
    draw, calls = im.ChainProducer.operands, []

    def fails_at_the_second(self, records):
        calls.append(len(records))
        if len(calls) == 2:
            raise MemoryError("no memory to draw")
        return draw(self, records)

    pipe = jk.from_source({"image": np.zeros((40, 4, 4, 3), np.uint8)}, 2)
    pipe = pipe >> im.Compose([im.RandomCrop(2)])
    monkeypatch.setattr("jaxkern.pipeline.epoch.RECORDS_PER_CALL", 8)
    monkeypatch.setattr(im.ChainProducer, "operands", fails_at_the_second)
    found = [o["image"].shape if isinstance(o, dict) else str(o) for o in outcomes(pipe)]
    assert found == [(2, 2, 2, 3)] * 4 + ["no memory to draw"] + [(2, 2, 2, 3)] * 15


def test_parameters_are_drawn_by_one_program():
    """Of whole chunks, their remainder and all pipelines of a Compose on images of one size."""
    crop = im.Compose([im.RandomResizedCrop(3, antialias=False)])
    base = jk.from_source({"image": np.zeros((1100, 4, 5, 3), np.uint8)}, 100, True, 1)
    compiled = []
    for _ in range(2):
        pipe = base.with_seed(1) >> jk.OperatorNode(crop, on="host")
        with performance.watch_compiles() as watch:
            assert len(list(pipe)) == 11
        compiled.append((watch["trace"].compiles, watch.compiles))
        assert is_native(pipe)
    assert compiled[0][0] == 1
    assert compiled[1] == (0, 0)


def test_a_compose_that_was_changed_is_another_one():
    crop = im.Compose([im.RandomHorizontalFlip(0.0), im.Normalize(0.5, 0.5)])
    flip = im.Compose([im.RandomHorizontalFlip(1.0), im.Normalize(0.5, 0.5)], layout="NCHW")
    base = jk.from_source(arrays(20), 8, True, 3)
    before = base >> crop
    assert is_native(before)
    crop.transforms, crop.layout = flip.transforms, flip.layout
    assert_same(epoch_of(base >> crop), epoch_of(base >> flip))
    unchanged = im.Compose([im.Normalize(0.5, 0.5)])
    assert_same(epoch_of(before), epoch_of(base >> unchanged))


def test_the_overview_says_where_nodes_run():
    base = jk.from_source(arrays(), 6)
    program = base >> (lambda batch: batch) >> jk.OperatorNode(lambda b: b, name="same")
    assert places_of(program) == ["worker threads", "worker threads", "device program"]
    assert program.explain().placement is None
    chain = base >> CHAINS["u8"]
    assert places_of(chain) == ["native threads"] * 2
    assert "native threads: ArraySource" in str(chain.explain())
    alone = jk.from_source(arrays(), 6, num_workers=0)
    alone = alone >> jk.OperatorNode(CHAINS["u8"], on="host")
    assert places_of(alone) == ["iterating thread", "host program"]


def test_the_rule_for_a_compose_that_is_left_open(monkeypatch):
    """Native threads; else the device if there is an accelerator; else the host."""
    base = jk.from_source(arrays(50), 8, True)
    native = base >> CHAINS["u8"]
    python = base >> (lambda b: b) >> CHAINS["u8"]
    assert places_of(native) == ["native threads"] * 2
    assert places_of(python) == ["worker threads"] * 2 + ["host program"]
    assert python.explain().placement == "host"
    assert "augmentation runs on the host" in str(python.explain())
    after_device = base >> jk.OperatorNode(lambda b: b) >> CHAINS["u8"]
    assert places_of(after_device) == ["native threads", "device program", "device program"]
    same = epoch_of(python)
    # The CPU poses as a GPU: the test is about the placement rule, not the speed.
    monkeypatch.setattr(pipeline, "platform_of", lambda sharding: "gpu")
    native = base >> CHAINS["u8"]
    python = base >> (lambda b: b) >> CHAINS["u8"]
    assert places_of(native) == ["native threads"] * 2
    assert places_of(python) == ["worker threads"] * 2 + ["device program"]
    assert_same(epoch_of(python), same)


def test_explain_changes_nothing():
    reads = []
    pipe = jk.from_source(arrays(), 6) >> (lambda b: reads.append(1) or b) >> CHAINS["u8"]
    assert pipe.explain() == pipe.explain()
    assert pipe.epoch == 0
    assert not reads


def test_a_state_resumes_where_the_rule_decides_otherwise(monkeypatch):
    pipe = jk.from_source(arrays(50), 8, True) >> (lambda b: b) >> CHAINS["u8"]
    first = iter(pipe)
    next(first)
    state = first.get_state()
    monkeypatch.setattr(pipeline, "platform_of", lambda sharding: "gpu")
    later = jk.from_source(arrays(50), 8, True) >> (lambda b: b) >> CHAINS["u8"]
    assert places_of(later)[-1] == "device program"
    resumed = iter(later)
    resumed.set_state(state)
    assert_same(epoch_of(resumed), epoch_of(first))


def test_a_place_that_is_given_is_kept():
    device = jk.from_source(arrays(), 6) >> jk.OperatorNode(CHAINS["u8"], on="device")
    host = jk.from_source(arrays(), 6) >> jk.OperatorNode(CHAINS["u8"], on="host")
    assert device.explain().nodes[-1][2] == "device program"
    assert host.explain().nodes[-1][2] == "native threads"
    assert_same(epoch_of(device), epoch_of(host))


def test_over_a_mesh():
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
    sharding = jax.NamedSharding(mesh, jax.P("data"))
    pipe = jk.from_source(arrays(), 6, True, drop_remainder=True, sharding=sharding)
    pipe = pipe >> CHAINS["u8"]
    assert is_native(pipe)
    assert next(iter(pipe))["image"].sharding == sharding
    pipe.epoch = 0
    assert_same(epoch_of(pipe), of_program(pipe, 1))
