"""`jit`: ``jax.jit`` with a bounded cache of programs that counts its calls."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
import time
import types
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast, overload

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.arguments import check_integer
from jaxkern.core.caches import LruCache
from jaxkern.core.compat import ArrayImpl, is_tracing, program_context
from jaxkern.execution.operator import Operator, Static, unbind
from jaxkern.execution.options import Supervised

F = TypeVar("F", bound=Callable[..., Any])

_NUMBERS = (bool, int, float, complex)


@dataclasses.dataclass(frozen=True)
class JITOptions:
    """Options of `jit`.

    Attributes:
      sample_input: arguments to compile for at once: a tuple of arguments, or the single argument
        (``inputs`` of an `Operator`). Arrays or ``jax.ShapeDtypeStruct``; values are ignored. For
        a class of operators, each new instance is compiled.
      cache_size: positive maximum number of programs; the least recently used one is evicted.

    Example:
      >>> import jax, jaxkern.execution as ex
      >>> sample = jax.ShapeDtypeStruct((3,), "float32")
      >>> double = ex.jit(lambda x: 2 * x, options=ex.JITOptions(sample_input=sample, cache_size=8))
      >>> double.cache_info().programs
      1
    """

    sample_input: Any = None
    cache_size: int = 128

    def __post_init__(self) -> None:
        object.__setattr__(self, "cache_size", check_integer("cache_size", self.cache_size, 1))


@dataclasses.dataclass
class CacheInfo:
    """The state of a cache of compiled programs.

    Attributes:
      hits, misses: calls that used a cached program, and calls that compiled one.
      evictions: programs that were removed to stay within ``max_programs``.
      programs, max_programs: number of cached programs, and its maximum.
      compile_seconds: total time of tracing and compiling, including evicted programs.

    Example:
      >>> import jaxkern.execution as ex
      >>> info = ex.jit(lambda x: 2 * x).cache_info()
      >>> info.hits, info.programs, info.max_programs
      (0, 0, 128)
    """

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    programs: int = 0
    max_programs: int = 0
    compile_seconds: float = 0.0


def _leaf_key(leaf: Any) -> Any:
    """Return the part of a leaf that a program depends on; None for a tracer."""
    kind = type(leaf)
    if kind is ArrayImpl:
        return (leaf.aval, leaf.sharding) if leaf.committed else leaf.aval
    if kind in _NUMBERS:
        return kind
    if kind is Static:
        return leaf
    if isinstance(leaf, jax.core.Tracer):
        return None
    arrays = (np.ndarray, np.generic, jax.ShapeDtypeStruct, jax.Array)
    if isinstance(leaf, arrays) and not isinstance(leaf, str):  # np.str_ is an np.generic
        # `jax.typeof` of two random keys never compares equal, so use shape and dtype.
        extended = jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
        aval = (leaf.shape, leaf.dtype) if extended else jax.typeof(leaf)
        sharding = getattr(leaf, "sharding", None)
        return (aval, sharding) if getattr(leaf, "committed", sharding is not None) else aval
    for number in _NUMBERS:
        if isinstance(leaf, number):  # JAX treats subclasses, such as IntEnum, as numbers
            return number
    static = Static(leaf)
    # JAX raises for other values, and names the argument.
    return static if static.is_hashable() else kind


class _Program:
    """A ``jax.jit`` function that has one compiled program; ``fn`` is None before compilation."""

    # Unlike `jax.stages.Compiled`, it checks for NaN and names arguments in errors.
    def __init__(self) -> None:
        self.fn: Any = None
        self.lock = threading.Lock()


class _Call(NamedTuple):
    # The context, the tree, and the key of each leaf.
    key: tuple[Any, ...]
    # With None in place of static leaves.
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def function_key(self) -> tuple[Any, tuple[Static | None, ...]]:
        """Return the tree and the static leaves; calls that agree share a ``jax.jit`` function."""
        _, tree, *leaves = self.key
        return tree, tuple(leaf if type(leaf) is Static else None for leaf in leaves)


class JitFunction(Supervised):
    """A function returned by `jit`."""

    def __init__(self, fn: Any, options: JITOptions, name: str | None = None) -> None:
        functools.update_wrapper(self, fn, updated=())
        #: the function that was passed to `jit`
        self.fn = fn
        self._size = options.cache_size
        self._name: str = name or getattr(fn, "__name__", None) or type(fn).__name__
        self._function, self._first = unbind(fn)
        #: the step in a graph; the arrays of a bound pytree are operands of the graph's program
        self.graph_step = fn if self._first else self
        self._lock = threading.Lock()
        self._inlined = functools.lru_cache(self._size)(self._jax_jit)
        self.cache_clear()

    def __repr__(self) -> str:
        return f"jaxkern.execution.jit({self._name})"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function without regard to `execution_options`."""
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            return self.fn(*args, **kwargs)
        call = self._make_call(args, kwargs)
        if is_tracing():
            return self._inlined(*call.function_key())(*call.args, **call.kwargs)
        return self._program(call, is_call=True)(*call.args, **call.kwargs)

    def _make_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        args = (*self._first, *args)
        leaves, tree = jax.tree.flatten((args, kwargs))
        keys = list(map(_leaf_key, leaves))
        if Static in set(map(type, keys)):
            pairs = zip(leaves, keys, strict=True)
            operands = [None if type(key) is Static else leaf for leaf, key in pairs]
            args, kwargs = jax.tree.unflatten(tree, operands)
        return _Call((program_context(), tree, *keys), args, kwargs)

    def _program(self, call: _Call, is_call: bool) -> Any:
        """Return the program of a call; compile it, or wait for the thread that compiles it."""
        with self._lock:
            counts = self._counts
            entry = self._programs.get(call.key)
            if entry is None:
                entry = _Program()
                evicted = self._programs.put(call.key, entry)
                counts.evictions += sum(program.fn is not None for program in evicted)
        seconds = 0.0
        with entry.lock:
            hit = entry.fn is not None
            if not hit:
                started = time.perf_counter()
                fn = self._jax_jit(*call.function_key())
                fn.lower(*call.args, **call.kwargs).compile()
                entry.fn, seconds = fn, time.perf_counter() - started
        with self._lock:
            counts.compile_seconds += seconds
            counts.hits += is_call and hit
            counts.misses += is_call and not hit
        return entry.fn

    def _jax_jit(self, tree: Any, static: tuple[Static | None, ...]) -> Any:
        """Return a new ``jax.jit`` function; JAX frees its programs when it is freed."""

        def program(*args: Any, **kwargs: Any) -> Any:
            operands = iter(jax.tree.leaves((args, kwargs)))
            leaves = [next(operands) if leaf is None else leaf.value for leaf in static]
            args, kwargs = jax.tree.unflatten(tree, leaves)
            return self._function(*args, **kwargs)

        # JAX takes the names of arguments and the source location from these.
        functools.update_wrapper(program, self._function, updated=())
        program.__name__ = program.__qualname__ = self._name
        if self._name != getattr(self._function, "__name__", None):  # JAX would use this name
            program.__signature__ = inspect.signature(program)  # type: ignore[attr-defined]
            del program.__wrapped__  # type: ignore[attr-defined]
        # `performance.watch_compiles` reads these.
        program.target = self._function  # type: ignore[attr-defined]
        paths = jax.tree.leaves_with_path(jax.tree.unflatten(tree, range(tree.num_leaves)))
        program.fixed_arguments = {  # type: ignore[attr-defined]
            path: leaf.value
            for (path, _), leaf in zip(paths, static, strict=True)
            if leaf is not None
        }
        return jax.jit(program)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Lower for these arguments, like ``jax.jit(fn).lower``."""
        call = self._make_call(args, kwargs)
        lowered = self._jax_jit(*call.function_key()).lower(*call.args, **call.kwargs)
        return cast(jax.stages.Lowered, lowered)

    def precompile(self, *args: Any, **kwargs: Any) -> None:
        """Compile for the shapes and dtypes of these arguments, without a call.

        Arrays may be ``jax.ShapeDtypeStruct`` (with a sharding if the arrays will be committed).
        It may run in another thread; a call that needs the program waits for it.
        """
        self._program(self._make_call(args, kwargs), is_call=False)

    def cache_info(self) -> CacheInfo:
        """Return the counts of the cache."""
        with self._lock:
            programs = sum(program.fn is not None for program in self._programs.values())
            return dataclasses.replace(self._counts, programs=programs)

    def cache_clear(self) -> None:
        """Remove all programs and reset the counts."""
        with self._lock:
            self._programs = LruCache[_Program](self._size)
            # A call in progress updates the old counts.
            self._counts = CacheInfo(max_programs=self._size)
            self._inlined.cache_clear()


@overload
def jit(fn: F, *, options: JITOptions | None = None) -> F: ...


@overload
def jit(fn: None = None, *, options: JITOptions | None = None) -> Callable[[F], F]: ...


def jit(fn: Any = None, *, options: JITOptions | None = None) -> Any:
    """Compile a function or a class of operators, with a bounded cache of programs.

    Args:
      fn: a function of arrays and hashable values, a subclass of `Operator`, or a callable object;
        None returns a decorator.
      options: see `JITOptions`.

    Returns:
      The function, with the methods ``precompile(...)``, ``lower(...)``, ``cache_info()`` and
      ``cache_clear()``; or the class, whose ``forward`` has them.

    Raises:
      TypeError: if ``fn`` cannot be compiled; in calls, for leaves that are not hashable.

    >>> import jax.numpy as jnp, jaxkern.execution as ex
    >>> @ex.jit(options=ex.JITOptions(cache_size=8))
    ... def scaled(x, mode):
    ...     return 2 * x if mode == "double" else x
    >>> float(scaled(jnp.ones(()), "double")), float(scaled(jnp.ones(()), "double"))
    (2.0, 2.0)
    >>> info = scaled.cache_info()
    >>> info.hits, info.misses, info.programs
    (1, 1, 1)
    """
    if fn is None:
        return functools.partial(jit, options=options)
    options, is_class = options or JITOptions(), isinstance(fn, type)
    name = getattr(fn, "__name__", type(fn).__name__)
    if not callable(fn) or (is_class and not issubclass(fn, Operator)):
        raise TypeError(
            f"jit: expected a function of arrays, an Operator or a subclass of Operator, got {name}"
        )
    if getattr(fn, "host", False) is True:
        raise TypeError(f"jit: {name} has host = True and cannot be compiled; call it without jit")
    if is_class:
        return _jit_class(fn, options)
    function = JitFunction(fn, options)
    if options.sample_input is not None:
        sample = options.sample_input
        function.precompile(*(sample if isinstance(sample, tuple) else (sample,)))
    return function


def _jit_class(cls: Any, options: JITOptions) -> Any:
    cls.forward = JitFunction(getattr(cls.forward, "fn", cls.forward), options, cls.__name__)
    if options.sample_input is not None:
        initialize = cls.__init__

        @functools.wraps(initialize)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            initialize(self, *args, **kwargs)
            # A subclass may not be fully initialized here.
            if type(self) is cls:
                cls.forward.precompile(self, inputs=options.sample_input)

        cls.__init__ = __init__
    return cls
