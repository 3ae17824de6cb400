"""The operands with which a program calls its ops, so that each can be timed alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun

from jaxkern.core.calls import OpCall, inner_programs, op_call


def call_operands(program: ClosedJaxpr, leaves: Sequence[Any]) -> Iterator[tuple[Any, ...] | None]:
    """What every call of `jaxkern.core.calls.op_calls` gets, in the same order.

    Computes, for each call, just what its operands depend on. In a scan they are those of the first
    step, in a while loop of the first round. None where they cannot be told: in ``shard_map``, in a
    branch that is not taken, in a loop that does not run.
    """
    yield from _walk(*_with_constants(program.jaxpr, program.consts, leaves))


def constants_as_inputs(jaxpr: Jaxpr) -> Jaxpr:
    """The program with its constants as its first inputs."""
    opened: Jaxpr = jaxpr.replace(
        constvars=[],
        invars=[*jaxpr.constvars, *jaxpr.invars],
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    return opened


def _with_constants(
    jaxpr: Jaxpr, consts: Sequence[Any], values: Sequence[Any] | None
) -> tuple[Jaxpr, Sequence[Any] | None]:
    """The program with its constants as inputs, and what it gets; None where that does not fit."""
    opened = constants_as_inputs(jaxpr)
    given = None if values is None else [*consts, *values]
    return opened, given if given is not None and len(given) == len(opened.invars) else None


def _walk(jaxpr: Jaxpr, values: Sequence[Any] | None) -> Iterator[tuple[Any, ...] | None]:
    for at, eqn in enumerate(jaxpr.eqns):
        if op_call(eqn) is not None:
            yield None if values is None else _evaluated(jaxpr, at, values)
            continue
        inner = inner_programs(eqn)
        if not any(_has_call(part.jaxpr) for part in inner):
            continue
        given = None if values is None else _evaluated(jaxpr, at, values)
        for k, part in enumerate(inner):
            entering = None if given is None else _inputs(eqn, k, given)
            yield from _walk(*_with_constants(part.jaxpr, part.consts, entering))


def _has_call(jaxpr: Jaxpr) -> bool:
    return any(
        op_call(eqn) is not None or any(_has_call(p.jaxpr) for p in inner_programs(eqn))
        for eqn in jaxpr.eqns
    )


def _evaluated(jaxpr: Jaxpr, at: int, values: Sequence[Any]) -> tuple[Any, ...]:
    """The operands of the equation at an index, from the inputs of the program it stands in."""
    before, eqn = jaxpr.eqns[:at], jaxpr.eqns[at]
    wanted = [v for v in eqn.invars if not isinstance(v, Literal)]
    prefix = jaxpr.replace(
        eqns=before,
        outvars=wanted,
        effects=frozenset(),
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    found = iter(jax.jit(jaxpr_as_fun(ClosedJaxpr(prefix, ())))(*values))
    return tuple(v.val if isinstance(v, Literal) else next(found) for v in eqn.invars)


def _inputs(eqn: JaxprEqn, k: int, given: Sequence[Any]) -> Sequence[Any] | None:
    """What the k-th program inside an equation gets when it first runs; None if it does not."""
    name, params = eqn.primitive.name, eqn.params
    if name == "scan":
        if params["length"] == 0:
            return None
        first = -1 if params["reverse"] else 0
        body = inner_programs(eqn)[0].jaxpr.invars
        # What is scanned over has one axis more outside; constants and the carry do not.
        return [
            x[first] if np.ndim(x) > len(_shape(v)) else x for x, v in zip(given, body, strict=True)
        ]
    if name == "while":
        conditions, bodies = params["cond_nconsts"], params["body_nconsts"]
        carried = given[conditions + bodies :]
        if k == 0:
            return [*given[:conditions], *carried]
        return [*given[conditions : conditions + bodies], *carried]
    if name == "cond":
        index, *rest = given
        taken = int(np.clip(int(np.asarray(index)), 0, len(params["branches"]) - 1))
        return rest if taken == k else None
    return None if name in ("shard_map", "custom_linear_solve") else given


def _shape(variable: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = variable.aval.shape
    return shape


def made_up_operands(call: OpCall) -> tuple[jax.Array, ...]:
    """Operands of the shapes of a call: reals between 0 and 1, integers and flags of 0."""
    random = np.random.default_rng(0)

    def one(struct: Any) -> jax.Array:
        if jnp.issubdtype(struct.dtype, np.floating):
            return jnp.asarray(random.uniform(0, 1, struct.shape), struct.dtype)
        return jnp.zeros(struct.shape, struct.dtype)

    return tuple(map(one, call.operands))
