"""One op with samples to check it on: what every check of the table receives."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.batch import as_tuple
from jaxkern.core.op import Op
from jaxkern.testing.differentials import is_inexact
from jaxkern.testing.twin import Twin

DEVICES = 4


@dataclass(eq=False)
class OpCase:
    """An op, its samples and tolerances.

    Operands and wanted results are NumPy arrays, so that handling them compiles nothing. Programs
    that several checks share compile once.
    """

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
        """The operands of all samples, each with one leading batch axis."""
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
        """The op itself; always a tuple."""
        result = self.op(*operands, batch_dims=batch_dims, **self.static)
        return result if isinstance(result, tuple) else (result,)

    def call_batch(self, *operands: Any) -> tuple[Any, ...]:
        """The op over one leading batch axis."""
        return self.call(*operands, batch_dims=1)

    @functools.cached_property
    def batched(self) -> Any:
        """`call_batch`, jitted once for all checks."""
        return jax.jit(self.call_batch)

    @functools.cached_property
    def twin(self) -> Twin:
        """The pure-JAX implementation over samples."""
        return Twin(self.op, dict(self.static), self.floats, self.count)

    @functools.cached_property
    def wanted(self) -> tuple[Any, ...]:
        """The results of all samples, by the pure-JAX implementation."""
        return self.twin.values(*self.stacked)

    def mixed(self, mapped: Sequence[bool]) -> tuple[list[Any], list[Any]]:
        """Operands of which some are the first sample's, and the same spelled out for the twin."""
        operands = [s if m else f for s, f, m in zip(self.stacked, self.first, mapped, strict=True)]
        full = [
            s if m else np.broadcast_to(f, s.shape)
            for s, f, m in zip(self.stacked, self.first, mapped, strict=True)
        ]
        return operands, full

    def halves(self) -> list[tuple[bool, ...]]:
        """Every other operand mapped, and the others: each operand is broadcast in one of them."""
        flags = [tuple((i + k) % 2 == 0 for i in range(len(self.first))) for k in (0, 1)]
        return [f for f in flags if any(f) and not all(f)]

    def noise(self, like: Iterable[Any], count: int | None = None) -> tuple[Any, ...]:
        """Random arrays of these shapes and dtypes, behind a leading axis where one is asked."""
        leading = () if count is None else (count,)

        def one(x: Any) -> Any:
            values = self.random.standard_normal((*leading, *x.shape))
            if np.issubdtype(x.dtype, np.complexfloating):
                values = values + 1j * self.random.standard_normal(values.shape)
            return np.asarray(values).astype(x.dtype)

        return tuple(map(one, like))

    def directions(self) -> tuple[Any, ...]:
        """A random direction of the float operands of each sample."""
        return self.noise((self.first[i] for i in self.floats), self.count)

    def cotangents(self) -> tuple[Any, ...]:
        """Random cotangents of the float results of each sample."""
        return self.noise(filter(is_inexact, self.results), self.count)

    def equal(self, got: Any, wanted: Any, what: str, terms: Sequence[float] | None = None) -> None:
        """Raises where two pytrees of arrays differ by more than the tolerances.

        ``terms``: for sums, how large the terms' magnitudes are together: they bound the rounding.
        """
        got_leaves, wanted_leaves = jax.tree.leaves(got), jax.tree.leaves(wanted)
        assert len(got_leaves) == len(wanted_leaves), f"{what}: another number of results"
        sizes = terms if terms is not None else [0.0] * len(got_leaves)
        for g, w, size in zip(got_leaves, wanted_leaves, sizes, strict=True):
            assert g.shape == w.shape, f"{what}: shape {g.shape}, wanted {w.shape}"
            assert g.dtype == w.dtype, f"{what}: dtype {g.dtype}, wanted {w.dtype}"
            kind: Any = np.int64
            rtol, atol = 0.0, float(self.integer_atol)
            if is_inexact(w):
                kind = np.complex128 if jnp.iscomplexobj(w) else np.float64
                rtol, atol = self.rtol, self.atol + self.rtol * size
            got_wide, wanted_wide = (np.asarray(x).astype(kind) for x in (g, w))
            np.testing.assert_allclose(got_wide, wanted_wide, rtol=rtol, atol=atol, err_msg=what)

    def custom_calls(self, text: str | None) -> int:
        """How often a compiled program, given as text, calls the op's native target."""
        return (text or "").count(f'custom_call_target="{self.op.target}"')


def _check_samples(case: OpCase) -> None:
    if case.count < 4 or case.count % 4:
        raise ValueError(f"got {case.count} samples; wanted a multiple of 4, to shard them")
    shapes = {tuple((x.shape, x.dtype) for x in s) for s in case.samples}
    if len(shapes) > 1:
        raise ValueError(f"the samples differ in shape or dtype: {sorted(map(str, shapes))}")
    if len(jax.devices()) < DEVICES:
        raise RuntimeError(
            f"this process has {len(jax.devices())} devices; check_op needs {DEVICES} to check "
            "sharding: set XLA_FLAGS=--xla_force_host_platform_device_count=4 before JAX starts"
        )
