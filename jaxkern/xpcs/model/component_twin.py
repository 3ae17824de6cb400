"""Pure-JAX reference implementations ("twins") of the kernels of component models, for one angle.

Component c has the tables B (logarithm of the weight), A (decay) and P (phase), each [n]:

    T_c(i, j) = exp(B_i + B_j - |A_i - A_j| + i (P_i - P_j)),  G = sum_c T_c,  f = |G|^2,

and g2 = offset + contrast f. With m_c = 2 Re(conj(G) T_c), h_c = -2 Im(conj(G) T_c), sign(0) = 0,

    df = sum_c m_c (dB_i + dB_j) - m_c sign(A_i - A_j) (dA_i - dA_j) + h_c (dP_i - dP_j).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxkern.xpcs.model.twin import SIGMA_FLOOR, add_normal_equations

_ALL = slice(None)


def _minus(table: jax.Array, i: Any = _ALL) -> jax.Array:
    """Return the differences [..., r, n] of frames i and all frames."""
    return table[..., i][..., :, None] - table[..., None, :]


def _plus(table: jax.Array, i: Any = _ALL) -> jax.Array:
    return table[..., i][..., :, None] + table[..., None, :]


def terms(total: jax.Array, decay: jax.Array, phase: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute the real and the imaginary parts of T_c [C, ...] of sums of B and differences."""
    size = jnp.exp(total - jnp.abs(decay))
    return size * jnp.cos(phase), size * jnp.sin(phase)


def correlation(total: jax.Array, decay: jax.Array, phase: jax.Array) -> jax.Array:
    """Compute f [...] of sums of B [C, ...] and differences of A and P."""
    real, imaginary = terms(total, decay, phase)
    return jnp.sum(real, axis=0) ** 2 + jnp.sum(imaginary, axis=0) ** 2


def slopes(
    weight: jax.Array, decay: jax.Array, phase: jax.Array, i: Any = _ALL
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Compute f [r, n] and its derivatives m, a and h [C, r, n] at rows i [r]."""
    difference = _minus(decay, i)
    real, imaginary = terms(_plus(weight, i), difference, _minus(phase, i))
    U, V = jnp.sum(real, axis=0), jnp.sum(imaginary, axis=0)
    m = 2.0 * (U * real + V * imaginary)
    return U * U + V * V, m, -jnp.sign(difference) * m, 2.0 * (V * real - U * imaginary)


def component_g2(
    weight: jax.Array, decay: jax.Array, phase: jax.Array, contrast: jax.Array, offset: jax.Array
) -> jax.Array:
    """Compute g2 [n, n] of logarithms of weights B, decays A and phases P, each [C, n]."""
    return offset + contrast * correlation(_plus(weight), _minus(decay), _minus(phase))


def component_g2_tangent(
    weight: jax.Array,
    decay: jax.Array,
    phase: jax.Array,
    contrast: jax.Array,
    dweight: jax.Array,
    ddecay: jax.Array,
    dphase: jax.Array,
    dcontrast: jax.Array,
    doffset: jax.Array,
) -> jax.Array:
    """Compute the tangent of g2 [n, n]."""
    f, m, a, h = slopes(weight, decay, phase)
    change = m * _plus(dweight) + a * _minus(ddecay) + h * _minus(dphase)
    return doffset + dcontrast * f + contrast * jnp.sum(change, axis=0)


def component_g2_cotangent(
    weight: jax.Array, decay: jax.Array, phase: jax.Array, contrast: jax.Array, G: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """Compute the gradient of sum(G g2) by B, A and P [C, n], contrast [] and offset []."""
    f, m, a, h = slopes(weight, decay, phase)

    def pull_back(slope: jax.Array, sign: float) -> jax.Array:
        flow = contrast * (G * slope)
        return jnp.sum(flow, axis=2) + sign * jnp.sum(flow, axis=1)

    bars = pull_back(m, 1.0), pull_back(a, -1.0), pull_back(h, -1.0)
    return *bars, jnp.sum(G * f), jnp.sum(G)


def component_residual(
    weight: jax.Array,
    decay: jax.Array,
    phase: jax.Array,
    contrast: jax.Array,
    offset: jax.Array,
    data: jax.Array,
    sigma: jax.Array,
    *,
    sigma_rank: int,
) -> jax.Array:
    """Compute (data - g2) / sigma [n, n]; 0 on the diagonal and where sigma <= 1e-10."""
    valid = (sigma > SIGMA_FLOOR) & ~jnp.eye(data.shape[0], dtype=bool)
    g2 = component_g2(weight, decay, phase, contrast, offset)
    return jnp.where(valid, data - g2, 0.0) / jnp.where(valid, sigma, 1.0)


def component_normal_equations(
    weight: jax.Array,
    decay: jax.Array,
    phase: jax.Array,
    tangents_weight: jax.Array,
    tangents_decay: jax.Array,
    tangents_phase: jax.Array,
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
    loss: int,
    symmetric: int,
    sigma_rank: int,
) -> jax.Array:
    """Add sums over data [m, n], rows first_row .. first_row + m of the matrix, to `initial` [S].

    The basis of a point is 1, f, and df along each of the tangents [p, C, n]. The state is that of
    `two_time_normal_equations` with p tables.
    """

    def basis(row: jax.Array) -> tuple[jax.Array, jax.Array]:
        f, m, a, h = slopes(weight, decay, phase, row)
        change = m * _plus(tangents_weight, row) + a * _minus(tangents_decay, row)
        return f, jnp.sum(change + h * _minus(tangents_phase, row), axis=1)

    options = {"loss": loss, "symmetric": symmetric, "sigma_rank": sigma_rank}
    scales = contrast, offset
    return add_normal_equations(
        basis, scales, data, quantization, sigma, keep, f_scale, first_row, initial, **options
    )
