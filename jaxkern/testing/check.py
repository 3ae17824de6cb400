"""The table of the op recipe as checks, and ``check_op`` that runs them."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.op import Op

DEVICES = 4


@dataclass
class OpCheck:
    """One op with samples to check it on: what every check of the table receives."""

    op: Op
    samples: Sequence[Sequence[Any]]
    static: Mapping[str, Any] = field(default_factory=dict)
    rtol: float = 1e-5
    atol: float = 1e-5
    native: bool = True
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    @property
    def count(self) -> int:
        return len(self.samples)

    @property
    def stacked(self) -> list[jax.Array]:
        """The operands of all samples, each with one leading batch axis."""
        return [jnp.stack([jnp.asarray(x) for x in xs]) for xs in zip(*self.samples, strict=True)]

    @property
    def first(self) -> list[jax.Array]:
        return [jnp.asarray(x) for x in self.samples[0]]

    @property
    def floats(self) -> list[int]:
        """The operands with respect to which the op can be differentiated."""
        return [i for i, x in enumerate(self.first) if jnp.issubdtype(x.dtype, jnp.inexact)]

    def call(self, *operands: Any, batch_dims: int = 0) -> tuple[Any, ...]:
        """The op itself; always a tuple."""
        result = self.op(*operands, batch_dims=batch_dims, **self.static)
        return result if isinstance(result, tuple) else (result,)

    def reference(self, *operands: Any) -> tuple[Any, ...]:
        """The pure-JAX implementation of one sample; always a tuple."""
        result = self.op.impl(*operands, **self.static)
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    def references(self, *stacked: Any) -> tuple[Any, ...]:
        return tuple(jax.jit(jax.vmap(self.reference))(*stacked))

    def equal(self, got: Any, wanted: Any, what: str) -> None:
        """Raises where two pytrees of arrays differ by more than the tolerances."""
        got_leaves, wanted_leaves = jax.tree.leaves(got), jax.tree.leaves(wanted)
        assert len(got_leaves) == len(wanted_leaves), f"{what}: another number of results"
        for g, w in zip(got_leaves, wanted_leaves, strict=True):
            assert g.shape == w.shape, f"{what}: shape {g.shape}, wanted {w.shape}"
            assert g.dtype == w.dtype, f"{what}: dtype {g.dtype}, wanted {w.dtype}"
            wide = np.float64 if jnp.issubdtype(g.dtype, jnp.inexact) else np.int64
            np.testing.assert_allclose(
                np.asarray(g).astype(wide),
                np.asarray(w).astype(wide),
                rtol=self.rtol,
                atol=self.atol,
                err_msg=what,
            )

    def custom_calls(self, fn: Callable[..., Any], *operands: Any) -> int:
        """How often the compiled program of ``fn`` calls the op's native target."""
        text = jax.jit(fn).lower(*operands).compile().as_text() or ""
        return text.count(f'custom_call_target="{self.op.target}"')


Check = Callable[[OpCheck], None]
_CHECKS: dict[str, Check] = {}


def check(fn: Check) -> Check:
    """Adds a check to the table under its function's name."""
    _CHECKS[fn.__name__] = fn
    return fn


def check_names() -> list[str]:
    """The rows of the table, in the order in which they run."""
    from jaxkern.testing import derivatives, placement, programs  # noqa: F401  they fill the table

    return list(_CHECKS)


def check_op(
    op: Op,
    samples: Iterable[Sequence[Any]],
    *,
    static: Mapping[str, Any] | None = None,
    rtol: float = 1e-5,
    atol: float = 1e-5,
    native: bool = True,
    only: Iterable[str] | None = None,
) -> list[str]:
    """Checks that an op keeps every promise of the recipe, against its pure-JAX implementation.

    Covers jit, control flow, remat, every mix of vmap, forward and reverse derivatives and vmap of
    them, Auto and Explicit meshes, shard_map, export and the compilation cache across processes,
    donation, and the choice of backend.

    Args:
      op: the op.
      samples: at least 4 samples with different values: each the operands of ONE sample, arrays of
        the same shapes and dtypes throughout. Their number must be a multiple of 4.
      static: the op's static arguments.
      rtol: relative tolerance of every comparison.
      atol: absolute tolerance of every comparison.
      native: whether the default platform must run a native kernel for these samples.
      only: names of the checks to run; by default all (``jaxkern.testing.check.check_names()``).

    Returns:
      The names of the checks that ran.

    Raises:
      AssertionError: with the message of every check that failed.
      ValueError: when the samples do not fit the description above.
      RuntimeError: when this process has fewer than 4 devices.

    Example:
      >>> import jaxkern as jk
      >>> double = jk.Op("docs.twice", version=1, abstract=lambda x: x, impl=lambda x: 2 * x)
      >>> samples = [(jnp.full(3, float(i)),) for i in range(4)]
      >>> jk.testing.check_op(double, samples, native=False, only=["eager_and_jit"])
      ['eager_and_jit']
    """
    case = OpCheck(op, [tuple(s) for s in samples], dict(static or {}), rtol, atol, native)
    _check_samples(case)
    names = check_names()
    chosen = list(names if only is None else only)
    if unknown := set(chosen) - set(names):
        raise ValueError(f"no check is named {sorted(unknown)}; wanted some of {names}")
    failures = []
    for name in chosen:
        try:
            _CHECKS[name](case)
        except Exception as error:
            where = "".join(traceback.format_exception(error, limit=-6))
            failures.append(f"{name}: {error}\n{where}")
    if failures:
        raise AssertionError(
            f"{op!r} fails {len(failures)} of {len(chosen)} checks:\n\n" + "\n".join(failures)
        )
    return chosen


def _check_samples(case: OpCheck) -> None:
    if case.count < 4 or case.count % 4:
        raise ValueError(f"got {case.count} samples; wanted a multiple of 4, to shard them")
    shapes = {tuple((np.shape(x), jnp.asarray(x).dtype) for x in s) for s in case.samples}
    if len(shapes) > 1:
        raise ValueError(f"the samples differ in shape or dtype: {sorted(map(str, shapes))}")
    if len(jax.devices()) < DEVICES:
        raise RuntimeError(
            f"this process has {len(jax.devices())} devices; check_op needs {DEVICES} to check "
            "sharding: set XLA_FLAGS=--xla_force_host_platform_device_count=4 before JAX starts"
        )
