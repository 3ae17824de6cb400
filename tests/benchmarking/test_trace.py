"""`trace`: would catch operations without their scopes, time that is counted twice, and files that
the viewers cannot open."""

from __future__ import annotations

import gzip
import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.errors import raises
from support.programs import no_compilation_cache

import jaxkern as jk
from jaxkern.benchmarking import trace


def normalize(backend):
    chain = jk.image.Compose([jk.image.Normalize((0.5,) * 3, (0.5,) * 3)])

    def step(images):
        with jk.backend(backend), jax.named_scope("augment"):
            images = chain.apply(images, ({},))
        with jax.named_scope("head"):
            weights = jnp.ones((images.shape[2] * 3, 64))
            return images.reshape(-1, weights.shape[0]) @ weights

    return jax.jit(step)


def product(scope):
    def work(x):
        with jax.named_scope(scope):
            return x @ x

    return jax.jit(work)


@pytest.fixture(scope="module", autouse=True)
def compiled_here():
    with no_compilation_cache():
        yield


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    """The profile of several programs, its folder, and the table that is printed."""
    folder, out = tmp_path_factory.mktemp("profile"), io.StringIO()
    step, images = normalize("native"), np.zeros((4, 64, 64, 3), np.uint8)
    looped = jax.jit(lambda x: jax.lax.fori_loop(0, 50, lambda i, y: jnp.tanh(y @ y), x))
    calls = [(step, images)] * 3 + [(looped, jnp.eye(100))]
    for scope, times in (("first", 2), ("second", 3)):
        calls += [(product(scope), jnp.ones((32, 32)))] * times
    for work, x in calls:
        work(x).block_until_ready()
    with trace(folder, file=out) as recorded:
        for work, x in calls:
            work(x).block_until_ready()
    return recorded, folder, out.getvalue()


def test_kernels_and_scopes_are_visible(profile):
    recorded, folder, table = profile
    (kernel,) = [op for op in recorded.ops if "jaxkern" in op.scope]
    assert kernel.scope == "jit(step)/augment/jaxkern.image_chain.v1"
    assert kernel.program == "jit_step"
    assert kernel.calls == 3
    assert 0 < kernel.seconds <= recorded.seconds
    assert "jit(step)/head/dot_general" in {op.scope for op in recorded.ops}
    assert "augment/jaxkern.image_chain.v1" in table
    assert "ui.perfetto.dev" in table
    # The file for Perfetto has the same events by the same names.
    assert recorded.perfetto is not None
    with gzip.open(recorded.perfetto, "rt") as opened:
        events = json.load(opened)["traceEvents"]
    assert kernel.name in {event.get("name") for event in events}
    # The file that TensorBoard opens.
    assert list(folder.glob("plugins/profile/*/*.xplane.pb"))


def test_operations_are_sorted_by_time(profile):
    recorded, _, _ = profile
    seconds = [op.seconds for op in recorded.ops]
    assert seconds == sorted(seconds, reverse=True)
    assert sum(seconds) == pytest.approx(recorded.seconds)
    share = f"{100 * seconds[0] / recorded.seconds:.1f}%"
    assert str(recorded).splitlines()[1].lstrip().startswith(share)


def test_time_inside_a_loop_counts_once(profile):
    recorded, _, _ = profile
    (loop,) = [op for op in recorded.ops if op.name.startswith("while")]
    assert loop.calls == 1
    inside = [op for op in recorded.ops if op.calls == 50]
    assert inside
    assert sum(op.seconds for op in inside) > loop.seconds


def test_programs_of_the_same_name_are_distinguished(profile):
    recorded, _, _ = profile
    calls = {op.scope: op.calls for op in recorded.ops if op.program == "jit_work"}
    scopes = {scope: n for scope, n in calls.items() if scope.endswith("dot_general")}
    assert scopes == {"jit(work)/first/dot_general": 2, "jit(work)/second/dot_general": 3}


@pytest.mark.parametrize("differentiate", [False, True])
def test_fallback_has_the_scope_of_the_op(differentiate):
    def values(x):
        with jk.backend("jax"):
            crop = jk.image.Compose([jk.image.CenterCrop(4), jk.image.Resize((6, 6))])
            return crop.apply(
                x, crop.sample(jax.random.split(jax.random.key(0), 1), x.shape[1:3])
            ).sum()

    fn = jax.grad(values) if differentiate else values
    text = jax.jit(fn).lower(jnp.ones((1, 8, 8, 3))).compile().as_text()
    assert text is not None
    assert "jaxkern.image_chain.v1" in text
    assert "custom_call_target" not in text


def test_error_in_the_block_ends_the_profile(tmp_path):
    with pytest.raises(ZeroDivisionError), trace(tmp_path):
        raise ZeroDivisionError
    nested = trace(tmp_path / "nested")
    with trace(tmp_path, file=io.StringIO()) as recorded, raises(RuntimeError, "profile"), nested:
        pass
    assert str(recorded) == "no operation of a compiled program ran in the trace"


def test_path_that_is_not_a_directory(tmp_path):
    (tmp_path / "file").write_text("")
    with raises(OSError, "file"), trace(tmp_path / "file"):
        pass
