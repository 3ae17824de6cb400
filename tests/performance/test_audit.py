"""Would catch: a cost in a program that the audit does not see, or one that is not there."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxkern as jk
from jaxkern import performance

BIG = jax.ShapeDtypeStruct((512, 1024), jnp.float32)  # 2 MiB


def kinds(report):
    return [f.kind for f in report.findings]


def test_a_clean_program_has_no_findings():
    report = performance.audit(lambda x: jnp.sum(jnp.sin(x)), BIG)
    assert report.findings == ()
    assert report.ok
    assert str(report) == "audit on cpu: nothing found"


def test_a_transpose_and_its_size():
    report = performance.audit(lambda x: x.T, BIG)
    (found,) = report.of("copy")
    assert found.bytes == 2 << 20
    assert found.what.startswith("transpose ")
    assert performance.audit(lambda x: x.T, BIG, min_bytes=3 << 20).findings == ()


@pytest.mark.parametrize("donated", [(), (0,)])
def test_a_square_transpose_is_no_copy_at_entry(donated):
    square = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
    report = performance.audit(jax.jit(lambda x: x.T, donate_argnums=donated), square)
    assert report.of("copy")[0].what.startswith("transpose ")
    assert not any("entry" in found.what for found in report.findings)
    assert all(found.severity == "info" for found in report.of("copy"))


def test_an_update_without_donation_copies_its_argument():
    def step(state, x):
        return {"w": state["w"].at[0].set(x), "n": state["n"] + 1}

    state = {"w": BIG, "n": jax.ShapeDtypeStruct((), jnp.int32)}
    row = jax.ShapeDtypeStruct((1024,), jnp.float32)
    report = performance.audit(step, state, row)
    assert [f.bytes for f in report.of("donation")] == [2 << 20]
    assert report.of("donation")[0].what.startswith("state['w']")
    assert [f.bytes for f in report.of("copy")] == [2 << 20]
    assert "state['w']" in report.of("copy")[0].what
    donating = performance.audit(jax.jit(step, donate_argnums=0), state, row)
    assert donating.findings == ()


def test_a_donation_that_no_result_can_take():
    fn = jax.jit(lambda x, y: (x.sum(), y + 1), donate_argnums=(0, 1))
    report = performance.audit(fn, BIG, jax.ShapeDtypeStruct((1024, 512), jnp.float32))
    (found,) = report.of("donation")
    assert found.severity == "warning"
    assert found.what.startswith("x: ")
    assert not report.ok


def test_collectives_of_a_mesh():
    mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
    x = jax.device_put(np.ones(BIG.shape, np.float32), NamedSharding(mesh, PartitionSpec("d")))
    whole = NamedSharding(mesh, PartitionSpec())

    def fn(x):
        return jax.lax.with_sharding_constraint(x, whole).sum(0), x.sum()

    report = performance.audit(fn, x, min_bytes=0, time_collectives=True)
    found = {c.kind: c for c in report.collectives}
    assert found["all-gather"].bytes == 2 << 20
    assert found["all-gather"].seconds > 0
    assert [f.severity for f in report.of("collective") if "all-gather" in f.what] == ["warning"]
    local = performance.audit(lambda x: x * 2, x)
    assert local.collectives == ()


def test_doubles_that_no_argument_asked_for():
    def fn(x):
        return x * np.arange(4.0)  # NumPy's default is f64

    x = jax.ShapeDtypeStruct((4,), jnp.float32)
    with jax.enable_x64(True):
        report = performance.audit(fn, x)
        assert report.of("f64")
        assert not report.ok
        asked = performance.audit(fn, jax.ShapeDtypeStruct((4,), jnp.float64))
        assert asked.of("f64") == ()
        scalar = performance.audit(lambda x: x * 2.5, x)
        assert scalar.of("f64") == ()
    assert performance.audit(fn, x).of("f64") == ()


def test_a_finding_inside_jaxs_own_functions_names_the_callers_line():
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(0), 3)
        found = performance.audit(lambda k: jax.vmap(jax.random.uniform)(k), keys).of("f64")
    assert found
    assert all("test_audit.py" in f.what for f in found)


def test_host_callbacks_with_how_often_they_run():
    def host(x):
        return np.asarray(x)

    def fn(x):
        def body(c, _):
            return jax.pure_callback(host, jax.ShapeDtypeStruct(c.shape, c.dtype), c), None

        jax.debug.print("{}", x[0])
        return jax.lax.scan(body, x, None, length=5)[0]

    found = performance.audit(fn, jax.ShapeDtypeStruct((4,), jnp.float32)).of("callback")
    assert len(found) == 2
    assert any("host, 5 times a run" in f.what and "test_audit.py" in f.what for f in found)


def test_kernels_and_their_fallbacks():
    images = jax.ShapeDtypeStruct((2, 8, 8, 3), jnp.uint8)
    chain = jk.image.Compose([jk.image.CenterCrop(4), jk.image.Normalize(0.5, 0.25)])
    key = jax.random.key(0)
    fn = jax.jit(lambda x: chain(key, x))
    assert performance.audit(fn, images).of("fallback") == ()
    with jk.backend("jax"):
        (found,) = performance.audit(fn, images).of("fallback")
    assert found.severity == "info"
    assert "jaxkern.image_chain" in found.what

    only_jax = jk.Op("tests.only_jax", version=1, abstract=lambda x: x, impl=lambda x: x + 1)
    report = performance.audit(lambda x: only_jax(x), jax.ShapeDtypeStruct((4,), jnp.float32))
    (found,) = report.of("fallback")
    assert found.severity == "warning"
    assert "tests.only_jax.v1" in found.what
    assert "doctor" in found.advice
    assert "1 warnings, 1 findings" in str(report)


def test_a_large_constant():
    table = jnp.ones(BIG.shape)
    report = performance.audit(lambda x: x @ table, jax.ShapeDtypeStruct((4, 512), jnp.float32))
    (found,) = report.of("constant")
    assert found.bytes == 2 << 20


def test_bad_input():
    with pytest.raises(TypeError, match="cannot be compiled"):
        performance.audit(lambda x: x + "a", BIG)
    with pytest.raises(ValueError, match="min_bytes is -1"):
        performance.audit(jnp.sin, BIG, min_bytes=-1)
