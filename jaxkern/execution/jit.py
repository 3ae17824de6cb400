"""`jit`: compiled programs of a function, bounded, counted, and made ahead of their calls."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
import time
import types
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar, overload

import jax

from jaxkern.core.compat import is_tracing, program_context
from jaxkern.core.contexts import ThreadContexts
from jaxkern.execution.jit_options import CacheInfo, JITOptions
from jaxkern.execution.operator import Operator, is_hashable, unbound
from jaxkern.execution.signature import (
    Fixed,
    checked_call,
    form,
    refuse_hidden_arrays,
    refuse_hidden_in_operators,
)
from jaxkern.execution.threads import Supervised

F = TypeVar("F", bound=Callable[..., Any])

_UNTRACEABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


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
    _refuse_uncompilable(fn)
    if isinstance(fn, type):
        return _jit_class(fn, options)
    jitted = Jitted(fn, options)
    if options.sample_input is not None:
        precompile(jitted, options.sample_input, background=options.background)
    return jitted


def _refuse_uncompilable(fn: Any) -> None:
    is_class = isinstance(fn, type)
    name = getattr(fn, "__name__", type(fn).__name__)
    if not callable(fn) or (is_class and not issubclass(fn, Operator)):
        raise TypeError(
            f"jit: got {name}; wanted a function, or an operator or a subclass of "
            "jaxkern.execution.Operator"
        )
    if (is_class or isinstance(fn, Operator)) and fn.host:
        raise TypeError(
            f"jit: {name} is declared host = True and cannot be compiled; leave jit away, or call "
            "it inside a jitted function through jax.pure_callback"
        )
    body = fn if inspect.isroutine(fn) else type(fn).__call__
    kinds = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    if any(is_kind(body) for is_kind in kinds):
        raise TypeError(
            f"jit: {name} is a coroutine function or a generator, which cannot be compiled; jit "
            "the functions of arrays that it calls"
        )


def _jit_class(cls: Any, options: JITOptions) -> type:
    forward: Any = cls.__dict__.get("forward", cls.forward)
    if isinstance(forward, Jitted):
        forward = forward.fn
    cls.forward = Jitted(forward, options, cls.__name__)
    if options.sample_input is not None:
        _compile_instances(cls, options)
    made: type = cls
    return made


def _compile_instances(cls: Any, options: JITOptions) -> None:
    make = cls.__init__

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        # A subclass has not finished making itself here.
        if type(self) is cls:
            precompile(self, options.sample_input, background=options.background)

    cls.__init__ = __init__


@dataclasses.dataclass
class _Counts:
    """What the calls of a function have done."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    inlined: int = 0
    compile_seconds: float = 0.0


class _Program:
    """A ``jax.jit`` function of one signature, and what was compiled for it.

    Calls go through ``fn``, which has ``compiled`` in its own cache: it reports NaN and names
    arguments in errors where the compiled program by itself does not.
    """

    __slots__ = ("compiled", "fn", "lock")

    def __init__(self, fn: Any) -> None:
        self.fn, self.compiled = fn, None
        # Of the thread that compiles. What it traces may call the same function.
        self.lock = threading.RLock()

    def bytes(self) -> int:
        """Of the machine code where the backend tells, else of the serialized program."""
        if self.compiled is None:
            return 0
        runtime = self.compiled.runtime_executable()
        size = int(runtime.size_of_generated_code_in_bytes())
        if size > 0:
            return size
        try:
            return len(runtime.serialize())
        except Exception:  # not every backend can
            return 0


class _Call(NamedTuple):
    """The arguments of a call, taken apart."""

    #: equal for calls that one program serves: the context, the tree, and the form of each leaf
    key: tuple[Any, ...]
    #: with None in the place of fixed leaves
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    traced: bool

    def function_key(self) -> tuple[Any, tuple[Fixed | None, ...]]:
        """The tree, and of each leaf what is fixed of it: one function serves calls that agree."""
        _, tree, *forms = self.key
        return tree, tuple(form if type(form) is Fixed else None for form in forms)


class Jitted(Supervised):
    """A function that `jit` has made.

    A program is kept for each set of: the structure of the arguments; their shapes, dtypes and weak
    types; the shardings of those that are bound to devices; the values of what is fixed, by types
    and bits; and the context that JAX traces in.
    """

    kind = "jit"

    def __init__(
        self, fn: Callable[..., Any], options: JITOptions, name: str | None = None
    ) -> None:
        functools.update_wrapper(self, fn, updated=())
        #: what was jitted
        self.fn = fn
        self._options = options
        self._name: str = name or getattr(fn, "__name__", None) or type(fn).__name__
        self._target, self._first = unbound(fn)
        self._order = _positional_names(fn, options)
        self._lock = threading.Lock()
        self._programs: OrderedDict[tuple[Any, ...], _Program] = OrderedDict()
        # `cache_clear` makes others; a call that it overtakes counts in the ones it began with.
        self._counts = _Counts()
        self._inline = functools.lru_cache(options.cache_size)(self._function)

    def __repr__(self) -> str:
        return f"jaxkern.execution.jit({self._name})"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def recorded(self, recorder: Any, /, *args: Any, **kwargs: Any) -> Any:
        """The arrays of what was jitted are operands of the program around it too."""
        return recorder.call(self.fn if self._first else self, *args, **kwargs)

    def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """A call without a look at `execution_options`."""
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            return self.fn(*args, **kwargs)
        call = self._taken_apart(args, kwargs)
        if call.traced or is_tracing():
            with self._lock:
                self._counts.inlined += 1
            return self._explained(self._inline(*call.function_key()), call)
        return self._program(call, called=True).fn(*call.args, **call.kwargs)

    def _taken_apart(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        if self._options.static_argnames:
            args, kwargs = self._with_static(args, kwargs)
        args = (*self._first, *args)
        leaves, tree = jax.tree.flatten((args, kwargs))
        forms = list(map(form, leaves))
        kinds = set(map(type, forms))
        if Fixed in kinds:
            for index, what in enumerate(forms):
                if type(what) is Fixed:
                    self._refuse_unhashable(leaves[index], tree, index)
                    leaves[index] = None
            args, kwargs = jax.tree.unflatten(tree, leaves)
        return _Call((program_context(), tree, *forms), args, kwargs, type(None) in kinds)

    def _with_static(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments that ``static_argnames`` names as leaves, whatever they are."""
        names = self._options.static_argnames
        positional = tuple(
            Fixed(value) if i < len(self._order) and self._order[i] in names else value
            for i, value in enumerate(args)
        )
        return positional, {
            name: Fixed(value) if name in names else value for name, value in kwargs.items()
        }

    def _program(self, call: _Call, called: bool) -> _Program:
        """The program of a call, compiled if it is not yet; counted where it is ``called``."""
        with self._lock:
            counts = self._counts
            program = self._programs.get(call.key)
            if program is None:
                program = _Program(self._function(*call.function_key()))
                self._programs[call.key] = program
            elif program is not next(reversed(self._programs.values())):
                self._programs.move_to_end(call.key)
            found = program.compiled is not None
            counts.hits += called and found
        if not found:
            # Another thread may be compiling it, which this one waits for.
            with program.lock:
                found = program.compiled is not None
                if not found:
                    self._compile(program, call, counts)
            with self._lock:
                counts.hits += called and found
                counts.misses += called and not found
        return program

    def _compile(self, program: _Program, call: _Call, counts: _Counts) -> None:
        started = time.perf_counter()
        try:
            compiled = self._explained(program.fn.lower, call).compile()
        except BaseException:
            with self._lock:
                if self._programs.get(call.key) is program:
                    del self._programs[call.key]
            raise
        finally:
            with self._lock:
                counts.compile_seconds += time.perf_counter() - started
        with self._lock:
            program.compiled = compiled
            if counts is not self._counts:  # cleared meanwhile
                return
            # A thread that compiled it before this one may have failed, and taken it out.
            self._programs.setdefault(call.key, program)
            self._programs.move_to_end(call.key)
            ready = [key for key, kept in self._programs.items() if kept.compiled is not None]
            for key in ready[: max(0, len(ready) - self._options.cache_size)]:
                del self._programs[key]
                counts.evictions += 1

    def _function(self, tree: Any, fixed: tuple[Fixed | None, ...]) -> Any:
        """A new ``jax.jit`` function of what a `_Call` holds.

        What JAX keeps for it is freed with it.
        """

        def program(*args: Any, **kwargs: Any) -> Any:
            operands = iter(jax.tree.leaves((args, kwargs)))
            leaves = [next(operands) if kept is None else kept.value for kept in fixed]
            args, kwargs = jax.tree.unflatten(tree, leaves)
            for index, kept in enumerate(fixed):
                if kept is not None:
                    refuse_hidden_arrays(self._describe(tree, index), kept.value)
            refuse_hidden_in_operators((args, kwargs))
            if not self._first:
                refuse_hidden_arrays(f"{self._target!r:.80}", self._target)
            return checked_call(self._target, args, kwargs, self._name)

        program.__name__ = program.__qualname__ = self._name
        # From these JAX has the names of arguments, and the place of a function of that name.
        program.__signature__ = _signature(self._target)  # type: ignore[attr-defined]
        if getattr(self._target, "__name__", None) == self._name:
            program.__wrapped__ = self._target  # type: ignore[attr-defined]
        # For `watch_compiles`: what JAX does not see of a call.
        program.target = self._target  # type: ignore[attr-defined]
        program.fixed_arguments = {  # type: ignore[attr-defined]
            path: kept.value
            for path, kept in zip(_paths(tree), fixed, strict=True)
            if kept is not None
        }
        return jax.jit(program, donate_argnames=self._options.donate_argnames or None)

    def _explained(self, fn: Callable[..., Any], call: _Call) -> Any:
        """Calls with the operands; tells what to do where the function cannot be traced."""
        try:
            return fn(*call.args, **call.kwargs)
        except _UNTRACEABLE as error:
            error.add_note(
                f"jaxkern.execution.jit cannot compile {self._name}: it needs the value of an "
                "argument, of which only shape and dtype are known while it is compiled. Use "
                "jnp.where, jax.lax.cond or jax.lax.while_loop; name the argument in "
                "JITOptions(static_argnames=...) if it takes few values; or leave the function "
                "uncompiled (an Operator with host = True)"
            )
            raise

    def _refuse_unhashable(self, leaf: Any, tree: Any, index: int) -> None:
        named = type(leaf) is Fixed
        value = leaf.value if named else leaf
        if not is_hashable(value):
            raise TypeError(
                f"{self._describe(tree, index)} is a {type(value).__name__}, which has no hash, "
                f"and {'static_argnames names it' if named else 'is no array'}: no compiled "
                "program can be found for its value; pass an array, a pytree of arrays, or "
                "something hashable such as a tuple"
            )

    def _describe(self, tree: Any, index: int) -> str:
        which, place, *rest = _paths(tree)[index]
        inside = jax.tree_util.keystr(tuple(rest))
        if which.idx == 1:
            return f"{self._name}: argument {place.key!r}{inside}"
        number = place.idx - len(self._first)
        return f"{self._name}: {'self' if number < 0 else f'argument {number}'}{inside}"

    def lowered(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """That of ``jax.jit``, for these arguments."""
        call = self._taken_apart(args, kwargs)
        lowered: jax.stages.Lowered = self._explained(
            self._function(*call.function_key()).lower, call
        )
        return lowered

    def donated(self, argument: int | str) -> str | None:
        """The name of an argument, given that or its position, if calls donate it."""
        if isinstance(argument, int):
            argument = self._order[argument] if argument < len(self._order) else ""
        return argument if argument in self._options.donate_argnames else None

    def precompile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compiles for the shapes and dtypes of these arguments, if that is not done."""
        call = self._taken_apart(args, kwargs)
        if call.traced:
            raise TypeError(f"{self._name}: precompile got values that JAX is tracing")
        self._program(call, called=False)

    @property
    def misses(self) -> int:
        """Calls that compiled."""
        return self._counts.misses

    def cache_info(self) -> CacheInfo:
        """What the cache holds and has done."""
        with self._lock:
            counts = dataclasses.asdict(self._counts)
            programs = [kept for kept in self._programs.values() if kept.compiled is not None]
        return CacheInfo(
            **counts,
            programs=len(programs),
            max_programs=self._options.cache_size,
            bytes=sum(program.bytes() for program in programs),
        )

    def cache_clear(self) -> None:
        """Lets go of all programs and sets the counts to zero."""
        with self._lock:
            self._programs.clear()
            self._inline.cache_clear()
            self._counts = _Counts()


def _paths(tree: Any) -> list[tuple[Any, ...]]:
    """Of each leaf of (args, kwargs)."""
    numbered = jax.tree.unflatten(tree, list(range(tree.num_leaves)))
    return [tuple(path) for path, _ in jax.tree.leaves_with_path(numbered)]


def _signature(fn: Callable[..., Any]) -> inspect.Signature:
    """As it is, but for the names of variable arguments, which JAX confuses with equal keywords."""
    names: dict[Any, str] = {
        inspect.Parameter.VAR_POSITIONAL: "_by_position",
        inspect.Parameter.VAR_KEYWORD: "_by_name",
    }
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # of builtins
        parameters = [inspect.Parameter(name, kind) for kind, name in names.items()]
    return inspect.Signature([p.replace(name=names.get(p.kind, p.name)) for p in parameters])


def _positional_names(fn: Any, options: JITOptions) -> tuple[str, ...]:
    """The names of the positional arguments, where options name arguments."""
    wanted = (*options.static_argnames, *options.donate_argnames)
    if not wanted:
        return ()
    parameters = inspect.signature(fn).parameters
    variable = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [name for name in wanted if name not in parameters]
    if unknown and not variable:
        raise ValueError(
            f"jit: {getattr(fn, '__name__', fn)} has no argument {unknown[0]!r}; its arguments are "
            f"{', '.join(parameters) or 'none'}"
        )
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(name for name, p in parameters.items() if p.kind in kinds)


class Precompilation:
    """Programs being compiled by `precompile`.

    Attributes:
      future: the same as a ``concurrent.futures.Future``, for `concurrent.futures.wait`.
    """

    def __init__(self) -> None:
        self.future: Future[None] = Future()

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self.future.done()

    def wait(self, timeout: float | None = None) -> None:
        """Waits for the end; raises what the compilation raised, or TimeoutError."""
        try:
            error = self.future.exception(timeout)
        except TimeoutError:
            raise TimeoutError(
                f"precompile: not ready after {timeout} s; compilation goes on in its thread"
            ) from None
        if error is not None:
            raise error


def precompile(fn: Any, *samples: Any, background: bool = False) -> Precompilation:
    """Compiles a jitted function for the shapes and dtypes of each sample, ahead of its calls.

    Args:
      fn: what `jit` returned, or an operator of a class that it compiled.
      samples: of a function, a tuple of arguments or the single argument; of an operator, its
        ``inputs``. Arrays or ``jax.ShapeDtypeStruct`` (with a sharding where the arrays will have
        one); strings and other fixed leaves as they will be passed.
      background: compile in a thread and return at once. The thread has the caller's
        `jaxkern.backend` and options of JAX. A call that needs the program waits for it.

    Returns:
      A handle: ``wait()`` for the end and for errors, ``done``.

    Raises:
      TypeError: for a function that is not jitted; without ``background`` also what compiling
        raises.

    >>> import jax, jax.numpy as jnp, jaxkern.execution as ex
    >>> double = ex.jit(lambda x: 2 * x)
    >>> ex.precompile(double, jax.ShapeDtypeStruct((3,), jnp.float32)).done
    True
    >>> double(jnp.ones(3)).tolist(), double.cache_info().misses
    ([2.0, 2.0, 2.0], 0)
    """
    jitted, calls = _calls_of(fn, samples)
    handle, contexts = Precompilation(), ThreadContexts()

    def work() -> None:
        try:
            with contexts.enter():
                for args, kwargs in calls:
                    jitted.precompile(args, kwargs)
        except BaseException as error:  # the caller's, who waits for it
            handle.future.set_exception(error)
        else:
            handle.future.set_result(None)

    if background:
        # A daemon: a compilation must not keep the process from ending.
        threading.Thread(target=work, name="jaxkern-execution", daemon=True).start()
    else:
        work()
        handle.wait()
    return handle


def _calls_of(
    fn: Any, samples: Sequence[Any]
) -> tuple[Jitted, list[tuple[tuple[Any, ...], dict[str, Any]]]]:
    if isinstance(fn, Jitted):
        tuples = [sample if isinstance(sample, tuple) else (sample,) for sample in samples]
        return fn, [(sample, {}) for sample in tuples]
    forward = type(fn).__dict__.get("forward", getattr(type(fn), "forward", None))
    if isinstance(fn, Operator) and isinstance(forward, Jitted):
        return forward, [((fn,), {"inputs": sample}) for sample in samples]
    raise TypeError(
        f"precompile: {getattr(fn, '__name__', type(fn).__name__)} is not jitted; wanted what "
        "jaxkern.execution.jit returned, or an operator of a class that it compiled"
    )
