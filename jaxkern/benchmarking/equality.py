"""Whether two results are the same, and where they are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np


class DifferentResultsError(ValueError):
    """Arms of a comparison return different results, so that their times compare nothing."""


def check_same(
    first: str,
    expected: Any,
    other: str,
    given: Any,
    check: Literal["equal", "close"] | Callable[[Any, Any], Any],
    rtol: float | None = None,
    atol: float = 0.0,
) -> None:
    """Raises `DifferentResultsError` where the result of arm ``other`` is not that of ``first``."""
    if callable(check):
        try:
            passed = check(expected, given)
        except AssertionError as error:
            raise _refusal(first, other, str(error)) from error
        if passed is not None and not np.all(passed):
            raise _refusal(first, other, "the given check returned False")
        return
    wanted: Any = jax.tree.structure(expected)
    found: Any = jax.tree.structure(given)
    if wanted != found:
        raise _refusal(first, other, f"the structures are {wanted} and {found}")
    pairs = zip(jax.tree.leaves_with_path(expected), jax.tree.leaves(given), strict=True)
    for (path, a), b in pairs:
        problem = _difference(_array(a), _array(b), check, rtol, atol)
        if problem is not None:
            place = f"result{jax.tree_util.keystr(path)}"
            raise _refusal(first, other, f"in {place}, {problem}")


def _refusal(first: str, other: str, where: str) -> DifferentResultsError:
    return DifferentResultsError(
        f"{first!r} and {other!r} return different results: {where}. Times of unequal work are not "
        "compared; mend an arm, or pass check='close', a function of both results, or None"
    )


def _array(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _difference(
    a: np.ndarray, b: np.ndarray, check: str, rtol: float | None, atol: float
) -> str | None:
    if a.shape != b.shape:
        return f"the shapes are {a.shape} and {b.shape}"
    # NumPy does not count bfloat16 and its like among its floats; JAX does.
    inexact = [x for x in (a, b) if jnp.issubdtype(x.dtype, jnp.inexact)]
    if check == "equal" or len(inexact) < 2:
        if a.dtype != b.dtype:
            return f"the dtypes are {a.dtype} and {b.dtype}"
        differ = a != b
        if inexact:
            differ &= ~((a != a) & (b != b))
    else:
        wide: Any = (
            np.complex128
            if any(jnp.issubdtype(x.dtype, jnp.complexfloating) for x in inexact)
            else np.float64
        )
        if rtol is None:
            rtol = max(_epsilon(x.dtype) for x in inexact) ** 0.5
        a, b = a.astype(wide), b.astype(wide)
        differ = ~np.isclose(b, a, rtol=rtol, atol=atol, equal_nan=True)
    if not np.any(differ):
        return None
    index = tuple(int(i) for i in np.argwhere(differ)[0])
    at = f" at {list(index)}" if index else ""
    bounds = f" (rtol={rtol:.3g}, atol={atol:.3g})" if rtol is not None else ""
    count = f"{int(np.sum(differ)):,} of {a.size:,} values differ{bounds}"
    return f"{count}, the first{at}: {a[index]} and {b[index]}"


def _epsilon(dtype: Any) -> float:
    found: Any = jnp.finfo(dtype)  # type: ignore[no-untyped-call]
    return float(found.eps)
