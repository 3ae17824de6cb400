"""What differs between two calls of a function that JAX had to trace, by the names of arguments."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import jax

from jaxkern.core import compat


@dataclass(frozen=True)
class Change:
    """Why a function was traced or compiled again.

    Attributes:
      argument: such as ``"batch['image']"``; empty where it is not an argument.
      kind: ``"shape"``, ``"dtype"``, ``"weak type"``, ``"sharding"``, ``"static value"``,
        ``"structure"``, ``"function"`` (another function object of the same definition) or
        ``"context"`` (an option of JAX, a mesh, `jaxkern.backend`, or caches that were cleared).
      before: as text.
      now: as text.
    """

    argument: str
    kind: str
    before: str
    now: str

    def __str__(self) -> str:
        if self.kind == "function":
            return "another function object of the same definition: define and jit it once"
        if self.kind == "context":
            return (
                "no argument: an option of JAX, the mesh or the backend context changed, or JAX's "
                "caches were cleared"
            )
        return f"{self.argument or 'arguments'}: {self.kind} {self.before} -> {self.now}"


def differences(call: compat.TracedCall, before: dict[Any, Any]) -> list[Change]:
    """The arguments of a call that are not as before."""
    now = call.arguments
    changes = []
    for path in [*now, *(p for p in before if p not in now)]:
        name = _name(call.function, path)
        if path not in before:
            changes.append(Change(name, "structure", "absent", _text(now[path])))
        elif path not in now:
            changes.append(Change(name, "structure", _text(before[path]), "absent"))
        else:
            change = _difference(name, before[path], now[path])
            if change is not None:
                changes.append(change)
    return changes


def _difference(name: str, old: Any, new: Any) -> Change | None:
    arrays = _is_array(old), _is_array(new)
    if not any(arrays):
        if type(old) is type(new) and old == new:
            return None
        return Change(name, "static value", repr(old), repr(new))
    if not all(arrays):
        return Change(name, "structure", _text(old), _text(new))
    for attribute in ("shape", "dtype", "weak_type", "sharding"):
        before, now = getattr(old, attribute, None), getattr(new, attribute, None)
        if before != now:
            return Change(name, attribute.replace("_", " "), str(before), str(now))
    if old == new:
        return None
    return Change(name, "structure", str(old), str(new))


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.core.AbstractValue)


def _text(value: Any) -> str:
    return str(value) if _is_array(value) else repr(value)


def _name(function: Any, path: tuple[Any, ...]) -> str:
    """``batch['image']`` of a path in ``(args, kwargs)``, by the function's own parameters."""
    if len(path) < 2:
        return ""
    place, rest = path[1], jax.tree_util.keystr(path[2:])
    if path[0].idx == 1:
        return f"{place.key}{rest}"
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return f"args[{place.idx}]{rest}"
    for position, parameter in enumerate(parameters):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            return f"{parameter.name}[{place.idx - position}]{rest}"
        if position == place.idx:
            return f"{parameter.name}{rest}"
    return f"args[{place.idx}]{rest}"
