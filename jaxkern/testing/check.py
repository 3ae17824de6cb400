"""``check_op``, which runs the checks of the op recipe."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxkern.core.op import Op
from jaxkern.testing import derivatives, placement, programs
from jaxkern.testing.case import OpCase

# In the order in which they run.
CHECKS: tuple[Callable[[OpCase], None], ...] = (
    programs.vmap_mixes,
    programs.vmap_axes,
    programs.vmap_nested,
    programs.batch_axes,
    programs.empty_batch,
    programs.large_batch,
    programs.other_sizes,
    programs.declaration,
    programs.cost,
    derivatives.forward,
    derivatives.reverse,
    derivatives.jacobians,
    derivatives.second,
    derivatives.transposition,
    placement.mesh_auto,
    placement.mesh_explicit,
    placement.shard_map,
    placement.export_and_cache,
    programs.eager_and_jit,
    programs.one_native_call,
    programs.no_retrace,
    programs.control_flow,
    programs.donation,
    programs.backends,
    programs.repeated_runs,
)


class OpCheck(OpCase):
    """An op with samples, to run checks one at a time; shared programs are compiled once.

    Example:
      >>> import jax.numpy as jnp, jaxkern as jk
      >>> twice = jk.Op("docs.check", version=1, abstract=lambda x: x, impl=lambda x: 2 * x)
      >>> jk.testing.OpCheck(twice, [(jnp.ones(3),)] * 4, native=False).run(["eager_and_jit"])
      ['eager_and_jit']
    """

    def run(self, names: Iterable[str] | None = None) -> list[str]:
        """Run checks, by default all, and return their names; errors as in `check_op`."""
        known = {check.__name__: check for check in CHECKS}
        chosen = list(known if names is None else names)
        if unknown := set(chosen) - set(known):
            raise ValueError(f"names: expected some of {list(known)}, got {sorted(unknown)}")
        failures = []
        for name in chosen:
            self.random = np.random.default_rng(0)
            try:
                known[name](self)
            except Exception as error:
                where = "".join(traceback.format_exception(error, limit=-6))
                failures.append(f"{name}: {error}\n{where}")
        if failures:
            raise AssertionError(
                f"{self.op!r} fails {len(failures)} of {len(chosen)} checks:\n\n"
                + "\n".join(failures)
            )
        return chosen


def check_names() -> list[str]:
    """Return the names of all checks, in the order in which they run."""
    return [check.__name__ for check in CHECKS]


def check_op(
    op: Op,
    samples: Iterable[Sequence[Any]],
    *,
    static: Mapping[str, Any] | None = None,
    rtol: float = 1e-5,
    atol: float = 1e-5,
    integer_atol: int = 0,
    native: bool = True,
    only: Iterable[str] | None = None,
) -> list[str]:
    """Test all guarantees of the op recipe for an op, against its pure-JAX implementation.

    Covers jit, control flow, remat, vmap with every combination of two operands, several batch
    axes, batches of up to 33,333 samples (8 MiB), other operand sizes, first and (with a ``jvp``)
    second derivatives, meshes, shard_map, export and the compilation cache across processes,
    donation, the choice of backend, and bit-identical results of concurrent runs, which do not
    prove that a kernel has no data race.

    Args:
      op: the op.
      samples: the operands of at least 4 samples with different values, without batch axes. All
        samples have the same shapes and dtypes, and their number is a multiple of 4.
      static: the op's static arguments.
      rtol, atol: relative and absolute tolerance of every comparison of floats.
      integer_atol: absolute tolerance of integer results.
      native: if True, the default platform must run a native kernel for these samples.
      only: names of the checks to run; default ``jaxkern.testing.check.check_names()``.

    Returns:
      The names of the checks that ran.

    Raises:
      AssertionError: if checks fail, with the message of each.
      ValueError: if the samples do not fit the description above.
      RuntimeError: if JAX has fewer than 4 devices.

    Example:
      >>> import jax.numpy as jnp, jaxkern as jk
      >>> double = jk.Op("docs.twice", version=1, abstract=lambda x: x, impl=lambda x: 2 * x)
      >>> samples = [(jnp.full(3, float(i)),) for i in range(4)]
      >>> jk.testing.check_op(double, samples, native=False, only=["eager_and_jit"])
      ['eager_and_jit']
    """
    case = OpCheck(op, [tuple(s) for s in samples], static or {}, rtol, atol, integer_atol, native)
    return case.run(only)
