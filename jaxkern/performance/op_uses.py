"""The op calls of a traced program with operands, so that each op can be timed alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun
from jax.interpreters import partial_eval

from jaxkern.core.calls import OpCall, inner_programs, op_call, op_calls, times


@dataclasses.dataclass(frozen=True)
class OpUse:
    """Equal calls of an op, counted over all devices, and operands of one of them.

    ``is_own``: True if the operands are those of the program, False if they are synthetic.
    """

    call: OpCall
    operands: Sequence[Any]
    is_own: bool


def op_uses(program: ClosedJaxpr, leaves: Sequence[Any] | None) -> list[OpUse]:
    """Return the distinct calls of a program; ``leaves`` are its inputs, if they are known.

    Calls with equal operands, parameters and backend are one use. In a loop, the operands are those
    of the first iteration. They are synthetic in ``shard_map``, in a branch that is not executed,
    and in a loop without iterations.
    """
    uses: dict[object, OpUse] = {}
    inputs = _with_constants(program.jaxpr, program.consts, leaves)
    for call, operands in zip(op_calls(program), _walk(*inputs), strict=True):
        static = tuple(sorted(call.static.items()))
        key = (call.op.target, call.operands, static, call.batch_dims, call.backend)
        count, earlier = times(call.count, call.devices), uses.get(key)
        if earlier is not None:
            before = earlier.call.count
            count = None if count is None or before is None else count + before
        call = dataclasses.replace(call, count=count)
        if earlier is not None and earlier.is_own:
            uses[key] = dataclasses.replace(earlier, call=call)
        elif operands is None:
            uses[key] = OpUse(call, _synthetic_operands(call), False)
        else:
            uses[key] = OpUse(call, operands, True)
    return list(uses.values())


def without_unused_calls(program: ClosedJaxpr) -> ClosedJaxpr:
    """Remove calls whose results are not used, as XLA does: the forward pass of some gradients."""
    outputs = [True] * len(program.jaxpr.outvars)
    jaxpr, _ = partial_eval.dce_jaxpr(program.jaxpr, outputs, instantiate=True)
    return ClosedJaxpr(jaxpr, program.consts)


def constants_as_inputs(jaxpr: Jaxpr) -> Jaxpr:
    """Return the program with its constants as its first inputs."""
    opened: Jaxpr = jaxpr.replace(
        constvars=[],
        invars=[*jaxpr.constvars, *jaxpr.invars],
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    return opened


def _synthetic_operands(call: OpCall) -> tuple[jax.Array, ...]:
    """Return operands of a call's shapes: floats between 0 and 1, and zeros of other dtypes."""
    random = np.random.default_rng(0)
    return tuple(
        jnp.asarray(random.uniform(0, 1, x.shape), x.dtype)
        if jnp.issubdtype(x.dtype, np.floating)
        else jnp.zeros(x.shape, x.dtype)
        for x in call.operands
    )


def _with_constants(
    jaxpr: Jaxpr, consts: Sequence[Any], values: Sequence[Any] | None
) -> tuple[Jaxpr, Sequence[Any] | None]:
    opened = constants_as_inputs(jaxpr)
    inputs = None if values is None else [*consts, *values]
    return opened, inputs if inputs is not None and len(inputs) == len(opened.invars) else None


def _walk(jaxpr: Jaxpr, values: Sequence[Any] | None) -> Iterator[tuple[Any, ...] | None]:
    for index, eqn in enumerate(jaxpr.eqns):
        is_call, inner = op_call(eqn) is not None, inner_programs(eqn)
        if not is_call and not any(_has_call(part.jaxpr) for part in inner):
            continue
        operands = None if values is None else _evaluate_operands(jaxpr, index, values)
        if is_call:
            yield operands
            continue
        for k, part in enumerate(inner):
            entering = None if operands is None else _inner_inputs(eqn, k, operands)
            yield from _walk(*_with_constants(part.jaxpr, part.consts, entering))


def _has_call(jaxpr: Jaxpr) -> bool:
    return any(
        op_call(eqn) is not None or any(_has_call(p.jaxpr) for p in inner_programs(eqn))
        for eqn in jaxpr.eqns
    )


def _evaluate_operands(jaxpr: Jaxpr, index: int, values: Sequence[Any]) -> tuple[Any, ...]:
    """Evaluate the operands of an equation from the inputs of its program, and nothing else."""
    invars = jaxpr.eqns[index].invars
    prefix = jaxpr.replace(
        eqns=jaxpr.eqns[:index],
        outvars=[v for v in invars if not isinstance(v, Literal)],
        effects=frozenset(),
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    results = iter(jax.jit(jaxpr_as_fun(ClosedJaxpr(prefix, ())))(*values))
    return tuple(v.val if isinstance(v, Literal) else next(results) for v in invars)


def _inner_inputs(eqn: JaxprEqn, k: int, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Return the inputs of the k-th program of an equation when it first runs, or None."""
    name, params = eqn.primitive.name, eqn.params
    if name == "scan":
        if params["length"] == 0:
            return None
        first = -1 if params["reverse"] else 0
        body: Sequence[Any] = inner_programs(eqn)[0].jaxpr.invars
        # Scanned operands have one more axis than the body's input; constants and carry do not.
        return [
            x[first] if np.ndim(x) > len(v.aval.shape) else x
            for x, v in zip(operands, body, strict=True)
        ]
    if name == "while":
        condition, body_end = params["cond_nconsts"], params["body_nconsts"]
        body_end += condition
        constants = operands[:condition] if k == 0 else operands[condition:body_end]
        return [*constants, *operands[body_end:]]
    if name == "cond":
        index, *rest = operands
        branch = int(np.clip(int(np.asarray(index)), 0, len(params["branches"]) - 1))
        return rest if branch == k else None
    return None if name in ("shard_map", "custom_linear_solve") else operands
