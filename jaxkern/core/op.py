"""The op recipe: a declaration that makes a native kernel behave like a JAX function."""

from __future__ import annotations

import math
import operator
import re
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxkern.core import compat, registry
from jaxkern.core.arguments import check_narrowing
from jaxkern.core.axes import Struct, as_tuple, batch_shape, core_structs, nbytes
from jaxkern.core.backend import current_backend
from jaxkern.core.rules import register_rules
from jaxkern.core.static import StaticArguments

Static = Mapping[str, Any]
_OPS: dict[str, Op] = {}
_BY_PRIMITIVE: dict[compat.Primitive, Op] = {}
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def ops() -> dict[str, Op]:
    """Return all ops declared in this process, by name."""
    return dict(_OPS)


def op_of(primitive: compat.Primitive) -> Op | None:
    """Return the op of a jaxpr's primitive, or None."""
    return _BY_PRIMITIVE.get(primitive)


class Cost(NamedTuple):
    """Floating-point operations and bytes of a call; None if unknown.

    Example:
      >>> import jax.numpy as jnp, jaxkern as jk
      >>> cost = lambda x: jk.Cost(flops=x.size, bytes=2 * x.size * x.dtype.itemsize)
      >>> double = jk.Op("docs.cost", version=1, abstract=lambda x: x, impl=lambda x: 2 * x,
      ...                cost=cost)
      >>> double(jnp.ones(3)).tolist()
      [2.0, 2.0, 2.0]
    """

    flops: int | None
    bytes: int | None


class Op:
    """A function with native kernels and a pure-JAX fallback, usable under all JAX transformations.

    An op is declared for ONE sample. Operands of a call may have leading batch axes, and ``vmap``
    adds more; all of them are passed to one kernel call. A batch axis of size 1 is broadcast: the
    kernel reads it with stride 0.

    Args:
      name: a unique dotted name such as ``"jaxkern.image_chain"``. The module that declared an op
        may declare it again, as notebooks do. The FFI target is ``f"{name}.v{version}"``.
      version: version of the target's contract; increase it when operands, attributes or meaning
        change.
      abstract: ``abstract(*operands, **static)`` maps the ``jax.ShapeDtypeStruct`` of each
        operand of one sample to that of the result, or to a tuple of them. It raises on invalid
        input; users see this error at trace time.
      impl: ``impl(*operands, **static)`` computes one sample in pure JAX. It is the fallback, and
        it is differentiated unless ``jvp`` is set.
      attributes: ``attributes(**static)`` returns the FFI attributes: structure only, such as
        enum values and sizes of the result. Values that vary at run time must be operands.
      supports: ``supports(*operands, **static) -> str | None`` returns why no native kernel handles
        these operands (a dtype, for example), or None if one does.
      jvp: ``jvp(primals, tangents, batch_dims, **static)`` returns ``(results, tangents)`` of
        batched operands; a missing tangent is None. By default ``impl`` is differentiated.
      transpose: for linear ops: ``transpose(cotangents, *operands, batch_dims, **static)``, with
        a ``jax.interpreters.ad.UndefinedPrimal`` for each linear operand, returns the cotangent
        of each linear operand and None for the others.
      cost: ``cost(*operands, **static)`` returns the `Cost` of one sample.
      aliases: ``{operand: result}`` indices where the result may overwrite the operand.
      platforms: the platforms with kernels. On others ``impl`` is the implementation, and
        `jaxkern.doctor` does not report a missing kernel.

    Raises:
      ValueError: the name has no dot, or another module declared an op of this name.
      TypeError: ``abstract``, ``impl`` or a rule is not callable.

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
        caller = sys._getframe(1)
        #: module and file of the declaration
        self.source = str(caller.f_globals.get("__name__", "")), caller.f_code.co_filename
        _check_declaration(name, functions, self.source)
        self.name, self.version, self.target = name, version, f"{name}.v{version}"
        self.abstract, self.impl, self.attributes = abstract, impl, attributes
        self.supports, self.jvp, self.transpose = supports, jvp, transpose
        self.aliases, self.platforms, self._cost = aliases or {}, tuple(platforms), cost
        self.primitive = compat.Primitive(self.target)
        register_rules(self)
        _OPS[name] = self
        _BY_PRIMITIVE[self.primitive] = self

    def __repr__(self) -> str:
        return f"Op({self.name!r}, version={self.version})"

    def __call__(self, *operands: Any, batch_dims: int = 0, **static: Hashable) -> Any:
        """Apply the op to arrays with ``batch_dims`` leading batch axes, full or of size 1.

        Raises:
          ValueError: a host operand has 64-bit integers that do not fit the 32-bit integers to
            which JAX converts them without x64.
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

    def batched_impl(self, *operands: Any, batch_dims: int, **static: Any) -> tuple[Any, ...]:
        """Map the pure-JAX implementation over ``batch_dims`` leading axes; size 1 broadcasts."""
        full = batch_shape(operands, batch_dims)

        def one(*xs: Any) -> tuple[Any, ...]:
            results = as_tuple(self.impl(*xs, **static))
            self._check_impl(xs, results, static)
            return results

        fn, arrays = one, list(operands)
        # The innermost batch axis is mapped first; an operand of size 1 there is squeezed instead.
        for axis in range(batch_dims - 1, -1, -1):
            mapped = tuple(0 if x.shape[axis] == full[axis] else None for x in operands)
            if all(m is None for m in mapped):  # every operand has size 1 here, so full is 1
                mapped = tuple(0 for _ in operands)
            fn = jax.vmap(fn, in_axes=mapped)
        for axis in range(batch_dims - 1, -1, -1):
            arrays = [
                x if original.shape[axis] == full[axis] else lax.squeeze(x, (axis,))
                for x, original in zip(arrays, operands, strict=True)
            ]
        # A native call has the op's name in profiles; the fallback gets it by a named scope.
        with jax.named_scope(self.target):
            return as_tuple(fn(*arrays))

    def cost(self, *operands: Any, batch_dims: int = 0, **static: Any) -> Cost:
        """Compute the operations and bytes of a call from shapes and dtypes.

        By default bytes count each operand once at its stored size (broadcast operands are not
        multiplied) and each result once.
        """
        structs = [Struct(x.shape, x.dtype) for x in operands]
        samples = math.prod(batch_shape(structs, batch_dims))
        results = as_tuple(self.core_results(structs, batch_dims, static))
        moved = sum(nbytes(x) for x in structs) + samples * sum(nbytes(x) for x in results)
        if self._cost is None:
            return Cost(flops=None, bytes=moved)
        one = self._cost(*core_structs(structs, batch_dims), **static)
        flops = None if one.flops is None else samples * one.flops
        return Cost(flops=flops, bytes=moved if one.bytes is None else samples * one.bytes)

    def problem(self, platform: str, structs: Sequence[Any], static: Static) -> str | None:
        """Return why ``platform`` runs this call in pure JAX; None if a native kernel runs it."""
        if platform not in self.platforms:
            return f"it has kernels for {' and '.join(self.platforms)} only"
        reason = registry.missing(self.target, platform)
        if reason is None and self.supports is not None:
            reason = self.supports(*structs, **static)
        return reason

    def _check_impl(self, operands: Sequence[Any], results: Sequence[Any], static: Static) -> None:
        def text(values: Any) -> str:
            return ", ".join(f"{np.dtype(x.dtype).name}{list(x.shape)}" for x in values)

        declared = text(as_tuple(self.core_results(operands, 0, static)))
        actual = text(map(jax.typeof, results))
        if actual != declared:
            raise TypeError(
                f"{self.name}: for one sample impl returns {actual} and abstract returns "
                f"{declared}; expected equal shapes and dtypes"
            )

    def core_results(self, operands: Sequence[Any], batch_dims: int, static: Static) -> Any:
        result = self.abstract(*core_structs(operands, batch_dims), **static)
        return tuple(result) if isinstance(result, (tuple, list)) else result


def _check_declaration(name: str, functions: Mapping[str, Any], source: tuple[str, str]) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"an op's name is {name!r}; expected letters, digits, underscores and a dot, such "
            "as 'my_package.my_op': all packages of a process share XLA's target names"
        )
    for role, function in functions.items():
        if not callable(function):
            raise TypeError(f"{name}: {role} is {function!r}; expected a function")
    earlier = _OPS.get(name)
    # A module that runs twice (a notebook, a reload, `python -m`) replaces its declarations.
    if earlier is not None and all(a != b for a, b in zip(earlier.source, source, strict=True)):
        raise ValueError(
            f"an op named {name!r} is already declared in {' '.join(earlier.source)}; rename the "
            f"one in {source[0]}: both would call the same target"
        )


def _check_call(op: str, batch_dims: int, static: Static) -> None:
    if operator.index(batch_dims) < 0:
        raise ValueError(f"{op}: batch_dims is {batch_dims}; expected a number of batch axes")
    for name, value in static.items():
        if any(isinstance(x, (jax.Array, np.ndarray)) for x in jax.tree.leaves(value)):
            raise TypeError(
                f"{op}: the static argument {name!r} is or contains an array; make it an operand, "
                "or use Python numbers (every new value recompiles)"
            )
        try:
            hash(value)
        except TypeError:
            raise TypeError(
                f"{op}: the static argument {name!r} is a {type(value).__name__}; expected a "
                "hashable value, such as a number, a string or a tuple of them"
            ) from None


def pvary(x: Any, axes: frozenset[str]) -> Any:
    # Inside shard_map a replicated operand becomes varying. The transpose of this cast sums the
    # cotangent over the devices.
    missing = tuple(sorted(axes - compat.varying_axes(x)))
    return lax.pcast(x, missing, to="varying") if missing else x
