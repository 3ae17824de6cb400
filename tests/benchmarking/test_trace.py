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


def test_kernels_and_scopes_are_visible(tmp_path):
    step, images = normalize("native"), np.zeros((4, 64, 64, 3), np.uint8)
    step(images).block_until_ready()
    out = io.StringIO()
    with trace(tmp_path, file=out) as recorded:
        for _ in range(3):
            step(images).block_until_ready()
    (kernel,) = [op for op in recorded.ops if "jaxkern" in op.scope]
    assert kernel.scope == "jit(step)/augment/jaxkern.image_chain.v1"
    assert kernel.program == "jit_step"
    assert kernel.calls == 3
    assert 0 < kernel.seconds <= recorded.seconds
    (product,) = {op.scope for op in recorded.ops if "dot_general" in op.scope}
    assert product == "jit(step)/head/dot_general"
    table = out.getvalue()
    assert "augment/jaxkern.image_chain.v1" in table
    assert "ui.perfetto.dev" in table
    # The file for Perfetto has the same events by the same names.
    assert recorded.perfetto is not None
    with gzip.open(recorded.perfetto, "rt") as opened:
        events = json.load(opened)["traceEvents"]
    assert kernel.name in {event.get("name") for event in events}
    # The file that TensorBoard opens.
    assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))
    seconds = [op.seconds for op in recorded.ops]
    assert seconds == sorted(seconds, reverse=True)
    assert sum(seconds) == pytest.approx(recorded.seconds)
    share = f"{recorded.ops[0].seconds / recorded.seconds:.1%}"
    assert str(recorded).splitlines()[1].lstrip().startswith(share)


@pytest.mark.parametrize("differentiate", [False, True])
def test_fallback_has_the_scope_of_the_op(differentiate):
    def values(x):
        with jk.backend("jax"):
            crop = jk.image.Compose([jk.image.CenterCrop(4), jk.image.Resize((6, 6))])
            return crop.apply(x, ({}, {})).sum()

    fn = jax.grad(values) if differentiate else values
    text = jax.jit(fn).lower(jnp.ones((1, 8, 8, 3))).compile().as_text() or ""
    assert "jaxkern.image_chain.v1" in text
    assert "custom_call_target" not in text


def test_time_inside_a_loop_counts_once(tmp_path):
    looped = jax.jit(lambda x: jax.lax.fori_loop(0, 50, lambda i, y: jnp.tanh(y @ y), x))
    x = jnp.eye(100)
    looped(x).block_until_ready()
    with trace(tmp_path, top=0) as recorded:
        looped(x).block_until_ready()
    (loop,) = [op for op in recorded.ops if op.name.startswith("while")]
    assert loop.calls == 1
    inside = [op for op in recorded.ops if op.calls == 50]
    assert inside
    assert sum(op.seconds for op in inside) > loop.seconds


def test_programs_of_the_same_name_are_distinguished(tmp_path):
    def product(scope):
        def work(x):
            with jax.named_scope(scope):
                return x @ x

        return jax.jit(work)

    x = jnp.ones((32, 32))
    works = [product(scope) for scope in ("first", "second", "third")]
    for work in works:
        work(x).block_until_ready()
    with trace(tmp_path, top=0) as recorded:
        for work, times in zip(works, (2, 3), strict=False):
            for _ in range(times):
                work(x).block_until_ready()
    calls = {op.scope: op.calls for op in recorded.ops if op.scope.endswith("dot_general")}
    assert calls == {"jit(work)/first/dot_general": 2, "jit(work)/second/dot_general": 3}


def test_error_in_the_block_ends_the_profile(tmp_path):
    with pytest.raises(ZeroDivisionError), trace(tmp_path):
        raise ZeroDivisionError
    with trace(tmp_path, file=io.StringIO()) as recorded:
        pass
    assert str(recorded) == "no operation of a compiled program ran in the trace"


def test_one_profile_at_a_time(tmp_path):
    with trace(tmp_path / "a", top=0), raises(RuntimeError, "profile"), trace(tmp_path / "b"):
        pass


def test_path_that_is_not_a_directory(tmp_path):
    (tmp_path / "file").write_text("")
    with raises(OSError, "file"), trace(tmp_path / "file"):
        pass
