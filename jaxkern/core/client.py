"""Startup of JAX's clients: settings that are read once, and startup errors."""

from __future__ import annotations

import os

import jax

from jaxkern.core import compat
from jaxkern.core.arguments import check_number

MEMORY_FRACTION = "XLA_CLIENT_MEM_FRACTION"
# The older name; JAX raises if both are set.
_OLD_MEMORY_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"


class BackendError(RuntimeError):
    """JAX cannot start a backend; the message names the requested platforms and a fix."""


def requested_platforms() -> str | None:
    """Return the value of the option ``jax_platforms``; None if it is not set."""
    return getattr(jax.config, "jax_platforms", None) or None


def start_backend() -> str:
    """Start JAX's backends, or raise `BackendError`; return the name of the default one."""
    try:
        return jax.default_backend()
    except (RuntimeError, AssertionError) as error:  # the AssertionError has no text
        reason = str(error).partition("\n")[0] or "JAX gives no reason"
        requested, advice = requested_platforms(), "set JAX_PLATFORMS=cpu to use the CPU"
        if requested:
            advice += (
                ", unset it to let JAX choose, or install jax with the plugin of that platform "
                "(for a GPU pip install 'jax[cuda13]', and nvidia-smi must list the GPU)"
            )
        raise BackendError(
            f"JAX cannot start its default backend ({reason}); JAX_PLATFORMS is {requested!r}: "
            f"{advice}"
        ) from error


def default_device() -> jax.Device:
    """Return the device that JAX uses by default."""
    device = jax.config.jax_default_device  # type: ignore[attr-defined]
    return device if isinstance(device, jax.Device) else jax.local_devices(backend=device)[0]


def set_memory_fraction(fraction: float) -> None:
    """Limit JAX to a fraction of each GPU's memory; call it before creating the first array.

    Sets ``XLA_CLIENT_MEM_FRACTION`` (JAX's default is 0.75), which a GPU client reads at startup.

    Args:
      fraction: from 0.001 to 1.

    Raises:
      ValueError: the fraction is out of range.
      RuntimeError: a GPU backend has already started.

    Example:
      >>> import jaxkern.core.client
      >>> jaxkern.core.client.set_memory_fraction(1.5)
      Traceback (most recent call last):
      ValueError: the memory fraction is 1.5; expected a number of at least 0.001 and at most 1
    """
    value = check_number("the memory fraction", fraction, 0.001, 1)
    started = [name for name in compat.started_backends() if name not in ("cpu", "tpu")]
    if started:
        raise RuntimeError(
            f"the {', '.join(started)} backend of JAX has already started; set the fraction before "
            f"the first array, or start the process with {MEMORY_FRACTION}={value:g}"
        )
    os.environ.pop(_OLD_MEMORY_FRACTION, None)
    os.environ[MEMORY_FRACTION] = repr(value)
