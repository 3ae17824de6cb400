"""Find the op calls of a traced program: a walk of a jaxpr and of the jaxprs nested in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from jaxkern.core import compat
from jaxkern.core.axes import Struct, core_structs
from jaxkern.core.op import Cost, Op, op_of


class InnerProgram(NamedTuple):
    """A jaxpr that an equation runs.

    ``times``: runs per run of the equation; None in a while loop. ``devices``: the number of
    devices that run it at once, each on its shard (``shard_map``). ``consts``: the values of its
    ``constvars``, if they are part of the equation.
    """

    jaxpr: Jaxpr
    times: int | None = 1
    devices: int = 1
    consts: tuple[Any, ...] = ()


@dataclass(frozen=True)
class OpCall:
    """One equation of a program that calls an op.

    Attributes:
      operands: with their batch axes; inside ``shard_map`` the shard of one device.
      count: executions per run of the program (on each device); None in a while loop. A branch
        counts as if it were taken.
      devices: the number of devices that make this call, each on its shard; 1 outside
        ``shard_map``.
    """

    op: Op
    operands: tuple[Struct, ...]
    batch_dims: int
    static: Mapping[str, Any]
    backend: str
    count: int | None = 1
    devices: int = 1

    @property
    def cost(self) -> Cost:
        """Return the operations and bytes of ONE call."""
        return self.op.cost(*self.operands, batch_dims=self.batch_dims, **self.static)

    def problem(self, platform: str) -> str | None:
        """Return why ``platform`` runs this call in pure JAX; None if a native kernel runs it."""
        if self.backend == "jax":
            return "the backend is 'jax'"
        structs = core_structs(self.operands, self.batch_dims)
        return self.op.problem(platform, structs, self.static)


def op_calls(program: ClosedJaxpr | Jaxpr) -> Iterator[OpCall]:
    """Yield every op call of a traced program, in program order.

    It includes the calls inside of jit, scan, while, cond, custom derivatives, remat and shard_map.

    Example:
      >>> import jax
      >>> import jaxkern as jk
      >>> double = jk.Op("docs.called", version=1, abstract=lambda x: x, impl=lambda x: 2 * x)
      >>> thrice = lambda x: jax.lax.fori_loop(0, 3, lambda i, y: double(y), x)
      >>> [(call.op.name, call.count) for call in op_calls(jax.make_jaxpr(thrice)(1.0))]
      [('docs.called', 3)]
    """
    yield from _calls(_open(program), count=1, devices=1)


def _calls(jaxpr: Jaxpr, count: int | None, devices: int) -> Iterator[OpCall]:
    for eqn in jaxpr.eqns:
        call = op_call(eqn)
        if call is not None:
            yield replace(call, count=count, devices=devices)
            continue
        for inner in inner_programs(eqn):
            yield from _calls(inner.jaxpr, times(count, inner.times), devices * inner.devices)


def op_call(eqn: JaxprEqn) -> OpCall | None:
    """Return the op call of an equation, counted once; None for other equations."""
    op, params = op_of(eqn.primitive), eqn.params
    if op is None:
        return None
    avals: list[Any] = [variable.aval for variable in eqn.invars]
    operands = tuple(Struct(aval.shape, aval.dtype) for aval in avals)
    static = dict(params["static"])
    return OpCall(op, operands, params["batch_dims"], static, params["backend"])


def times(count: int | None, factor: int | None) -> int | None:
    """Return the product; None is an unknown count, and 0 times anything is 0."""
    if count == 0 or factor == 0:
        return 0
    return None if count is None or factor is None else count * factor


def inner_programs(eqn: JaxprEqn) -> list[InnerProgram]:
    """List the programs that an equation runs; empty for a plain operation."""
    name, params = eqn.primitive.name, eqn.params
    if name == "scan":
        return [_inner(params["jaxpr"], times=int(params["length"]))]
    if name == "while":
        return [_inner(params[part], times=None) for part in ("cond_jaxpr", "body_jaxpr")]
    if name == "cond":
        return [_inner(branch) for branch in params["branches"]]
    if name == "shard_map":
        devices = compat.shard_map_devices(params)
        return [_inner(params["jaxpr"], devices=devices)]
    if name == "custom_linear_solve":  # the other three serve its derivatives
        return [_inner(params["jaxprs"].solve)]
    inner = []
    for value in params.values():
        parts = value if isinstance(value, (tuple, list)) else (value,)
        inner += [_inner(p) for p in parts if isinstance(p, (ClosedJaxpr, Jaxpr))]
    return inner


def _inner(program: ClosedJaxpr | Jaxpr, **fields: Any) -> InnerProgram:
    consts = tuple(program.consts) if isinstance(program, ClosedJaxpr) else ()
    return InnerProgram(_open(program), consts=consts, **fields)


def _open(program: ClosedJaxpr | Jaxpr) -> Jaxpr:
    return program.jaxpr if isinstance(program, ClosedJaxpr) else program
