"""Would catch a miscounted operation or byte, and work at the wrong position under the roof."""

import importlib
import json
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from support.errors import raises

import jaxkern as jk
from jaxkern.core.ceilings import Ceilings, Rates
from jaxkern.performance import roofline_analysis
from jaxkern.performance.roofline import place

# A machine of round numbers: its ridge point is at 10 operations per byte in f32, 5 in f64.
ROOF = Ceilings(
    platform="cpu",
    device="a machine of round numbers",
    threads=2,
    simd_level="v3",
    one_thread=None,
    all_threads=Rates(load=1e10, store=1e10, copy=1e10, fma_f32=1e11, fma_f64=5e10),
    buffer_bytes=1 << 27,
    cache_bytes=1 << 25,
    seconds=1.0,
    measured="2026-01-01T00:00:00Z",
)
N = 64
A = jnp.asarray(np.random.default_rng(0).uniform(size=(N, N)), jnp.float32)
PRODUCT, MATRIX = 2 * N**3, 4 * N**2


@pytest.fixture(autouse=True)
def few_calls(monkeypatch):
    """Run five calls of each function: their times are not tested."""
    monkeypatch.setattr(importlib.import_module("jaxkern.performance.roofline"), "_SECONDS", 0.0)


def analyze(fn, *args, **options):
    return roofline_analysis(fn, *args, ceilings=ROOF, **options)


def test_matrix_product():
    result = analyze(jnp.dot, A, A)
    assert (result.flops, result.bytes, result.samples) == (PRODUCT, 3 * MATRIX, N)
    assert result.intensity == PRODUCT / (3 * MATRIX)
    assert result.bottleneck == "compute"  # 10.7 operations per byte
    assert result.ceiling == 1e11
    assert result.time == np.median(result.times)
    assert result.achieved == pytest.approx(PRODUCT / result.time)
    assert result.efficiency == pytest.approx(result.achieved / 1e11)
    assert (result.dtype, result.counted, result.rows) == ("f32", "XLA", ())


def test_elementwise_function():
    x = jnp.ones(100_000, jnp.float32)
    result = analyze(lambda x: 2 * x + 1, x)
    assert (result.flops, result.bytes) == (200_000, 800_000)
    assert (result.bottleneck, result.ceiling) == ("memory", 0.25 * 1e10)


def test_double_precision_has_its_own_peak():
    with jax.enable_x64(True):
        result = analyze(jnp.dot, np.ones((N, N)), np.ones((N, N)))
    assert result.dtype == "f64"
    assert (result.bottleneck, result.ceiling) == ("compute", 5e10)


def test_function_without_operations_is_measured_in_bytes():
    result = analyze(lambda x: x.T, jnp.ones((100, 200), jnp.float32))
    assert (result.flops, result.intensity, result.bottleneck) == (0, 0, "memory")
    assert result.unit == "B/s"
    assert result.ceiling == 1e10
    assert result.achieved == pytest.approx(result.bytes / result.time)


@pytest.mark.parametrize(("length", "unroll"), [(1, 1), (10, 1), (10, 4), (3, 8)])
def test_scans_multiply(length, unroll):
    def fn(x):
        return lax.scan(lambda c, _: (c @ x, None), x, length=length, unroll=unroll)[0]

    assert analyze(fn, A).flops == pytest.approx(length * PRODUCT, rel=0.001)


def scans_in_a_scan(x):
    def inner(c, _):
        return lax.scan(lambda d, _: (d @ x, None), c @ x, length=5)[0], None

    return lax.scan(inner, x @ x, length=7)[0]


def branches_of_unequal_work(x):
    looped = lambda y: lax.fori_loop(0, 9, lambda i, c: c @ x, y)  # noqa: E731
    return lax.cond(x[0, 0] > 0, looped, lambda y: y @ x @ x, x)


@pytest.mark.parametrize(
    ("fn", "products"), [(scans_in_a_scan, 1 + 7 + 35), (branches_of_unequal_work, 9)]
)
def test_nested_programs_multiply(fn, products):
    assert analyze(fn, A).flops == pytest.approx(products * PRODUCT, rel=0.01)


def test_while_loop_is_unknown_unless_specified():
    def fn(x):
        return lax.while_loop(lambda c: c[0, 0] < 1e3, lambda c: c @ x + 1, x)

    result = analyze(fn, A)
    assert (result.flops, result.bytes, result.intensity, result.achieved) == (None,) * 4
    assert result.efficiency is None
    assert "while loop" in str(result)
    specified = analyze(fn, A, flops_per_sample=100, bytes_per_sample=4)
    assert (specified.flops, specified.bytes, specified.intensity) == (100 * N, 4 * N, 25)
    assert specified.bottleneck == "compute"
    assert not any("while" in note for note in specified.notes)


def test_figures_of_the_caller_replace_counts():
    result = analyze(jnp.dot, A, A, flops_per_sample=7, samples=3)
    assert (result.flops, result.bytes, result.samples) == (21, 3 * MATRIX, 3)
    assert result.counted == "operations: the caller, per sample; bytes: XLA"


def test_uncounted_custom_call_is_noted():
    result = analyze(lambda x: jnp.linalg.cholesky(x @ x.T + 9 * jnp.eye(N)), A)
    assert result.flops >= PRODUCT
    assert any("lapack_spotrf" in note for note in result.notes)


def two_time(n):
    t = np.arange(n, dtype=np.float32)
    op = jk.xpcs.ops.two_time_g2
    return lambda scale: op(0.01 * scale * t, 0.1 * t, 0.3, np.float32(1), shear_power=4)


def test_native_ops_add_their_own_counts():
    n = 100
    result = analyze(two_time(n), 1.0)
    (row,) = result.rows
    # The matrix is written, and the op's model gives the operations per point.
    cost = jk.xpcs.ops.two_time_g2.cost(
        *(jax.ShapeDtypeStruct(s, np.float32) for s in ((n,), (n,), (), ())), shear_power=4
    )
    assert (row.bytes, row.flops) == (4 * n * n, cost.flops)
    assert cost.flops % (n * n) == 0
    assert 0 <= result.flops - cost.flops <= 2 * n  # XLA's: the phases
    assert 0 <= result.bytes - cost.bytes <= 100 * n
    assert (row.name, row.count, row.reason) == ("jaxkern.two_time_g2", 1, None)
    assert result.counted == "XLA and the ops' models"


def test_native_ops_in_scans_are_multiplied():
    n = 50
    once = analyze(two_time(n), 1.0)

    def fn(scale):
        total, _ = lax.scan(
            lambda c, s: (c + two_time(n)(s), None), jnp.zeros((n, n)), scale + jnp.arange(6.0)
        )
        return total

    result = analyze(fn, 1.0)
    (row,) = result.rows
    assert (row.count, row.operands) == (6, "its own")
    assert row.flops == 6 * once.rows[0].flops
    # The sum is one operation per point and step.
    assert result.flops == pytest.approx(6 * (once.flops + n * n), rel=0.02)
    with jk.backend("jax"):
        pure = analyze(fn, 1.0)
    assert pure.rows[0].reason == "the backend is 'jax'"
    assert pure.counted == "XLA"
    assert pure.flops > 6 * n * n


def one_in_each_branch(model):
    return lambda s: lax.cond(s > 0, model, lambda v: 3 * model(2 * v), s)


def a_loop_in_one_branch(model):
    looped = lambda s: lax.fori_loop(0, 7, lambda i, c: c + model(c[0, 1]), jnp.ones((50, 50)) * s)  # noqa: E731
    return lambda s: lax.cond(s > 0, looped, lambda v: model(2 * v) + model(3 * v), s)


@pytest.mark.parametrize(
    ("make", "calls", "counted"),
    [
        (lambda model: lambda s: model(s) + model(2 * s), 2, 2),
        (lambda model: lambda s: (model(s), 2 * s)[1], 0, 0),
        # Rows include all branches; of a conditional, the branch with the most work counts.
        (one_in_each_branch, 2, 1),
        (a_loop_in_one_branch, 9, 7),
    ],
)
def test_calls_are_counted_and_multiplied(make, calls, counted):
    one = analyze(two_time(50), 1.0).rows[0]
    result = analyze(make(two_time(50)), 1.0)
    assert [row.count for row in result.rows] == [calls] * bool(calls)
    for row in result.rows:
        assert (row.flops, row.bytes) == (calls * one.flops, calls * one.bytes)
        assert row.time == calls * row.seconds
        assert row.share == pytest.approx(calls * row.seconds / result.time)
    # XLA's count: sums and phases of 2500 points, at most ten times.
    assert 0 <= result.flops - counted * one.flops <= 60_000
    assert (result.counted == "XLA") == (calls == 0)


def test_gradient_has_no_row_for_an_omitted_forward_call():
    geometry = jk.xpcs.Geometry(0.0054, 2e6, 0.1, 0.1 * np.arange(30), [0.0, 90.0])
    model = jk.xpcs.LaminarFlow(geometry)
    p = jnp.asarray(model.defaults, jnp.float32)

    def loss(p):
        return jk.xpcs.g2(model, p, 0.3, 1.0).sum()

    result = analyze(jax.grad(loss), p)
    (row,) = result.rows
    assert (row.name, row.count, row.operands) == ("jaxkern.two_time_g2_cotangent", 1, "its own")
    assert 0 <= result.flops - row.flops < 0.2 * row.flops
    both = analyze(jax.value_and_grad(loss), p)
    assert sorted((row.name, row.count) for row in both.rows) == [
        ("jaxkern.two_time_g2", 1),
        ("jaxkern.two_time_g2_cotangent", 1),
    ]


def test_calls_of_one_op_are_distinguished_by_shapes_and_parameters():
    op = jk.xpcs.ops.two_time_g2
    small, large = jnp.arange(20.0), jnp.arange(30.0)

    def call(s, t, power):
        return op(0.01 * s * t, 0.1 * t, 0.3, jnp.float32(1), shear_power=power).sum()

    def fn(s):
        same = call(s, small, 4) + call(s, small, 2) + call(3 * s, small, 2)
        return same + lax.fori_loop(0, 5, lambda i, c: c + call(c, large, 4), s)

    counts = sorted((row.shapes[0], row.count) for row in analyze(fn, 1.0).rows)
    assert counts == [("float32[20]", 1), ("float32[20]", 2), ("float32[30]", 5)]


def test_ops_without_a_known_cost():
    op = jk.Op("test.roofline_fallback", version=1, abstract=lambda x: x, impl=lambda x: x + 1)
    result = analyze(lambda x: lax.fori_loop(0, 3, lambda i, c: op(c), x), jnp.ones(10))
    (row,) = result.rows
    # XLA counts the fallback, and the counter of the loop.
    assert (row.count, row.flops, "pure JAX" in str(result)) == (3, None, True)
    assert 30 <= result.flops <= 40
    loop = lambda x: lax.while_loop(lambda c: c[0] < 9, lambda c: op(c), x)  # noqa: E731
    assert [(row.count, row.share) for row in analyze(loop, jnp.ones(10)).rows] == [(None, None)]


def test_operands_are_those_of_the_program():
    seen = []
    op = jk.Op("test.roofline_seen", version=1, abstract=lambda x: x, impl=lambda x: x + 1)

    def watch(x):
        jax.debug.callback(lambda v: seen.append(float(v)), x)
        return x + 1

    op.impl = watch

    def fn(x):
        y = jax.jit(lambda v: op(3 * v))(x)  # 6 -> 7
        z, _ = lax.scan(lambda c, s: (op(c + s), None), y, jnp.arange(10.0, 13.0))  # 17, 29, 42
        return lax.cond(z > 0, lambda v: op(-v), lambda v: op(v * 1000), z)

    result = analyze(fn, jnp.float32(2))
    jax.effects_barrier()
    assert {r.operands for r in result.rows} == {"its own"}
    assert set(seen) == {6.0, 17.0, 29.0, 42.0, -43.0}
    assert not any("declares no cost" in note for note in result.notes)  # XLA counts its JAX


def test_synthetic_operands_for_a_branch_that_is_not_taken():
    op = jk.Op("test.roofline_synthetic", version=1, abstract=lambda x: x, impl=lambda x: x + 1)
    result = analyze(lambda x: lax.cond(x > 0, lambda v: v, lambda v: op(v), x), jnp.float32(2))
    assert [r.operands for r in result.rows] == ["synthetic"]


def test_sharded_program_counts_all_devices():
    mesh = jax.make_mesh((4,), ("data",), (jax.sharding.AxisType.Auto,))
    x = jax.device_put(A, NamedSharding(mesh, P("data")))
    result = analyze(lambda x: x @ np.asarray(A), x)
    assert result.devices == 4
    # Each device reads its rows and the entire other matrix, and writes its rows.
    assert (result.flops, result.bytes) == (PRODUCT, 4 * (MATRIX / 4 + MATRIX + MATRIX / 4))
    assert result.ceiling == result.intensity * 1e10  # four devices of one CPU share it
    op = jk.xpcs.ops.two_time_g2
    rows = jax.device_put(jnp.ones((4, 9)), NamedSharding(mesh, P("data")))

    def local(a):
        return op(a, a, jnp.ones((1,)), jnp.ones((1,)), batch_dims=1, shear_power=4)

    parts = jax.shard_map(local, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    mapped = analyze(parts, rows)
    unsharded = analyze(local, jnp.ones((4, 9)))
    assert mapped.rows[0].count == 4
    assert mapped.rows[0].flops == unsharded.rows[0].flops


@pytest.mark.parametrize("how", ["partitioned", "around", "inside", "psum"])
def test_loops_on_a_mesh_count_each_devices_part_once(how):
    mesh = jax.make_mesh((4,), ("data",), (jax.sharding.AxisType.Auto,))
    rows, replicated = P("data"), P()

    def local(c, w):
        return c @ w

    def mapped(fn):
        return jax.shard_map(
            fn, mesh=mesh, in_specs=(rows, replicated), out_specs=rows, check_vma=how != "psum"
        )

    def loop(step):
        return lambda x, w: lax.scan(lambda c, _: (step(c, w), None), x, length=10)[0]

    fn = {
        "partitioned": loop(local),
        "around": mapped(loop(local)),
        "inside": loop(mapped(local)),
        "psum": mapped(loop(lambda c, w: c @ w + lax.psum(c, "data"))),
    }[how]
    x, w = (jax.device_put(A, NamedSharding(mesh, spec)) for spec in (rows, replicated))
    result = analyze(fn, x, w)
    # On each device the sum over devices and the addition of the product, for its quarter.
    sums = 10 * 2 * N**2 if how == "psum" else 0
    assert result.flops == pytest.approx(10 * PRODUCT + sums, rel=0.01)
    assert any("as one device" in note for note in result.notes) == (how == "partitioned")


def test_donated_and_static_arguments_of_a_jitted_function():
    x = jnp.ones(1000)
    fn = jax.jit(lambda x, n: x + 1 if n == "one" else x, donate_argnums=0, static_argnums=1)
    assert analyze(fn, x, "one").flops == 1000
    assert float(x.sum()) == 1000


@pytest.mark.parametrize(
    ("flops", "moved", "bottleneck", "ceiling", "efficiency"),
    [
        (100.0, 10.0, "compute", 1000.0, 0.05),  # at the ridge point
        (50.0, 10.0, "memory", 500.0, 0.05),
        (1e6, 10.0, "compute", 1000.0, 500.0),  # not clamped
        (100.0, 0.0, "compute", 1000.0, 0.05),
        (0.0, 100.0, "memory", 100.0, 0.5),
        (None, 100.0, "memory", 100.0, 0.5),
        (100.0, None, "compute", 1000.0, 0.05),
        (None, None, "memory", 100.0, None),
    ],
)
def test_position_under_a_roof(flops, moved, bottleneck, ceiling, efficiency):
    placement = place(flops, moved, 2.0, peak=1000.0, bandwidth=100.0)
    assert (placement.bottleneck, placement.ceiling) == (bottleneck, ceiling)
    assert placement.efficiency == pytest.approx(efficiency)
    if flops and moved == 0:
        assert placement.intensity == math.inf


def test_efficiency_above_1_is_explained():
    slow = Ceilings("cpu", "slow", 1, None, None, Rates(1, 1, 1, 1, 1), 1, 1 << 20, 0.0, "")
    memory = roofline_analysis(lambda x: x + 1, jnp.ones(100), ceilings=slow)
    assert memory.efficiency > 1
    assert "cache (of 1 MiB)" in str(memory)
    compute = roofline_analysis(jnp.dot, A, A, ceilings=slow)
    assert "multiply-adds" in compute.notes[-1]


def test_text_data_and_plot(tmp_path):
    result = analyze(two_time(30), 1.0)
    text = str(result)
    for word in ("bottleneck", "of ceiling", "jaxkern.two_time_g2", "native"):
        assert word in text
    data = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert data["rows"][0]["name"] == "jaxkern.two_time_g2"
    assert data["ceilings"]["all_threads"]["fma_f32"] == 1e11
    assert data["time"] == result.time
    assert result.plot(tmp_path / "roofline.svg").read_text().startswith("<?xml")
    without_flops = analyze(lambda x: x.T, jnp.ones((10, 20)))
    assert without_flops.plot(tmp_path / "empty.png").stat().st_size > 1000


def test_plot_without_matplotlib(monkeypatch, tmp_path):
    result = analyze(jnp.dot, A, A)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with raises(ImportError, "matplotlib"):
        result.plot(tmp_path / "x.png")


def test_pipeline_is_measured_by_delivered_batches():
    images = np.zeros((64, 5, 4), np.uint8)
    pipe = jk.from_source({"image": images, "label": np.zeros(64, np.int32)}, batch_size=8)
    result = roofline_analysis(pipe, ceilings=ROOF)
    assert (result.samples, result.bytes) == (8, 8 * (20 + 4))
    assert len(result.times) == 7
    assert result.time == pytest.approx(np.mean(result.times))
    assert (result.flops, result.intensity, result.bottleneck) == (None, None, "memory")
    assert result.achieved == pytest.approx(result.bytes / result.time)
    specified = roofline_analysis(
        pipe, ceilings=ROOF, flops_per_sample=240, bytes_per_sample=24, num_batches=3
    )
    assert (specified.flops, specified.intensity, len(specified.times)) == (8 * 240, 10, 3)


def test_iterable_of_batches():
    result = roofline_analysis(iter([np.ones((4, 2))] * 3), ceilings=ROOF)
    assert (result.samples, result.bytes, len(result.times)) == (4, 64, 2)


def branches(x):
    return x if x[0, 0] > 0 else -x


@pytest.mark.parametrize(
    ("call", "error", "fact"),
    [
        (lambda: analyze(branches, A), TypeError, "branches"),
        (lambda: analyze(jnp.dot, A, "x"), TypeError, "args[1]|dot|str"),
        (lambda: analyze(jnp.dot, A, [object()]), TypeError, "args[1][0]|dot|object"),
        (lambda: analyze(3), TypeError, "fn_or_pipeline|int"),
        (lambda: analyze([A], A), TypeError, "args"),
        (lambda: analyze([A]), ValueError, "2 batches"),
        (lambda: analyze(jnp.sin, A, flops_per_sample=-1), ValueError, "flops_per_sample"),
        (lambda: analyze(jnp.sin, A, bytes_per_sample=math.nan), ValueError, "bytes_per_sample"),
        (lambda: analyze(jnp.sin, A, samples=0), ValueError, "samples|0"),
        (lambda: analyze(jnp.sin, A, samples=1.5), ValueError, "samples|1.5"),
        (lambda: analyze(jnp.sin, A, flops_per_sample="x"), ValueError, "flops_per_sample"),
        (lambda: roofline_analysis(jnp.sin, A, ceilings=3), TypeError, "ceilings|int"),
        (lambda: analyze([{"a": "text"}] * 3), ValueError, "no arrays"),
        (lambda: analyze([A, A], num_batches=0), ValueError, "num_batches|0"),
    ],
)
def test_invalid_arguments(call, error, fact):
    with raises(error, *fact.split("|")):
        call()
