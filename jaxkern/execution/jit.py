"""`jit`: compiles functions and classes of operators."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, overload

from jaxkern.execution.jit_options import JITOptions
from jaxkern.execution.jitted import Jitted
from jaxkern.execution.operator import Operator
from jaxkern.execution.precompile import precompile

F = TypeVar("F", bound=Callable[..., Any])


@overload
def jit(fn: F, *, options: JITOptions | None = None) -> F: ...


@overload
def jit(fn: None = None, *, options: JITOptions | None = None) -> Callable[[F], F]: ...


def jit(fn: Any = None, *, options: JITOptions | None = None) -> Any:
    """Compiles a function or a class of operators, with a bounded cache of programs.

    Arrays and numbers are operands, as in ``jax.jit``; strings, functions and other hashable leaves
    are fixed in the program, each value with a program of its own, and may be part of results. The
    arrays of an `Operator`, or of another pytree that is called or whose method it is, are operands
    too: a changed array is used by the next call. (What a plain function reads from the scope
    around it is fixed in the program, as in ``jax.jit``.) Under other transformations of JAX it
    is a ``jax.jit`` function, and under ``jax.disable_jit`` the plain one.

    Args:
      fn: a function, a subclass of `Operator`, or a callable object; without it, a decorator.
      options: see `JITOptions`.

    Returns:
      The function, with ``cache_info()`` and ``cache_clear()``; or the same class, whose
      ``forward`` has them.

    Raises:
      TypeError: for what cannot be compiled; when called, for a leaf that has no hash and is no
        array, and for an object that would hide its arrays in the program.
      ValueError: for names of arguments that the function does not have.

    >>> import jax.numpy as jnp, jaxkern.execution as ex
    >>> @ex.jit(options=ex.JITOptions(cache_size=8))
    ... def scaled(x, how):
    ...     return 2 * x if how == "double" else x
    >>> float(scaled(jnp.ones(()), "double")), float(scaled(jnp.ones(()), "double"))
    (2.0, 2.0)
    >>> info = scaled.cache_info()
    >>> info.hits, info.misses, info.programs
    (1, 1, 1)
    """
    if fn is None:
        return functools.partial(jit, options=options)
    if options is None:
        options = JITOptions()
    elif not isinstance(options, JITOptions):
        raise TypeError(f"options is a {type(options).__name__}; wanted JITOptions(...)")
    if isinstance(fn, type):
        return _jit_class(fn, options)
    _refuse_uncompilable(fn)
    jitted = Jitted(fn, options)
    if options.sample_input is not None:
        precompile(jitted, options.sample_input, background=options.background)
    return jitted


def _refuse_uncompilable(fn: Any) -> None:
    if not callable(fn):
        raise TypeError(f"jit: got {type(fn).__name__}; wanted a function or an Operator")
    if isinstance(fn, Operator) and fn.host:
        raise TypeError(
            f"jit: {type(fn).__name__} is declared host = True and cannot be compiled; leave jit "
            "away, or call it inside a jitted function through jax.pure_callback"
        )
    body = fn if inspect.isroutine(fn) else type(fn).__call__
    for test, what in (
        (inspect.iscoroutinefunction, "a coroutine function"),
        (inspect.isasyncgenfunction, "an asynchronous generator"),
        (inspect.isgeneratorfunction, "a generator"),
    ):
        if test(body):
            raise TypeError(
                f"jit: {getattr(fn, '__name__', fn)} is {what}, which cannot be compiled; jit the "
                "functions of arrays that it calls"
            )


def _jit_class(cls: type, options: JITOptions) -> type:
    if not issubclass(cls, Operator):
        raise TypeError(
            f"jit: {cls.__name__} is a class; wanted a subclass of jaxkern.execution.Operator, or "
            "a function"
        )
    if cls.host:
        raise TypeError(
            f"jit: {cls.__name__} is declared host = True and cannot be compiled; leave one of the "
            "two away"
        )
    forward: Any = cls.__dict__.get("forward", cls.forward)
    if isinstance(forward, Jitted):
        forward = forward._fn
    jitted = Jitted(forward, options)
    jitted._name = cls.__name__
    cls.forward = jitted  # type: ignore[method-assign]
    if options.sample_input is not None:
        _compile_instances(cls, options)
    return cls


def _compile_instances(cls: Any, options: JITOptions) -> None:
    make = cls.__init__

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        # A subclass has not finished making itself here.
        if type(self) is cls:
            precompile(self, options.sample_input, background=options.background)

    cls.__init__ = __init__
