"""Batches over devices and processes: would catch rows on the wrong device, records that two
processes share or none has, and processes that get different numbers of batches."""

from __future__ import annotations

import socket
import subprocess
import sys

import jax
import numpy as np
import PIL.Image
import pytest
from support import SUPPORT, environment
from support.errors import raises
from support.pipeline.batches import arrays, assert_same, epoch_of

import jaxkern as jk
from jaxkern import image as im
from jaxkern.pipeline import ImageFolder, Rebatch


def augmented(sharding=None, **options):
    pipe = jk.from_source(arrays(), 8, True, 1, pad_remainder=True, sharding=sharding, **options)
    crop = im.Compose([im.RandomCrop(4), im.Normalize(0.5, 0.5)])
    return pipe >> (lambda b: {**b, "label": b["label"] + 1}) >> jk.OperatorNode(crop)


AUTO, EXPLICIT = jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit


@pytest.fixture(scope="module")
def expected():
    return epoch_of(augmented())


@pytest.mark.parametrize("kind", [AUTO, EXPLICIT])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_over_a_mesh(kind, num_workers, expected):
    mesh = jax.make_mesh((4,), ("data",), axis_types=(kind,))
    sharding = jax.NamedSharding(mesh, jax.P("data"))
    pipe = augmented(sharding, num_workers=num_workers)
    batches = list(pipe)
    for batch in batches:
        for value in batch.values():
            assert value.sharding.is_equivalent_to(sharding, value.ndim)
    assert_same(epoch_of(batches), expected)


def test_batches_over_two_axes_of_a_mesh(expected):
    mesh = jax.make_mesh((2, 2), ("data", "model"))
    sharding = jax.NamedSharding(mesh, jax.P(("data", "model")))
    assert_same(epoch_of(augmented(sharding)), expected)


def test_fields_are_divided_along_their_second_axis_too():
    mesh = jax.make_mesh((1, 4), ("data", "model"), axis_types=(AUTO, AUTO))
    sharding = jax.NamedSharding(mesh, jax.P("data", "model"))
    numbers = np.arange(64, dtype=np.int32)
    source = {"x": numbers.reshape(8, 8), "y": numbers[:8]}
    pipe = jk.from_source(source, 4, drop_remainder=True, sharding=sharding)
    pipe = pipe >> jk.OperatorNode(lambda batch: {**batch, "x": batch["x"] + 1})
    batches = list(pipe)
    assert all(batch["x"].sharding.is_equivalent_to(sharding, 2) for batch in batches)
    assert_same(epoch_of(batches)[1:], [{"x": source["x"][4:] + 1, "y": source["y"][4:]}])


def test_a_mesh_wants_full_batches():
    sharding = jax.NamedSharding(jax.make_mesh((4,), ("data",)), jax.P("data"))
    with raises(ValueError, "drop_remainder=True", "pad_remainder=True"):
        jk.from_source(arrays(), 8, sharding=sharding)
    with raises(TypeError, "jax.sharding.NamedSharding"):
        jk.from_source(arrays(), 8, drop_remainder=True, sharding=jax.devices()[0])


def test_images_of_different_sizes_are_resized_on_the_host(tmp_path):
    rng = np.random.default_rng(1)
    (tmp_path / "a").mkdir()
    for k in range(8):
        PIL.Image.fromarray(rng.integers(0, 256, (5 + k, 9, 3), np.uint8)).save(
            tmp_path / "a" / f"{k}.png"
        )
    sharding = jax.NamedSharding(jax.make_mesh((4,), ("data",)), jax.P("data"))

    def pipe_of(on, sharding):
        base = jk.from_source(ImageFolder(tmp_path), 8, drop_remainder=True, sharding=sharding)
        return base >> jk.OperatorNode(im.Compose([im.RandomResizedCrop(4)]), on=on)

    with raises(ValueError, 'OperatorNode(aug, on="host")'):
        next(iter(pipe_of("device", sharding)))
    pipe = pipe_of("auto", sharding)  # only the host can do it
    batches = list(pipe)
    assert batches[0]["image"].sharding.is_equivalent_to(sharding, 4)
    assert_same(epoch_of(batches), epoch_of(pipe_of("host", None)))
    for _ in range(2):
        assert pipe.explain().placement == "host"
    resumed = iter(pipe)
    resumed.set_state(iter(pipe_of("auto", None)).get_state())
    assert_same(epoch_of(resumed), epoch_of(batches))


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return str(listener.getsockname()[1])


@pytest.mark.slow
def test_two_processes(tmp_path):
    program = SUPPORT / "pipeline" / "distributed_epoch.py"
    port = free_port()
    results = [tmp_path / f"{process}.npz" for process in (0, 1)]
    runs = [
        subprocess.Popen(
            [
                sys.executable,
                str(program),
                str(process),
                port,
                str(result),
            ],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for process, result in enumerate(results)
    ]
    try:
        for run in runs:
            output, _ = run.communicate(timeout=120)
            assert run.returncode == 0, output
    finally:
        for run in runs:
            run.kill()
    found = [np.load(result) for result in results]
    pipes = [
        jk.from_source(arrays(), 6, True, 8, pad_remainder=True, shard=(process, 2)) >> Rebatch(4)
        for process in (0, 1)
    ]
    labels = 0
    for process, pipe in enumerate(pipes):
        pipe.epoch = 1
        records = np.array([batch["record"] for batch in pipe])
        np.testing.assert_array_equal(found[process]["record"], records)
        keys = jax.random.key_data(jk.random.record_keys(8, 1, records.reshape(-1)))
        assert (found[process]["key"].reshape(-1, 2) != keys).any()  # the node's own stream
        labels = labels + (2 * arrays()["label"][records] * found[process]["mask"]).sum(1)
    np.testing.assert_array_equal(found[0]["total"], labels)
    np.testing.assert_array_equal(found[1]["total"], labels)
    real = [f["record"][f["mask"]] for f in found]
    assert sorted(np.concatenate(real).tolist()) == list(range(23))
    assert [len(r) for r in real] == [12, 11]
    one = {
        int(r): tuple(k)
        for f in found
        for r, k in zip(f["record"].reshape(-1), f["key"].reshape(-1, 2).tolist(), strict=True)
    }
    alone = jk.from_source(arrays(), 23, seed=8) >> jk.ElementOperator(
        jk.ElementOperatorConfig(stochastic=True),
        lambda element, key: element.update_data({"key": jax.random.key_data(key)}),
    )
    alone.epoch = 1
    for record, key in enumerate(np.asarray(next(iter(alone))["key"]).tolist()):
        assert one[record] == tuple(key)
