"""`vmap` and `pmap`: JAX's own over JAX functions, threads over Python functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jaxkern.core.arguments import check_integer
from jaxkern.core.axes import axis_size, flat_axes
from jaxkern.core.failures import note
from jaxkern.execution.jit import Jitted
from jaxkern.execution.jit_options import JITOptions
from jaxkern.execution.operator import Operator, callable_tree, is_array, name_of, refuse_traced
from jaxkern.execution.options import ACTIVE
from jaxkern.execution.threads import Supervised, Task, run_tasks, supervised

_AXIS = "workers"


class _Mapped(Supervised):
    """A mapped function: JAX's map of it, or threads where it is declared to be Python."""

    def __init__(self, fn: Any, in_axes: Any, out_axes: Any, workers: int | None, host: Any):
        if not callable(fn):
            raise TypeError(f"{self.kind}: got {type(fn).__name__}; wanted a function")
        if workers is not None:
            workers = check_integer(f"{self.kind}: num_workers", workers, 1)
        self._fn, self._in_axes, self._out_axes, self._workers = fn, in_axes, out_axes, workers
        #: whether it maps Python work; also read where a map is mapped, or called in a graph
        self.host = bool(host) or getattr(fn, "host", False) is True
        self._fn_name = name_of(fn)
        self._name = self.__name__ = f"{self.kind}({self._fn_name})"

    def __repr__(self) -> str:
        return f"jaxkern.execution.{self.__name__}"

    def call(self, /, *args: Any) -> Any:
        """A call without a look at `execution_options`."""
        axes = flat_axes(
            self._in_axes,
            args,
            f"{self.kind}: in_axes is {self._in_axes!r}; wanted an axis or None for each of "
            f"{len(args)} arguments (or a prefix of their trees), or one for all",
        )
        size = _size(self.kind, args, axes)
        if self.host:
            refuse_traced(self, args)
            return self._on_host(*jax.tree.flatten(args), axes, size)
        program = self._program(size)
        active = ACTIVE.get()
        if active is not None:
            return supervised(active, self._name, "jit", self._in_jax, program, args)
        return self._in_jax(program, args)

    def _in_jax(self, program: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        try:
            return program(*args)
        except Exception as error:
            note(error, "{} maps a JAX function; if it is Python work, pass host=True", self)
            raise

    def _program(self, size: int) -> Callable[..., Any]:
        raise NotImplementedError

    def _on_host(self, leaves: list[Any], tree: Any, axes: list[int | None], size: int) -> Any:
        def run(index: int) -> Any:
            args = jax.tree.unflatten(tree, _item(leaves, axes, index))
            active = ACTIVE.get()
            if active is None or isinstance(self._fn, (Operator, _Mapped)):
                return self._fn(*args)
            return supervised(active, f"{self._fn_name}[{index}]", "item", self._fn, *args)

        tasks = [Task(f"item {i}", functools.partial(run, i)) for i in range(size)]
        results = run_tasks(tasks, self.__name__, self._workers or min(size, 32))
        return _stacked(self.kind, results, self._out_axes)


class _VMap(_Mapped):
    kind = "vmap"

    def _program(self, size: int) -> Callable[..., Any]:
        mapped: Callable[..., Any] = _inside(self, _innermost(self))
        return mapped


class _PMap(_Mapped):
    kind = "pmap"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._programs: dict[int, Jitted] = {}

    def _program(self, size: int) -> Callable[..., Any]:
        available = jax.device_count()
        if self._workers is not None and self._workers > available:
            raise ValueError(
                f"pmap: num_workers is {self._workers} and JAX has {available} devices; for a CPU "
                "more of them can be made with jax.config.update('jax_num_cpu_devices', n) before "
                "JAX starts"
            )
        # No items need no more than one device.
        wanted = self._workers or max(n for n in range(1, available + 1) if (size or 1) % n == 0)
        if size % wanted:
            raise ValueError(
                f"pmap: {size} items cannot be shared equally by {wanted} devices; pad them, or "
                "choose num_workers so that it divides them"
            )
        if wanted not in self._programs:
            self._programs.setdefault(wanted, Jitted(self._sharing(wanted), JITOptions()))
        # With the arrays of an operator as operands, so that changed ones are seen.
        return functools.partial(self._programs[wanted].call, callable_tree(_innermost(self._fn)))

    def _sharing(self, count: int) -> Callable[..., Any]:
        def mapped(innermost: Any, *args: Any) -> Any:
            each = jax.vmap(_inside(self._fn, innermost))
            if count > 1:
                mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:count]), (_AXIS,))
                spec = PartitionSpec(_AXIS)
                each = jax.shard_map(each, mesh=mesh, in_specs=spec, out_specs=spec)
            return each(*args)

        mapped.__name__ = self._fn_name
        return mapped


def _innermost(fn: Any) -> Any:
    """What `vmap`, and `vmap` of that, map."""
    return _innermost(fn._fn) if isinstance(fn, _VMap) else fn


def _inside(fn: Any, innermost: Any) -> Any:
    """The plain ``jax.vmap`` of each `vmap`, over another function than its own."""
    if isinstance(fn, _VMap):
        return jax.vmap(_inside(fn._fn, innermost), fn._in_axes, fn._out_axes)
    return innermost


def _size(kind: str, args: tuple[Any, ...], axes: Sequence[int | None]) -> int:
    sizes: dict[int, str] = {}
    for (path, leaf), axis in zip(jax.tree.leaves_with_path(args), axes, strict=True):
        if axis is not None:
            place = f"argument {path[0].idx}{jax.tree_util.keystr(path[1:])}"
            sizes.setdefault(axis_size(f"{kind}: {place}", leaf, axis), place)
    if not sizes:
        raise ValueError(f"{kind}: nothing is mapped; wanted an axis for at least one argument")
    if len(sizes) > 1:
        found = ", ".join(f"{n} in {place}" for n, place in sizes.items())
        raise ValueError(f"{kind}: mapped axes differ in size: {found}")
    return next(iter(sizes))


def _item(leaves: Sequence[Any], axes: Sequence[int | None], index: int) -> list[Any]:
    return [
        leaf if axis is None else leaf[(slice(None),) * (axis % leaf.ndim) + (index,)]
        for leaf, axis in zip(leaves, axes, strict=True)
    ]


def _stacked(kind: str, results: list[Any], out_axes: Any) -> Any:
    if not results:
        raise ValueError(
            f"{kind}: there are no items, so that the result of a Python function has no known "
            "shape; wanted at least one (a JAX function, without host=True, takes none)"
        )
    trees = {jax.tree.structure(result) for result in results}
    if len(trees) > 1:
        raise ValueError(
            f"{kind}: the results of the items differ in structure: "
            + " and ".join(sorted(map(str, trees)))
        )

    wanted = (
        f"{kind}: out_axes is {out_axes!r} and the result of an item is {next(iter(trees))}; "
        "wanted, of a Python function, an integer, or one for each part of its result"
    )
    # In a tuple of one, as a list at the top is taken for a tuple.
    axes = flat_axes((out_axes,), (results[0],), wanted)
    columns = zip(*map(jax.tree.leaves, results), strict=True)
    leaves = []
    for axis, parts in zip(axes, columns, strict=True):
        if axis is None:
            raise ValueError(wanted)
        leaves.append(_stack(kind, axis, parts))
    return jax.tree.unflatten(trees.pop(), leaves)


def _stack(kind: str, axis: int, parts: Sequence[Any]) -> Any:
    """One array of a leaf of all results."""
    kinds = {_sort(part) for part in parts}
    if "object" in kinds:
        objects = np.empty(len(parts), object)
        for index, part in enumerate(parts):
            objects[index] = part
        return objects
    if len(kinds) > 1:
        # NumPy would turn numbers into text.
        parts = [np.asarray(part, object) for part in parts]
    elif any(isinstance(part, jax.Array) for part in parts):
        parts = [jnp.asarray(part) for part in parts]
    stack = jnp.stack if isinstance(parts[0], jax.Array) else np.stack
    try:
        return stack(parts, axis)
    except ValueError as error:
        shapes = " and ".join(map(str, sorted({np.shape(part) for part in parts})))
        raise ValueError(
            f"{kind}: results of items have shape {shapes}, and out_axes has {axis}; wanted one "
            "shape, and an axis that their stack has"
        ) from error


def _sort(value: Any) -> str:
    """Among results of one sort NumPy finds a type for all without changing what they are."""
    if isinstance(value, str):
        return "U"
    if isinstance(value, (bool, int, float, complex)):
        return "number"
    if not is_array(value):
        return "object"
    sort = getattr(value.dtype, "kind", "")
    return sort if sort in set("USMmO") else "number"


def vmap(
    fn: Callable[..., Any],
    in_axes: Any = 0,
    out_axes: Any = 0,
    *,
    host: bool = False,
) -> Callable[..., Any]:
    """Maps a function over an axis of its arguments: ``jax.vmap``, or threads for Python.

    Args:
      fn: a JAX function, or with ``host`` a Python function or `Operator`; it takes one item.
        Results of a Python function are stacked: numbers and arrays as arrays, text as NumPy text,
        anything else, and text among numbers, as an array of objects.
      in_axes: as in ``jax.vmap``: an axis, None for an argument that all items share, or a tuple or
        tree of them.
      out_axes: where the mapped axis stands in the result: an integer, or a tuple or tree of them;
        of a JAX function also None, as in ``jax.vmap``.
      host: True for Python work, on threads. An `Operator` with ``host = True`` and a map of Python
        work are Python work without being told.

    Raises:
      ValueError: for axes that are not there or differ in size; of a Python function also for no
        items, and for results that differ in shape or structure.
      Exception: what an item raises, of the first item that failed, with a note that has its index;
        what JAX says to a function that it cannot trace.

    >>> import numpy as np, jaxkern.execution as ex
    >>> ex.vmap(str.upper, host=True)(np.array(["a", "b"])).tolist()
    ['A', 'B']
    >>> import jax.numpy as jnp
    >>> ex.vmap(lambda x, y: x @ y, in_axes=(0, None))(jnp.ones((3, 2)), jnp.ones(2)).tolist()
    [2.0, 2.0, 2.0]
    """
    return _VMap(fn, in_axes, out_axes, None, host)


def pmap(
    fn: Callable[..., Any], num_workers: int | None = None, *, host: bool = False
) -> Callable[..., Any]:
    """Maps a function over the first axis of its arguments, on threads or on devices.

    A Python function gets ``num_workers`` threads. A JAX function gets as many devices, each of
    which has an equal share of the items and maps over it: ``jax.shard_map`` of ``jax.vmap``, as
    ``jax.pmap`` would take no more items than devices. ``pmap(vmap(f))`` maps over two axes.

    Args:
      fn: as for `vmap`.
      num_workers: threads (None: one for each item, at most 32) or devices (None: the most that
        share the items equally).
      host: as for `vmap`.

    Raises:
      ValueError: for axes that differ in size, a number of workers that is no whole number above 0,
        more workers than devices, and items that devices cannot share equally; of a Python function
        as for `vmap`.

    >>> import numpy as np, jaxkern.execution as ex
    >>> total = ex.pmap(lambda x: float(np.sum(x)), num_workers=2, host=True)
    >>> total(np.arange(6.0).reshape(3, 2)).tolist()
    [1.0, 5.0, 9.0]
    """
    return _PMap(fn, 0, 0, num_workers, host)
