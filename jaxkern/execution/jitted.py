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

from jaxkern.core.compat import ArrayImpl, is_tracing
from jaxkern.execution.jit_options import CacheInfo, JITOptions
from jaxkern.execution.options import ACTIVE
from jaxkern.execution.program import Program, flat_function
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
        self._order = _positional_names(fn, options)
        self._lock = threading.Lock()
        self._programs: dict[tuple[Any, ...], Program] = {}
        # Those of calls without keywords and structure, by their keys without structure.
        self._may_be_flat = self._operand is None and not options.static_argnames
        self._flat: dict[tuple[Any, ...], Program] = {}
        self._inline: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        # `cache_clear` makes others; a call that it overtakes counts in the ones it began with.
        self._counts = _Counts()

    def __repr__(self) -> str:
        return f"jaxkern.execution.jit({self._name})"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        active = ACTIVE.get()
        if active is not None:
            if active.recorder is not None and active.recorder.concerns((args, kwargs)):
                return active.recorder.call(self, *args, **kwargs)
            return supervised(active, self._name, "jit", self._call, args, kwargs)
        # What every call passes is in one function: each call inside it would take up to 1 us, in
        # Python 3.11 that of a comprehension too. Arguments without structure are not flattened.
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
        program = self._flat.get(tuple(key)) if flat else None
        if program is None or not program.ready:
            if self._order:
                args, kwargs = self._with_fixed(args, kwargs)
            operands, tree = _flatten((self._operand, args, kwargs))
            found = quick_key(operands, tree)
            try:
                program = None if found is None else self._programs.get(found)
            except TypeError:  # a leaf without a hash, which `split` names
                program = None
            if program is None or not program.ready:
                return self._call_general(operands, tree)
            if flat:
                self._remember_flat(tuple(key), program)
        if len(program.positions) != len(operands):
            operands = [operands[position] for position in program.positions]
        program.used = self._counts.tick()
        result = program.fn(*operands)
        if program.cache_size() != program.size:
            self._grown(program.key, program, operands)
        return result

    def _remember_flat(self, key: tuple[Any, ...], program: Program) -> None:
        """Finds the program of a call without structure by what `quick_key` knows of its leaves."""
        with self._lock:
            if self._programs.get(program.key) is program:
                self._flat[key] = program

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = self._with_fixed(args, kwargs)
        return self._call_general(*_flatten((self._operand, args, kwargs)))

    def _call_general(self, leaves: list[Any], tree: Any) -> Any:
        parts = split(leaves, tree, lambda index: self._describe(leaves, tree, index))
        if parts.traced or is_tracing():
            return self._call_inline(parts, leaves, tree)
        counts = self._counts
        program, compiled = self._prepared(parts.key, parts, tree, counts)
        with self._lock:
            counts.hits += not compiled
            counts.misses += compiled
        result = program.fn(*parts.operands)
        if program.cache_size() != program.size:
            self._grown(parts.key, program, parts.operands)
        return result

    def _prepared(
        self, key: tuple[Any, ...], parts: Split, tree: Any, counts: _Counts
    ) -> tuple[Program, bool]:
        """The program of a signature, and whether this call compiled it."""
        with self._lock:
            program = self._programs.get(key)
            if program is None:
                fn = self._jitted(parts, tree)
                program = self._programs[key] = Program(fn, key, parts.positions)
            program.used = counts.tick()
            counts.hits -= 1
        with program.lock:
            compiled = not program.ready
            if compiled:
                self._compile(key, program, parts.operands, counts)
                program.ready = True
        self._shrink(key)
        return program, compiled

    def _compile(
        self, key: tuple[Any, ...], program: Program, operands: Sequence[Any], counts: _Counts
    ) -> bool:
        before = program.seconds
        try:
            return program.compile(operands)
        except Exception as error:
            with self._lock:
                if self._programs.get(key) is program and not program.executables:
                    self._forget(program)
            self._explain(error)
            raise
        finally:
            with self._lock:
                counts.seconds += program.seconds - before

    def _grown(self, key: tuple[Any, ...], program: Program, operands: Sequence[Any]) -> None:
        """Accounts for an entry of JAX's cache that the last call has added.

        That may be a program for another sharding or context, or a program that was known.
        """
        counts = self._counts
        with program.lock:
            if program.cache_size() == program.size or self._programs.get(key) is not program:
                return
            if self._compile(key, program, [*map(_undonated, operands)], counts):
                with self._lock:
                    counts.hits -= 1
                    counts.misses += 1
            program.size = program.cache_size()
        self._shrink(key)

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

    def _call_inline(self, parts: Split, leaves: list[Any], tree: Any) -> Any:
        key = (tree, parts.positions, tuple((type(x), x) for x in parts.fixed))
        with self._lock:
            self._counts.inlined += 1
            fn = self._inline.get(key)
            if fn is None:
                fn = self._inline[key] = self._jitted(parts, tree)
                if len(self._inline) > self._options.cache_size:
                    self._inline.popitem(last=False)[1].clear_cache()
            else:
                self._inline.move_to_end(key)
        try:
            return fn(*parts.operands)
        except Exception as error:
            self._explain(error)
            raise

    def _jitted(self, parts: Split, tree: Any) -> Any:
        refuse_hidden_arrays(parts.fixed, lambda i: self._describe(parts.fixed, tree, i))
        refuse_hidden_in_operators(jax.tree.unflatten(tree, parts.fixed))
        if self._operand is None:
            refuse_hidden_in_function(self._fn)
        call = _caller(self._fn if self._operand is None else None, self._method)
        function = flat_function(call, tree, parts, self._name)
        return jax.jit(function, donate_argnums=self._donated(parts, tree))

    def _donated(self, parts: Split, tree: Any) -> tuple[int, ...]:
        names = self._options.donate_argnames
        if not names:
            return ()
        wanted = set()
        for path, index in jax.tree.leaves_with_path(
            jax.tree.unflatten(tree, list(range(tree.num_leaves)))
        ):
            if self._argument(path) in names:
                wanted.add(index)
        return tuple(i for i, position in enumerate(parts.positions) if position in wanted)

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

    def _describe(self, leaves: Sequence[Any], tree: Any, index: int) -> str:
        paths = jax.tree.leaves_with_path(jax.tree.unflatten(tree, list(range(len(leaves)))))
        path = paths[index][0]
        if path[0].idx == 0:
            where = "self" + jax.tree_util.keystr(path[1:])
        elif path[0].idx == 1:
            where = f"argument {path[1].idx}" + jax.tree_util.keystr(path[2:])
        else:
            where = f"argument {path[1].key!r}" + jax.tree_util.keystr(path[2:])
        return f"{self._name}: {where}"

    def _explain(self, error: Exception) -> None:
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
        args, kwargs = self._with_fixed(args, kwargs)
        leaves, tree = _flatten((self._operand, args, kwargs))
        parts = split(leaves, tree, lambda index: self._describe(leaves, tree, index))
        if parts.traced:
            raise TypeError(f"{self._name}: precompile got values that JAX is tracing")
        counts = self._counts
        program, compiled = self._prepared(parts.key, parts, tree, counts)
        if not compiled:
            with program.lock:
                if program.ready:
                    self._compile(parts.key, program, parts.operands, counts)
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
            self._counts = _Counts()
        for program in programs:
            if program.ready:  # else a call compiles it, uses it once, and lets go of it
                program.free()
        for fn in inline:
            fn.clear_cache()


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
