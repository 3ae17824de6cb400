"""A function with its own cache of compiled programs: bounded, counted, and filled ahead."""

from __future__ import annotations

import functools
import inspect
import itertools
import threading
import types
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from jaxkern.core.compat import (
    CURRENT_TRACE,
    NO_TRACE,
    ArrayImpl,
    is_tracing,
    jit_cache_size,
)
from jaxkern.core.compile_clock import REFUSAL
from jaxkern.execution.jit_options import CacheInfo, JITOptions
from jaxkern.execution.options import ACTIVE
from jaxkern.execution.program import (
    FixedArguments,
    OtherSignatureError,
    Program,
    flat_function,
    structured_function,
)
from jaxkern.execution.signature import (
    FIXED,
    NUMBERS,
    FixedArgument,
    Split,
    numpy_aval,
    quick_key,
    refuse_hidden_arrays,
    refuse_hidden_in_function,
    refuse_hidden_in_operators,
    split,
)
from jaxkern.execution.supervision import supervised

_flatten = jax.tree_util.tree_flatten
F = TypeVar("F", bound=Callable[..., Any])

_UNTRACEABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


# Calls go to the last program unseen when so many in a row were its own. A wrong guess takes as
# long as guessing right saves in hundreds of calls: if it comes sooner, the next guess waits for
# twice as many.
_PATIENCE, _WORTH = 8, 1000


class _Counts:
    """What the calls of a function have done."""

    __slots__ = ("evictions", "hits", "inlined", "misses", "seconds", "tick")

    def __init__(self) -> None:
        # Numbers the uses of programs without a lock: the largest was last. A use is a hit;
        # `hits` corrects for those that were not.
        self.tick = itertools.count().__next__
        self.hits = self.misses = self.evictions = self.inlined = 0
        self.seconds = 0.0


class Jitted:
    """A function that `jit` has made."""

    #: calls keep to `execution_options` by themselves
    supervises = True

    def __init__(self, fn: Callable[..., Any], options: JITOptions) -> None:
        functools.update_wrapper(self, fn, updated=())
        self._fn, self._options = fn, options
        self._name = getattr(fn, "__name__", None) or type(fn).__name__
        self._operand, self._method = _operand_of(fn)
        self._first = () if self._operand is None else (self._operand,)
        self._order = _positional_names(fn, options)
        self._lock = threading.Lock()
        self._programs: dict[tuple[Any, ...], Program] = {}
        # Those of calls without keywords and structure, by their keys without structure.
        self._may_be_flat = self._operand is None and not options.static_argnames
        self._flat: dict[tuple[Any, ...], Program] = {}
        self._inline: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        # The program of the last calls, of how many, and the one that calls now go to unseen.
        self._last: Program | None = None
        self._streak, self._patience = 0, _PATIENCE
        self._guess: tuple[Any, ...] | None = None
        # `cache_clear` makes others; a call that it overtakes counts in the ones it began with.
        self._counts = _Counts()

    def __repr__(self) -> str:
        return f"jaxkern.execution.jit({self._name})"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        active = ACTIVE.get()
        if active is not None:
            if active.recorder is not None and active.recorder.concerns((args, kwargs)):
                return active.recorder.call(self, *args, **kwargs)
            return supervised(active, self._name, "jit", self._call, args, kwargs)
        # What every call passes is in one function: each call inside it would take up to 1 us, in
        # Python 3.11 that of a comprehension too.
        if CURRENT_TRACE.value is not NO_TRACE:
            return self._call(args, kwargs)
        guess = self._guess
        if guess is not None:
            program, call, fixed, fn, size, tick = guess
            given = (args, kwargs) if fixed is None else fixed.if_equal(args, kwargs)
            if given is not None:
                try:
                    result = call(*given[0], **given[1])
                except (OtherSignatureError, TypeError, ValueError):
                    self._guessed_wrong(program)
                else:
                    program.used = tick()
                    if jit_cache_size(fn) != size:
                        self._grown(program, *given)
                    return result
        # Arguments without structure are not flattened.
        flat = self._may_be_flat and not kwargs
        key: list[Any] = []
        if flat:
            for arg in args:
                kind = type(arg)
                if kind is ArrayImpl:
                    key.append(arg.aval)
                elif kind in NUMBERS:
                    key.append(kind)
                elif kind in FIXED:
                    key.append((kind, arg))
                elif kind is np.ndarray:
                    key.append(numpy_aval(arg))
                else:
                    flat = False
                    break
        operands: Sequence[Any] = args
        found: Program | None = self._flat.get(tuple(key)) if flat else None
        if found is None or not found.ready:
            operands, tree = _flatten((self._operand, *self._with_fixed(args, kwargs)))
            whole = quick_key(operands, tree)
            try:
                found = None if whole is None else self._programs.get(whole)
            except TypeError:  # a leaf without a hash, which `split` names
                found = None
            if found is None or not found.ready:
                return self._call_general(args, kwargs, operands, tree)
            if flat:
                self._remember_flat(tuple(key), found)
        found.used = self._counts.tick()
        if found is not self._last:
            self._last, self._streak = found, 0
        elif found.signatures is not None:
            self._streak += 1
            if self._streak >= self._patience:
                self._trust(found)
        if found.signatures is None:
            operands = [operands[position] for position in found.positions]
        given = found.given(args, kwargs, operands)
        result = found.call_found(*given)
        if found.cache_size() != found.size:
            self._grown(found, *given)
        return result

    def _trust(self, program: Program) -> None:
        """From now on calls go to this program without being looked up."""
        with self._lock:
            if self._programs.get(program.key) is program:
                program.begun = program.used
                self._guess = (
                    program,
                    program.call,
                    program.fixed,
                    program.fn,
                    program.size,
                    self._counts.tick,
                )

    def _guessed_wrong(self, program: Program) -> None:
        """A call was kept from a program that it was not for, or it fails: it will be looked up."""
        REFUSAL.under_way = False
        with self._lock:
            served = program.used - program.begun
            self._patience = _PATIENCE if served > _WORTH else 2 * self._patience
            self._guess = self._last = None
        with program.lock:
            # An entry of JAX's cache has been made for the call, and remains empty.
            if program.cache_size() == program.size + 1:
                program.size += 1

    def _remember_flat(self, key: tuple[Any, ...], program: Program) -> None:
        """Finds the program of a call without structure by what `quick_key` knows of its leaves."""
        with self._lock:
            if self._programs.get(program.key) is program:
                self._flat[key] = program

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, tree = _flatten((self._operand, *self._with_fixed(args, kwargs)))
        return self._call_general(args, kwargs, leaves, tree)

    def _call_general(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any], tree: Any
    ) -> Any:
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            return self._fn(*args, **kwargs)
        parts = split(leaves, tree, lambda index: self._describe(tree, index))
        if parts.traced or is_tracing():
            return self._call_inline(parts, leaves, tree)
        counts = self._counts
        program, compiled, given = self._prepared(args, kwargs, parts, tree, counts)
        with self._lock:
            counts.hits += not compiled
            counts.misses += compiled
        result = program.call_found(*given)
        if program.cache_size() != program.size:
            self._grown(program, *given)
        return result

    def _prepared(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        parts: Split,
        tree: Any,
        counts: _Counts,
    ) -> tuple[Program, bool, tuple[tuple[Any, ...], dict[str, Any]]]:
        """The program of a call, whether this call compiled it, and what it is called with."""
        with self._lock:
            program = self._programs.get(parts.key)
            if program is None:
                program = self._programs[parts.key] = self._program(args, kwargs, parts, tree)
            program.used = counts.tick()
            counts.hits -= 1
        given = program.given(args, kwargs, parts.operands)
        with program.lock:
            compiled = not program.ready
            if compiled:
                self._compile(program, *given, counts)
                program.ready = True
        self._shrink(parts.key)
        return program, compiled, given

    def _compile(
        self, program: Program, args: Sequence[Any], kwargs: dict[str, Any], counts: _Counts
    ) -> bool:
        before = program.seconds
        try:
            return program.compile(args, kwargs)
        except BaseException as error:
            with self._lock:
                if self._programs.get(program.key) is program and not program.executables:
                    self._forget(program)
            self._explain(error)
            raise
        finally:
            with self._lock:
                counts.seconds += program.seconds - before

    def _grown(self, program: Program, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Accounts for an entry of JAX's cache that the last call has added.

        That may be a program for another sharding or context, or a program that was known.
        """
        counts = self._counts
        self._guess = None  # which knows the size that was
        with program.lock:
            size, known = program.cache_size(), self._programs.get(program.key) is program
            if size == program.size or not known:
                return
            if size < program.size:  # by jax.clear_caches
                program.executables.clear()
            if self._options.donate_argnames:
                args, kwargs = jax.tree.map(_undonated, (args, kwargs))
            if self._compile(program, args, kwargs, counts):
                with self._lock:
                    counts.hits -= 1
                    counts.misses += 1
            program.size = program.cache_size()
        self._shrink(program.key)

    def _shrink(self, newest: tuple[Any, ...]) -> None:
        """Lets go of programs until the bound is kept."""
        bound = self._options.cache_size
        dropped: list[Program] = []
        with self._lock:
            count = sum(len(program.executables) for program in self._programs.values())
            oldest_first = sorted(self._programs.items(), key=lambda item: item[1].used)
            for key, program in oldest_first:
                if count <= bound:
                    break
                # What another thread compiles has no programs yet. The newest goes only where it
                # has too many by itself: one for each of too many shardings or contexts.
                lost = len(program.executables)
                if lost == 0 or (key == newest and count > lost):
                    continue
                self._forget(program)
                count -= lost
                self._counts.evictions += lost
                dropped.append(program)
        for program in dropped:
            program.free()

    def _forget(self, program: Program) -> None:
        del self._programs[program.key]
        self._flat.pop(program.key[1:], None)
        self._last = self._guess = None

    def _call_inline(self, parts: Split, leaves: list[Any], tree: Any) -> Any:
        key = (tree, parts.positions, tuple((type(x), x) for x in parts.fixed))
        with self._lock:
            self._counts.inlined += 1
            fn = self._inline.get(key)
            if fn is None:
                fn = self._inline[key] = self._jitted_flat(parts, tree)
                if len(self._inline) > self._options.cache_size:
                    self._inline.popitem(last=False)[1].clear_cache()
            else:
                self._inline.move_to_end(key)
        try:
            return fn(*parts.operands)
        except Exception as error:
            self._explain(error)
            raise

    def _program(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], parts: Split, tree: Any
    ) -> Program:
        """A new one, of the call's arguments where what is fixed are whole ones of them."""
        operands = set(parts.positions)
        paths = _paths(tree)
        inside = [path for index, path in enumerate(paths) if index not in operands]
        if any(len(path) != 2 or path[0].idx == 0 for path in inside):
            return Program(self._jitted_flat(parts, tree), parts.key, parts.positions)
        places = sorted(path[1].idx for path in inside if path[0].idx == 1)
        names = [path[1].key for path in inside if path[0].idx == 2]
        fixed = None
        if inside:
            fixed = FixedArguments(
                tuple((place, args[place]) for place in places),
                tuple((name, kwargs[name]) for name in names),
            )
        wanted = self._options.donate_argnames
        donated = [paths[i] for i in operands if wanted and self._argument(paths[i]) in wanted]
        shift = len(self._first)
        signatures: set[Any] = set()
        call = self._checked_call(parts, tree)
        function = structured_function(call, bool(shift), fixed, signatures, self._name)
        self._introduce(function, fixed, args, kwargs)
        fn = jax.jit(
            function,
            donate_argnums=tuple(
                {
                    path[1].idx + shift - sum(place < path[1].idx for place in places)
                    for path in donated
                    if path[0].idx == 1
                }
            ),
            donate_argnames=tuple({path[1].key for path in donated if path[0].idx == 2}),
        )
        return Program(fn, parts.key, parts.positions, self._first, fixed, signatures)

    def _introduce(
        self,
        function: Any,
        fixed: FixedArguments | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Gives a function what JAX reads places and names of arguments from, if they fit."""
        others = "args"
        while others in kwargs:  # which JAX would take for one and the same
            others += "_"
        function.__signature__ = inspect.Signature(
            [
                inspect.Parameter(others, inspect.Parameter.VAR_POSITIONAL),
                inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
            ]
        )
        if getattr(self._fn, "__name__", None) == self._name:
            function.__wrapped__ = self._fn
        if self._first:
            return
        # For `watch_compiles`: what a call of it is a call of, and with what else.
        function.stands_for = self._fn, fixed
        try:
            parameters = list(inspect.signature(self._fn).parameters.values())
            if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
                return
            if fixed is not None:
                gone = {parameters[place].name for place, _ in fixed.positions}
                gone |= {name for name, _ in fixed.names}
                parameters = [p for p in parameters if p.name not in gone]
                args, kwargs = fixed.without(args, kwargs)
            signature = inspect.Signature(parameters)
            signature.bind(*args, **kwargs)
            function.__signature__ = signature
        except (IndexError, TypeError, ValueError):  # of builtins, or they say something else
            return

    def _jitted_flat(self, parts: Split, tree: Any) -> Any:
        names = self._options.donate_argnames
        paths = _paths(tree) if names else []
        donated = tuple(
            i
            for i, position in enumerate(parts.positions)
            if names and self._argument(paths[position]) in names
        )
        call = self._checked_call(parts, tree)
        return jax.jit(flat_function(call, tree, parts, self._name), donate_argnums=donated)

    def _checked_call(self, parts: Split, tree: Any) -> Callable[[Any], Any]:
        """Calls the function with (operand, args, kwargs), none of which hides arrays."""
        refuse_hidden_arrays(parts.fixed, lambda i: self._describe(tree, i))
        refuse_hidden_in_operators(jax.tree.unflatten(tree, parts.fixed))
        if self._operand is None:
            refuse_hidden_in_function(self._fn)
        return _caller(self._fn if self._operand is None else None, self._method)

    def _with_fixed(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        names = self._options.static_argnames
        if not names:
            return args, kwargs
        positional = tuple(
            FixedArgument(value) if i < len(self._order) and self._order[i] in names else value
            for i, value in enumerate(args)
        )
        return positional, {
            name: FixedArgument(value) if name in names else value for name, value in kwargs.items()
        }

    def _argument(self, path: Sequence[Any]) -> str:
        """The name of the argument that a path of (operand, args, kwargs) leads into."""
        which = path[0].idx
        if which == 1:
            index = path[1].idx
            return self._order[index] if index < len(self._order) else f"argument {index}"
        return str(path[1].key) if which == 2 else "self"

    def donated(self, argument: int | str) -> str | None:
        """The name of an argument, given that or its position, if calls donate it."""
        if isinstance(argument, int):
            argument = self._order[argument] if argument < len(self._order) else ""
        return argument if argument in self._options.donate_argnames else None

    def _describe(self, tree: Any, index: int) -> str:
        path = _paths(tree)[index]
        if path[0].idx == 0:
            where = "self" + jax.tree_util.keystr(path[1:])
        elif path[0].idx == 1:
            where = f"argument {path[1].idx}" + jax.tree_util.keystr(path[2:])
        else:
            where = f"argument {path[1].key!r}" + jax.tree_util.keystr(path[2:])
        return f"{self._name}: {where}"

    def _explain(self, error: BaseException) -> None:
        if isinstance(error, _UNTRACEABLE):
            error.add_note(
                f"jaxkern.execution.jit cannot compile {self._name}: it needs the value of an "
                "argument, of which only shape and dtype are known while it is compiled. Use "
                "jnp.where, jax.lax.cond or jax.lax.while_loop; name the argument in "
                "JITOptions(static_argnames=...) if it takes few values; or leave the function "
                "uncompiled (an Operator with host = True)"
            )

    def precompile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compiles for the shapes and dtypes of these arguments, if that is not done."""
        leaves, tree = _flatten((self._operand, *self._with_fixed(args, kwargs)))
        parts = split(leaves, tree, lambda index: self._describe(tree, index))
        if parts.traced:
            raise TypeError(f"{self._name}: precompile got values that JAX is tracing")
        counts = self._counts
        program, compiled, given = self._prepared(args, kwargs, parts, tree, counts)
        if not compiled:
            with program.lock:
                if program.ready:
                    self._compile(program, *given, counts)
            self._shrink(parts.key)

    @property
    def misses(self) -> int:
        """Calls that compiled."""
        return self._counts.misses

    def cache_info(self) -> CacheInfo:
        """What the cache holds and has done."""
        with self._lock:
            programs, counts = list(self._programs.values()), self._counts
            hits = counts.tick() + counts.hits
            counts.hits -= 1
            found = (hits, counts.misses, counts.evictions)
            seconds, inlined = counts.seconds, counts.inlined
        return CacheInfo(
            *found,
            programs=sum(len(program.executables) for program in programs),
            max_programs=self._options.cache_size,
            bytes=sum(program.bytes() for program in programs),
            compile_seconds=seconds,
            inlined=inlined,
        )

    def cache_clear(self) -> None:
        """Lets go of all programs and sets the counts to zero."""
        with self._lock:
            programs, inline = list(self._programs.values()), list(self._inline.values())
            self._programs.clear()
            self._flat.clear()
            self._inline.clear()
            self._last = self._guess = None
            self._counts = _Counts()
        for program in programs:
            if program.ready:  # else a call compiles it, uses it once, and lets go of it
                program.free()
        for fn in inline:
            fn.clear_cache()


def _paths(tree: Any) -> list[Any]:
    """Of each leaf of (operand, args, kwargs)."""
    numbered = jax.tree.unflatten(tree, list(range(tree.num_leaves)))
    return [path for path, _ in jax.tree.leaves_with_path(numbered)]


def _undonated(operand: Any) -> Any:
    """An operand, or the shape and place of one whose memory the last call took."""
    if not isinstance(operand, jax.Array) or not operand.is_deleted():
        return operand
    sharding = operand.sharding if operand.committed else None
    return jax.ShapeDtypeStruct(
        operand.shape, operand.dtype, sharding=sharding, weak_type=operand.weak_type
    )


def _operand_of(fn: Any) -> tuple[Any, str | None]:
    """A callable that is a pytree, or the pytree that a method is bound to, and the method's name.

    Its leaves are operands, so that no array of it is fixed in a program.
    """
    owner = getattr(fn, "__self__", None)
    if isinstance(fn, types.MethodType) and _is_tree(owner):
        return owner, fn.__func__.__name__
    return (fn, None) if _is_tree(fn) else (None, None)


def _is_tree(value: Any) -> bool:
    return value is not None and not jax.tree_util.all_leaves([value])


def _caller(fn: Any, method: str | None) -> Callable[[Any], Any]:
    def call(arguments: Any) -> Any:
        operand, args, kwargs = arguments
        if fn is not None:
            return fn(*args, **kwargs)
        called = operand if method is None else getattr(operand, method)
        return called(*args, **kwargs)

    return call


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
