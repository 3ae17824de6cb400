"""A call under `execution_options`: within its time, and noted down in its trace."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from jaxkern.core.compat import is_tracing
from jaxkern.execution.options import ACTIVE, Active, check_timeout
from jaxkern.execution.threads import Task, run_tasks

# These watch the time themselves, and can say what of their work still runs.
_WATCHFUL = ("graph", "vmap", "pmap")


def supervised(
    active: Active, name: str, category: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """``fn(*args, **kwargs)`` under the options of ``active``, which is the context's."""
    options = active.options
    # A trace of JAX belongs to its thread and has no times of its own.
    if is_tracing() or (options.deadline is None and options.trace is None):
        return fn(*args, **kwargs)
    check_timeout(name)
    if options.deadline is not None and not active.worker and category not in _WATCHFUL:
        # In its thread, which is a worker of this one.
        active = dataclasses.replace(active, worker=True)
        call = functools.partial(supervised, active, name, category, fn, *args, **kwargs)
        return run_tasks([Task(name, call)], name)[0]
    if options.trace is None:
        # Under a deadline, what a device still computes counts as the call's own time.
        return jax.block_until_ready(fn(*args, **kwargs))
    span = options.trace.begin(name, category, active.span)
    token = ACTIVE.set(dataclasses.replace(active, span=span))
    try:
        result = jax.block_until_ready(fn(*args, **kwargs))
    except BaseException as error:
        options.trace.end(span, error)
        raise
    finally:
        ACTIVE.reset(token)
    options.trace.end(span)
    return result
