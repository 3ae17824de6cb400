"""Would catch: a program compiled for one static argument that answers for another one.

Python holds 0.0 and -0.0, and True, 1 and 1.0, for equal: caches that go by it return the wrong
program, in eager calls and within one jitted function alike.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

import jaxkern as jk
from jaxkern import image as im


@dataclasses.dataclass(frozen=True)
class Setting:
    value: float
    other: int = 0


def bits_of(value):
    """Return a number that depends on type and sign of a static argument."""
    if isinstance(value, Setting):
        return 100.0 + bits_of(value.value)
    if isinstance(value, tuple):
        return 1000.0 + bits_of(value[0])
    kinds = (bool, int, float, np.float64, np.float32)
    return math.copysign(1.0 + kinds.index(type(value)), value)


OP = jk.Op(
    "tests.static", version=1, abstract=lambda x, *, s: x, impl=lambda x, *, s: x + bits_of(s)
)
PLAIN = (0.0, -0.0, True, 1, 1.0, np.float64(1.0), np.float32(1.0), np.float32(-0.0))
VALUES = (
    *PLAIN,
    *((value,) for value in PLAIN),
    *(Setting(value) for value in (0.0, -0.0, 1.0, 1, True)),
)


def test_unequal_static_arguments_have_separate_programs():
    expected = [bits_of(value) for value in VALUES]
    assert [float(OP(0.0, s=value)) for value in VALUES] == expected
    assert [float(OP(0.0, s=value)) for value in VALUES] == expected
    at_once = jax.jit(lambda x: [OP(x, s=value) for value in VALUES])
    assert [float(y) for y in at_once(0.0)] == expected


def test_equal_static_arguments_share_a_program():
    runs = []

    def impl(x, *, s):
        runs.append(s)
        return x

    op = jk.Op("tests.static_shared", version=1, abstract=lambda x, *, s: x, impl=impl)
    for value in (float("nan"), float("nan"), (1.5, "a"), (1.5, "a"), Setting(2.0), Setting(2.0)):
        op(0.0, s=value)
    assert len(runs) == 3


class Scaled(jk.execution.Operator):
    def __init__(self, setting):
        self.setting = setting

    def forward(self, *, inputs):
        return inputs + bits_of(self.setting[0])


def test_the_jit_of_execution_distinguishes_them():
    of_operator = jk.execution.jit(lambda op, x: op(inputs=x))
    result = [float(of_operator(Scaled((s,)), 0.0)) for s in (0.0, -0.0, True, 1)]
    assert result == [3.0, -3.0, 1.0, 2.0]


def _ops_of_each_kind():
    images = np.arange(2 * 6 * 6 * 3, dtype=np.uint8).reshape(2, 6, 6, 3)
    flipped = im.Compose([im.Resize((4, 4)), im.RandomHorizontalFlip(), im.MixUp(1.0)])
    model = jk.xpcs.Static(jk.xpcs.Geometry(0.0054, None, 0.1, 0.1 * np.arange(6), 0.0))
    return {
        "one": OP(0.0, s=1.0),
        "vmap": jax.vmap(lambda x: OP(x, s=1.0))(jnp.arange(3.0)),
        "grad": jax.grad(lambda x: OP(x, s=1.0))(1.5),
        "image": flipped.apply(images, ({}, {"flip": True}, {"lam": 0.25})),
        "ragged": im.Compose([im.Resize((4, 4))]).apply(im.Ragged.from_list(list(images))),
        "g2": jk.xpcs.g2(model, model.defaults, 0.5, 1.0),
    }


def test_ops_run_where_jit_is_disabled():
    expected = _ops_of_each_kind()
    with jax.disable_jit():
        result = _ops_of_each_kind()
    jax.tree.map(lambda f, w: np.testing.assert_allclose(f, w, rtol=2e-4), result, expected)
