"""Pure-JAX reference implementations ("twins") of the XPCS kernels, for one angle.

    f(i, j) = exp(-2 |A_i - A_j|) sinc(X_i - X_j)^P,  g2 = offset + contrast f,  sinc x = sin(x) / x

with the derivatives a = df/d(A_i - A_j) = -2 sign(A_i - A_j) f, sign(0) = 0, and
h = df/d(X_i - X_j) = exp(-2 |A_i - A_j|) P sinc^(P-1) sinc'.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxkern.core import compat
from jaxkern.core.op import pvary

ROW_BLOCK = 32
"""Number of rows that are summed before they are added to a state. Results of chunks that split at
its multiples are bit-identical (in f32, up to rounding between chunks)."""

TILE_COLUMNS = 128
# The float32 nearest to 1e-10 exceeds it slightly, so both precisions exclude 1e-10 itself.
SIGMA_FLOOR = float(np.float32(1e-10))
LOSSES = ("linear", "soft_l1", "huber", "cauchy", "arctan")

# Below this |x|, 8 terms of the series are exact to rounding for sinc and sinc'. Above it, the
# formulas lose at most a few bits.
_SERIES = 0.5
_SINC = [(-1) ** k / math.factorial(2 * k + 1) for k in range(8)]
_SLOPE = [(-1) ** k * 2 * k / math.factorial(2 * k + 1) for k in range(1, 9)]


def _polynomial(coefficients: list[float], square: jax.Array) -> jax.Array:
    total = jnp.full_like(square, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * square + c
    return total


def _split(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return a mask of small |x|, x with 0 for large |x|, and x with 1 for small |x| (no 0 / 0)."""
    small = jnp.abs(x) < _SERIES
    return small, jnp.where(small, x, 0.0), jnp.where(small, 1.0, x)


def _sinc(x: jax.Array) -> jax.Array:
    small, near, far = _split(x)
    return jnp.where(small, _polynomial(_SINC, near * near), jnp.sin(far) / far)


def _sinc_slope(x: jax.Array) -> jax.Array:
    small, near, far = _split(x)
    direct = (jnp.cos(far) - jnp.sin(far) / far) / far
    return jnp.where(small, near * _polynomial(_SLOPE, near * near), direct)


def correlation(dA: jax.Array, dX: jax.Array, shear_power: int) -> jax.Array:
    """Compute f of phase differences."""
    decay = jnp.exp(-2.0 * jnp.abs(dA))
    if shear_power == 0:
        return decay
    square = _sinc(dX) ** 2
    return decay * square if shear_power == 2 else decay * (square * square)


def slopes(
    dA: jax.Array, dX: jax.Array, shear_power: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Compute f, a and h of phase differences."""
    decay = jnp.exp(-2.0 * jnp.abs(dA))
    if shear_power == 0:
        return decay, -2.0 * jnp.sign(dA) * decay, jnp.zeros_like(decay)
    sinc = _sinc(dX)
    lower = sinc if shear_power == 2 else sinc * sinc * sinc
    f = decay * (lower * sinc)
    return f, -2.0 * jnp.sign(dA) * f, decay * (shear_power * lower * _sinc_slope(dX))


def _differences(table: jax.Array) -> jax.Array:
    return table[..., :, None] - table[..., None, :]


def two_time_g2(
    A: jax.Array, X: jax.Array, contrast: jax.Array, offset: jax.Array, *, shear_power: int
) -> jax.Array:
    """Compute g2 [n, n] of phases A [n] and X [n]."""
    return offset + contrast * correlation(_differences(A), _differences(X), shear_power)


def two_time_g2_tangent(
    A: jax.Array,
    X: jax.Array,
    contrast: jax.Array,
    dA: jax.Array,
    dX: jax.Array,
    dcontrast: jax.Array,
    doffset: jax.Array,
    *,
    shear_power: int,
) -> jax.Array:
    """Compute the tangent of g2 [n, n] along (dA, dX, dcontrast, doffset)."""
    f, a, h = slopes(_differences(A), _differences(X), shear_power)
    return doffset + dcontrast * f + contrast * (a * _differences(dA) + h * _differences(dX))


def two_time_g2_cotangent(
    A: jax.Array, X: jax.Array, contrast: jax.Array, G: jax.Array, *, shear_power: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Compute the gradient of sum(G g2) by A [n], X [n], contrast [] and offset []."""
    f, a, h = slopes(_differences(A), _differences(X), shear_power)

    def pull_back(slope: jax.Array) -> jax.Array:
        flow = contrast * (G * slope)
        return jnp.sum(flow, axis=1) - jnp.sum(flow, axis=0)

    return pull_back(a), pull_back(h), jnp.sum(G * f), jnp.sum(G)


def two_time_residual(
    A: jax.Array,
    X: jax.Array,
    contrast: jax.Array,
    offset: jax.Array,
    data: jax.Array,
    sigma: jax.Array,
    *,
    shear_power: int,
    sigma_rank: int,
) -> jax.Array:
    """Compute (data - g2) / sigma [n, n]; 0 on the diagonal and where sigma <= 1e-10."""
    n = A.shape[0]
    valid = (sigma > SIGMA_FLOOR) & ~jnp.eye(n, dtype=bool)
    g2 = two_time_g2(A, X, contrast, offset, shear_power=shear_power)
    return jnp.where(valid, data - g2, 0.0) / jnp.where(valid, sigma, 1.0)


def two_time_g2_at(
    A: jax.Array,
    X: jax.Array,
    contrast: jax.Array,
    offset: jax.Array,
    index: jax.Array,
    *,
    shear_power: int,
) -> jax.Array:
    """Compute g2 [k] at index (phi, i, j) [k, 3] of A [n], X [m, n]; NaN if out of range."""
    limits = jnp.asarray([X.shape[0], X.shape[1], X.shape[1]], index.dtype)
    inside = jnp.all((index >= 0) & (index < limits), axis=1)
    phi, i, j = jnp.moveaxis(jnp.clip(index, 0, jnp.maximum(limits - 1, 0)), 1, 0)
    if 0 in X.shape:
        return jnp.full(index.shape[:1], jnp.nan, A.dtype)
    f = correlation(A[i] - A[j], X[phi, i] - X[phi, j], shear_power)
    return jnp.where(inside, offset[phi] + contrast[phi] * f, jnp.nan)


def robust(loss: int, z: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute rho(z) and rho'(z) of SciPy's loss with an index in `LOSSES`, for z >= 0."""
    if loss == 0:
        return z, jnp.ones_like(z)
    if loss == 1:
        root = jnp.sqrt(1.0 + z)
        # 2 (root - 1) without cancellation for small z.
        return 2.0 * z / (root + 1.0), 1.0 / root
    if loss == 2:
        inner = z <= 1.0
        root = jnp.sqrt(jnp.where(inner, 1.0, z))
        return jnp.where(inner, z, 2.0 * root - 1.0), jnp.where(inner, 1.0, 1.0 / root)
    if loss == 3:
        return jnp.log1p(z), 1.0 / (1.0 + z)
    return jnp.arctan(z), 1.0 / (1.0 + z * z)


def _mirrored_tiles(data: jax.Array, sigma: jax.Array, keep: jax.Array) -> jax.Array:
    """Return a mask [n, n] of points in tiles whose data and sigma equal their mirror image.

    A tile consists of the points above the diagonal in ROW_BLOCK rows and TILE_COLUMNS columns; the
    first tile of a row block starts at the column of its first row. Masked frames are not compared.
    """
    n = data.shape[0]
    equal = data == data.T
    if sigma.ndim == 2:
        equal = equal & (sigma == sigma.T)
    index = jnp.arange(n)
    above = index[:, None] < index
    equal = equal | ~(above & keep[:, None] & keep)
    starts = ROW_BLOCK * jnp.arange(-(-n // ROW_BLOCK))[:, None]
    equal = jnp.pad(equal, ((0, starts.shape[0] * ROW_BLOCK - n), (0, 0)), constant_values=True)
    lines = jnp.all(equal.reshape(starts.shape[0], ROW_BLOCK, n), axis=1)
    tile = jnp.maximum(index - starts, 0) // TILE_COLUMNS
    tiles = jnp.ones((starts.shape[0], 1 + n // TILE_COLUMNS), bool)
    tiles = tiles.at[jnp.arange(starts.shape[0])[:, None], tile].min(lines)
    mirrored = jnp.take_along_axis(tiles, tile, axis=1)
    half = jnp.repeat(mirrored, ROW_BLOCK, axis=0)[:n] & above
    return half | half.T


def two_time_normal_equations(
    A: jax.Array,
    X: jax.Array,
    tangents_A: jax.Array,
    tangents_X: jax.Array,
    contrast: jax.Array,
    offset: jax.Array,
    data: jax.Array,
    quantization: jax.Array,
    sigma: jax.Array,
    keep: jax.Array,
    f_scale: jax.Array,
    first_row: jax.Array,
    initial: jax.Array,
    *,
    shear_power: int,
    loss: int,
    symmetric: int,
    sigma_rank: int,
) -> jax.Array:
    """Add sums over data [m, n], rows first_row .. first_row + m of the matrix, to `initial` [S].

    uint16 data mean zero + step * data with (step, zero) = quantization. The basis of a point is
    [1, f, a (TA_k[i] - TA_k[j]) .., h (TX_k[i] - TX_k[j]) ..], B functions. A state contains the
    upper triangle of sum w^2 b_k b_l row by row, sum w^2 b_k r, and the sums chi2, cost, count,
    mirrored, with w = 1 / sigma and r = data - g2. The result is NaN for rows out of range.
    """

    def basis(row: jax.Array) -> tuple[jax.Array, jax.Array]:
        def difference(table: jax.Array) -> jax.Array:
            return table[..., row][..., :, None] - table[..., None, :]

        f, a, h = slopes(difference(A), difference(X), shear_power)
        return f, jnp.concatenate([a * difference(tangents_A), h * difference(tangents_X)])

    options = {"loss": loss, "symmetric": symmetric, "sigma_rank": sigma_rank}
    scales = contrast, offset
    return add_normal_equations(
        basis, scales, data, quantization, sigma, keep, f_scale, first_row, initial, **options
    )


def add_normal_equations(
    basis: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
    scales: tuple[jax.Array, jax.Array],
    data: jax.Array,
    quantization: jax.Array,
    sigma: jax.Array,
    keep: jax.Array,
    f_scale: jax.Array,
    first_row: jax.Array,
    initial: jax.Array,
    *,
    loss: int,
    symmetric: int,
    sigma_rank: int,
) -> jax.Array:
    """Add the sums of a model to `initial` [S]; see `two_time_normal_equations`.

    ``basis(row [r])`` returns f [r, n] and its derivatives [k, r, n]; `scales` are the contrast and
    the offset.
    """
    contrast, offset = scales
    n, m, dtype = data.shape[1], data.shape[0], initial.dtype
    initial = jnp.where((first_row >= 0) & (first_row <= n - m), initial, jnp.nan)
    if m == 0:
        return initial
    count = -(-m // ROW_BLOCK)
    padding = count * ROW_BLOCK - m

    def blocks(x: jax.Array, fill: Any) -> jax.Array:
        padded = jnp.pad(x, ((0, padding), *((0, 0) for _ in x.shape[1:])), constant_values=fill)
        return padded.reshape(count, ROW_BLOCK, *x.shape[1:])

    used, columns = keep != 0, lax.iota(first_row.dtype, n)
    rows = first_row + lax.iota(first_row.dtype, m)
    xs: dict[str, Any] = {
        "row": blocks(rows, -1),
        "data": blocks(data, 0),
        "sigma": blocks(sigma, 1) if sigma_rank == 2 else None,
        "mirrored": blocks(_mirrored_tiles(data, sigma, used), False) if symmetric == 2 else None,
    }
    factor = 2.0 if symmetric == 1 else 1.0
    step, zero = quantization[0], quantization[1]
    quantized = jnp.issubdtype(data.dtype, jnp.integer)

    def add(state: jax.Array, x: dict[str, Any]) -> tuple[jax.Array, None]:
        row = jnp.clip(x["row"], 0, n - 1)
        deviation = sigma if x["sigma"] is None else x["sigma"]
        valid = (x["row"] >= 0) & (x["row"] < n) & used[row]
        valid = valid[:, None] & used & (row[:, None] != columns) & (deviation > SIGMA_FLOOR)
        if symmetric == 1:
            valid = valid & (row[:, None] < columns)
        f, derivatives = basis(row)
        flat = jnp.concatenate([jnp.ones_like(f)[None], f[None], derivatives])
        flat = flat.reshape(-1, ROW_BLOCK * n)
        upper = np.triu_indices(len(flat))
        value = x["data"].astype(dtype)
        if quantized:
            value = zero + step * value
        residual = jnp.where(valid, value - (offset + contrast * f), 0.0)
        scaled = residual / jnp.where(valid, deviation, 1.0)
        rho, weight = robust(loss, (scaled / f_scale) ** 2)
        weight = jnp.where(valid, factor * weight / jnp.where(valid, deviation, 1.0) ** 2, 0.0)
        weighted = flat * weight.reshape(-1)
        gram = jnp.dot(weighted, flat.T, precision=lax.Precision.HIGHEST)
        rhs = jnp.dot(weighted, residual.reshape(-1), precision=lax.Precision.HIGHEST)
        number = factor * jnp.sum(valid, dtype=dtype)
        mirrored = number if symmetric == 1 else jnp.zeros((), dtype)
        if x["mirrored"] is not None:
            mirrored = jnp.sum(valid & x["mirrored"], dtype=dtype)
        cost = chi2 = jnp.sum(scaled * scaled)
        if loss != 0:  # the linear cost must not depend on the rounding of f_scale
            cost = f_scale**2 * jnp.sum(jnp.where(valid, rho, 0.0))
        sums = jnp.stack([factor * chi2, factor * cost, number, mirrored])
        return state + jnp.concatenate([gram[upper], rhs, sums]), None

    # Inside shard_map, a carry must vary over the same axes as its sums.
    operands = (contrast, offset, data, quantization, sigma, keep, f_scale, first_row, initial)
    varying = frozenset[str]().union(*(compat.varying_axes(v) for v in operands))
    return lax.scan(add, pvary(initial, varying), xs)[0]
