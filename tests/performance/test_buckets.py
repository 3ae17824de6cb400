"""Would catch: more compilations than promised, rows that are wrong or lost, a wrong mask."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxkern as jk
from jaxkern import performance
from jaxkern.performance import Buckets, bucket_shapes, pad_to


def softmax(x, *, mask):
    weights = jnp.where(mask, jnp.exp(x - jnp.max(jnp.where(mask, x, -jnp.inf))), 0)
    return {"weights": weights / weights.sum(), "sum": jnp.where(mask, x, 0).sum()}


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_results_are_those_of_the_rows_given(kind):
    fn = bucket_shapes(softmax, buckets=(4, 8), out_axes={"weights": 0, "sum": None})
    for n in (1, 3, 4, 7, 8):
        x = np.linspace(-1, 2, n, dtype=np.float32)
        found = fn(kind(x))
        wanted = np.exp(x.astype(np.float64)) / np.exp(x.astype(np.float64)).sum()
        np.testing.assert_allclose(found["weights"], wanted, rtol=1e-5)
        np.testing.assert_allclose(found["sum"], x.sum(), rtol=1e-5)
        assert isinstance(found["weights"], jax.Array)


def test_at_most_one_compilation_for_a_bucket():
    fn = bucket_shapes(softmax, out_axes={"weights": 0, "sum": None})
    with performance.watch_compiles() as watch:
        for n in range(1, 200):
            fn(np.zeros(n, np.float32))
    assert watch[softmax].compiles == 5  # 16, 32, 64, 128, 256
    # Nothing else is compiled anew for a size.
    assert watch.compiles == 5


def test_a_kernel_and_other_axes():
    chain = jk.image.Compose([jk.image.CenterCrop(4), jk.image.Normalize(0.5, 0.25)])

    @jax.jit
    def fn(scale, images, extra):
        return scale * chain(jax.random.key(0), images), extra.sum(0)

    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), np.uint8)
    extra = np.arange(15.0, dtype=np.float32).reshape(3, 5)
    bucketed = bucket_shapes(
        fn, in_axes=(None, 0, 1), out_axes=(0, 0), buckets=[8], mask_argument=None
    )
    for found, wanted in zip(bucketed(2.0, images, extra), fn(2.0, images, extra), strict=True):
        assert found.shape == wanted.shape
        np.testing.assert_array_equal(found, wanted)
    assert bucketed.padded._cache_size() == 2  # the bucket, and the direct call


def test_inside_jit():
    fn = bucket_shapes(softmax, buckets=[8], out_axes={"weights": 0, "sum": None})
    x = jnp.arange(5.0)
    np.testing.assert_allclose(jax.jit(fn)(x)["weights"], jax.nn.softmax(x), rtol=1e-5)
    gradient = jax.grad(lambda x: fn(x)["weights"][0])(x)
    np.testing.assert_allclose(gradient, jax.grad(lambda x: jax.nn.softmax(x)[0])(x), atol=1e-6)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 10**5), st.integers(1, 200), st.floats(1.1, 8))
def test_geometric_buckets_keep_their_bound(n, start, growth):
    buckets = Buckets(start=start, growth=growth)
    size = buckets.size(n)
    assert n <= size
    assert size % start == 0
    assert size < n * growth + start or size == start
    assert buckets.size(size) == size
    sizes, at = set(), 1
    while at <= n:
        sizes.add(buckets.size(at))
        at = buckets.size(at) + 1
    assert len(sizes) <= 2 + math.log(max(n / start, 1)) / math.log(growth)


def test_pad_to():
    x = np.arange(6).reshape(2, 3)
    for kind in (np.asarray, jnp.asarray):
        padded = pad_to(kind(x), 4, axis=-1, value=9)
        np.testing.assert_array_equal(padded, [[0, 1, 2, 9], [3, 4, 5, 9]])
    with pytest.raises(ValueError, match="3 rows on axis 1; wanted 2 or fewer"):
        pad_to(x, 2, axis=1)


def test_bad_input():
    for buckets in ((), (4, 4), (0, 3)):
        with pytest.raises(ValueError, match="wanted rising sizes"):
            Buckets(buckets)
    with pytest.raises(ValueError, match="growth 1"):
        Buckets(growth=1)
    fn = bucket_shapes(lambda x, y, mask: (x, x.sum()), buckets=[4])
    with pytest.raises(ValueError, match="size 5 is beyond the largest bucket, 4"):
        fn(np.zeros(5), np.zeros(5))
    with pytest.raises(ValueError, match=r"args\[0\]: 2, args\[1\]: 3; wanted the same"):
        fn(np.zeros(2), np.zeros(3))
    with pytest.raises(ValueError, match=r"args\[1\] has shape \(\).* axis 0"):
        fn(np.zeros(2), 3)
    with pytest.raises(ValueError, match=r"a result has shape \(\); wanted 4 rows.*None in out"):
        fn(np.zeros(2), np.zeros(2))
