"""An op with samples, the argument of every check."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.axes import as_tuple
from jaxkern.core.op import Op
from jaxkern.testing.reference import Reference, expect, is_inexact

DEVICES = 4


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
            wide = (np.asarray(x).astype(kind) for x in (g, w))
            np.testing.assert_allclose(*wide, rtol=rtol, atol=atol, err_msg=label)

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
