"""Find the op calls of a traced program: a walk of a jaxpr and of the jaxprs nested in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from jaxkern.core import compat
from jaxkern.core.axes import Struct, core_structs
from jaxkern.core.declaration import Cost
from jaxkern.core.op import Op, op_of


class InnerProgram(NamedTuple):
    """A jaxpr that an equation runs.

    ``times``: runs per run of the equation; None in a while loop. ``alternative``: True for one
    branch of several. ``devices``: the number of devices that run it at once, each on its shard
    (``shard_map``). ``consts``: the values of its ``constvars``, if the equation holds them.
    """

    jaxpr: Jaxpr
    times: int | None = 1
    alternative: bool = False
    devices: int = 1
    consts: tuple[Any, ...] = ()


@dataclass(frozen=True)
class OpCall:
    """One equation of a program that calls an op.

    Attributes:
      operands: with their batch axes; inside ``shard_map`` the shard of one device.
      count: executions per run of the program (on each device); None in a while loop. A branch
        counts as if it were taken.
      conditional: True inside a branch.
      devices: the number of devices that make this call, each on its shard; 1 outside
        ``shard_map``.
      path: the enclosing equations, outermost first, such as ``("jit:loss", "scan:100")``.
    """

    op: Op
    operands: tuple[Struct, ...]
    results: tuple[Struct, ...]
    batch_dims: int
    static: Mapping[str, Any]
    backend: str
    count: int | None = 1
    conditional: bool = False
    devices: int = 1
    path: tuple[str, ...] = ()

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
    yield from _calls(_open(program), 1, False, 1, ())


def _calls(
    jaxpr: Jaxpr, count: int | None, conditional: bool, devices: int, path: tuple[str, ...]
) -> Iterator[OpCall]:
    for eqn in jaxpr.eqns:
        call = op_call(eqn)
        if call is not None:
            yield replace(call, count=count, conditional=conditional, devices=devices, path=path)
            continue
        below = *path, _label(eqn)
        for inner in inner_programs(eqn):
            runs, alternative = times(count, inner.times), conditional or inner.alternative
            yield from _calls(inner.jaxpr, runs, alternative, devices * inner.devices, below)


def op_call(eqn: JaxprEqn) -> OpCall | None:
    """Return the op call of an equation, counted once; None for other equations."""
    op, params = op_of(eqn.primitive), eqn.params
    if op is None:
        return None
    operands, results = _structs(eqn.invars), _structs(eqn.outvars)
    static = dict(params["static"])
    return OpCall(op, operands, results, params["batch_dims"], static, params["backend"])


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
        return [_inner(b, alternative=True) for b in params["branches"]]
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


def _structs(variables: Sequence[Any]) -> tuple[Struct, ...]:
    return tuple(Struct(v.aval.shape, v.aval.dtype) for v in variables)


def _label(eqn: JaxprEqn) -> str:
    name = str(eqn.primitive.name)
    if name == "scan":
        return f"scan:{eqn.params['length']}"
    inner = eqn.params.get("name")
    return f"{name}:{inner}" if isinstance(inner, str) and inner else name
