"""How JAX's clients start: settings that they read once, and why none starts."""

from __future__ import annotations

import math
import os

import jax

from jaxkern.core import compat

MEMORY_FRACTION = "XLA_CLIENT_MEM_FRACTION"
# The older name, which JAX refuses to see beside the newer one.
_OLD_MEMORY_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"


# What JAX raises where no client starts; the second has no text.
START_ERRORS = (RuntimeError, AssertionError)


class BackendError(RuntimeError):
    """JAX cannot start a backend; the message says which were wanted and what to do."""


def wanted_platforms() -> str | None:
    """What ``JAX_PLATFORMS`` was when JAX was imported, or what its setting was changed to."""
    return getattr(jax.config, "jax_platforms", None) or None


def start_problem(error: Exception) -> str:
    """What to tell of an error of `START_ERRORS` that JAX's default backend ended in."""
    lines = str(error).splitlines()
    reason = lines[0] if lines else "JAX gives no reason"
    problem = f"JAX cannot start its default backend ({reason})"
    wanted = wanted_platforms()
    if not wanted:
        return f"{problem}; JAX_PLATFORMS is not set: JAX_PLATFORMS=cpu takes the CPU alone"
    return (
        f"{problem}: JAX_PLATFORMS is {wanted!r}, and nothing else may start; unset it to let JAX "
        "choose, set JAX_PLATFORMS=cpu to take the CPU, or install jax with the plugin of that "
        "platform (for a GPU pip install 'jax[cuda13]', and nvidia-smi must show it)"
    )


def start_backend() -> str:
    """Starts JAX's backends and returns the default one's name.

    Raises:
      BackendError: where JAX cannot start it.
    """
    try:
        return jax.default_backend()
    except START_ERRORS as error:
        raise BackendError(start_problem(error)) from error


def default_device() -> jax.Device:
    """Where JAX computes when nothing says otherwise."""
    device = jax.config.jax_default_device  # type: ignore[attr-defined]
    return device if isinstance(device, jax.Device) else jax.local_devices(backend=device)[0]


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
