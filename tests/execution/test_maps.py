"""Would catch: maps that mix up their items, or lose the index of a failed item."""

from __future__ import annotations

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.errors import raises

import jaxkern as jk
from jaxkern import execution as ex

X = np.arange(24.0, dtype=np.float32).reshape(4, 2, 3)


def python_sum(x):
    return float(np.asarray(x).sum())


def test_results_are_in_the_order_of_the_items():
    threads = set()

    def finish_in_reverse(i):
        threads.add(threading.get_ident())
        time.sleep(0.05 * (4 - int(i)))
        return {"i": int(i), "text": f"item {int(i)}"}

    result = ex.pmap(finish_in_reverse, num_workers=4, host=True)(np.arange(4))
    assert result["i"].tolist() == [0, 1, 2, 3]
    assert result["text"].tolist() == [f"item {i}" for i in range(4)]
    assert len(threads) == 4


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_maps_compose_over_python_and_jax(workers):
    host = ex.vmap(python_sum, host=True)
    np.testing.assert_allclose(ex.pmap(host, workers)(X), X.sum(2))
    np.testing.assert_allclose(ex.pmap(ex.vmap(jnp.sum), workers)(X), X.sum(2))
    np.testing.assert_allclose(ex.vmap(ex.vmap(jnp.sum))(X), X.sum(2))


def test_axes_are_those_of_jax():
    y = np.arange(3.0, dtype=np.float32)

    def f(tree, y):
        return tree["a"] @ y + tree["b"]

    args = ({"a": X[0].T.copy().T, "b": np.float32(2)}, y)
    axes = ({"a": 0, "b": None}, None)
    expected = jax.vmap(f, axes)(*args)
    np.testing.assert_allclose(ex.vmap(f, axes)(*args), expected)
    np.testing.assert_allclose(ex.vmap(f, axes, host=True)(*args), expected)
    two = ex.vmap(lambda x: x * 2, in_axes=-1, out_axes=1, host=True)(X)
    np.testing.assert_allclose(two, jax.vmap(lambda x: x * 2, -1, 1)(X))


def test_items_are_divided_between_devices():
    f = ex.pmap(lambda x: jnp.sin(x).sum(), num_workers=4)
    result = f(X)
    assert len(result.sharding.device_set) == 4
    np.testing.assert_allclose(result, np.sin(X).sum((1, 2)), rtol=1e-6)
    np.testing.assert_allclose(jax.grad(lambda x: f(x).sum())(jnp.asarray(X)), np.cos(X), rtol=1e-5)
    with raises(ValueError, "4 items", "3 devices"):
        ex.pmap(jnp.sum, 3)(X)
    with raises(ValueError, "num_workers is 99"):
        ex.pmap(jnp.sum, 99)(X)


def test_kernels_are_mapped_by_jax_and_by_threads():
    crop = jax.jit(jk.image.Compose([jk.image.RandomCrop(4)]))
    images = np.random.default_rng(0).integers(0, 256, (4, 2, 6, 6, 3), np.uint8)
    keys = jk.random.record_keys(0, 0, np.arange(8)).reshape(4, 2)
    expected = jax.vmap(crop)(keys, images)
    np.testing.assert_array_equal(ex.pmap(crop, 2)(keys, images), expected)
    np.testing.assert_array_equal(ex.pmap(crop, 2, host=True)(keys, images), expected)


def test_an_error_names_its_item():
    def bad(i):
        if i == 2:
            raise OSError("no file")
        return int(i)

    with raises(OSError, "no file") as error:
        ex.pmap(bad, num_workers=2, host=True)(np.arange(5))
    assert "item 2" in " ".join(error.value.__notes__)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (([1.0, 2.0],), r"argument 0\[0\] has shape \(\)"),
        ((np.float32(1),), r"argument 0 has shape \(\)"),
        ((np.ones(2), np.ones(3)), "'argument 0': 2, 'argument 1': 3"),
        ((np.ones((0, 2)),), "got 0"),
    ],
)
def test_bad_arguments(args, message):
    with pytest.raises(ValueError, match=message):
        ex.vmap(lambda *x: 1.0, host=True)(*args)


@pytest.mark.parametrize("make", [ex.vmap, ex.pmap])
def test_jax_functions_of_no_items(make):
    for fn, plain, shape in [
        (jnp.sin, jnp.sin, (0, 2)),
        (lambda x: jnp.sum(x), jnp.sum, (0, 2)),
        (ex.vmap(jnp.sin), jnp.sin, (0, 3)),
        (ex.vmap(jnp.sum), jax.vmap(jnp.sum), (2, 0, 3)),
    ]:
        for x in (np.ones(shape, np.float32), jnp.ones(shape)):
            result, expected = make(fn)(x), jax.vmap(plain)(x)
            assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    assert ex.pmap(jnp.sin, 2)(np.ones((0, 2))).shape == (0, 2)
    keys = jax.random.split(jax.random.key(0), 3)[:0]
    assert make(jax.random.normal)(keys).shape == (0,)
    with raises(ValueError, "got 0"):
        make(python_sum, host=True)(np.ones((0, 2)))


def test_python_functions_need_host():
    calls = []

    def f(x):
        calls.append(x)
        return x * 2

    assert ex.vmap(f)(np.arange(3)).tolist() == [0, 2, 4]
    assert len(calls) == 1  # traced by JAX
    for make, host in [(ex.vmap, None), (ex.pmap, None), (ex.vmap, False)]:
        arguments = {} if host is None else {"host": host}
        for fn, x in [(python_sum, X), (len, np.array(["a", "b"]))]:
            with pytest.raises(TypeError) as error:
                make(fn, **arguments)(x)
            assert "host=True" in " ".join(error.value.__notes__)
    with pytest.raises(TypeError) as error:
        ex.pmap(ex.vmap(python_sum))(X)
    assert "pmap(vmap(python_sum))" in " ".join(error.value.__notes__)
    for texts in (np.array(["a", "b"]), np.array(["a", 1], object)):
        assert ex.vmap(lambda x: 1.0, host=True)(texts).tolist() == [1, 1]
    days = np.array(["2020-01-01", "2020-01-02"], "M8[D]")
    assert ex.vmap(lambda x: str(x), host=True)(days).tolist() == ["2020-01-01", "2020-01-02"]
    with raises(ValueError, "argument 0"):
        ex.vmap(ex.vmap(lambda x: x, host=True))(np.ones(3))


def test_strings_and_numbers_are_not_converted():
    mixed = ex.vmap(lambda x: "a" if x else 1, host=True)(np.arange(3))
    assert mixed.dtype == object
    assert mixed.tolist() == [1, "a", "a"]
    rows = ex.vmap(lambda x: np.array(["a", "b"]) if x else np.arange(2), 0, 1, host=True)
    assert rows(np.arange(3)).tolist() == [[0, "a", "a"], [1, "b", "b"]]
    parts = ex.vmap(lambda x: "a" if x else jnp.float32(2), host=True)(np.arange(2))
    assert parts.tolist() == [2, "a"]
    numbers = ex.vmap(lambda x: 0.5 if x else 1, host=True)(np.arange(2))
    assert numbers.dtype == np.float64
    ranges = ex.vmap(lambda x: range(2), host=True)(np.arange(2))
    assert ranges.tolist() == [range(2)] * 2


def test_out_axes_of_python_functions():
    for axis in (1, -1):
        first, rest = ex.vmap(lambda x: [x, {"twice": 2 * x}], out_axes=axis, host=True)(X[0])
        np.testing.assert_array_equal(first, X[0].T)
        np.testing.assert_array_equal(rest["twice"], 2 * X[0].T)
    with raises(ValueError, "axis 1", "[(3,), ()]"):
        ex.vmap(lambda x: [x, 1.0], out_axes=1, host=True)(X[0])
    for axes in [(0, 1), None]:
        with raises(ValueError, "out_axes", repr(axes)):
            ex.vmap(lambda x: 1.0, out_axes=axes, host=True)


def test_bad_functions():
    with raises(TypeError, "got int"):
        ex.vmap(3)
    for workers in (0, 2.5, "two", True):
        with pytest.raises(ValueError, match=f"num_workers is {workers!r}; expected an integer"):
            ex.pmap(jnp.sin, workers)
    assert ex.pmap(jnp.sin, np.int64(2))(X).shape == X.shape
    with raises(ValueError, "in_axes"):
        ex.vmap(abs, (0, 0))(X)
    ragged = ex.vmap(lambda i: np.ones(int(i)), host=True)
    with raises(ValueError, "(0,) and (1,) and (2,)"):
        ragged(np.arange(3))
