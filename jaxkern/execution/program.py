"""One compiled program, or one for each sharding and context, of calls with equal signatures."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.tree_util import DictKey, SequenceKey

from jaxkern.core.compat import jit_cache_size
from jaxkern.core.compile_clock import REFUSAL, CompileClock
from jaxkern.core.static import exact_key
from jaxkern.execution.operator import is_array, is_hashable
from jaxkern.execution.signature import FixedArgument, FixedResult, Split, operators_in


class OtherSignatureError(BaseException):
    """Ends the tracing of a program's function for a call that another program serves.

    It is no ``Exception``: JAX would spend 2 ms on its traceback.
    """


class _Known(threading.local):
    """The signatures of the program that this thread has looked up, and now calls or compiles."""

    signatures: set[Any] | None = None


_KNOWN = _Known()


class Program:
    """A ``jax.jit`` function, and what it has compiled.

    Calls go to ``jax.jit``'s own cache, which knows shardings, 64-bit types and every other
    context; ``size`` is how many of its entries are accounted for here.
    """

    __slots__ = (
        "begun",
        "call",
        "executables",
        "first",
        "fixed",
        "fn",
        "key",
        "lock",
        "positions",
        "ready",
        "seconds",
        "signatures",
        "size",
        "used",
    )

    def __init__(
        self,
        fn: Any,
        key: tuple[Any, ...],
        positions: tuple[int, ...],
        first: tuple[Any, ...] = (),
        fixed: FixedArguments | None = None,
        signatures: set[Any] | None = None,
    ) -> None:
        self.fn = fn
        #: what ``fn`` takes before the arguments of a call
        self.first = first
        self.call = functools.partial(fn, *first) if first else fn
        self.key = key
        #: where the operands stand among the leaves of a call
        self.positions = positions
        #: the arguments of a call that ``fn`` does not take; None: it takes all of them
        self.fixed = fixed
        #: those that ``fn`` was traced for; None: it takes operands, and no arguments
        self.signatures = signatures
        # What is compiled may call the same function, with values that are known.
        self.lock = threading.RLock()
        self.ready = False
        self.size = 0
        self.used = 0
        #: the use from which on calls have gone to it without being looked up
        self.begun = 0
        self.executables: list[Any] = []
        self.seconds = 0.0

    def cache_size(self) -> int:
        """The entries of JAX's cache."""
        return jit_cache_size(self.fn)

    def given(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], operands: Sequence[Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What ``call`` takes of a call whose signature this is; ``operands`` are its own."""
        if self.signatures is None:
            return tuple(operands), {}
        return (args, kwargs) if self.fixed is None else self.fixed.without(args, kwargs)

    def compile(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Compiles for these arguments unless it has; whether it did.

        Compiling ahead fills the cache that calls look into.
        """
        with CompileClock() as clock:
            lowered = self._known(self.fn.lower, *self.first, *args, **kwargs)
            executable = lowered.compile()
        runtime = executable.runtime_executable()
        known = any(runtime is other.runtime_executable() for other in self.executables)
        if not known:
            self.executables.append(executable)
            self.seconds += clock.seconds
        return not known

    def call_found(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """A call that was looked up, in whatever context."""
        try:
            return self.call(*args, **kwargs)
        except OtherSignatureError:
            REFUSAL.under_way = False
            return self._known(self.call, *args, **kwargs)

    def _known(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        outer, _KNOWN.signatures = _KNOWN.signatures, self.signatures
        try:
            return function(*args, **kwargs)
        finally:
            _KNOWN.signatures = outer

    def bytes(self) -> int:
        """Of the machine code where the backend tells, else of the serialized programs."""
        total = 0
        for executable in self.executables:
            runtime = executable.runtime_executable()
            size = runtime.size_of_generated_code_in_bytes()
            if size <= 0:
                try:
                    size = len(runtime.serialize())
                except Exception:  # not every backend can
                    size = 0
            total += size
        return total

    def free(self) -> None:
        """Lets go of everything compiled."""
        self.executables.clear()
        self.fn.clear_cache()
        self.size = 0
        self.ready = False


def flat_function(
    call: Callable[[Any], Any], tree: Any, parts: Split, name: str
) -> Callable[..., Any]:
    """A function of the operands: puts the fixed leaves back, calls, and marks fixed results."""
    positions, fixed = parts.positions, parts.fixed

    def flat(*operands: Any) -> Any:
        leaves = [leaf.value if type(leaf) is FixedArgument else leaf for leaf in fixed]
        for position, operand in zip(positions, operands, strict=True):
            leaves[position] = operand
        return _result(call, jax.tree.unflatten(tree, leaves), name)

    flat.__name__ = flat.__qualname__ = name
    return flat


@dataclasses.dataclass(frozen=True)
class FixedArguments:
    """Whole arguments of a call that are fixed in its program: by position, ascending; by name."""

    positions: tuple[tuple[int, Any], ...]
    names: tuple[tuple[str, Any], ...]

    def without(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        rest = list(args)
        for position, _ in reversed(self.positions):
            del rest[position]
        names = dict(self.names)
        return tuple(rest), {k: v for k, v in kwargs.items() if k not in names}

    def if_equal(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]] | None:
        """What `without` gives of a call that has them; None also where that is long to tell."""
        rest = list(args)
        for position, value in reversed(self.positions):
            if position >= len(rest):
                return None
            given = rest.pop(position)
            if given is not value and not _equal(given, value):
                return None
        if self.names:
            kwargs = dict(kwargs)
            for name, value in self.names:
                if name not in kwargs:
                    return None
                given = kwargs.pop(name)
                if given is not value and not _equal(given, value):
                    return None
        return rest, kwargs

    def restored(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What `without` was made of."""
        whole = list(args)
        for position, value in self.positions:
            whole.insert(position, value)
        return tuple(whole), {**kwargs, **dict(self.names)}

    def paths_of_whole(self, paths: dict[tuple[Any, ...], Any]) -> dict[tuple[Any, ...], Any]:
        """Values by their paths in (args, kwargs): those of `without`, and the fixed ones."""
        whole = {}
        for path, value in paths.items():
            if path[0].idx == 0:
                place = path[1].idx
                for position, _ in self.positions:
                    place += position <= place
                path = (path[0], SequenceKey(place), *path[2:])
            whole[path] = value
        by_position = {(SequenceKey(0), SequenceKey(i)): value for i, value in self.positions}
        by_name = {(SequenceKey(1), DictKey(name)): value for name, value in self.names}
        return {**whole, **by_position, **by_name}


_COMPARED = frozenset({bool, int, float, complex, str, bytes})


def _equal(one: Any, other: Any) -> bool:
    kind = type(one)
    return kind is type(other) and kind in _COMPARED and exact_key(one) == exact_key(other)


def structured_function(
    call: Callable[[Any], Any],
    has_operand: bool,
    fixed: FixedArguments | None,
    signatures: set[Any],
    name: str,
) -> Callable[..., Any]:
    """The same of a call's own arguments, which ``jax.jit`` takes apart sooner than we can.

    Args:
      has_operand: the first argument is what is called.
      fixed: the arguments that it does not take.
      signatures: those that the function was traced for. It adds the one of a call that was looked
        up; another call, which has been taken for one of these, ends with `OtherSignatureError`.
    """

    def structured(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        signature = (tree, *map(_form, leaves))
        if not guessed():
            signatures.add(signature)
        elif signature not in signatures:
            REFUSAL.under_way = True
            raise OtherSignatureError
        operand = None
        if has_operand:
            operand, *rest = args
            args = tuple(rest)
        if fixed is not None:
            args, kwargs = fixed.restored(args, kwargs)
        return _result(call, (operand, args, kwargs), name)

    def guessed() -> bool:
        return _KNOWN.signatures is not signatures

    structured.may_refuse = guessed  # type: ignore[attr-defined]  # for `watch_compiles`
    structured.__name__ = structured.__qualname__ = name
    return structured


def _form(leaf: Any) -> Any:
    return jax.typeof(leaf) if isinstance(leaf, (jax.Array, np.ndarray)) else (type(leaf), leaf)


def _result(call: Callable[[Any], Any], arguments: Any, name: str) -> Any:
    if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        return call(arguments)
    before = _states(arguments)
    result = call(arguments)
    _refuse_changes(before, _states(arguments))
    return jax.tree.map(lambda leaf: _as_result(leaf, name), result)


def _as_result(leaf: Any, name: str) -> Any:
    if isinstance(leaf, (bool, int, float, complex)) or (
        is_array(leaf) and not isinstance(leaf, (str, bytes))  # those of NumPy are scalars too
    ):
        return leaf
    if hasattr(leaf, "__jax_array__"):
        return leaf
    if not is_hashable(leaf):
        raise TypeError(
            f"{name} returns a {type(leaf).__name__}, which is no array and has no hash; return "
            "arrays, pytrees of arrays, or something hashable such as a string"
        )
    return FixedResult(leaf)


def _states(arguments: Any) -> list[tuple[Any, list[Any], Any]]:
    return [(op, *jax.tree.flatten(op)) for op in operators_in(arguments)]


def _refuse_changes(
    before: list[tuple[Any, list[Any], Any]], after: list[tuple[Any, list[Any], Any]]
) -> None:
    for op, leaves, tree in before:
        match = next((item for item in after if item[0] is op), None)
        same = match is None or (
            len(leaves) == len(match[1])
            and all(a is b for a, b in zip(leaves, match[1], strict=True))
            and tree == match[2]
        )
        if not same:
            raise TypeError(
                f"forward of {type(op).__name__} changes an attribute of its operator, which a "
                "compiled program cannot do: the change would be lost after the first call. "
                "Return the new value, or make a new operator of it"
            )
