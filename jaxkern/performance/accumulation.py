"""The gradient of a large batch in microbatches, in the memory of one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from jaxkern.core.arguments import check_integer
from jaxkern.core.axes import axis_size, flat_axes

Reduction = Literal["mean", "sum"]


def accumulate_gradients(
    loss: Callable[..., Any],
    steps: int,
    *,
    has_aux: bool = False,
    reduction: Reduction = "mean",
    in_axes: Any = 0,
    dtype: Any = jnp.float32,
) -> Callable[..., Any]:
    """``jax.value_and_grad(loss)`` over ``steps`` microbatches in one ``lax.scan``.

    Equal to the gradient of the whole batch when the loss is a mean (or a sum) over its rows:
    microbatches are equally large, so the mean of their means is the mean. A loss that mixes rows
    (batch normalization, contrastive losses) is another function of microbatches.

    Args:
      loss: ``loss(params, *batch)`` to a scalar, or to ``(scalar, aux)`` with ``has_aux``.
      steps: how many microbatches a batch is cut into.
      has_aux: as in ``jax.value_and_grad``. The floating leaves of aux are reduced like the loss
        when they are scalars; every other leaf is returned for each microbatch, with a leading
        axis of ``steps``.
      reduction: ``"mean"`` or ``"sum"``: what the loss does over rows.
      in_axes: as in ``jax.vmap``, for the arguments after ``params``: the axis of rows, None for
        what is the same for every row.
      dtype: the least that gradients are summed in; they come back in the dtype of their parameter.

    Returns:
      ``fn(params, *batch)`` to ``(value, gradients)`` or ``((value, aux), gradients)``.

    Raises:
      ValueError: when ``steps`` is below 1, or an argument's rows cannot be cut into ``steps``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxkern import performance
      >>> loss = lambda w, x: jnp.mean((x @ w) ** 2)
      >>> w, x = jnp.ones(3), jnp.arange(24.0).reshape(8, 3)
      >>> value, gradient = jax.jit(performance.accumulate_gradients(loss, 4))(w, x)
      >>> bool(jnp.allclose(gradient, jax.grad(loss)(w, x)))
      True
    """
    steps = check_integer("steps", steps, 1)
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction is {reduction!r}; wanted 'mean' or 'sum'")
    gradient = jax.value_and_grad(loss, has_aux=has_aux)

    @functools.wraps(loss)
    def accumulated(params: Any, *batch: Any) -> Any:
        axes = _row_axes(batch, in_axes, steps)
        leaves, tree = jax.tree.flatten(batch)
        parts = [x if a is None else _cut(x, a, steps) for x, a in zip(leaves, axes, strict=True)]

        def microbatch(step: Any) -> Any:
            rows = [
                x if a is None else jax.lax.dynamic_index_in_dim(x, step, a + 1, keepdims=False)
                for x, a in zip(parts, axes, strict=True)
            ]
            value, gradients = gradient(params, *jax.tree.unflatten(tree, rows))
            value, aux = value if has_aux else (value, None)
            leaves, aux_tree = jax.tree.flatten(aux)
            summed = [_is_scalar(x) for x in leaves]
            scalars = [x for x, s in zip(leaves, summed, strict=True) if s]
            others = [x for x, s in zip(leaves, summed, strict=True) if not s]
            structure.append((aux_tree, summed))
            return (value, scalars, gradients), others

        structure: list[Any] = []

        def zeros(x: Any) -> Any:
            return jnp.zeros(x.shape, jnp.promote_types(x.dtype, dtype))

        def body(sums: Any, step: Any) -> Any:
            found, others = microbatch(step)
            return jax.tree.map(lambda s, x: s + x.astype(s.dtype), sums, found), others

        shapes, _ = jax.eval_shape(microbatch, jnp.int32(0))
        sums, others = jax.lax.scan(body, jax.tree.map(zeros, shapes), jnp.arange(steps))
        factor = 1 / steps if reduction == "mean" else 1
        value, scalars, gradients = jax.tree.map(
            lambda s, x: (s * factor).astype(x.dtype), sums, shapes
        )
        if not has_aux:
            return value, gradients
        aux_tree, summed = structure[0]
        scalars, others = iter(scalars), iter(others)
        aux = jax.tree.unflatten(aux_tree, [next(scalars if s else others) for s in summed])
        return (value, aux), gradients

    return accumulated


def _is_scalar(x: Any) -> bool:
    return jnp.ndim(x) == 0 and bool(jnp.issubdtype(jnp.result_type(x), jnp.floating))


def _cut(x: Any, axis: int, steps: int) -> Any:
    """The axis of rows as [rows of a microbatch, steps]: a sharded one stays where it is."""
    x = jnp.asarray(x)
    rows = x.shape[axis] // steps
    return x.reshape(*x.shape[:axis], rows, steps, *x.shape[axis + 1 :])


def _row_axes(batch: tuple[Any, ...], in_axes: Any, steps: int) -> list[int | None]:
    wanted = (
        f"in_axes is {in_axes!r}; wanted an axis or None for each of the {len(batch)} arguments "
        "after the parameters (or a prefix of their trees), or one for all"
    )
    axes = flat_axes(in_axes, batch, wanted)
    for at, (path, leaf) in enumerate(jax.tree.leaves_with_path(batch)):
        axis = axes[at]
        if axis is None:
            continue
        name = f"batch{jax.tree_util.keystr(path)}"
        rows = axis_size(name, leaf, axis)
        if rows % steps or not rows:
            raise ValueError(
                f"{name} has {rows} rows on axis {axis}; wanted a multiple of steps={steps}"
            )
        axes[at] = axis % len(leaf.shape)
    return axes
