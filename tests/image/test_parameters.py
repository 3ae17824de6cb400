"""Would catch: native draws that differ from JAX's, and a Compose that compiles slowly again."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxkern as jk
from jaxkern import image as im
from jaxkern.image.parameters.assembler import UnsupportedError
from jaxkern.image.parameters.compile import compile_jaxpr
from jaxkern.image.parameters.per_image import per_image

N = 130  # two full blocks of lanes and a part of one
KEYS = jax.random.split(jax.random.key(5), N)
INTEGERS = np.random.default_rng(1).integers(-(2**31), 2**31, (N, 3), np.int64).astype(np.int32)
INTEGERS[:6] = [[0, 0, 5], [7, 0, -1], [-(2**31), -1, 3], [5, 31, 2], [-9, 4, 2], [1, 33, 0]]
FLOATS = np.random.default_rng(2).normal(0, 4, (N, 3)).astype(np.float32)
FLOATS[:4] = [[np.nan, 1, 2], [np.inf, -np.inf, 0], [-0.0, 0.5, 2.5], [3e9, -3e9, 1.5]]


def native(fn, *args):
    """Return the results of a parameter program; fails if `fn` has none."""
    structs = [jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype) for x in args]
    closed = jax.make_jaxpr(fn)(*structs)
    compile_jaxpr(closed.jaxpr, closed.consts)
    run = jax.jit(lambda *xs: per_image(fn, *xs))
    assert "jaxkern.image_parameters" in run.lower(*args).as_text()
    return run(*args)


def integer_ops(x):
    a, b, c = x[:, 0], x[:, 1], x[:, 2]
    u, v = a.astype(jnp.uint32), b.astype(jnp.uint32)
    s = v % 40
    signed = [a + b, a - b, a * b, a & b, a | b, a ^ b, ~a, -a, jnp.abs(a), jnp.sign(a)]
    signed += [jax.lax.div(a, b), jax.lax.rem(a, b), a // c, a % c, jnp.minimum(a, b)]
    signed += [jnp.maximum(a, b), jnp.clip(a, -5, 9), jnp.square(a), a >> s.astype(jnp.int32)]
    unsigned = [jax.lax.div(u, v), jax.lax.rem(u, v), jnp.minimum(u, v), jnp.maximum(u, v)]
    unsigned += [jax.lax.shift_left(u, s), jax.lax.shift_right_logical(u, s)]
    tests = [a < b, a <= b, a > b, a >= b, a == b, a != b, u < v, u >= v, (a < b) ^ (a < c)]
    table = jnp.asarray([[3, 1, 4], [1, 5, 9]])
    rows = [x.sum(1), x.max(1), x.min(1), x.prod(1), (x > 0).any(1), (x > 0).all(1)]
    rows += [x.argmax(1), jnp.sort(x, 1)[:, ::-1], jnp.where(a < b, a, c), table[:, a & 3][0]]
    rows += [table[a & 1, b & 1], jax.vmap(lambda row, k: row[k])(x, b & 1), x.T[1] + jnp.arange(1)]
    return [*signed, *unsigned, *tests, *rows, a.astype(jnp.float32), u.astype(jnp.float32)]


def test_integers_equal_jax():
    x = jnp.asarray(INTEGERS)
    with jk.backend("jax"):
        expected = jax.jit(integer_ops)(x)
    for k, (got, reference) in enumerate(zip(native(integer_ops, x), expected, strict=True)):
        assert got.dtype == reference.dtype
        np.testing.assert_array_equal(got, reference, err_msg=str(k))


def float_ops(x):
    a, b, c = x[:, 0], x[:, 1], x[:, 2]
    exact = [a + b, a * b, a - b, a / b, -a, jnp.abs(a), jnp.sign(a), jnp.floor(a), jnp.ceil(a)]
    exact += [jnp.round(a), jnp.trunc(a), jnp.minimum(a, b), jnp.maximum(a, b), a < b, a <= b]
    exact += [a == b, a != b, jnp.isfinite(a), a.astype(jnp.int32), jnp.sqrt(jnp.abs(a))]
    exact += [jax.lax.bitcast_convert_type(a, jnp.int32), x.max(1), a.astype(bool)]
    close = [jnp.exp(b), jnp.log(jnp.abs(b)), jnp.log1p(jnp.abs(b)), jnp.sin(b), jnp.cos(b)]
    close += [jax.lax.tan(b), jax.lax.erf_inv(jnp.clip(c / 8, -0.9999, 0.9999)), x.sum(1)]
    with jax.enable_x64(True):
        wide = a.astype(jnp.float64)
        close += [jnp.where(a < b, wide * 3, jnp.sin(wide) / 3).astype(jnp.float32)]
        close += [(jnp.sqrt(jnp.abs(wide) + 1) + (wide < 2)).astype(jnp.float32)]
    return exact, close


def test_floats_equal_jax():
    x = jnp.asarray(FLOATS)
    with jk.backend("jax"):
        exact, close = jax.jit(float_ops)(x)
    got_exact, got_close = native(float_ops, x)
    for k, (got, reference) in enumerate(zip(got_exact, exact, strict=True)):
        np.testing.assert_array_equal(got, reference, err_msg=str(k))
    for k, (got, reference) in enumerate(zip(got_close, close, strict=True)):
        np.testing.assert_allclose(got, reference, rtol=3e-6, atol=1e-6, err_msg=str(k))


def random_numbers(words):
    def one(words):
        key = jax.random.wrap_key_data(words, impl="threefry2x32")
        first, second, third = jax.random.split(jax.random.fold_in(key, 77), 3)
        exact = [jax.random.bits(first, (2, 3)), jax.random.key_data(second)]
        exact += [jax.random.permutation(second, 5), jax.random.randint(third, (3,), -4, 9)]
        exact += [jax.random.uniform(first, (4,)), jax.random.bernoulli(second, 0.3, (2,))]
        alpha = jnp.asarray([0.0, 0.2, 1.0, 7.5])
        close = [jax.random.normal(first, (3,)), jax.random.loggamma(third, alpha)]
        close += [jax.random.gamma(third, alpha), jax.random.beta(second, 0.4, 0.4)]
        return exact, [*close, jax.random.exponential(first)]

    return jax.vmap(one)(words)


def test_random_numbers_equal_jax():
    words = jax.random.key_data(KEYS)
    expected, close = jax.jit(random_numbers)(words)
    got, got_close = native(random_numbers, words)
    for k, pair in enumerate(zip(got, expected, strict=True)):
        np.testing.assert_array_equal(*pair, err_msg=str(k))
    for k, pair in enumerate(zip(got_close, close, strict=True)):
        np.testing.assert_allclose(*pair, rtol=2e-5, atol=2e-6, err_msg=str(k))


CROP = [im.RandomResizedCrop(16), im.RandomHorizontalFlip()]
LISTS = {
    "crop": [*CROP, im.Normalize(0.5, 0.2)],
    "RandAugment": [*CROP, im.RandAugment(), im.Normalize(0.5, 0.2)],
    "SimCLR": [
        *CROP,
        im.RandomApply([im.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
        im.RandomGrayscale(0.2),
        im.GaussianBlur(3),
        im.Normalize(0.5, 0.2),
    ],
    "AugMix": [*CROP, im.AugMix(), im.Normalize(0.5, 0.2)],
    "MixUp": [*CROP, im.Normalize(0.5, 0.2), im.MixUp(0.4)],
    "erasing": [im.RandomCrop(16, padding=2), im.RandomErasing(1.0), im.CutMix(1.0)],
}
IMAGES = np.random.default_rng(0).integers(0, 256, (N, 24, 20, 3), np.uint8)


@pytest.mark.parametrize("name", LISTS)
def test_a_chain_is_a_small_program(name):
    aug = im.Compose(LISTS[name])
    text = jax.jit(lambda k, x: aug(k, x)).lower(KEYS[0], IMAGES).compile().as_text()
    count = len(re.findall(r"^\s+(?:ROOT )?%?[\w.-]+ = ", text, re.MULTILINE))
    assert count <= 40 + 10 * len(aug.transforms) + 30 * (name in ("MixUp", "erasing"))
    assert "while(" not in text


@pytest.mark.parametrize("name", ["SimCLR", "erasing"])
def test_draws_equal_the_reference_implementation(name):
    aug = im.Compose(LISTS[name])
    draws = {}
    for backend in ("jax", "native"):
        with jk.backend(backend):
            draws[backend] = jax.jit(lambda keys: aug.sample(keys, (24, 20)))(KEYS)
    assert jax.tree.structure(draws["jax"]) == jax.tree.structure(draws["native"])

    def compare(a, b):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6)

    jax.tree.map(compare, draws["native"], draws["jax"])


def test_an_eager_call_is_one_program():
    compiled = []
    aug, key = im.Compose(LISTS["RandAugment"]), jax.random.key(3)
    expected = jax.jit(lambda k, x: aug(k, x))(key, IMAGES)
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
    )
    np.testing.assert_array_equal(aug(key, IMAGES), expected)
    assert len(compiled) == 1
    aug(key, IMAGES)
    assert len(compiled) == 1
    fields = {"name": ["a"] * N, "image": IMAGES, "boxes": np.zeros((N, 1, 4), np.float32)}
    out = aug(key, fields)
    assert list(out) == [*fields, "boxes_valid"]
    assert out["name"] is fields["name"]
    aug.transforms = aug.transforms[:1]
    assert aug(key, IMAGES).dtype == np.uint8  # settings may change between calls


@pytest.mark.parametrize("impl", ["rbg", "threefry2x32"])
def test_keys_without_native_draws(impl):
    """Other generators, and threefry with another layout of counters, run in JAX."""
    aug = im.Compose(LISTS["crop"])
    keys = jax.random.split(jax.random.key(1, impl=impl), 3)
    with jax.threefry_partitionable(False):
        with jk.backend("jax"):
            expected = jax.jit(lambda k: aug.sample(k, (9, 9)))(keys)
        got = jax.jit(lambda k: aug.sample(k, (9, 9)))(keys)
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_a_function_without_native_ops_runs_in_jax():
    x = jnp.asarray(FLOATS[4:])
    fn = lambda x: jnp.cumsum(x, axis=1)  # noqa: E731
    with pytest.raises(UnsupportedError):
        native(fn, x)
    np.testing.assert_allclose(jax.jit(lambda x: per_image(fn, x))(x), np.cumsum(x, 1), rtol=1e-5)


def of_keys(fn):
    """Return a function of the words of keys."""
    wrap = functools.partial(jax.random.wrap_key_data, impl="threefry2x32")
    return jax.vmap(lambda words: fn(wrap(words)))


def print_and_draw(key):
    jax.debug.callback(lambda: None)
    return jax.random.uniform(key)


BASE = jax.random.key(3)
TRACED = jnp.arange(16.0).reshape(2, 2, 2, 2)
# Of words of keys, and of TRACED as a constant that is a tracer.
UNUSUAL = {
    "no elements": lambda x, c: jnp.concatenate(
        [x, jnp.sort(x[:, :0]), (x[:, :0, None] + jnp.arange(2, dtype=x.dtype)).sum(2)], 1
    ),
    "no variates": lambda x, c: of_keys(
        lambda k: jnp.concatenate([jax.random.uniform(k, (2,)), jax.random.gamma(k, jnp.ones(0))])
    )(x),
    "an index of keys": lambda x, c: of_keys(
        lambda k: jax.random.uniform(jax.random.split(k)[jax.random.randint(k, (), 0, 2)])
    )(x),
    "a constant key": lambda x, c: jax.vmap(
        lambda row: jax.random.uniform(jax.random.fold_in(BASE, row[0]))
    )(x),
    "no operands": lambda x, c: of_keys(print_and_draw)(x),
    "unsigned": lambda x, c: (
        jnp.sign(x),
        jax.vmap(lambda row: row.at[row[0] % 5].get(mode="fill", fill_value=-1))(x),
    ),
    "a constant result": lambda x, c: (x + 1, jnp.full(1, 0.5, jnp.float64)),
    "a constant of 4 axes": lambda x, c: x + c[0, 1, 0, 1],
    "a constant of 3 axes": lambda x, c: x + c[0][1, 0, 1],
    "a table of two indices": lambda x, c: jnp.arange(60).reshape(3, 4, 5)[
        x[:, 0] % 3, :, x[:, 1] % 5
    ],
    "absolute values of zero": lambda x, c: 1 / jnp.abs(x * jnp.float32(0)),
    "unsigned indices": lambda x, c: jnp.arange(5).at[x].get(mode="clip"),
    "a large draw": lambda x, c: of_keys(lambda k: jax.random.bits(k, (200000,))[:2])(x),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_functions_equal_jax(name):
    words, fn = jax.random.key_data(KEYS[:3]), UNUSUAL[name]
    with jax.enable_x64(name == "a constant result"), jax.checking_leaks():
        run = lambda x, c: per_image(lambda x: fn(x, c), x)  # noqa: E731
        got = jax.jit(lambda x, c: run(x, c))(words, TRACED)
        with jk.backend("jax"):
            expected = jax.jit(lambda x, c: run(x, c))(words, TRACED)
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_boxes_of_no_image():
    aug = im.Compose([im.RandomIoUCrop(), im.Resize((8, 8))])
    fields = {"image": IMAGES[:4], "boxes": np.zeros((4, 0, 4), np.float32)}
    assert aug(KEYS[0], fields)["boxes"].shape == (4, 0, 4)
