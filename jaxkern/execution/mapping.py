"""`vmap` and `pmap`: of JAX functions by JAX, of Python functions on threads."""

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
from jaxkern.execution.jit import JitFunction, JITOptions
from jaxkern.execution.mesh import DeviceMesh
from jaxkern.execution.operator import Operator, Static, check_not_traced, is_array, name_of, unbind
from jaxkern.execution.options import Supervised, Task, current_options, run_call, run_tasks

_AXIS = "workers"
_MAX_THREADS = 32
_MAX_RANK = 64  # NumPy's limit


class _Map(Supervised, Operator):
    """A mapped function; as an operator, its arrays are operands of compiled programs."""

    def __init__(self, kind: str, fn: Any, in_axes: Any, out_axes: Any, workers: Any, host: bool):
        if not callable(fn):
            raise TypeError(f"{kind}: expected a function, got {type(fn).__name__}")
        if workers is not None:
            workers = check_integer(f"{kind}: num_workers", workers, 1)
        #: True if it maps Python code
        self.host = self.enforces_deadline = host or getattr(fn, "host", False) is True
        if self.host:
            out_axes = check_integer(f"{kind}: out_axes", out_axes, -_MAX_RANK, _MAX_RANK)
        self._kind, self._fn, self._workers = kind, fn, workers
        self._in_axes, self._out_axes = in_axes, out_axes
        self._name = self.__name__ = f"{kind}({name_of(fn)})"

    def call(self, /, *args: Any) -> Any:
        """Map without regard to `execution_options`."""
        if self.host:
            check_not_traced(self, args)
            return self._on_threads(args)
        try:
            if self._kind == "vmap":
                return jax.vmap(self._fn, self._in_axes, self._out_axes)(*args)
            devices = self._count_devices(self._sizes(args)[0])
            function, first = unbind(self._fn)
            tree = jax.tree_util.Partial(function, *first)  # its arrays are operands
            return _program.call(tree, Static(devices), *args)
        except Exception as error:
            note(error, "{} maps a JAX function; pass host=True for Python code", self._name)
            raise

    def _sizes(self, args: tuple[Any, ...]) -> tuple[int, list[int | None]]:
        """Return the size of the mapped axis, and the axis of each leaf."""
        message = f"{self._kind}: in_axes: expected a prefix of {len(args)} arguments, got"
        axes = flat_axes(self._in_axes, args, f"{message} {self._in_axes!r}")
        sizes = {}
        for (path, leaf), axis in zip(jax.tree.leaves_with_path(args), axes, strict=True):
            if axis is not None:
                name = f"argument {path[0].idx}{jax.tree_util.keystr(path[1:])}"
                sizes[name] = axis_size(f"{self._kind}: {name}", leaf, axis)
        if len(set(sizes.values())) != 1:
            raise ValueError(f"{self._kind}: expected mapped axes of one size, got {sizes}")
        return next(iter(sizes.values())), axes

    def _count_devices(self, size: int) -> int:
        available = jax.device_count()
        if self._workers is not None and self._workers > available:
            raise ValueError(
                f"pmap: num_workers is {self._workers}, but JAX has {available} devices; more on a "
                "CPU: jax.config.update('jax_num_cpu_devices', n) before JAX starts"
            )
        # An empty axis needs one device.
        count = self._workers or max(n for n in range(1, available + 1) if (size or 1) % n == 0)
        if size % count:
            raise ValueError(f"pmap: {size} items cannot be divided evenly between {count} devices")
        return count

    def _on_threads(self, args: tuple[Any, ...]) -> Any:
        size, axes = self._sizes(args)
        leaves, tree = jax.tree.flatten(args)

        def run(index: int) -> Any:
            item = [
                leaf if axis is None else leaf[(slice(None),) * (axis % leaf.ndim) + (index,)]
                for leaf, axis in zip(leaves, axes, strict=True)
            ]
            name = f"{name_of(self._fn)}[{index}]"
            return run_call(current_options(), name, self._fn, *jax.tree.unflatten(tree, item))

        tasks = [Task(f"item {i}", functools.partial(run, i)) for i in range(size)]
        results = run_tasks(tasks, self._name, self._workers or _MAX_THREADS)
        return _stack_results(self._kind, results, self._out_axes)


def _shared(fn: Any, devices: int, *args: Any) -> Any:
    """Map a function over the first axis of its arguments, divided between devices."""
    mapped = jax.vmap(fn)
    if devices > 1:
        mesh, spec = DeviceMesh(devices, [_AXIS]), PartitionSpec(_AXIS)
        mapped = jax.shard_map(mapped, mesh=mesh, in_specs=spec, out_specs=spec)
    return mapped(*args)


_program = JitFunction(_shared, JITOptions())


def _stack_results(kind: str, results: list[Any], axis: int) -> Any:
    if not results:
        raise ValueError(f"{kind}: expected at least one item for a Python function, got 0")
    try:
        return jax.tree.map(lambda *parts: _stack(parts, axis), *results)
    except ValueError as error:
        shapes = sorted({str(jax.tree.map(np.shape, result)) for result in results})
        raise ValueError(
            f"{kind}: results of the shapes {' and '.join(shapes)} cannot be stacked along axis "
            f"{axis}: {error}"
        ) from error


def _stack(parts: Sequence[Any], axis: int) -> Any:
    """Stack one leaf of all results: numbers and arrays, or strings, else objects."""
    if all(isinstance(part, jax.Array) for part in parts):
        return jnp.stack(parts, axis)
    if all(is_array(part) or isinstance(part, (str, bool, int, float, complex)) for part in parts):
        # NumPy would convert numbers next to strings to strings.
        text = {np.asarray(part).dtype.kind in "US" for part in parts}
        dtype = object if len(text) > 1 else None
        return np.stack([np.asarray(part, dtype) for part in parts], axis)
    return np.fromiter(parts, object, len(parts))


def vmap(
    fn: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0, *, host: bool = False
) -> Callable[..., Any]:
    """Map a function over an axis of its arguments: ``jax.vmap``, or threads for Python code.

    Args:
      fn: a JAX function, or with ``host`` a Python function or `Operator` of one item, whose
        results are stacked: numbers, arrays and strings as arrays, anything else as objects.
      in_axes: as in ``jax.vmap``: an axis, None for an argument that all items share, or a tuple or
        tree of them.
      out_axes: the mapped axis of all results, an integer; for a JAX function as in ``jax.vmap``.
      host: True for Python code. An `Operator` with ``host = True`` and a map of Python code are
        recognized without it.

    Raises:
      ValueError: for axes that do not exist or differ in size; for a Python function also for no
        items, and for results that differ in shape or structure. Errors of items have a note.

    >>> import numpy as np, jaxkern.execution as ex
    >>> ex.vmap(str.upper, host=True)(np.array(["a", "b"])).tolist()
    ['A', 'B']
    >>> import jax.numpy as jnp
    >>> ex.vmap(lambda x, y: x @ y, in_axes=(0, None))(jnp.ones((3, 2)), jnp.ones(2)).tolist()
    [2.0, 2.0, 2.0]
    """
    return _Map("vmap", fn, in_axes, out_axes, None, host)


def pmap(
    fn: Callable[..., Any], num_workers: int | None = None, *, host: bool = False
) -> Callable[..., Any]:
    """Map a function over the first axis of its arguments, on threads or on devices.

    A Python function runs on threads. For a JAX function, each device maps an equal share.

    Args:
      fn, host: as for `vmap`.
      num_workers: number of threads (default: one per item, at most 32) or devices (default: the
        largest number that divides the items evenly).

    Raises:
      ValueError: as for `vmap`, and for items that ``num_workers`` devices cannot share evenly.

    >>> import numpy as np, jaxkern.execution as ex
    >>> total = ex.pmap(lambda x: float(np.sum(x)), num_workers=2, host=True)
    >>> total(np.arange(6.0).reshape(3, 2)).tolist()
    [1.0, 5.0, 9.0]
    """
    return _Map("pmap", fn, 0, 0, num_workers, host)
