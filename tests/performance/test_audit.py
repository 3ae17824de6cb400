"""Would catch an audit that misses a cost of a program, or reports one that it does not have."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support.errors import raises

import jaxkern as jk
from jaxkern import performance

BIG = jax.ShapeDtypeStruct((512, 1024), jnp.float32)  # 2 MiB


def test_clean_program_has_no_findings():
    report = performance.audit(lambda x: jnp.sum(jnp.sin(x)), BIG)
    assert report.findings == ()
    assert report.ok
    assert str(report) == "audit on cpu: no findings"


@pytest.mark.parametrize("donated", [(), (0,)])
@pytest.mark.parametrize("rows", [512, 1024])
def test_transposes_and_their_sizes(rows, donated):
    x = jax.ShapeDtypeStruct((rows, 1024), jnp.float32)
    transpose = jax.jit(lambda x: x.T, donate_argnums=donated)
    report = performance.audit(transpose, x)
    assert {(f.severity, f.bytes) for f in report.of("copy")} == {("info", 4 * x.size)}
    assert report.of("copy")[0].what.startswith("transpose ")
    # That of a square is not a copy at entry.
    assert not any("entry" in f.what for f in report.findings)
    assert performance.audit(transpose, x, min_bytes=5 << 20).findings == ()


def test_update_without_donation_copies_its_argument():
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


def test_donation_that_no_result_can_reuse():
    fn = jax.jit(lambda x, y: (x.sum(), y + 1), donate_argnums=(0, 1))
    report = performance.audit(fn, BIG, jax.ShapeDtypeStruct((1024, 512), jnp.float32))
    (finding,) = report.of("donation")
    assert finding.severity == "warning"
    assert finding.what.startswith("x: ")
    assert not report.ok


def test_collectives_of_a_mesh():
    mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
    x = jax.device_put(np.ones(BIG.shape, np.float32), NamedSharding(mesh, PartitionSpec("d")))
    replicated = NamedSharding(mesh, PartitionSpec())
    fn = lambda x: jax.lax.with_sharding_constraint(x, replicated).sum(0)  # noqa: E731
    report = performance.audit(fn, x, min_bytes=0)
    assert [(c.kind, c.bytes) for c in report.collectives] == [("all-gather", 2 << 20)]
    assert [f.severity for f in report.of("collective")] == ["warning"]
    assert performance.audit(lambda x: x * 2, x).collectives == ()


def test_doubles_without_a_double_argument():
    def fn(x):
        return x * np.arange(4.0)  # NumPy's default is f64

    x = jax.ShapeDtypeStruct((4,), jnp.float32)
    with jax.enable_x64(True):
        report = performance.audit(fn, x)
        assert report.of("f64")
        assert not report.ok
        double = performance.audit(fn, jax.ShapeDtypeStruct((4,), jnp.float64))
        assert double.of("f64") == ()
        scalar = performance.audit(lambda x: x * 2.5, x)
        assert scalar.of("f64") == ()
    assert performance.audit(fn, x).of("f64") == ()


def test_finding_inside_jax_names_the_callers_line():
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(0), 3)
        findings = performance.audit(lambda k: jax.vmap(jax.random.uniform)(k), keys).of("f64")
    assert findings
    assert all("test_audit.py" in f.what for f in findings)


def test_host_callbacks_are_counted():
    def host(x):
        return np.asarray(x)

    def fn(x):
        def body(c, _):
            return jax.pure_callback(host, jax.ShapeDtypeStruct(c.shape, c.dtype), c), None

        jax.debug.print("{}", x[0])
        return jax.lax.scan(body, x, None, length=5)[0]

    findings = performance.audit(fn, jax.ShapeDtypeStruct((4,), jnp.float32)).of("callback")
    assert len(findings) == 2
    assert any("host, 5 times" in f.what and "test_audit.py" in f.what for f in findings)


def test_kernels_and_fallbacks():
    images = jax.ShapeDtypeStruct((2, 8, 8, 3), jnp.uint8)
    chain = jk.image.Compose([jk.image.CenterCrop(4), jk.image.Normalize(0.5, 0.25)])
    key = jax.random.key(0)
    fn = jax.jit(lambda x: chain(key, x))
    assert performance.audit(fn, images).of("fallback") == ()
    with jk.backend("jax"):
        (finding,) = performance.audit(fn, images).of("fallback")
    assert finding.severity == "info"
    assert "jaxkern.image_chain" in finding.what

    only_jax = jk.Op("tests.only_jax", version=1, abstract=lambda x: x, impl=lambda x: x + 1)
    report = performance.audit(lambda x: only_jax(x), jax.ShapeDtypeStruct((4,), jnp.float32))
    (finding,) = report.of("fallback")
    assert finding.severity == "warning"
    assert "tests.only_jax.v1" in finding.what
    assert "doctor" in finding.advice
    assert "1 warnings, 1 findings" in str(report)


def test_large_constant():
    table = jnp.ones(BIG.shape)
    report = performance.audit(lambda x: x @ table, jax.ShapeDtypeStruct((4, 512), jnp.float32))
    assert [f.bytes for f in report.of("constant")] == [2 << 20]


def test_invalid_arguments():
    with pytest.raises(TypeError):
        performance.audit(lambda x: x + "a", BIG)
    with raises(ValueError, "min_bytes", "-1"):
        performance.audit(jnp.sin, BIG, min_bytes=-1)
