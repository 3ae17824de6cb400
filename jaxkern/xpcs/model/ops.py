"""The XPCS domain's ops, declared: g2 with its derivatives, residual, normal equations.

All are for one angle; angles are the batch axis. With dg2 linear in (dA, dX, dcontrast, doffset),

    jvp of g2:            dg2 = two_time_g2_tangent(A, X, contrast, dA, dX, dcontrast, doffset)
    transpose of that:    (A, X, contrast, offset)_bar = two_time_g2_cotangent(A, X, contrast, G)
    jvp of the residual:  d((data - g2) / sigma) = (ddata - dg2) / sigma - residual dsigma / sigma
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad

from jaxkern.core.cost import Cost
from jaxkern.core.op import Op
from jaxkern.xpcs.model import twin
from jaxkern.xpcs.model.models import SHEAR_POWERS

_Struct = jax.ShapeDtypeStruct
_DATA_DTYPES = ("float64", "float32", "float16", "uint16")

# Multiplies, adds and their like of one point: f alone, and f with both slopes.
_FLOPS_F, _FLOPS_SLOPES = 16, 30


def basis_size(k_A: int, k_X: int) -> int:
    """Basis functions of a point: offset, contrast, and one for every tangent."""
    return 2 + k_A + k_X


def state_size(k_A: int, k_X: int) -> int:
    """Length of the state of `two_time_normal_equations` with k_A and k_X tangents."""
    basis = basis_size(k_A, k_X)
    return basis * (basis + 1) // 2 + basis + 4


# Abstract evaluation.


def _expect(op: str, **operands: tuple[Any, tuple[int, ...], Any]) -> None:
    for name, (given, shape, dtype) in operands.items():
        if tuple(given.shape) != shape or np.dtype(given.dtype) != np.dtype(dtype):
            raise ValueError(
                f"{op}: {name} is {np.dtype(given.dtype).name}{list(given.shape)} of one sample; "
                f"wanted {np.dtype(dtype).name}{list(shape)}"
            )


def _phases(op: str, A: Any, X: Any, shear_power: int, leading: int = 0) -> tuple[int, Any]:
    """n and the dtype of all reals."""
    dtype = np.dtype(A.dtype)
    if dtype not in (np.float32, np.float64):
        raise ValueError(f"{op}: A is {dtype.name}; wanted float32 or float64")
    if len(A.shape) != 1 or len(X.shape) != 1 + leading:
        raise ValueError(
            f"{op}: A has shape {tuple(A.shape)} and X {tuple(X.shape)} of one sample; wanted [n] "
            f"and {'[m, n]' if leading else '[n]'}"
        )
    if shear_power not in SHEAR_POWERS:
        raise ValueError(f"{op}: shear_power={shear_power!r}; wanted one of {SHEAR_POWERS}")
    n = A.shape[0]
    _expect(op, X=(X, (*X.shape[:leading], n), dtype))
    return n, dtype


def _sigma_shape(op: str, sigma_rank: int, *shape: int) -> tuple[int, ...]:
    if sigma_rank not in (0, 2):
        raise ValueError(f"{op}: sigma_rank={sigma_rank!r}; wanted 0 (one sigma) or 2 (a matrix)")
    return shape if sigma_rank else ()


def _abstract_g2(A: Any, X: Any, contrast: Any, offset: Any, *, shear_power: int) -> Any:
    op = "two_time_g2"
    n, dtype = _phases(op, A, X, shear_power)
    _expect(op, contrast=(contrast, (), dtype), offset=(offset, (), dtype))
    return _Struct((n, n), dtype)


def _abstract_tangent(
    A: Any,
    X: Any,
    contrast: Any,
    dA: Any,
    dX: Any,
    dcontrast: Any,
    doffset: Any,
    *,
    shear_power: int,
) -> Any:
    op = "two_time_g2_tangent"
    n, dtype = _phases(op, A, X, shear_power)
    _expect(op, contrast=(contrast, (), dtype), dA=(dA, (n,), dtype), dX=(dX, (n,), dtype))
    _expect(op, dcontrast=(dcontrast, (), dtype), doffset=(doffset, (), dtype))
    return _Struct((n, n), dtype)


def _abstract_cotangent(A: Any, X: Any, contrast: Any, G: Any, *, shear_power: int) -> Any:
    op = "two_time_g2_cotangent"
    n, dtype = _phases(op, A, X, shear_power)
    _expect(op, contrast=(contrast, (), dtype), G=(G, (n, n), dtype))
    return tuple(_Struct(shape, dtype) for shape in ((n,), (n,), (), ()))


def _abstract_residual(
    A: Any,
    X: Any,
    contrast: Any,
    offset: Any,
    data: Any,
    sigma: Any,
    *,
    shear_power: int,
    sigma_rank: int,
) -> Any:
    op = "two_time_residual"
    n, dtype = _phases(op, A, X, shear_power)
    _expect(op, contrast=(contrast, (), dtype), offset=(offset, (), dtype))
    deviations = _sigma_shape(op, sigma_rank, n, n)
    _expect(op, data=(data, (n, n), dtype), sigma=(sigma, deviations, dtype))
    return _Struct((n, n), dtype)


def _abstract_at(
    A: Any, X: Any, contrast: Any, offset: Any, index: Any, *, shear_power: int
) -> Any:
    op = "two_time_g2_at"
    _, dtype = _phases(op, A, X, shear_power, leading=1)
    m = X.shape[0]
    points = index.shape[0] if len(index.shape) else 0
    _expect(op, contrast=(contrast, (m,), dtype), offset=(offset, (m,), dtype))
    _expect(op, index=(index, (points, 3), np.int32))
    return _Struct((points,), dtype)


def _abstract_normal(
    A: Any,
    X: Any,
    tangents_A: Any,
    tangents_X: Any,
    contrast: Any,
    offset: Any,
    data: Any,
    quantization: Any,
    sigma: Any,
    keep: Any,
    f_scale: Any,
    first_row: Any,
    initial: Any,
    *,
    shear_power: int,
    loss: int,
    symmetric: int,
    sigma_rank: int,
) -> Any:
    op = "two_time_normal_equations"
    n, dtype = _phases(op, A, X, shear_power)
    k_A, k_X = (x.shape[0] if len(x.shape) else 0 for x in (tangents_A, tangents_X))
    m = data.shape[0] if len(data.shape) else 0
    if np.dtype(data.dtype).name not in _DATA_DTYPES:
        raise ValueError(f"{op}: data is {np.dtype(data.dtype)}; wanted one of {_DATA_DTYPES}")
    if loss not in range(len(twin.LOSSES)) or symmetric not in (0, 1, 2):
        raise ValueError(
            f"{op}: loss={loss!r} and symmetric={symmetric!r}; wanted 0 to 4 and 0 to 2"
        )
    if symmetric == 2 and m != n:
        raise ValueError(
            f"{op}: symmetric=2 compares mirrored tiles of whole matrices, but data has {m} rows "
            f"of {n}; say 0 or 1 for chunks of rows"
        )
    _expect(
        op,
        tangents_A=(tangents_A, (k_A, n), dtype),
        tangents_X=(tangents_X, (k_X, n), dtype),
        contrast=(contrast, (), dtype),
        offset=(offset, (), dtype),
        data=(data, (m, n), data.dtype),
        quantization=(quantization, (2,), dtype),
        sigma=(sigma, _sigma_shape(op, sigma_rank, m, n), dtype),
        keep=(keep, (n,), np.uint8),
        f_scale=(f_scale, (), dtype),
        first_row=(first_row, (), np.int32),
        initial=(initial, (state_size(k_A, k_X),), dtype),
    )
    return _Struct(initial.shape, dtype)


# csrc/xpcs/arithmetic.h: kMaxTables.
_MOST_TABLES = 64


def _normal_supports(
    A: Any, X: Any, tangents_A: Any, tangents_X: Any, *_: Any, **static: Any
) -> Any:
    tables = tangents_A.shape[0] + tangents_X.shape[0]
    if tables > _MOST_TABLES:
        return f"{tables} tangent tables; the kernels take up to {_MOST_TABLES}"
    if static["shear_power"] == 0 and tangents_X.shape[0]:
        return "tangent tables of X without a shear factor"
    return None


# Derivatives.


def _filled(tangents: Sequence[Any], primals: Sequence[Any]) -> list[Any]:
    return [jnp.zeros_like(p) if t is None else t for t, p in zip(tangents, primals, strict=True)]


def _g2_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, batch_dims: int, shear_power: int
) -> tuple[Any, Any]:
    static = {"batch_dims": batch_dims, "shear_power": shear_power}
    A, X, contrast, _ = primals
    moved = two_time_g2_tangent(A, X, contrast, *_filled(tangents, primals), **static)
    return two_time_g2(*primals, **static), moved


def _tangent_transpose(
    cotangents: Sequence[Any], *operands: Any, batch_dims: int, shear_power: int
) -> list[Any]:
    A, X, contrast, *linear = operands
    bars = two_time_g2_cotangent(
        A, X, contrast, cotangents[0], batch_dims=batch_dims, shear_power=shear_power
    )
    given: list[Any] = [None, None, None]
    for operand, bar in zip(linear, bars, strict=True):
        if not isinstance(operand, ad.UndefinedPrimal):
            given.append(None)
            continue
        shape = operand.aval.shape
        shared = tuple(
            axis for axis in range(batch_dims) if shape[axis] == 1 and bar.shape[axis] != 1
        )
        given.append(jnp.sum(bar, axis=shared, keepdims=True) if shared else bar)
    return given


def _residual_jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    batch_dims: int,
    shear_power: int,
    sigma_rank: int,
) -> tuple[Any, Any]:
    static = {"batch_dims": batch_dims, "shear_power": shear_power}
    A, X, contrast, _, data, sigma = primals
    residual = two_time_residual(*primals, **static, sigma_rank=sigma_rank)
    n = data.shape[-1]
    sigma_of_points = sigma if sigma_rank == 2 else sigma[..., None, None]
    counts = (sigma_of_points > twin.SIGMA_FLOOR) & ~jnp.eye(n, dtype=bool)
    weight = jnp.where(counts, 1.0 / jnp.where(counts, sigma_of_points, 1.0), 0.0)
    moved = jnp.zeros_like(residual)
    if any(t is not None for t in tangents[:4]):
        along = _filled(tangents[:4], primals[:4])
        moved = moved - weight * two_time_g2_tangent(A, X, contrast, *along, **static)
    if tangents[4] is not None:
        moved = moved + weight * tangents[4]
    if tangents[5] is not None:
        change = tangents[5] if sigma_rank == 2 else tangents[5][..., None, None]
        moved = moved - residual * weight * change
    # A weight of 0 does not silence a tangent, nor a cotangent, that is not a number.
    return residual, jnp.where(counts, moved, 0.0)


# Costs of one sample, from shapes.


def _per_point(flops: int, matrices: int) -> Any:
    def cost(A: Any, *rest: Any, **_: Any) -> Cost:
        points = A.shape[0] ** 2
        return Cost(flops=flops * points, bytes=matrices * points * np.dtype(A.dtype).itemsize)

    return cost


def _at_cost(A: Any, X: Any, contrast: Any, offset: Any, index: Any, **_: Any) -> Cost:
    item = np.dtype(A.dtype).itemsize
    return Cost(flops=_FLOPS_F * index.shape[0], bytes=index.shape[0] * (12 + 7 * item))


def _normal_cost(*operands: Any, symmetric: int, **_: Any) -> Cost:
    tangents_A, tangents_X, data, sigma = operands[2], operands[3], operands[6], operands[8]
    basis = basis_size(tangents_A.shape[0], tangents_X.shape[0])
    # A mirrored pair is computed once.
    points = data.size if symmetric == 0 else data.size // 2
    # A function of the basis costs a difference and a product, and enters each sum with two more.
    flops = points * (_FLOPS_SLOPES + 2 * basis + basis * (basis + 1) + 2 * basis + 8)
    read = data.size * np.dtype(data.dtype).itemsize
    if symmetric == 1:
        read //= 2
    return Cost(flops=flops, bytes=read + sigma.size * np.dtype(sigma.dtype).itemsize)


def _attributes(**static: int) -> dict[str, Any]:
    return {name: np.int32(value) for name, value in static.items()}


two_time_g2 = Op(
    "jaxkern.two_time_g2",
    version=1,
    abstract=_abstract_g2,
    impl=twin.two_time_g2,
    attributes=_attributes,
    jvp=_g2_jvp,
    cost=_per_point(_FLOPS_F, 1),
)

two_time_g2_tangent = Op(
    "jaxkern.two_time_g2_tangent",
    version=1,
    abstract=_abstract_tangent,
    impl=twin.two_time_g2_tangent,
    attributes=_attributes,
    transpose=_tangent_transpose,
    cost=_per_point(_FLOPS_SLOPES + 8, 1),
)

two_time_g2_cotangent = Op(
    "jaxkern.two_time_g2_cotangent",
    version=1,
    abstract=_abstract_cotangent,
    impl=twin.two_time_g2_cotangent,
    attributes=_attributes,
    cost=_per_point(_FLOPS_SLOPES + 10, 1),
)

two_time_residual = Op(
    "jaxkern.two_time_residual",
    version=1,
    abstract=_abstract_residual,
    impl=twin.two_time_residual,
    attributes=_attributes,
    jvp=_residual_jvp,
    cost=_per_point(_FLOPS_F + 3, 3),
)

two_time_g2_at = Op(
    "jaxkern.two_time_g2_at",
    version=1,
    abstract=_abstract_at,
    impl=twin.two_time_g2_at,
    attributes=_attributes,
    cost=_at_cost,
)

two_time_normal_equations = Op(
    "jaxkern.two_time_normal_equations",
    version=1,
    abstract=_abstract_normal,
    impl=twin.two_time_normal_equations,
    attributes=_attributes,
    supports=_normal_supports,
    cost=_normal_cost,
)
