"""The op recipe: one declaration that makes a native kernel behave like any JAX function."""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxkern.core import compat, registry
from jaxkern.core.backend import current_backend
from jaxkern.core.compat import Primitive
from jaxkern.core.cost import Cost
from jaxkern.core.declaration import Declaration, Static
from jaxkern.core.integers import check_narrowing
from jaxkern.core.rules import register_rules
from jaxkern.core.static import StaticArguments

_OPS: dict[str, Op] = {}
_BY_PRIMITIVE: dict[Primitive, Op] = {}
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def ops() -> dict[str, Op]:
    """Every op that was declared in this process, by name."""
    return dict(_OPS)


def op_of(primitive: Primitive) -> Op | None:
    """The op that a primitive of a jaxpr belongs to, or None."""
    return _BY_PRIMITIVE.get(primitive)


class Op(Declaration):
    """A function with native kernels and a pure-JAX twin, usable under every JAX transformation.

    An op is declared for ONE sample. A call may give its operands leading batch axes, and ``vmap``
    adds more: they all reach one kernel call. A batch axis of size 1 is broadcast: the kernel reads
    it with stride 0.

    Args:
      name: dotted, such as ``"jaxkern.image_chain"``, of one op in the process. The module that
        declared an op may declare it again, as a notebook does. The FFI target is
        ``f"{name}.v{version}"``.
      version: of the target's contract: raise it whenever operands, attributes or meaning change.
      abstract: ``abstract(*operands, **static)`` takes a ``jax.ShapeDtypeStruct`` for each operand
        of one sample and returns one for the result, or a tuple of them. It raises on bad input:
        this is what users see at trace time.
      impl: ``impl(*operands, **static)``, the same for one sample in pure JAX. It is the fallback,
        and what is differentiated unless ``jvp`` is given.
      attributes: ``attributes(**static)`` returns the FFI attributes: structure only, such as
        enum values and sizes of the result. Whatever varies at run time must be an operand.
      supports: ``supports(*operands, **static) -> str | None``: why no native kernel takes these
        operands (a dtype, say), or None when one does.
      jvp: ``jvp(primals, tangents, batch_dims, **static)`` returns ``(results, tangents)`` of
        batched operands; a missing tangent is None. By default ``impl`` is differentiated.
      transpose: for linear ops: ``transpose(cotangents, *operands, batch_dims, **static)``, with
        a ``jax.interpreters.ad.UndefinedPrimal`` in the place of each linear operand, returns a
        cotangent for each operand, None for the others.
      cost: ``cost(*operands, **static)`` returns the `Cost` of one sample.
      aliases: ``{operand: result}`` indices where the result may overwrite the operand.
      platforms: for which the op has kernels; on others ``impl`` is its implementation, which
        `jaxkern.doctor` does not miss a kernel for.

    Raises:
      ValueError: for a name without a dot, or one that another module's op has.
      TypeError: where ``abstract``, ``impl`` or a rule is no function.

    Example:
      >>> import jax, jax.numpy as jnp, jaxkern as jk
      >>> double = jk.Op("docs.double", version=1, abstract=lambda x: x, impl=lambda x: 2 * x)
      >>> double(jnp.arange(3.0)).tolist(), jax.grad(double)(1.5).tolist()
      ([0.0, 2.0, 4.0], 2.0)
    """

    def __init__(
        self,
        name: str,
        *,
        version: int,
        abstract: Callable[..., Any],
        impl: Callable[..., Any],
        attributes: Callable[..., Mapping[str, Any]] | None = None,
        supports: Callable[..., str | None] | None = None,
        jvp: Callable[..., Any] | None = None,
        transpose: Callable[..., Any] | None = None,
        cost: Callable[..., Cost] | None = None,
        aliases: Mapping[int, int] | None = None,
        platforms: Sequence[str] = registry.PLATFORMS,
    ) -> None:
        functions = {"abstract": abstract, "impl": impl}
        rules = {"attributes": attributes, "supports": supports, "jvp": jvp}
        rules |= {"transpose": transpose, "cost": cost}
        functions |= {role: rule for role, rule in rules.items() if rule is not None}
        self.place = _place_of(inspect.currentframe())
        _check_declaration(name, functions, self.place)
        super().__init__(
            name,
            version,
            abstract,
            impl,
            attributes,
            supports,
            jvp,
            transpose,
            cost,
            aliases or {},
            tuple(platforms),
        )
        register_rules(self)
        _OPS[name] = self
        _BY_PRIMITIVE[self.primitive] = self

    def __repr__(self) -> str:
        return f"Op({self.name!r}, version={self.version})"

    def __call__(self, *operands: Any, batch_dims: int = 0, **static: Hashable) -> Any:
        """Applies the op to arrays with ``batch_dims`` leading batch axes, full or of size 1.

        Raises:
          ValueError: for an operand in host memory with 64-bit integers that do not fit the 32-bit
            ones that JAX makes of them without x64.
        """
        arrays = [jnp.asarray(check_narrowing(x, f"operand {i}")) for i, x in enumerate(operands)]
        varying = frozenset[str]().union(*(compat.varying_axes(x) for x in arrays))
        arrays = [pvary(x, varying) for x in arrays]
        _check_call(self.name, batch_dims, static)
        results = self.primitive.bind(
            *arrays,
            batch_dims=batch_dims,
            static=StaticArguments(sorted(static.items())),
            backend=current_backend(),
        )
        single = not isinstance(self.core_results(arrays, batch_dims, static), tuple)
        return results[0] if single else tuple(results)


def _place_of(frame: Any) -> tuple[str, str]:
    """Module and file that declare an op, whose constructor runs in ``frame``."""
    caller = frame.f_back if frame is not None else None
    if caller is None:
        return "", ""
    return str(caller.f_globals.get("__name__", "")), caller.f_code.co_filename


def _check_declaration(name: str, functions: Mapping[str, Any], place: tuple[str, str]) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"an op's name is {name!r}; wanted one with a dot, of letters, digits and underscores, "
            "such as 'my_package.my_op': all packages of a process share the names of XLA's targets"
        )
    for role, function in functions.items():
        if not callable(function):
            raise TypeError(
                f"{name}: {role} is {function!r}; wanted a function"
                + (" in pure JAX: it is the fallback and the reference" if role == "impl" else "")
            )
    earlier = _OPS.get(name)
    # A module that is run twice (a notebook, a reload, `python -m`) replaces what it declared.
    if earlier is not None and all(a != b for a, b in zip(earlier.place, place, strict=True)):
        raise ValueError(
            f"an op named {name!r} is declared in {earlier.place[0]} ({earlier.place[1]}) already; "
            f"give the one in {place[0]} another name: both would call one target"
        )


def _check_call(op: str, batch_dims: int, static: Static) -> None:
    if operator.index(batch_dims) < 0:
        raise ValueError(
            f"{op}: batch_dims is {batch_dims}; wanted the number of leading batch axes, 0 or more"
        )
    for name, value in static.items():
        if any(isinstance(x, (jax.Array, np.ndarray)) for x in jax.tree.leaves(value)):
            raise TypeError(
                f"{op}: the static argument {name!r} is or holds an array; make it an operand, or "
                "give plain numbers, which every new value compiles anew"
            )
        try:
            hash(value)
        except TypeError:
            raise TypeError(
                f"{op}: the static argument {name!r} is a {type(value).__name__}, which has no "
                "hash; wanted a number, a string, a tuple of them, or another value that does not "
                "change"
            ) from None


def pvary(x: Any, axes: frozenset[str]) -> Any:
    # Inside shard_map a replicated operand becomes varying; the transpose of this cast is the sum
    # of the cotangent over the devices.
    missing = tuple(sorted(axes - compat.varying_axes(x)))
    return lax.pcast(x, missing, to="varying") if missing else x
