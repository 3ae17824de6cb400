"""An op with samples, the argument of every check, and its reference implementation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.axes import as_tuple
from jaxkern.core.op import Op

DEVICES = 4
Function = Callable[..., Any]


def is_inexact(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def expect(actual: Any, expected: Any, label: str) -> None:
    assert actual == expected, f"{label}: expected {expected}, got {actual}"


def float_function(fn: Function, operands: Sequence[Any], which: Sequence[int]) -> Function:
    """Return ``fn`` as a function of the operands ``which`` that returns only float results."""

    def along(*xs: Any) -> tuple[Any, ...]:
        full = list(operands)
        for i, x in zip(which, xs, strict=True):
            full[i] = x
        return tuple(r for r in fn(*full) if is_inexact(r))

    return along


def tangent(fn: Function, which: Sequence[int]) -> Function:
    """Return ``(operands, directions) -> (results, tangents)`` of float operands and results."""

    def moved(operands: Sequence[Any], directions: Sequence[Any]) -> Any:
        primals = [operands[i] for i in which]
        return jax.jvp(float_function(fn, operands, which), primals, list(directions))

    return moved


def weighted(results: Sequence[Any], cotangents: Sequence[Any]) -> Any:
    """Return the sum of results times cotangents; its gradient is the vjp of the cotangents."""
    total: Any = 0.0
    for r, c in zip(results, cotangents, strict=True):
        term = jnp.real(r * c)
        # Sums of half types accumulate in float32, forward and backward.
        total = total + jnp.sum(term.astype(jnp.promote_types(term.dtype, jnp.float32)))
    return total


def gradient(fn: Function, which: Sequence[int]) -> Function:
    """Return ``(operands, cotangents) -> gradients`` with respect to the operands ``which``."""

    def pulled(operands: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        along = float_function(fn, operands, which)
        loss = lambda *xs: weighted(along(*xs), cotangents)  # noqa: E731
        return jax.grad(loss, tuple(range(len(which))))(*(operands[i] for i in which))

    return pulled


def forward_over_reverse(fn: Function, which: Sequence[int]) -> Function:
    """Return ``(operands, directions, cotangents) ->`` the derivative of the gradient."""

    def second(operands: Sequence[Any], directions: Sequence[Any], cotangents: Any) -> Any:
        along = float_function(fn, operands, which)
        slope = jax.grad(lambda *xs: weighted(along(*xs), cotangents), tuple(range(len(which))))
        return jax.jvp(slope, [operands[i] for i in which], list(directions))[1]

    return second


def reverse_over_forward(fn: Function, which: Sequence[int]) -> Function:
    """Return the gradient of the tangent; as `forward_over_reverse`, but by other rules."""

    def second(operands: Sequence[Any], directions: Sequence[Any], cotangents: Any) -> Any:
        along = float_function(fn, operands, which)

        def loss(*xs: Any) -> Any:
            return weighted(jax.jvp(along, list(xs), list(directions))[1], cotangents)

        return jax.grad(loss, tuple(range(len(which))))(*(operands[i] for i in which))

    return second


class Reference:
    """``op.impl`` over batches whose size is a multiple of ``count``, with NumPy results."""

    def __init__(self, op: Op, static: dict[str, Any], floats: Sequence[int], count: int) -> None:
        def one(*operands: Any) -> tuple[Any, ...]:
            # Unlike `op.impl`, this raises if impl and abstract disagree.
            return op.batched_impl(*operands, batch_dims=0, **static)

        self.one, self._count = one, count
        self._values = jax.jit(jax.vmap(lambda xs: one(*xs)))
        self._tangents = jax.jit(jax.vmap(lambda *xs: tangent(one, floats)(*xs)[1]))
        self._gradients = jax.jit(jax.vmap(gradient(one, floats)))
        self._second = jax.jit(jax.vmap(forward_over_reverse(one, floats)))

    def values(self, *stacked: Any) -> tuple[Any, ...]:
        """Return the results of each sample."""
        return self._chunks(self._values, stacked)

    def tangents(self, stacked: Any, directions: Any) -> tuple[Any, ...]:
        """Return the tangents of the float results."""
        return self._chunks(self._tangents, tuple(stacked), tuple(directions))

    def gradients(self, stacked: Any, cotangents: Any) -> tuple[Any, ...]:
        """Return the gradients of each sample with respect to the float operands."""
        return self._chunks(self._gradients, tuple(stacked), tuple(cotangents))

    def second_derivatives(self, stacked: Any, directions: Any, cotangents: Any) -> tuple[Any, ...]:
        """Return the derivatives of the gradients of each sample along directions."""
        return self._chunks(self._second, tuple(stacked), tuple(directions), tuple(cotangents))

    def _chunks(self, program: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
        """Call a program on batches of one size, so that it is compiled once."""
        total, size = len(jax.tree.leaves(arguments)[0]), self._count
        assert total % size == 0
        parts = []
        for k in range(0, total, size):
            part = jax.tree.map(lambda x, k=k: np.asarray(x[k : k + size]), arguments)
            parts.append([np.asarray(r) for r in program(*part)])
        return tuple(np.concatenate(p) if len(p) > 1 else p[0] for p in zip(*parts, strict=True))


@dataclass(eq=False)
class OpCase:
    """An op, its samples and tolerances; slicing the NumPy operands compiles nothing."""

    op: Op
    samples: Sequence[Sequence[Any]]
    static: Mapping[str, Any] = field(default_factory=dict)
    rtol: float = 1e-5
    atol: float = 1e-5
    integer_atol: int = 0
    native: bool = True

    def __post_init__(self) -> None:
        self.samples = [tuple(np.asarray(jnp.asarray(x)) for x in s) for s in self.samples]
        self.static = dict(self.static)
        self.random = np.random.default_rng(0)
        _check_samples(self)

    @property
    def count(self) -> int:
        return len(self.samples)

    @functools.cached_property
    def stacked(self) -> list[Any]:
        """The operands of all samples, with a leading batch axis."""
        return [np.stack(xs) for xs in zip(*self.samples, strict=True)]

    @property
    def first(self) -> list[Any]:
        return list(self.samples[0])

    @functools.cached_property
    def floats(self) -> list[int]:
        """The operands with respect to which the op can be differentiated."""
        return [i for i, x in enumerate(self.first) if is_inexact(x)]

    @property
    def differentiable(self) -> bool:
        return bool(self.floats) and any(map(is_inexact, self.results))

    @functools.cached_property
    def results(self) -> tuple[Any, ...]:
        """Shapes and dtypes of one sample's results."""
        return as_tuple(self.op.core_results(self.first, 0, self.static))

    def call(self, *operands: Any, batch_dims: int = 0) -> tuple[Any, ...]:
        """Call the op; the result is always a tuple."""
        result = self.op(*operands, batch_dims=batch_dims, **self.static)
        return result if isinstance(result, tuple) else (result,)

    def call_batch(self, *operands: Any) -> tuple[Any, ...]:
        """Call the op on operands with a leading batch axis."""
        return self.call(*operands, batch_dims=1)

    @functools.cached_property
    def batched(self) -> Any:
        """The jitted `call_batch`, shared by all checks."""
        return jax.jit(self.call_batch)

    @functools.cached_property
    def reference(self) -> Reference:
        """The pure-JAX implementation."""
        return Reference(self.op, dict(self.static), self.floats, self.count)

    @functools.cached_property
    def expected(self) -> tuple[Any, ...]:
        """The results of the pure-JAX implementation for all samples."""
        return self.reference.values(*self.stacked)

    def broadcast_unmapped(self, mapped: Sequence[bool]) -> tuple[list[Any], list[Any]]:
        """Return operands with the unmapped ones unbatched, and the same operands broadcast."""
        operands = [s if m else f for s, f, m in zip(self.stacked, self.first, mapped, strict=True)]
        pairs = zip(operands, self.stacked, strict=True)
        return operands, [np.broadcast_to(x, s.shape) for x, s in pairs]

    def alternating_masks(self) -> list[tuple[bool, ...]]:
        """Return two alternating masks of mapped operands; each operand is unmapped in one."""
        flags = [tuple((i + k) % 2 == 0 for i in range(len(self.first))) for k in (0, 1)]
        return [f for f in flags if any(f) and not all(f)]

    def random_like(self, like: Iterable[Any], count: int | None = None) -> tuple[Any, ...]:
        """Return random arrays of these shapes and dtypes with a leading axis ``count``."""
        leading = () if count is None else (count,)

        def one(x: Any) -> Any:
            values = self.random.standard_normal((*leading, *x.shape))
            if np.issubdtype(x.dtype, np.complexfloating):
                values = values + 1j * self.random.standard_normal(values.shape)
            return np.asarray(values).astype(x.dtype)

        return tuple(map(one, like))

    def directions(self) -> tuple[Any, ...]:
        """Return random tangents of the float operands of each sample."""
        return self.random_like((self.first[i] for i in self.floats), self.count)

    def cotangents(self) -> tuple[Any, ...]:
        """Return random cotangents of the float results of each sample."""
        return self.random_like(filter(is_inexact, self.results), self.count)

    def equal(
        self, actual: Any, expected: Any, label: str, terms: Sequence[float] | None = None
    ) -> None:
        """Raise AssertionError if two pytrees of arrays differ by more than the tolerances.

        ``terms``: for results that are sums, the sum of the magnitudes of the terms, to which the
        rounding error is proportional.
        """
        actual_leaves, expected_leaves = jax.tree.leaves(actual), jax.tree.leaves(expected)
        expect(len(actual_leaves), len(expected_leaves), f"{label}: number of results")
        sizes = terms if terms is not None else [0.0] * len(actual_leaves)
        for g, w, size in zip(actual_leaves, expected_leaves, sizes, strict=True):
            expect((g.shape, g.dtype), (w.shape, w.dtype), f"{label}: shape and dtype")
            kind: Any = np.int64
            rtol, atol = 0.0, float(self.integer_atol)
            if is_inexact(w):
                kind = np.complex128 if jnp.iscomplexobj(w) else np.float64
                rtol, atol = self.rtol, self.atol + self.rtol * size
            x, y = (np.asarray(x).astype(kind) for x in (g, w))
            np.testing.assert_allclose(x, y, rtol=rtol, atol=atol, err_msg=label)

    def custom_calls(self, text: str | None) -> int:
        """Count the calls of the op's native target in the text of a compiled program."""
        return (text or "").count(f'custom_call_target="{self.op.target}"')


def _check_samples(case: OpCase) -> None:
    if case.count < 4 or case.count % 4:
        raise ValueError(f"samples: expected a multiple of 4 for sharding, got {case.count}")
    shapes = {tuple((x.shape, x.dtype) for x in s) for s in case.samples}
    if len(shapes) > 1:
        raise ValueError(f"samples: expected one shape and dtype, got {sorted(map(str, shapes))}")
    if len(jax.devices()) < DEVICES:
        flags = f"XLA_FLAGS=--xla_force_host_platform_device_count={DEVICES}"
        raise RuntimeError(f"check_op needs {DEVICES} devices; set {flags} before JAX starts")
