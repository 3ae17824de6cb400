"""Valid calls of every FFI target, and invalid changes of them.

The calls come from the recipe's cases, in which every op has a row, so a new op is fuzzed without
being listed here. The ring's targets do not belong to a `jaxkern.Op`, so their calls are listed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxkern as jk
from jaxkern.core.axes import as_tuple
from support.core.recipe_cases import case_arguments

SAMPLES = 2
INT_MIN, INT_MAX = -(2**31), 2**31 - 1
INTEGERS = (-1, INT_MAX, 0, INT_MIN, 1, 2, 3, 7, 8, 2**24, 2**24 + 1, INT_MAX - 1, INT_MIN + 1)
FLOATS = (float("nan"), 0.0, -1.0, float("inf"), float("-inf"), 3e38, 1e-40)
DTYPES = ("bool", "uint8", "int8", "uint16", "int32", "uint32", "float16", "bfloat16", "float32")
SIZES = (0, 1, 2, 3, 5, 7)
MISSING = object()


@dataclasses.dataclass(frozen=True)
class HandlerCall:
    """A custom call. ``change`` describes its difference from a valid one."""

    target: str
    operands: tuple[np.ndarray, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]
    attributes: dict[str, Any]
    x64: bool = False
    change: str = "none"

    def __str__(self) -> str:
        arrays = [f"{x.dtype}{list(x.shape)}" for x in (*self.operands, *self.results)]
        given = {name: np.asarray(value).tolist() for name, value in self.attributes.items()}
        n = len(self.operands)
        return f"{self.target}({arrays[:n]}, {given}) -> {arrays[n:]}; change: {self.change}"

    def run(self) -> str | None:
        """Run the call. Return the error's text, or None if it returned results."""
        with jax.enable_x64(self.x64):
            call = jax.ffi.ffi_call(self.target, list(self.results), has_side_effect=True)
            try:
                jax.block_until_ready(
                    jax.jit(lambda *xs: call(*xs, **self.attributes))(*self.operands)
                )
            except (jax.errors.JaxRuntimeError, ValueError) as error:  # JAX maps a status to either
                return str(error)
        return None


def valid_calls(every_case: bool) -> Iterator[HandlerCall]:
    """Return a call of each op, for its first case or for every case, and the calls of the ring."""
    seen = {"scale"}
    for name, make in case_arguments().items():
        kind = name.split("-")[0]
        if kind in seen and not every_case:
            continue
        seen.add(kind)
        with jax.enable_x64("f64" in name) if "f64" in name else contextlib.nullcontext():
            call = _call_of_case("f64" in name, **make())
        if call.target in jk.export_targets():
            yield call
    yield from _ring_calls()


def _call_of_case(
    x64: bool, *, op: jk.Op, samples: Any, static: Any = None, **_: Any
) -> HandlerCall:
    samples = samples[:SAMPLES]
    operands = tuple(np.stack(values) for values in zip(*samples, strict=True))
    results = tuple(
        jax.ShapeDtypeStruct((SAMPLES, *one.shape), one.dtype)
        for one in as_tuple(op.core_results(list(samples[0]), 0, static or {}))
    )
    attributes = dict(op.attributes(**(static or {}))) if op.attributes is not None else {}
    return HandlerCall(op.target, operands, results, attributes, x64)


def _ring_calls() -> Iterator[HandlerCall]:
    """Return calls on a ring with ready batches and free slots, and short timeouts."""
    leaves = (jax.ShapeDtypeStruct((3,), np.float32), jax.ShapeDtypeStruct((), np.int32))
    batch = tuple(np.ones(leaf.shape, leaf.dtype) for leaf in leaves)
    for pops in (True, False):
        ring = jk.ring.Ring(leaves, capacity=4, pop_timeout=0.02)
        _RINGS.append(ring)
        token = np.asarray(ring.token())
        word = jax.ShapeDtypeStruct(token.shape, token.dtype)
        if pops:
            ring.put(batch)
            yield HandlerCall("jaxkern.ring_pop.v1", (token,), (word, *leaves), {})
        else:
            yield HandlerCall("jaxkern.ring_push.v1", (token, *batch), (word,), {})


_RINGS: list[Any] = []  # open until the process ends


def attribute_changes(call: HandlerCall, brief: bool) -> Iterator[HandlerCall]:
    """Yield calls where an attribute has an extreme value or another type, or is missing."""
    for name, value in call.attributes.items():
        for hostile in (*_hostile_attributes(np.asarray(value), brief), MISSING):
            attributes = call.attributes | {name: hostile}
            if hostile is MISSING:
                del attributes[name]
            text = "missing" if hostile is MISSING else repr(hostile)
            yield dataclasses.replace(
                call, attributes=attributes, change=f"attribute {name!r} is {text}"
            )
    yield dataclasses.replace(
        call, attributes=call.attributes | {"unknown": np.int32(1)}, change="another attribute"
    )


def _hostile_attributes(value: np.ndarray, brief: bool) -> Iterator[Any]:
    kind = value.dtype.type
    if kind is np.bool_:
        scalars: list[Any] = [not value.flat[0]] if value.size else [True]
    elif value.dtype.kind == "f":
        scalars = list(FLOATS[:1] if brief else FLOATS)
    else:
        limits = np.iinfo(value.dtype)
        few = 4 if value.ndim == 0 else 2
        scalars = list(INTEGERS[:few] if brief else (*INTEGERS, limits.min, limits.max))
    if value.ndim == 0:
        yield from (kind(scalar) for scalar in scalars)
        yield np.float32(float("nan")) if kind is not np.float32 else np.int32(1)
        if not brief:
            yield from (np.int64(1), np.bool_(True), "text", np.ones(2, np.int32))
            yield from (np.int8(1), np.uint32(1), np.float64(1.0))
        return
    for k, scalar in enumerate(scalars):
        if value.size:
            changed = value.copy()
            changed.flat[k % value.size] = scalar
            yield changed
    yield value[:-1] if value.size else np.ones(1, value.dtype)
    if not brief:
        yield np.append(value, value[-1:] if value.size else value.dtype.type(1))
        yield np.zeros(0, value.dtype)
        yield np.ones(1000, value.dtype)
        yield value.astype(np.int64 if value.dtype.kind != "f" else np.float64)
        yield "text"


def random_change(call: HandlerCall, draw: random.Random) -> HandlerCall:
    """Return a call with one or two changed operands, results or values."""
    operands, results, changes = list(call.operands), list(call.results), []
    for _ in range(draw.randint(1, 2)):
        at = draw.randrange(len(operands) + len(results))
        how = draw.choice(("value", "value", "shape", "dtype", "count"))
        is_result = at >= len(operands)
        if is_result:
            at -= len(operands)
            if how == "count":
                results = results[:at] + results[at + 1 :] or [*results, results[0]]
            else:
                shape, dtype = results[at].shape, results[at].dtype
                shape = _other_shape(shape, draw) if how == "shape" else shape
                dtype = jnp.dtype(draw.choice(DTYPES)) if how != "shape" else dtype
                results[at] = jax.ShapeDtypeStruct(shape, dtype)
        elif how == "count":
            operands = draw.choice([operands[:at] + operands[at + 1 :], [*operands, operands[at]]])
        elif how == "shape":
            operands[at] = np.resize(operands[at], _other_shape(operands[at].shape, draw))
        elif how == "dtype":
            operands[at] = np.ones(operands[at].shape, jnp.dtype(draw.choice(DTYPES)))
        else:
            operands[at] = _with_other_values(operands[at], draw)
        changes.append(f"{how} of {'result' if is_result else 'operand'} {at}")
    return dataclasses.replace(
        call, operands=tuple(operands), results=tuple(results), change=" and ".join(changes)
    )


def _other_shape(shape: tuple[int, ...], draw: random.Random) -> tuple[int, ...]:
    shape = tuple(n % 2**40 for n in shape)  # without a huge size of an earlier change
    at = draw.randint(0, len(shape))
    how = draw.choice(("drop", "add", "size", "size", "huge"))
    if how == "huge":  # without elements: nothing is allocated, but products of sizes overflow
        return (*shape[:at], 2**40, 0, *shape[at + 1 :])
    if how == "add" or at == len(shape):
        return (*shape[:at], draw.choice(SIZES), *shape[at:])
    size = () if how == "drop" else (draw.choice(SIZES),)
    return (*shape[:at], *size, *shape[at + 1 :])


def _with_other_values(values: np.ndarray, draw: random.Random) -> np.ndarray:
    changed = values.copy()
    for _ in range(draw.randint(1, 3) if values.size else 0):
        at = draw.randrange(values.size)
        if values.dtype == bool:
            changed.flat[at] = not values.flat[at]
        elif jnp.issubdtype(values.dtype, jnp.floating):
            changed.flat[at] = draw.choice(FLOATS)
        else:
            limits = jnp.iinfo(values.dtype)
            hostile = (*INTEGERS, limits.min, limits.max)
            changed.flat[at] = min(max(draw.choice(hostile), limits.min), limits.max)
    return changed
