"""Would catch an op that a walk of a program misses, or counts a wrong number of times."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxkern as jk
from jaxkern.core.calls import OpCall, op_calls

# x [n] times s []: two flops an element.
scale = jk.Op(
    "test.calls_scale",
    version=1,
    abstract=lambda x, s, *, twice: x,
    impl=lambda x, s, *, twice: x * s,
    cost=lambda x, s, *, twice: jk.Cost(flops=2 * x.shape[0], bytes=None),
)


def call(x, s=2.0, twice=False):
    return scale(x, jnp.float32(s), twice=twice)


def calls_in(fn, *args) -> list[OpCall]:
    return list(op_calls(jax.make_jaxpr(fn)(*args)))


X = np.ones(5, np.float32)


def test_operands_parameters_and_cost():
    batch = np.ones((7, 5), np.float32)
    (one,) = calls_in(jax.vmap(lambda x: call(x, twice=True)), batch)
    assert one.op is scale
    assert [(x.shape, x.dtype) for x in one.operands] == [((7, 5), np.float32), ((1,), np.float32)]
    assert (one.batch_dims, one.static, one.backend) == (1, {"twice": True}, "auto")
    assert (one.count, one.devices) == (1, 1)
    # Two flops an element; 35 elements read and written, and one scalar, of four bytes.
    assert one.cost == (70, 4 * (35 + 35 + 1))
    assert "no library registered" in one.problem("cpu")


def test_forced_backend():
    with jk.backend("jax"):
        (one,) = calls_in(call, X)
    assert one.problem("cpu") == "the backend is 'jax'"


def test_lengths_of_nested_scans_multiply():
    def inner(x, _):
        return call(x), None

    def outer(x, _):
        return lax.scan(inner, call(x), length=3)[0], None

    counts = [c.count for c in calls_in(lambda x: lax.scan(outer, call(x), length=10)[0], X)]
    assert counts == [1, 10, 30]
    assert [c.count for c in calls_in(lambda x: lax.scan(inner, x, length=0)[0], X)] == [0]


def test_count_in_a_while_loop_is_unknown():
    def body(x):
        return lax.scan(lambda y, _: (call(y), None), x, length=3)[0]

    looped = lambda x: lax.while_loop(lambda y: y[0] < 9, body, x)  # noqa: E731
    (one,) = calls_in(looped, X)
    assert one.count is None
    nothing = lambda x: lax.scan(lambda y, _: (looped(y), None), x, length=0)[0]  # noqa: E731
    assert [c.count for c in calls_in(nothing, X)] == [0]


def test_branches_count_as_if_taken():
    def fn(p, x):
        return lax.cond(p, lambda y: call(call(y)), lambda y: call(y, 3.0), call(x))

    assert [c.count for c in calls_in(fn, True, X)] == [1] * 4


@pytest.mark.parametrize("wrap", ["jit", "remat", "custom_jvp", "custom_vjp", "grad"])
def test_calls_in_nested_programs(wrap):
    def loss(x):
        return jnp.sum(call(x))

    custom_jvp = jax.custom_jvp(loss)
    custom_jvp.defjvp(lambda x, t: (loss(x[0]), loss(t[0])))
    custom_vjp = jax.custom_vjp(loss)
    custom_vjp.defvjp(lambda x: (loss(x), x), lambda x, ct: (ct * x,))
    fn = {
        "jit": jax.jit(loss),
        "remat": jax.checkpoint(loss),
        "custom_jvp": custom_jvp,
        "custom_vjp": custom_vjp,
        "grad": jax.grad(loss),
    }[wrap]
    # The value of a linear function is not needed for its gradient, but the trace has it.
    assert [c.op for c in calls_in(fn, X)] == [scale]


def test_linear_solve_counts_its_solver():
    def fn(b):
        return lax.custom_linear_solve(
            lambda x: call(x, 4.0), b, lambda matvec, y: call(y, 0.25), symmetric=True
        )

    assert len(calls_in(fn, X)) == 1


def test_shards_and_devices_of_shard_map():
    mesh = jax.make_mesh((2, 2), ("data", "model"), (jax.sharding.AxisType.Auto,) * 2)
    batch = np.ones((8, 5), np.float32)

    def sharded(spec, **axes):
        return jax.shard_map(jax.vmap(call), mesh=mesh, in_specs=spec, out_specs=spec, **axes)

    (all_axes,) = calls_in(sharded(P(("data", "model"))), batch)
    assert (all_axes.devices, all_axes.operands[0].shape) == (4, (2, 5))
    (one_axis,) = calls_in(jax.jit(sharded(P("data"), axis_names={"data"})), batch)
    assert (one_axis.devices, one_axis.operands[0].shape) == (2, (4, 5))


def test_program_of_an_op_that_is_declared_again():
    def declare():
        return jk.Op("test.calls_twice", version=1, abstract=lambda x: x, impl=lambda x: x)

    first = declare()
    program = jax.make_jaxpr(first)(X)
    declare()
    assert [c.op for c in op_calls(program)] == [first]
