"""The table of the op recipe as checks, and ``check_op`` that runs them."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxkern.core.op import Op
from jaxkern.testing import batching, declaration, derivatives, placement, programs
from jaxkern.testing.case import OpCase

# The rows of the table, in the order in which they run.
CHECKS: tuple[Callable[[OpCase], None], ...] = (
    batching.vmap_mixes,
    batching.vmap_axes,
    batching.vmap_nested,
    batching.batch_axes,
    batching.empty_batch,
    batching.large_batch,
    batching.other_sizes,
    declaration.declaration,
    declaration.cost,
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
    """One op with samples to check it on.

    Keep it to run checks one by one: the programs that they share compile once.
    """

    def run(self, names: Iterable[str] | None = None) -> list[str]:
        """Runs checks of the table, by default all; raises as `check_op` does."""
        known = {check.__name__: check for check in CHECKS}
        chosen = list(known if names is None else names)
        if unknown := set(chosen) - set(known):
            raise ValueError(f"no check is named {sorted(unknown)}; wanted some of {list(known)}")
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
    """The rows of the table, in the order in which they run."""
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
    """Checks that an op keeps every promise of the recipe, against its pure-JAX implementation.

    Covers jit, control flow, remat, vmap with every mix of two operands, several batch axes, a
    batch of up to 33,333 samples (8 MiB), other sizes than the samples', forward and reverse
    derivatives, those of broadcast operands, second ones where the op has a ``jvp``, Auto and
    Explicit meshes, shard_map, export and the compilation cache across processes, donation, the
    choice of backend, and the same bits from many runs in
    many threads. Equal bits do not prove that a kernel has no race: none showed in these runs.

    Args:
      op: the op.
      samples: at least 4 samples with different values: each the operands of ONE sample, arrays of
        the same shapes and dtypes throughout. Their number must be a multiple of 4.
      static: the op's static arguments.
      rtol: relative tolerance of every comparison of floats.
      atol: absolute tolerance of every comparison of floats.
      integer_atol: by how much integer results may differ.
      native: whether the default platform must run a native kernel for these samples.
      only: names of the checks to run; by default all (``jaxkern.testing.check.check_names()``).

    Returns:
      The names of the checks that ran.

    Raises:
      AssertionError: with the message of every check that failed.
      ValueError: when the samples do not fit the description above.
      RuntimeError: when this process has fewer than 4 devices.

    Example:
      >>> import jax.numpy as jnp, jaxkern as jk
      >>> double = jk.Op("docs.twice", version=1, abstract=lambda x: x, impl=lambda x: 2 * x)
      >>> samples = [(jnp.full(3, float(i)),) for i in range(4)]
      >>> jk.testing.check_op(double, samples, native=False, only=["eager_and_jit"])
      ['eager_and_jit']
    """
    given = [tuple(s) for s in samples]
    case = OpCheck(op, given, static or {}, rtol, atol, integer_atol, native)
    return case.run(only)
