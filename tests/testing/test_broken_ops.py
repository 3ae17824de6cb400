"""Would catch a check_op that accepts a wrong op: each op here is wrong in one way.

The checks named here fail on the broken op alone: a right one with the same samples passes them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters.ad import UndefinedPrimal
from support.broken_kernels import load
from support.errors import raises

import jaxkern as jk
from jaxkern.testing.check import check_names


@pytest.fixture(scope="module", autouse=True)
def _library(tmp_path_factory):
    load(tmp_path_factory.mktemp("broken"))


def samples(dtype=np.float32, count=4, n=6):
    random = np.random.default_rng(3)
    if dtype == np.int32:
        return [(random.integers(1 << 20, 1 << 21, n, np.int32), np.int32(3)) for _ in range(count)]
    values = random.standard_normal((count, n + 1))
    if dtype == np.complex64:
        values = values + 1j * random.standard_normal(values.shape)
    return [(v[:n].astype(dtype), dtype(v[n])) for v in values]


def kernel(name):
    return jk.Op(f"broken.{name}", version=1, abstract=lambda x, s: x, impl=lambda x, s: x * s)


@pytest.mark.parametrize(
    ("name", "dtype", "check", "message"),
    [
        ("SixOnly", np.float32, "other_sizes", r"operands of shapes \[\(13,\)"),
        ("TwoAxes", np.float32, "batch_axes", "batch axes"),
        ("LateRows", np.float32, "large_batch", "samples 8192 to 12287 of a batch of 33333"),
        ("OffByOne", np.int32, "eager_and_jit", "Max absolute difference.*: 1"),
        ("NoImaginary", np.complex64, "eager_and_jit", "Mismatched elements"),
        ("BetweenSamples", np.float32, "repeated_runs", "differs|a large batch"),
        ("WithinSample", np.float32, "repeated_runs", "differs|a large batch"),
        ("Unwritten", np.float32, "repeated_runs", "differs|a large batch"),
    ],
)
def test_a_wrong_kernel_fails(name, dtype, check, message):
    with pytest.raises(AssertionError, match=message):
        # A tolerance for floats does not apply to integers.
        jk.testing.check_op(
            kernel(name), samples(dtype), only=[check], atol=1.0 if dtype == np.int32 else 1e-4
        )


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_a_right_kernel_passes(dtype):
    op = kernel("Right" if dtype == np.float32 else "Complex")
    names = [n for n in check_names() if n != "export_and_cache"]
    assert jk.testing.check_op(op, samples(dtype), only=names) == names


def test_sizes_at_which_the_op_is_singular_are_skipped():
    def impl(x, s):
        n = len(x)
        d = 1.0 if n < 6 else (x[0] * x[n // 2 + 1] - x[1] * x[n // 2]) * s
        return jnp.full(n, s / d)

    op = jk.Op("broken.Singular", version=1, abstract=lambda x, s: x, impl=impl)
    # Samples repeat at size 13: x[6] and x[7] are x[0] and x[1].
    jk.testing.check_op(op, samples(), only=["eager_and_jit", "other_sizes"], rtol=1e-3)


# Derivatives, without kernels.


def cube(tangent, off=0.0):
    """Return x^3 with a tangent rule that returns wrong results."""

    def jvp(primals, tangents, *, batch_dims):
        (x,), (t,) = primals, tangents
        return op(x, batch_dims=batch_dims) + off, tangent(x, t)

    op = jk.Op("broken.cube", version=1, abstract=lambda x: x, impl=lambda x: x**3, jvp=jvp)
    return op


def test_a_wrong_second_derivative_fails():
    operands = [(x,) for x, _ in samples()]
    check = {"native": False, "only": ["forward", "reverse", "second"]}
    jk.testing.check_op(cube(lambda x, t: 3 * x**2 * t), operands, **check)
    wrong = cube(lambda x, t: 3 * jax.lax.stop_gradient(x) ** 2 * t)
    with raises(AssertionError, "fails 1 of 3 checks") as error:
        jk.testing.check_op(wrong, operands, **check)
    assert "second: \n" in str(error.value)


def test_wrong_results_with_correct_tangents_fail():
    operands = [(x,) for x, _ in samples()]
    with pytest.raises(AssertionError, match="forward: \nNot equal"):
        jk.testing.check_op(
            cube(lambda x, t: 3 * x**2 * t, off=1.0), operands, native=False, only=["forward"]
        )


def product(reduce):
    """Return x v, both [n], linear in v; the transpose sums over samples with the same v."""

    def transpose(cotangents, x, v, *, batch_dims):
        assert isinstance(v, UndefinedPrimal)
        ct = cotangents[0] * x
        axes = tuple(a for a in range(batch_dims) if v.aval.shape[a] == 1 and ct.shape[a] != 1)
        return None, reduce(ct, axes, keepdims=True) if axes else ct

    def tangent_jvp(primals, tangents, *, batch_dims):
        (x, v), (dx, dv) = primals, tangents
        total = jnp.zeros((), x.dtype)
        if dx is not None:
            total = total + dx * v
        if dv is not None:
            total = total + linear(x, dv, batch_dims=batch_dims)
        return linear(x, v, batch_dims=batch_dims), total

    functions = {"abstract": lambda x, v: x, "impl": lambda x, v: x * v, "jvp": tangent_jvp}
    linear = jk.Op("broken.linear", version=1, transpose=transpose, **functions)
    return linear


def test_a_wrong_sum_over_a_broadcast_operand_fails():
    random = np.random.default_rng(4)
    operands = [tuple(random.standard_normal((2, 5)).astype(np.float32)) for _ in range(4)]
    check = {"native": False, "only": ["reverse", "transposition", "shard_map"]}
    jk.testing.check_op(product(jnp.sum), operands, **check)
    for wrong in (jnp.mean, jnp.max):
        with raises(AssertionError, "fails 3 of 3 checks"):
            jk.testing.check_op(product(wrong), operands, **check)


# Declarations.


def test_an_impl_that_disagrees_with_abstract_is_named():
    twice = lambda x: jnp.concatenate([x, x]).astype(jnp.float16)  # noqa: E731
    op = jk.Op("broken.shape", version=1, abstract=lambda x: x, impl=twice)
    message = r"broken.shape.* float16\[6\] .* float32\[3\]"
    one, batch = jnp.ones(3), jnp.ones((2, 3))
    slope = jax.grad(lambda x: op(x).sum())
    for call, x in ((op, one), (jax.jit(op), one), (jax.vmap(op), batch), (slope, one)):
        with pytest.raises(TypeError, match=message) as error:
            call(x)
        assert "stablehlo" not in str(error.value)
    with pytest.raises(AssertionError, match=message):
        jk.testing.check_op(op, [(np.ones(3, np.float32),)] * 4, native=False, only=["declaration"])


def test_two_ops_of_one_name():
    operands = [(x,) for x, _ in samples()]
    first = jk.Op("broken.same", version=1, abstract=lambda x: x, impl=lambda x: x)
    # A notebook cell may run again, and a module may be reloaded.
    jk.Op("broken.same", version=1, abstract=lambda x: x, impl=lambda x: 2 * x)
    with raises(AssertionError, "another op", "broken.same"):
        jk.testing.check_op(first, operands, native=False, only=["declaration"])
    other = {"__name__": "another_package", "jk": jk}
    with raises(ValueError, "'broken.same'", "test_broken_ops"):
        exec("jk.Op('broken.same', version=1, abstract=lambda x: x, impl=lambda x: x)", other)


@pytest.mark.parametrize("name", ["double", "", "a.", ".a", "a b.c", "a..b", None])
def test_a_name_without_a_dot(name):
    with raises(ValueError, "a dot"):
        jk.Op(name, version=1, abstract=lambda x: x, impl=lambda x: x)


@pytest.mark.parametrize("role", ["abstract", "impl", "jvp", "cost"])
def test_a_rule_that_is_not_a_function(role):
    rules = dict.fromkeys(("abstract", "impl"), lambda x: x)
    rules |= {role: 0 if role in ("jvp", "cost") else None}
    with pytest.raises(TypeError, match=f"broken.none: {role} is "):
        jk.Op("broken.none", version=1, **rules)


def test_batch_dims_and_static_arguments():
    op = jk.Op("broken.add", version=1, abstract=lambda x, **_: x, impl=lambda x, by=0: x + by)
    assert op(jnp.ones(2), by=np.float32(2)).tolist() == [3, 3]
    with raises(ValueError, "broken.add: batch_dims is -1"):
        op(jnp.ones(3), batch_dims=-1)
    with raises(TypeError, "integer"):
        op(jnp.ones(3), batch_dims=0.5)
    for array in (np.ones(3), jnp.ones(3), (1, jnp.float32(1))):
        with raises(TypeError, "static argument 'by'"):
            op(jnp.ones(3), by=array)
    with raises(TypeError, "static argument 'by'"):
        jax.jit(lambda x, by: op(x, by=by))(jnp.ones(3), 1.0)
    with raises(TypeError, "'by' is a list"):
        op(jnp.ones(3), by=[1, 2])
    operands = [(x,) for x, _ in samples()]
    check = {"native": False, "only": ["eager_and_jit"]}
    with raises(AssertionError, "'by' is or contains an array"):
        jk.testing.check_op(op, operands, static={"by": jnp.ones(6)}, **check)


# Errors of handlers for calls that do not fit their binding.


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"eps": np.float32(1)}, "Wrong number of attributes: expected 2 but got 1"),
        ({"eps": np.float64(1), "mode": np.int32(1)}, "expected F32 but got F64"),
        ({"eps": np.float32(1), "mode": "fast"}, "Failed to decode"),
        ({"epsilon": np.float32(1), "mode": np.int32(1)}, "Failed to decode"),
    ],
)
def test_a_wrong_attribute_is_named_with_its_op(attributes, message):
    call = jax.ffi.ffi_call("broken.Attributes.v1", jax.ShapeDtypeStruct((3,), np.float32))
    kinds = {np.float32: "float32", np.float64: "float64", np.int32: "int32", str: "a string"}
    names = ", ".join(f"'{k}' ({kinds[type(v)]})" for k, v in attributes.items())
    facts = "broken.Attributes.v1: ", message, f"The call's attributes are {names}."
    with jax.enable_x64(True), raises(jax.errors.JaxRuntimeError, *facts):
        jax.block_until_ready(call(jnp.ones(3, np.float32), **attributes))


def test_errors_name_the_handlers_of_the_package():
    """The library may be built with older headers than those of the running jaxlib."""
    call = jax.ffi.ffi_call("jaxkern.image_mix.v1", jax.ShapeDtypeStruct((3,), np.float32))
    attributes = "The call's attributes are 'layout' (float"
    with raises(jax.errors.JaxRuntimeError, "jaxkern.image_mix.v1: ", attributes):
        jax.block_until_ready(call(*[jnp.ones(3, np.float32)] * 4, layout=0.5))


def test_a_valid_call_and_a_wrong_number_of_operands():
    call = jax.ffi.ffi_call("broken.Attributes.v1", jax.ShapeDtypeStruct((3,), np.float32))
    attributes = {"eps": np.float32(1), "mode": np.int32(0)}
    jax.block_until_ready(call(jnp.ones(3), **attributes))
    with raises(jax.errors.JaxRuntimeError, "broken.Attributes.v1:", "of arguments"):
        jax.block_until_ready(call(jnp.ones(3), jnp.ones(3), **attributes))


def test_docs_and_doctor_explain_unregistered_targets():
    call = jax.ffi.ffi_call("broken.unknown.v1", jax.ShapeDtypeStruct((3,), np.float32))
    with raises(jax.errors.JaxRuntimeError, "No FFI handler registered for"):
        jax.block_until_ready(call(jnp.ones(3)))
    report = str(jk.doctor())
    assert "No FFI handler registered for" in report
    assert "  broken.Right.v1 [cpu]" in report


def test_sources_in_the_working_directory_do_not_hide_a_library(tmp_path, monkeypatch):
    """The working directory may contain the sources, which lack the compiled module."""
    (tmp_path / "broken_kernels_library.py").write_text("raise ImportError('only sources')")
    monkeypatch.chdir(tmp_path)
    jk.testing.check_op(kernel("Right"), samples(), only=["export_and_cache"])
