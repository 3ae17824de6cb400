"""XPCS CUDA kernels compared with the CPU kernels and the pure-JAX implementations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import on

import jaxkern as jk
from jaxkern.xpcs.model import ops
from jaxkern.xpcs.model.twin import LOSSES, ROW_BLOCK

_POWERS = (0, 2, 4)
_DATA = (np.float64, np.float32, np.float16, np.uint16)


@pytest.fixture(autouse=True)
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def _phases(n: int, angles: int, dtype: Any = np.float64, seed: int = 0) -> tuple[Any, ...]:
    """Return A [1, n], X [angles, n], contrast, offset; X exceeds the first zero of sinc."""
    random = np.random.default_rng(seed)
    A = np.cumsum(random.random((1, n)), 1) * 4 / n
    X = np.cumsum(random.random((angles, n)), 1) * 12 / n - 300
    contrast, offset = random.uniform(0.1, 0.4, angles), random.uniform(0.9, 1.1, angles)
    return tuple(x.astype(dtype) for x in (A, X, contrast, offset))


def _close(got: Any, expected: Any, scale: Any = 1.0) -> None:
    """Compare to a few roundings of `scale`, the magnitude of the added terms."""
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert x.shape == y.shape
        assert x.dtype == y.dtype
        allowed = (3e-7 if x.dtype == np.float32 else 1e-12) * np.broadcast_to(scale, y.shape)
        error = np.abs(x.astype(np.float64) - y.astype(np.float64))
        assert (error <= allowed + 1e-300).all(), float((error / (allowed + 1e-300)).max())


def _three_ways(device: Any, host: Any, fn: Any, *operands: Any, scale: Any = 1.0) -> Any:
    got = on(device, "native", fn, *operands)
    _close(got, on(host, "native", fn, *operands), scale)
    if operands[0].dtype == np.float64:  # in float32, pure JAX rounds at every step
        _close(got, on(device, "jax", fn, *operands), np.asarray(scale) * 100)
    return got


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("power", _POWERS)
@pytest.mark.parametrize("n", [1, 63, 200, 257])
def test_g2_and_its_derivatives(device: Any, host: Any, n: int, power: int, dtype: Any) -> None:
    random = np.random.default_rng(n)
    A, X, contrast, offset = _phases(n, 3, dtype, n)
    tangents = [random.standard_normal(s).astype(dtype) for s in ((1, n), (3, n), (3,), (3,))]
    G = random.standard_normal((3, n, n)).astype(dtype)
    static = {"batch_dims": 1, "shear_power": power}
    _three_ways(device, host, lambda *x: ops.two_time_g2(*x, **static), A, X, contrast, offset)
    tangent = lambda *x: ops.two_time_g2_tangent(*x, **static)  # noqa: E731
    _three_ways(device, host, tangent, A, X, contrast, *tangents, scale=10.0)
    back = lambda *x: ops.two_time_g2_cotangent(*x, **static)  # noqa: E731
    _three_ways(device, host, back, A, X, contrast, G, scale=float(n * n))


def test_phases_far_apart_or_not_ordered(device: Any, host: Any) -> None:
    """Exponentials whose factors would overflow or underflow."""
    random = np.random.default_rng(5)
    A, X, contrast, offset = _phases(150, 2)
    for wide in (A * 1000, random.permuted(A * 300, axis=1), np.zeros_like(A)):
        fn = lambda *x: ops.two_time_g2(*x, batch_dims=1, shear_power=4)  # noqa: E731
        got = _three_ways(device, host, fn, wide, X, contrast, offset)
        assert np.isfinite(got).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("rank", [0, 2])
def test_residual(device: Any, host: Any, rank: int, dtype: Any) -> None:
    n, random = 130, np.random.default_rng(rank)
    phases = _phases(n, 2, dtype)
    data = random.uniform(0.9, 1.5, (2, n, n)).astype(dtype)
    sigma = random.uniform(-0.1, 0.4, (2, n, n) if rank else (2,)).astype(dtype)
    sigma = np.where(np.abs(sigma) < 0.01, 0.01, sigma).astype(dtype)
    fn = lambda *x: ops.two_time_residual(  # noqa: E731
        *x, batch_dims=1, shear_power=4, sigma_rank=rank
    )
    got = _three_ways(device, host, fn, *phases, data, sigma, scale=300.0)
    assert (np.diagonal(got, axis1=1, axis2=2) == 0).all()


def test_single_points(device: Any, host: Any) -> None:
    A, X, contrast, offset = _phases(90, 3)
    index = np.random.default_rng(0).integers(0, (3, 90, 90), (500, 3)).astype(np.int32)
    index[7], index[8], index[9] = (3, 0, 0), (0, -1, 0), (0, 0, 2**31 - 1)
    fn = lambda *x: ops.two_time_g2_at(*x, shear_power=4)  # noqa: E731
    got = on(device, "native", fn, A[0], X, contrast, offset, index)
    assert np.isnan(got[7:10]).all()
    inside = np.delete(index, [7, 8, 9], 0)
    _three_ways(device, host, fn, A[0], X, contrast, offset, inside)


def _normal(
    n: int,
    tables: tuple[int, int] = (3, 4),
    data: Any = np.float64,
    dtype: Any = np.float64,
    sigma_rank: int = 0,
    seed: int = 0,
) -> dict[str, Any]:
    """Return operands for 3 angles; the data are symmetric except for angle 1."""
    random = np.random.default_rng(seed)
    A, X, contrast, offset = _phases(n, 3, dtype, seed)
    measured = random.uniform(0.9, 1.5, (3, n, n))
    measured = (measured + measured.swapaxes(1, 2)) / 2
    measured[1, n // 2, : n // 3] += 0.25
    if data is np.uint16:
        measured = np.round(measured * 30000)
    sigma = random.uniform(0.01, 0.1, (3, n, n) if sigma_rank else (1,))
    if sigma_rank:
        sigma = (sigma + sigma.swapaxes(1, 2)) / 2
        sigma[:, :, 5] = sigma[:, 5, :] = 0
    keep = np.ones((3, n), np.uint8)
    keep[:, n // 4 : n // 4 + 3] = 0
    kA, kX = tables
    return {
        "A": A,
        "X": X,
        "tangents_A": np.cumsum(random.random((1, kA, n)), 2).astype(dtype),
        "tangents_X": np.cumsum(random.random((3, kX, n)), 2).astype(dtype),
        "contrast": contrast,
        "offset": offset,
        "data": measured.astype(data),
        "quantization": np.array([[1 / 30000 if data is np.uint16 else 1.0, 0.0]], dtype),
        "sigma": sigma.astype(dtype),
        "keep": keep,
        "f_scale": np.array([1.5], dtype),
        "first_row": np.array([0], np.int32),
        "initial": np.zeros((3, ops.state_size(kA, kX)), dtype),
    }


def _states(device: Any, operands: dict[str, Any], backend: str = "native", **static: Any) -> Any:
    options = {"shear_power": 4, "loss": 0, "symmetric": 1, "sigma_rank": 0, **static}
    fn = lambda *x: ops.two_time_normal_equations(*x, batch_dims=1, **options)  # noqa: E731
    return on(device, backend, fn, *operands.values())


def _scale(state: Any, tables: tuple[int, int]) -> np.ndarray:
    """Return for each entry of a state the product of the norms of its two columns."""
    basis = 2 + sum(tables)
    row, column = np.triu_indices(basis)
    diagonal = np.flatnonzero(row == column)
    norm = np.sqrt(np.abs(state[:, diagonal].astype(np.float64)))
    chi2 = np.abs(state[:, len(row) + basis, None].astype(np.float64))
    tail = np.abs(state[:, len(row) + basis :].astype(np.float64))
    return np.concatenate([norm[:, row] * norm[:, column], norm * np.sqrt(chi2), tail + 1], 1)


def _compare_states(
    device: Any, host: Any, operands: dict[str, Any], pure: bool = False, **static: Any
) -> np.ndarray:
    tables = operands["tangents_A"].shape[1], operands["tangents_X"].shape[1]
    got = _states(device, operands, **static).copy()
    expected = _states(host, operands, **static).copy()
    if static.get("symmetric") == 2:  # the number of mirrored points depends on the tiles
        assert (got[:, -1] <= got[:, -2]).all()
        assert ((got[:, -1] == got[:, -2]) == (expected[:, -1] == expected[:, -2])).all()
        got[:, -1] = expected[:, -1] = 0
    _close(got, expected, _scale(expected, tables))
    if pure:
        reference = _states(device, operands, "jax", **static).copy()
        if static.get("symmetric") == 2:
            reference[:, -1] = 0
        _close(got, reference, 100 * _scale(expected, tables))
    return got


@pytest.mark.parametrize("data", _DATA)
@pytest.mark.parametrize("symmetric", [0, 1, 2])
@pytest.mark.parametrize("loss", range(len(LOSSES)))
@pytest.mark.parametrize("rank", [0, 2])
def test_states(device: Any, host: Any, data: Any, symmetric: int, loss: int, rank: int) -> None:
    operands = _normal(150, data=data, sigma_rank=rank, seed=loss)
    _compare_states(
        device,
        host,
        operands,
        pure=data is np.float64,
        loss=loss,
        symmetric=symmetric,
        sigma_rank=rank,
    )


@pytest.mark.parametrize("tables", [(0, 0), (3, 0), (1, 0), (2, 3), (5, 0), (0, 6), (12, 20)])
@pytest.mark.parametrize("loss", [0, 3])
def test_states_of_any_number_of_tables(
    device: Any, host: Any, tables: tuple[int, int], loss: int
) -> None:
    operands = _normal(120, tables)
    _compare_states(device, host, operands, loss=loss, shear_power=4 if tables[1] else 0)


@pytest.mark.parametrize("n", [1, 2, 33, 300, 2100])
def test_states_of_any_size(device: Any, host: Any, n: int) -> None:
    for symmetric in (0, 1, 2):
        _compare_states(device, host, _normal(n, data=np.float32), symmetric=symmetric)


def test_float32_reals(device: Any, host: Any) -> None:
    operands = _normal(150, data=np.float32, dtype=np.float32)
    _compare_states(device, host, operands)


def _rows(operands: dict[str, Any], first: int, last: int, initial: Any) -> dict[str, Any]:
    return {
        **operands,
        "data": operands["data"][:, first:last],
        "first_row": np.array([first], np.int32),
        "initial": initial,
    }


@pytest.mark.parametrize("symmetric", [0, 1])
def test_splits_and_runs_are_bit_identical(device: Any, symmetric: int) -> None:
    operands = _normal(1100, data=np.float32)
    whole = _states(device, operands, symmetric=symmetric)
    np.testing.assert_array_equal(whole, _states(device, operands, symmetric=symmetric))
    state = operands["initial"]
    for first, last in ((0, 2 * ROW_BLOCK), (2 * ROW_BLOCK, 960), (960, 1100)):
        state = _states(device, _rows(operands, first, last, state), symmetric=symmetric)
    np.testing.assert_array_equal(state, whole)


def test_a_first_row_out_of_range_gives_nan(device: Any) -> None:
    """The CPU kernel returns an error, which a kernel on a stream cannot."""
    if device.platform == "cpu":
        pytest.skip("the CPU returns an error instead, see tests/xpcs/model/test_handlers.py")
    operands = _normal(90)
    chunk = _rows(operands, 0, 40, operands["initial"])
    sound = _states(device, chunk)
    for row in (-1, 51, 2**31 - 1, -(2**31)):
        chunk["first_row"] = np.array([0, row, 0], np.int32)
        got = _states(device, chunk)
        assert np.isnan(got[1]).all()
        np.testing.assert_array_equal(got[[0, 2]], sound[[0, 2]])


def _model(n: int) -> Any:
    geometry = jk.xpcs.Geometry(0.0054, 2e6, 0.1, 0.1 * np.arange(n), np.linspace(0, 90, 5))
    return jk.xpcs.LaminarFlow(geometry)


def _component_tables(count: int, n: int, dtype: Any) -> list[Any]:
    """Return B [1, count, n], A and P [2, count, n] of components, contrast and offset."""
    random = np.random.default_rng(count)
    weight = random.uniform(-2, 0, (1, count, n))
    decay, phase = np.cumsum(random.random((2, 2, count, n)), 3) * 4 / n
    contrast, offset = random.uniform(0.1, 0.4, 2), random.uniform(0.9, 1.1, 2)
    return [x.astype(dtype) for x in (weight, decay, 10 * phase, contrast, offset)]


@pytest.mark.parametrize(
    ("count", "n", "dtype"), [(2, 200, np.float64), (2, 63, np.float32), (5, 130, np.float64)]
)
def test_components(device: Any, host: Any, count: int, n: int, dtype: Any) -> None:
    random = np.random.default_rng(n)
    *tables, contrast, offset = _component_tables(count, n, dtype)
    tangents = [random.standard_normal((2, count, n)).astype(dtype) for _ in tables]
    data = random.uniform(0.9, 1.5, (2, n, n)).astype(dtype)
    sigma = np.full(2, 0.1, dtype)

    def matrices(*x: Any) -> Any:
        one = x[:4], x[4], x[5:8], x[8:]
        model, offset, tangents, (data, sigma) = one
        scalars = model[3], offset
        return (
            ops.component_g2(*model, offset, batch_dims=1),
            ops.component_g2_tangent(*model, *tangents, *scalars, batch_dims=1),
            ops.component_residual(*model, offset, data, sigma, batch_dims=1, sigma_rank=0),
        )

    scale = 100.0 * count**2
    operands = *tables, contrast, offset, *tangents, data, sigma
    _three_ways(device, host, matrices, *operands, scale=scale)
    back = lambda *x: ops.component_g2_cotangent(*x, batch_dims=1)  # noqa: E731
    _three_ways(device, host, back, *tables, contrast, data, scale=scale * n * n)


@pytest.mark.parametrize(("count", "parameters"), [(2, 14), (1, 0), (3, 32)])
@pytest.mark.parametrize("symmetric", [0, 1, 2])
def test_states_of_components(
    device: Any, host: Any, count: int, parameters: int, symmetric: int
) -> None:
    n, random = 150, np.random.default_rng(parameters)
    *tables, contrast, offset = _component_tables(count, n, np.float64)
    tangents = random.standard_normal((3, 2, parameters, count, n))
    tangents[:, :, ::2, 0] = 0  # tables of zeros are left out
    measured = _normal(n, data=np.float32)
    rest = [measured[k][:2] for k in ("data", "quantization", "sigma", "keep", "f_scale")]
    operands = [*tables, *tangents, contrast, offset, *rest, measured["first_row"]]
    operands.append(np.zeros((2, ops.state_size(parameters, 0))))
    options = {"loss": 1, "symmetric": symmetric, "sigma_rank": 0}
    fn = lambda *x: ops.component_normal_equations(*x, batch_dims=1, **options)  # noqa: E731
    # The number of mirrored points depends on the tiles.
    some = lambda *x: fn(*x)[:, :-1]  # noqa: E731
    expected = on(host, "native", fn, *operands)
    scale = _scale(expected, (parameters, 0)) + 1e-3 * np.abs(expected[:, :1])
    got = _three_ways(device, host, some, *operands, scale=scale[:, :-1])
    np.testing.assert_array_equal(got, on(device, "native", some, *operands))


def test_gradients_of_a_model(device: Any, host: Any) -> None:
    model = _model(120)
    data = np.random.default_rng(0).uniform(0.9, 1.5, (5, 120, 120))
    data = (data + data.swapaxes(1, 2)) / 2

    def cost(params: Any) -> Any:
        return jnp.sum(jk.xpcs.residual(model, params, 0.3, 1.0, data, 0.05) ** 2)

    params = np.asarray(model.defaults, np.float64)
    for fn in (jax.grad(cost), lambda p: jax.jvp(cost, (p,), (p,))):
        got, expected = (on(d, "native", fn, params) for d in (device, host))
        for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-9)


def test_vmap_over_models(device: Any, host: Any) -> None:
    model = _model(70)
    params = np.asarray(model.defaults, np.float64) * np.linspace(0.9, 1.1, 6)[:, None]
    fn = jax.vmap(lambda p: jk.xpcs.g2(model, p, 0.3, 1.0))
    got = _three_ways(device, host, fn, params)
    assert got.shape == (6, 5, 70, 70)


def test_more_angles_than_a_grid_has_rows(device: Any, host: Any) -> None:
    """The second and third axis of a grid have at most 65,535 blocks."""
    phases = _phases(5, 70_001)
    fn = lambda *x: ops.two_time_g2(*x, batch_dims=1, shear_power=4)  # noqa: E731
    _close(on(device, "native", fn, *phases), on(host, "native", fn, *phases))


def test_no_frames_and_no_angles(device: Any) -> None:
    A, X, contrast, offset = _phases(10, 3)
    g2 = lambda *x: ops.two_time_g2(*x, batch_dims=1, shear_power=4)  # noqa: E731
    assert on(device, "native", g2, A[:, :0], X[:, :0], contrast, offset).shape == (3, 0, 0)
    assert on(device, "native", g2, A, X[:0], contrast[:0], offset[:0]).shape == (0, 10, 10)
    back = lambda *x: ops.two_time_g2_cotangent(*x, batch_dims=1, shear_power=4)  # noqa: E731
    bars = on(device, "native", back, A[:, :0], X[:, :0], contrast, np.zeros((3, 0, 0)))
    assert (bars[2] == 0).all()
    assert (bars[3] == 0).all()
    operands = _normal(40)
    operands["initial"] = operands["initial"] + 1.5
    none = _rows(operands, 0, 0, operands["initial"])
    np.testing.assert_array_equal(_states(device, none), operands["initial"])


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.int32, np.float32])
def test_multitau_states(device: Any, host: Any, dtype: Any) -> None:
    """Compare bits with the CPU, for blocks of any size and a state that is updated in place."""
    random = np.random.default_rng(0)
    frames = random.integers(0, 255, (150, 300)).astype(dtype)
    states = []
    for where in (device, host):
        state = jax.device_put(jk.xpcs.multitau_init(300, 200, dtype), where)
        with jk.backend("native"):
            add = jax.jit(jk.xpcs.multitau_update, donate_argnums=0)
            for first in range(0, 150, 41):
                state = add(state, jax.device_put(frames[first : first + 41], where))
        states.append(jax.tree.map(np.asarray, state))
    for x, y in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_array_equal(x, y)


def test_the_native_targets_are_called(device: Any) -> None:
    with jk.backend("native"), jax.default_device(device):
        model = _model(50)
        text = jax.jit(lambda p: jk.xpcs.g2(model, p, 0.3, 1.0)).lower(model.defaults).as_text()
    assert "jaxkern.two_time_g2.v1" in text
