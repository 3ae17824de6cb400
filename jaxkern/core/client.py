"""Settings that a JAX client reads once, when it starts."""

from __future__ import annotations

import math
import os

from jaxkern.core import compat

MEMORY_FRACTION = "XLA_CLIENT_MEM_FRACTION"
# The older name, which JAX refuses to see beside the newer one.
_OLD_MEMORY_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"


def set_memory_fraction(fraction: float) -> None:
    """Lets JAX take this share of each GPU's memory: call it before the first array is made.

    Sets ``XLA_CLIENT_MEM_FRACTION`` for this process and those that it starts (and unsets
    ``XLA_PYTHON_CLIENT_MEM_FRACTION``, its older name). A GPU's client reads it when it starts and
    then reserves that much at once; by default JAX takes 0.75. CPU memory is not affected.

    Args:
      fraction: above 0 and at most 1.

    Raises:
      ValueError: for a fraction outside of that.
      RuntimeError: when a GPU backend has started already.

    Example:
      >>> import jaxkern.core.client
      >>> jaxkern.core.client.set_memory_fraction(1.5)
      Traceback (most recent call last):
      ValueError: the memory fraction is 1.5; wanted a number above 0 and at most 1
    """
    try:
        value = float(fraction)
    except (TypeError, ValueError):
        value = math.nan
    if isinstance(fraction, bool) or not 0 < value <= 1:
        raise ValueError(
            f"the memory fraction is {fraction!r}; wanted a number above 0 and at most 1"
        )
    started = [name for name in compat.started_backends() if name not in ("cpu", "tpu")]
    if started:
        raise RuntimeError(
            f"the {', '.join(started)} backend of JAX has already started and has taken its "
            f"memory; set the fraction before the first array, jax.devices() or jitted call, or "
            f"start the process with {MEMORY_FRACTION}={value:g}"
        )
    os.environ.pop(_OLD_MEMORY_FRACTION, None)
    os.environ[MEMORY_FRACTION] = repr(value)
