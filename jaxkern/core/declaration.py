"""The declaration of an op and what follows from it: results, cost, and the batched fallback."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from jaxkern.core import registry
from jaxkern.core.axes import Struct, as_tuple, batch_shape, core_structs, nbytes
from jaxkern.core.compat import Primitive

Static = Mapping[str, Any]


class Cost(NamedTuple):
    """Floating-point operations and bytes of a call; None if unknown."""

    flops: int | None
    bytes: int | None


@dataclass(eq=False, repr=False)
class Declaration:
    """The arguments of `jaxkern.Op`, which documents them."""

    name: str
    version: int
    abstract: Callable[..., Any]
    impl: Callable[..., Any]
    attributes: Callable[..., Mapping[str, Any]] | None
    supports: Callable[..., str | None] | None
    jvp: Callable[..., Any] | None
    transpose: Callable[..., Any] | None
    declared_cost: Callable[..., Cost] | None
    aliases: Mapping[int, int]
    platforms: tuple[str, ...]

    def __post_init__(self) -> None:
        self.target = f"{self.name}.v{self.version}"
        #: its rules are registered by `jaxkern.core.rules`
        self.primitive = Primitive(self.target)

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
        if self.declared_cost is None:
            return Cost(flops=None, bytes=moved)
        one = self.declared_cost(*core_structs(structs, batch_dims), **static)
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
