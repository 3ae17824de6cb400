"""Declarations of the XPCS ops: g2 with its derivatives, residual, normal equations.

An op acts on one angle; angles are the batch axis. With dg2 linear in (dA, dX, dcontrast, doffset),

    jvp of g2:            dg2 = two_time_g2_tangent(A, X, contrast, dA, dX, dcontrast, doffset)
    transpose of that:    (A, X, contrast, offset)_bar = two_time_g2_cotangent(A, X, contrast, G)
    jvp of the residual:  d((data - g2) / sigma) = (ddata - dg2) / sigma - residual dsigma / sigma

The ops of component models have the tables B, A and P [C, n] of component_twin.py in place of A and
X [n], and the same rules.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad

from jaxkern.core.op import Cost, Op
from jaxkern.xpcs.model import component_twin, twin
from jaxkern.xpcs.model.models import SHEAR_POWERS

DATA_DTYPES = (np.float64, np.float32, np.float16, np.uint16)
"""Dtypes of measured correlations that the kernels read."""

# Floating-point operations of one point: f alone, and f with both slopes.
_FLOPS_F, _FLOPS_SLOPES = 16, 30


def state_size(k_A: int, k_X: int) -> int:
    """Return the size of the state of `two_time_normal_equations` with k_A and k_X tangents.

    Example:
      >>> import jaxkern as jk
      >>> jk.xpcs.state_size(k_A=3, k_X=0)
      24
    """
    basis = 2 + k_A + k_X  # offset, contrast, and one for each tangent
    return basis * (basis + 1) // 2 + basis + 4


def _abstract(op: str, operands: str, *results: str) -> Callable[..., Any]:
    """Return the abstract evaluation of an op for one sample.

    An operand is "name:sizes" or "name:sizes:dtype", a result is "sizes". A size is defined by the
    first operand that has it; S is the size of a state; sigma may be a scalar. Reals have the dtype
    of the first operand, and "stored" numbers one of `DATA_DTYPES`.
    """
    rows = [(*row.split(":"), "real")[:3] for row in operands.split()]

    def evaluate(
        *operands: Any, shear_power: int = 0, sigma_rank: int = 2, loss: int = 0, symmetric: int = 0
    ) -> Any:
        real = np.dtype(operands[0].dtype)
        if real not in (np.float32, np.float64):
            raise ValueError(f"{op}: {rows[0][0]}: expected float32 or float64, got {real.name}")
        if shear_power not in SHEAR_POWERS or sigma_rank not in (0, 2):
            raise ValueError(
                f"{op}: expected a shear_power of {SHEAR_POWERS} and a sigma_rank of 0 or 2, got "
                f"{shear_power!r} and {sigma_rank!r}"
            )
        if loss not in range(len(twin.LOSSES)) or symmetric not in (0, 1, 2):
            raise ValueError(
                f"{op}: loss, symmetric: expected 0 to 4 and 0 to 2, got {loss!r} and {symmetric!r}"
            )
        sizes = {"2": 2, "3": 3}
        for (name, axes, kind), x in zip(rows, operands, strict=True):
            names = axes.split(",") if axes and (name != "sigma" or sigma_rank) else []
            if name == "initial":
                sizes["S"] = state_size(sizes["kA"], sizes.get("kX", 0))
            if len(names) == len(x.shape):
                for axis, size in zip(names, x.shape, strict=True):
                    sizes.setdefault(axis, size)
            actual = np.dtype(x.dtype)
            if kind == "stored" and actual not in DATA_DTYPES:
                names = [d.__name__ for d in DATA_DTYPES]
                raise ValueError(f"{op}: {name}: expected one of {names}, got {actual}")
            dtype = np.dtype({"real": real, "stored": actual}.get(kind, kind))
            shape = [sizes.get(axis, axis) for axis in names]
            if list(x.shape) != shape or actual != dtype:
                raise ValueError(
                    f"{op}: {name}: expected {dtype.name}[{', '.join(map(str, shape))}] for one "
                    f"sample, got {actual.name}{list(x.shape)}"
                )
        if symmetric == 2 and sizes["m"] != sizes["n"]:
            raise ValueError(
                f"{op}: data: expected {sizes['n']} rows with symmetric=2, got {sizes['m']}; pass "
                "0 or 1"
            )
        shapes = [[sizes[axis] for axis in axes.split(",") if axis] for axes in results]
        structs = tuple(jax.ShapeDtypeStruct(shape, real) for shape in shapes)
        return structs if len(structs) > 1 else structs[0]

    return evaluate


# csrc/xpcs/arithmetic.h: kMaxTables; csrc/xpcs/plan.h: kMaxComponents, kMaxComponentParameters.
_MAX_TABLES = 64
_MAX_COMPONENTS, _MAX_COMPONENT_PARAMETERS = 8, 32


def _normal_supports(*operands: Any, shear_power: int, **_: Any) -> str | None:
    k_A, k_X = operands[2].shape[0], operands[3].shape[0]
    if k_A + k_X > _MAX_TABLES:
        return f"{k_A + k_X} tangent tables; the kernels support up to {_MAX_TABLES}"
    if shear_power == 0 and k_X:
        return "tangent tables of X with shear_power=0"
    return None


def _component_supports(weight: Any, *_: Any, **__: Any) -> str | None:
    if not 1 <= weight.shape[0] <= _MAX_COMPONENTS:
        return f"{weight.shape[0]} components; the kernels support 1 to {_MAX_COMPONENTS}"
    return None


def _component_normal_supports(*operands: Any, **_: Any) -> str | None:
    if operands[3].shape[0] > _MAX_COMPONENT_PARAMETERS:
        count = operands[3].shape[0]
        return f"{count} parameters; the kernels support up to {_MAX_COMPONENT_PARAMETERS}"
    return _component_supports(*operands)


def _with_zeros(tangents: Sequence[Any], primals: Sequence[Any]) -> list[Any]:
    return [jnp.zeros_like(p) if t is None else t for t, p in zip(tangents, primals, strict=True)]


# The rules of both kinds of ops, "two_time" and "component", from their names in this module.
def _g2_jvp(
    kind: str, primals: Sequence[Any], tangents: Sequence[Any], **static: int
) -> tuple[Any, Any]:
    along = _with_zeros(tangents, primals)
    tangent = globals()[f"{kind}_g2_tangent"](*primals[:-1], *along, **static)
    return globals()[f"{kind}_g2"](*primals, **static), tangent


def _tangent_transpose(
    kind: str, cotangents: Sequence[Any], *operands: Any, **static: int
) -> list[Any]:
    split = len(operands) // 2  # the tangents include that of the offset
    primals, linear = operands[:split], operands[split:]
    bars = globals()[f"{kind}_g2_cotangent"](*primals, cotangents[0], **static)
    results: list[Any] = [None] * split
    for operand, bar in zip(linear, bars, strict=True):
        if not isinstance(operand, ad.UndefinedPrimal):
            results.append(None)
            continue
        sizes = zip(operand.aval.shape, bar.shape, strict=True)
        shared = tuple(axis for axis, (size, of_bar) in enumerate(sizes) if size == 1 != of_bar)
        results.append(jnp.sum(bar, axis=shared, keepdims=True) if shared else bar)
    return results


def _residual_jvp(
    kind: str, primals: Sequence[Any], tangents: Sequence[Any], *, sigma_rank: int, **static: int
) -> tuple[Any, Any]:
    *model, data, sigma = primals
    residual = globals()[f"{kind}_residual"](*primals, **static, sigma_rank=sigma_rank)
    n = data.shape[-1]
    sigma_of_points = sigma if sigma_rank == 2 else sigma[..., None, None]
    used = (sigma_of_points > twin.SIGMA_FLOOR) & ~jnp.eye(n, dtype=bool)
    weight = jnp.where(used, 1.0 / jnp.where(used, sigma_of_points, 1.0), 0.0)
    tangent = jnp.zeros_like(residual)
    if any(t is not None for t in tangents[:-2]):
        along = _with_zeros(tangents[:-2], model)
        slope = globals()[f"{kind}_g2_tangent"](*model[:-1], *along, **static)
        tangent = tangent - weight * slope
    if tangents[-2] is not None:
        tangent = tangent + weight * tangents[-2]
    if tangents[-1] is not None:
        change = tangents[-1] if sigma_rank == 2 else tangents[-1][..., None, None]
        tangent = tangent - residual * weight * change
    # A weight of 0 does not remove tangents and cotangents of NaN.
    return residual, jnp.where(used, tangent, 0.0)


def _per_point(flops: int, matrices: int) -> Any:
    def cost(A: Any, *rest: Any, **_: Any) -> Cost:
        points = A.shape[-1] ** 2
        of_components = A.shape[0] if A.ndim == 2 else 1
        return Cost(
            flops=flops * of_components * points,
            bytes=matrices * points * np.dtype(A.dtype).itemsize,
        )

    return cost


def _at_cost(A: Any, X: Any, contrast: Any, offset: Any, index: Any, **_: Any) -> Cost:
    item = np.dtype(A.dtype).itemsize
    return Cost(flops=_FLOPS_F * index.shape[0], bytes=index.shape[0] * (12 + 7 * item))


def _normal_cost(*operands: Any, symmetric: int, **_: Any) -> Cost:
    tangents_A, tangents_X, data, sigma = operands[2], operands[3], operands[6], operands[8]
    basis = 2 + tangents_A.shape[0] + tangents_X.shape[0]
    # A basis function costs a difference and a product.
    return _sums_cost(_FLOPS_SLOPES + 2 * basis, basis, data, sigma, symmetric)


def _component_normal_cost(*operands: Any, symmetric: int, **_: Any) -> Cost:
    parameters, components, _ = operands[3].shape
    # A derivative has the terms of three tables for each component.
    model = components * (_FLOPS_SLOPES + 9 * parameters)
    return _sums_cost(model, 2 + parameters, operands[8], operands[10], symmetric)


def _sums_cost(model: int, basis: int, data: Any, sigma: Any, symmetric: int) -> Cost:
    # A mirrored pair is computed once.
    points = data.size if symmetric == 0 else data.size // 2
    # A basis function costs two operations in each sum.
    flops = points * (model + basis * (basis + 1) + 2 * basis + 8)
    read = data.size * np.dtype(data.dtype).itemsize
    if symmetric == 1:
        read //= 2
    return Cost(flops=flops, bytes=read + sigma.size * np.dtype(sigma.dtype).itemsize)


def _attributes(**static: int) -> dict[str, Any]:
    return {name: np.int32(value) for name, value in static.items()}


def _op(impl: Callable[..., Any], operands: str, *results: str, **rules: Any) -> Op:
    """Declare an op with the name of its reference implementation."""
    name = impl.__name__
    rules |= {"abstract": _abstract(name, operands, *results), "attributes": _attributes}
    return Op(f"jaxkern.{name}", version=1, impl=impl, **rules)


two_time_g2 = _op(
    twin.two_time_g2, "A:n X:n contrast: offset:", "n,n",
    cost=_per_point(_FLOPS_F, 1), jvp=functools.partial(_g2_jvp, "two_time"),
)  # fmt: skip
two_time_g2_tangent = _op(
    twin.two_time_g2_tangent, "A:n X:n contrast: dA:n dX:n dcontrast: doffset:", "n,n",
    cost=_per_point(_FLOPS_SLOPES + 8, 1),
    transpose=functools.partial(_tangent_transpose, "two_time"),
)  # fmt: skip
two_time_g2_cotangent = _op(
    twin.two_time_g2_cotangent, "A:n X:n contrast: G:n,n", "n", "n", "", "",
    cost=_per_point(_FLOPS_SLOPES + 10, 1),
)  # fmt: skip
two_time_residual = _op(
    twin.two_time_residual, "A:n X:n contrast: offset: data:n,n sigma:n,n", "n,n",
    cost=_per_point(_FLOPS_F + 3, 3), jvp=functools.partial(_residual_jvp, "two_time"),
)  # fmt: skip
two_time_g2_at = _op(
    twin.two_time_g2_at, "A:n X:m,n contrast:m offset:m index:k,3:int32", "k", cost=_at_cost
)
two_time_normal_equations = _op(
    twin.two_time_normal_equations,
    "A:n X:n tangents_A:kA,n tangents_X:kX,n contrast: offset: data:m,n:stored quantization:2 "
    "sigma:m,n keep:n:uint8 f_scale: first_row::int32 initial:S",
    "S",
    supports=_normal_supports,
    cost=_normal_cost,
)

_PHASES = "weight:C,n decay:C,n phase:C,n"
component_g2 = _op(
    component_twin.component_g2, f"{_PHASES} contrast: offset:", "n,n",
    cost=_per_point(_FLOPS_F, 1), jvp=functools.partial(_g2_jvp, "component"),
    supports=_component_supports,
)  # fmt: skip
component_g2_tangent = _op(
    component_twin.component_g2_tangent,
    f"{_PHASES} contrast: dweight:C,n ddecay:C,n dphase:C,n dcontrast: doffset:", "n,n",
    cost=_per_point(_FLOPS_SLOPES + 8, 1),
    transpose=functools.partial(_tangent_transpose, "component"),
    supports=_component_supports,
)  # fmt: skip
component_g2_cotangent = _op(
    component_twin.component_g2_cotangent, f"{_PHASES} contrast: G:n,n",
    "C,n", "C,n", "C,n", "", "", cost=_per_point(_FLOPS_SLOPES + 10, 1),
    supports=_component_supports,
)  # fmt: skip
component_residual = _op(
    component_twin.component_residual, f"{_PHASES} contrast: offset: data:n,n sigma:n,n", "n,n",
    cost=_per_point(_FLOPS_F + 3, 3), jvp=functools.partial(_residual_jvp, "component"),
    supports=_component_supports,
)  # fmt: skip
component_normal_equations = _op(
    component_twin.component_normal_equations,
    f"{_PHASES} tangents_weight:kA,C,n tangents_decay:kA,C,n tangents_phase:kA,C,n "
    "contrast: offset: data:m,n:stored quantization:2 sigma:m,n keep:n:uint8 f_scale: "
    "first_row::int32 initial:S",
    "S",
    supports=_component_normal_supports,
    cost=_component_normal_cost,
)
