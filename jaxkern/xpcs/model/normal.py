"""Normal equations and log-likelihood of a model, accumulated in one pass over the data.

A pass returns a *state* for each angle: additive sums over points of products of basis functions.
The Jacobian is linear in these: 1 (offset), f (contrast), and one for each tangent of the phases.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.model import checks, ops
from jaxkern.xpcs.model.components import Components, ComponentTables
from jaxkern.xpcs.model.models import Model, Tables
from jaxkern.xpcs.model.ops import state_size
from jaxkern.xpcs.model.twin import LOSSES

SCALINGS = ("individual", "constant", "fixed")
_SYMMETRIC = (False, True, "auto")


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["jtj", "jtr", "chi2", "cost", "count", "mirrored"],
    meta_fields=[],
)
@dataclass(frozen=True)
class NormalEquations:
    """J^T J, J^T r and sums over the points; J is the derivative of g2 / sigma, r the residual.

    With a robust loss, J^T J and J^T r have the weights rho'. The class is a JAX pytree.

    Attributes:
      jtj: [P, P], parameters in the order [contrast.., offset.., physics..].
      jtr: [P]; the gradient of cost / 2 is -jtr.
      chi2: sum of squared residuals [].
      cost: sum of f_scale^2 rho((residual / f_scale)^2) []; chi2 for the linear loss.
      count: number of points with weight [].
      mirrored: number of points in mirrored pairs []; half of them carry no information.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> geometry = jk.xpcs.Geometry(.0054, 2e6, .1, .1 * np.arange(50), [0., 45., 90.])
      >>> model = jk.xpcs.LaminarFlow(geometry)
      >>> data = jk.xpcs.g2(model, model.defaults, .3, 1.)
      >>> equations = jk.xpcs.normal_equations(model, model.defaults, .3, 1., data, .01)
      >>> equations.jtj.shape, equations.jtr.shape, bool(equations.cost == equations.chi2)
      ((13, 13), (13,), True)
    """

    jtj: Any
    jtr: Any
    chi2: Any
    cost: Any
    count: Any
    mirrored: Any


def accumulate(
    tables: Tables | ComponentTables,
    contrast: Any,
    offset: Any,
    data: Any,
    sigma: Any,
    *,
    shear_power: int,
    first_row: Any = 0,
    initial: Any = None,
    keep: Any = None,
    loss: str = "linear",
    f_scale: Any = 1.0,
    symmetric: bool | str = "auto",
    quantization: Any = None,
) -> jax.Array:
    """Add a chunk of rows of all angles to the states.

    The result for chunks that split at multiples of `ROW_BLOCK` rows, each with the previous states
    as `initial`, is bit-identical to that of one call. Other splits agree to rounding. In JAX's
    32-bit mode, states between calls are rounded to f32.

    Args:
      tables: a model's `Tables`, or the `ComponentTables` of a model of components.
      contrast, offset, sigma, keep, loss, f_scale, quantization: as in `normal_equations`.
      data: rows of the correlations [n_phi, m, n_t], f64, f32, f16 or u16.
      shear_power: 0, 2 or 4; models of components ignore it.
      first_row: index of the chunk's first row in the matrices; may be a tracer.
      initial: states [n_phi, S] to add to; zeros by default.
      symmetric: as in `normal_equations`; "auto" needs full matrices.

    Returns:
      States [n_phi, S], S = ``state_size(k_A, k_X)``, or ``state_size(p, 0)`` of a model of
      components with p parameters, f64 (f32 in JAX's 32-bit mode): the upper triangle of the
      products of basis functions, row by row; their products with the residual; chi2, cost, count,
      mirrored.

    Raises:
      ValueError: for arguments of a wrong shape, unknown options, a negative or NaN sigma, and
        ``symmetric="auto"`` with a part of the rows.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> model = jk.xpcs.Static(jk.xpcs.Geometry(.0054, None, .1, .1 * np.arange(64), 0.))
      >>> data, tables = jk.xpcs.g2(model, model.defaults), model.tables(model.defaults)
      >>> state = None
      >>> for row in (0, 32):
      ...     state = jk.xpcs.accumulate(
      ...         tables, .5, 1., data[:, row:row + 32], .01, shear_power=0, first_row=row,
      ...         initial=state, symmetric=False)
      >>> state.shape, float(state[0, -2])
      ((1, 24), 4032.0)
    """
    dtype, n_t = tables.A.dtype, tables.A.shape[-1]
    measured = checks.check_data(data, (None, None, n_t))
    n_phi, rows = measured.shape[:2]
    if isinstance(tables, Tables):
        op, static = ops.two_time_normal_equations, {"shear_power": shear_power}
    else:
        op, static = ops.component_normal_equations, {}
    # Tables without an axis of angles belong to all of them.
    arrays = [
        table if table.ndim == rank else table[None]
        for table, rank in zip(tables.arrays, table_ranks(tables.arrays), strict=True)
    ]
    angles = max(len(table) for table in arrays)
    if angles not in (1, n_phi):
        raise ValueError(f"data: expected {angles} angles, as in tables, got {n_phi}")
    mode = checks.choice(symmetric, "symmetric", _SYMMETRIC)
    if mode == 2 and rows != n_t:
        raise ValueError(f'symmetric: expected {n_t} rows with "auto", got {rows}; pass a bool')
    if checks.is_concrete(first_row) and not 0 <= int(first_row) <= n_t - rows:
        raise ValueError(
            f"first_row: expected 0 to {n_t - rows} for {rows} of {n_t} rows, got {int(first_row)}"
        )
    deviations = checks.check_sigma(sigma, measured.shape, dtype)
    size = state_size(len(tables.columns), 0)
    states = jnp.zeros((n_phi, size), dtype) if initial is None else jnp.asarray(initial, dtype)
    if states.shape != (n_phi, size):
        raise ValueError(f"initial: expected ({n_phi}, {size}), got shape {states.shape}")
    return op(
        *arrays,
        checks.per_angle(contrast, "contrast", n_phi, dtype),
        checks.per_angle(offset, "offset", n_phi, dtype),
        measured,
        checks.check_quantization(quantization, measured, n_phi, dtype),
        deviations,
        checks.check_keep(keep, n_phi, n_t),
        checks.check_f_scale(f_scale, dtype)[None],
        jnp.asarray(first_row, jnp.int32).reshape(1),
        states,
        batch_dims=1,
        **static,
        loss=checks.choice(loss, "loss", LOSSES),
        symmetric=mode,
        sigma_rank=deviations.ndim - 1,
    )


def table_ranks(arrays: Sequence[Any]) -> tuple[int, ...]:
    """Return the number of axes of each of the arrays of tables if they have one of angles."""
    return (2, 2, 3, 3) if len(arrays) == 4 else (3, 3, 3, 4, 4, 4)


def unpack(state: Any, basis: int) -> tuple[Any, Any, Any]:
    """Return products [n_phi, B, B], products with the residual [n_phi, B] and sums [n_phi, 4]."""
    upper = np.triu_indices(basis)
    index = np.zeros((basis, basis), np.int32)
    index[upper] = index.T[upper] = np.arange(len(upper[0]))
    packed = len(upper[0])
    return state[:, index], state[:, packed : packed + basis], state[:, packed + basis :]


def sums_of_angles(
    state: Any, columns: Sequence[int], n_parameters: int, contrast: Any, xp: Any
) -> tuple[Any, Any, Any]:
    """Convert states to sums over the parameters [contrast, offset, physics..] of each angle.

    Returns J^T J [n_phi, 2 + p, 2 + p], J^T r [n_phi, 2 + p] and the 4 sums [n_phi, 4]. `columns`
    are the parameters of the tangents; `xp` is NumPy or jax.numpy.
    """
    gram, rhs, sums = unpack(state, 2 + len(columns))
    select = np.zeros((2 + len(columns), 2 + n_parameters))
    select[1, 0] = select[0, 1] = 1.0
    for row, column in enumerate(columns):
        select[2 + row, 2 + column] = 1.0
    # The derivative of g2 with respect to a physics parameter is contrast times its columns' sum.
    scale = xp.concatenate([xp.ones((len(state), 2)), xp.outer(contrast, np.ones(n_parameters))], 1)
    change = (select * scale[:, None, :]).astype(state.dtype)
    transposed = xp.swapaxes(change, 1, 2)
    with jax.default_matmul_precision("highest"):
        return transposed @ gram @ change, (transposed @ rhs[..., None])[..., 0], sums


def scale_basis(scaling: str, n_phi: int) -> NDArray[np.float64]:
    """Return B [n_phi, k] so that contrast and offset of the angles are B times k coefficients."""
    checks.choice(scaling, "scaling", SCALINGS)
    if scaling == "individual":
        return np.eye(n_phi)
    return np.ones((n_phi, 1 if scaling == "constant" else 0))


def join_angles(jtj: Any, jtr: Any, basis: Any, xp: Any) -> tuple[Any, Any]:
    """Return J^T J and J^T r of all parameters from those of the angles (`sums_of_angles`).

    `basis` is that of `scale_basis`.
    """
    with jax.default_matmul_precision("highest"):
        scales = [[basis.T @ (jtj[:, k, m, None] * basis) for m in (0, 1)] for k in (0, 1)]
        physics = [basis.T @ jtj[:, k, 2:] for k in (0, 1)]
        rhs = [basis.T @ jtr[:, k] for k in (0, 1)]
    rows = [[*scales[k], physics[k]] for k in (0, 1)]
    return (
        xp.block([*rows, [physics[0].T, physics[1].T, jtj[:, 2:, 2:].sum(0)]]),
        xp.concatenate([*rhs, jtr[:, 2:].sum(0)]),
    )


def assemble(
    state: Any, tables: Tables | ComponentTables, contrast: Any, scaling: str = "individual"
) -> NormalEquations:
    """Return the normal equations of the parameters from the states of all angles.

    Args:
      state: [n_phi, S], from `accumulate`.
      tables: the tables of the pass.
      contrast: the contrast of the pass: one number or [n_phi].
      scaling: "individual" (contrast and offset of each angle), "constant" (one pair for all
        angles) or "fixed" (physics parameters only).

    Returns:
      `NormalEquations` of [contrast.., offset.., physics..].

    Raises:
      ValueError: for another scaling, and a state of a wrong shape.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> A, X, tangents_A, tangents_X = (np.zeros(s) for s in ((8,), (1, 8), (3, 8), (1, 0, 8)))
      >>> tables = jk.xpcs.Tables(A, X, tangents_A, tangents_X, (0, 1, 2), (), n_parameters=3)
      >>> state = np.zeros((1, jk.xpcs.state_size(3, 0)), np.float32)  # see `accumulate`
      >>> jk.xpcs.assemble(state, tables, contrast=0.5).jtj.shape  # contrast, offset, 3 of physics
      (5, 5)
    """
    size = state_size(len(tables.columns), 0)
    if state.ndim != 2 or state.shape[1] != size:
        raise ValueError(f"state: expected [n_phi, {size}], got shape {state.shape}")
    columns = tables.columns
    scale = checks.per_angle(contrast, "contrast", state.shape[0], state.dtype)
    jtj, jtr, sums = sums_of_angles(state, columns, tables.n_parameters, scale, jnp)
    basis = scale_basis(scaling, len(jtj)).astype(jtj.dtype)
    jtj, jtr = join_angles(jtj, jtr, basis, jnp)
    chi2, cost, count, mirrored = jnp.sum(sums, axis=0)
    return NormalEquations(jtj, jtr, chi2, cost, count, mirrored)


def normal_equations(
    model: Model,
    params: Any,
    contrast: Any,
    offset: Any,
    data: Any,
    sigma: Any,
    *,
    scaling: str = "individual",
    symmetric: bool | str = "auto",
    keep: Any = None,
    loss: str = "linear",
    f_scale: Any = 1.0,
    quantization: Any = None,
) -> NormalEquations:
    """Compute J^T J, J^T r, chi2 and count of a least-squares fit in one pass over the data.

    J is the derivative of g2 / sigma with respect to [contrast.., offset.., physics..], and
    r = (data - g2) / sigma. The diagonal and points with sigma <= 1e-10 have no weight, and neither
    have frames that the model does not use.

    Mirrored points are not independent. If all are mirrored (``mirrored == count``), the covariance
    of the parameters is 2 inv(jtj), and reduced chi2 uses half of the count.

    Args:
      model: a `Model` with p parameters.
      params: its parameters [p].
      contrast, offset: one number, or one for each angle [n_phi].
      data: measured correlations [n_phi, n_t, n_t], f64, f32, f16, or quantized u16.
      sigma: their standard deviations: one number, [n_phi], or the shape of the data.
      scaling: "individual" (2 n_phi + p parameters), "constant" (2 + p; contrast and offset are one
        number each) or "fixed" (p).
      symmetric: "auto" compares mirrored tiles of data and sigma and computes equal ones once; True
        uses the points above the diagonal with weight 2; False uses every point.
      keep: mask of used frames, [n_t] or [n_phi, n_t]; all by default.
      loss: "linear", "soft_l1", "huber", "cauchy" or "arctan", as in SciPy's ``least_squares``, but
        without its second-order term.
      f_scale: residual at which a robust loss bends.
      quantization: (step, zero), or [n_phi, 2], of u16 data; a value is zero + step * data.

    Returns:
      `NormalEquations`.

    Raises:
      ValueError: for arguments of a wrong shape, unknown options, a negative or NaN sigma, and an
        f_scale that is not positive.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> geometry = jk.xpcs.Geometry(.0054, 2e6, .1, .1 * np.arange(50), [0., 45., 90.])
      >>> model = jk.xpcs.LaminarFlow(geometry)
      >>> data = jk.xpcs.g2(model, model.defaults, .3, 1.)
      >>> ne = jk.xpcs.normal_equations(model, model.defaults, .3, 1., data, .01)
      >>> ne.jtj.shape, float(ne.chi2) < 1e-3, int(ne.count)
      ((13, 13), True, 7350)
    """
    measured, deviations = checks.check_measured(model, data, sigma)
    shapes = jnp.shape(contrast), jnp.shape(offset)
    if scaling == "constant" and not {*shapes} <= {(), (1,)}:
        raise ValueError(
            f'contrast, offset: expected one number each with scaling="constant", got {shapes}'
        )
    options = {"keep": keep, "loss": loss, "symmetric": symmetric, "quantization": quantization}
    if model.unused_frames:
        geometry, unused = model.geometry, model.unused_frames
        options["keep"] = checks.check_keep(keep, geometry.n_phi, geometry.n_t, unused)
    options["f_scale"] = checks.check_f_scale(f_scale, jnp.result_type(float))
    operands = params, contrast, offset, measured, deviations
    return _normal_equations(model, scaling, *operands, **options)


@functools.partial(jax.jit, static_argnums=(0, 1), static_argnames=("symmetric", "loss"))
def _normal_equations(
    model: Model, scaling: str, params: Any, contrast: Any, *operands: Any, **options: Any
) -> NormalEquations:
    tables = model.tables(params)
    state = accumulate(tables, contrast, *operands, shear_power=model.shear_power, **options)
    return assemble(state, tables, contrast, scaling)


def log_likelihood(
    model: Model,
    params: Any,
    contrast: Any,
    offset: Any,
    data: Any,
    sigma: Any,
    *,
    symmetric: bool | str = "auto",
    keep: Any = None,
    quantization: Any = None,
    inflation: Any = 1.0,
) -> jax.Array:
    """Compute the Gaussian log-likelihood -sum(r^2) / 2 of the data, r = (data - g2) / sigma.

    Each mirrored pair of symmetric data is counted once: if ``mirrored`` of ``count`` points are
    mirrored, the sum is multiplied by 1 - mirrored / (2 count). The diagonal and points with
    sigma <= 1e-10 have no weight. The constant -sum(log(sigma sqrt(2 pi))) is omitted.

    The noise of speckles is correlated, which a sum over points ignores: its posterior is too
    narrow. ``inflation=fit.inflation`` divides the sum by the ratio of the variances of a fit's
    jackknife to those of independent noise.

    Works under jit, vmap, jvp and grad with respect to params, contrast and offset. Value and
    gradient need one pass over the data; a value alone needs a cheaper pass.

    Args:
      model, params, contrast, offset, data, sigma, symmetric, keep, quantization: as in
        `normal_equations`.
      inflation: positive divisor of the sum, such as `FitResult.inflation`.

    Returns:
      A scalar, f64 (f32 in JAX's 32-bit mode).

    Raises:
      ValueError: for arguments of a wrong shape, unknown options, a negative or NaN sigma, and an
        inflation that is not positive.
      TypeError: if differentiated with respect to data, sigma or quantization.

    Example:
      >>> import jax, numpy as np, jaxkern as jk
      >>> model = jk.xpcs.Static(jk.xpcs.Geometry(.0054, None, .1, .1 * np.arange(50), 0.))
      >>> data = jk.xpcs.g2(model, model.defaults, .3, 1.)
      >>> value, slope = jax.value_and_grad(jk.xpcs.log_likelihood, 1)(
      ...     model, model.defaults, .3, 1., data, .01)
      >>> abs(float(value)) < 1e-3, slope.shape
      (True, (3,))
    """
    n_phi, n_t, dtype = model.geometry.n_phi, model.geometry.n_t, jnp.result_type(float)
    measured, deviations = checks.check_measured(model, data, sigma)
    scale = checks.check_quantization(quantization, measured, n_phi, dtype)
    frames = checks.check_keep(keep, n_phi, n_t, model.unused_frames)
    contrasts = checks.per_angle(contrast, "contrast", n_phi, dtype)
    offsets = checks.per_angle(offset, "offset", n_phi, dtype)
    params = jnp.asarray(params, dtype)
    operands = (params, contrasts, offsets, measured, deviations, scale, frames)
    divisor = jnp.asarray(inflation, dtype)
    if divisor.shape != () or (checks.is_concrete(divisor) and not float(divisor) > 0):
        raise ValueError(f"inflation: expected a number > 0, got {inflation!r}")
    return _likelihood(model, symmetric, *operands) / divisor


def _likelihood_sums(model: Model, symmetric: Any, tables: Any, operands: Sequence[Any]) -> Any:
    *inputs, quantization, keep = operands[1:]
    options = {"symmetric": symmetric, "keep": keep, "shear_power": model.shear_power}
    options["quantization"] = quantization if inputs[2].dtype == jnp.uint16 else None
    state = accumulate(tables, *inputs, **options)
    _, rhs, sums = unpack(state, 2 + len(tables.columns))
    chi2, _, count, mirrored = jnp.sum(sums, axis=0)
    weight = 1.0 - mirrored / (2.0 * jnp.maximum(count, 1.0))
    return -0.5 * weight * chi2, weight, rhs


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
@functools.partial(jax.jit, static_argnums=(0, 1))
def _likelihood(model: Model, symmetric: Any, *operands: Any) -> jax.Array:
    phases = model.checked_phases(operands[0])
    tables: Tables | ComponentTables
    if isinstance(model, Components):
        tangents = [jnp.zeros((len(v), 0, *v.shape[1:]), v.dtype) for v in phases]
        tables = model.tables_of((*phases, *tangents))
    else:
        A, X = phases
        none_A, none_X = (jnp.zeros((*v.shape[:-1], 0, v.shape[-1]), v.dtype) for v in (A, X))
        tables = Tables(A, X, none_A, none_X, (), (), len(model.parameters))
    return _likelihood_sums(model, symmetric, tables, operands)[0]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _likelihood_slopes(model: Model, symmetric: Any, *operands: Any) -> tuple[Any, ...]:
    """Return the value and its gradients for params [p], contrast and offset [n_phi]."""
    tables = model.tables(operands[0])
    value, weight, rhs = _likelihood_sums(model, symmetric, tables, operands)
    by_table = operands[1] @ rhs[:, 2:]
    columns = jnp.asarray(tables.columns, jnp.int32)
    by_params = jnp.zeros_like(operands[0]).at[columns].add(by_table)
    return value, weight * by_params, weight * rhs[:, 1], weight * rhs[:, 0]


def _likelihood_jvp(model: Model, symmetric: Any, primals: Any, tangents: Any) -> tuple[Any, Any]:
    nonzero = [not isinstance(t, jax.custom_derivatives.SymbolicZero) for t in tangents]
    if any(nonzero[3:6]):
        raise TypeError(
            "log_likelihood: expected tangents of params, contrast and offset only, got one of "
            "data, sigma or quantization; for these, sum the squares of jaxkern.xpcs.residual"
        )
    value, *slopes = _likelihood_slopes(model, symmetric, *primals)
    rows = zip(slopes, tangents[:3], nonzero[:3], strict=True)
    change = (jnp.vdot(slope, tangent) for slope, tangent, is_nonzero in rows if is_nonzero)
    return value, sum(change, jnp.zeros_like(value))


_likelihood.defjvp(_likelihood_jvp, symbolic_zeros=True)
