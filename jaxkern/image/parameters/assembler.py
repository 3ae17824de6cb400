"""Instructions of a parameter program: values that are computed once, and their registers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxkern.core import registry


class UnsupportedError(Exception):
    """A function has no parameter program; it runs in pure JAX."""


@dataclasses.dataclass(frozen=True)
class ParameterProgram:
    """The attributes of a call of the op (csrc/image/parameters.h), as bytes of int32."""

    instructions: bytes
    constants: bytes
    registers: tuple[int, int]
    operands: bytes
    results: bytes


@functools.cache
def op_kinds() -> dict[str, tuple[int, str]]:
    """Return number and kinds of each native op; raise UnsupportedError without the library."""
    library = registry.module("cpu")
    if library is None:
        raise UnsupportedError("the native library is not loaded")
    kinds = library.image_parameter_ops()
    return {name: (number, kinds[name]) for number, name in enumerate(kinds)}


_FORMS = {"i": np.int32, "u": np.uint32, "f": np.float32, "d": np.float64}
_MAX_WORDS = 4096  # registers: kRegisterBytes / 256
_MAX_INSTRUCTIONS = 1 << 15
_MAX_NODES = 4 * _MAX_INSTRUCTIONS
_MAX_CONSTANTS = 1 << 16
_MAX_TABLE = 64  # elements that are not constant

# Values of ops on constants, by the op's name without its type.
_FOLDED: dict[str, Callable[..., Any]] = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum},
    **{"min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor},
    **{"lt": np.less, "le": np.less_equal, "eq": np.equal, "is_finite": np.isfinite},
    **{"floor": np.floor, "ceil": np.ceil, "round": np.rint, "sqrt": np.sqrt},
}
# These are computed in float64 and rounded once.
_FOLDED_IN_FLOAT64 = {
    name: getattr(np, name) for name in ("exp", "log", "log1p", "sin", "cos", "tan")
}


class Assembler:
    """Collects operations on single values; equal ones and those on constants run only once.

    A value is the index of its node: an op and its operands. Constants are the node "constant",
    with their bits and their size in bytes.
    """

    def __init__(self) -> None:
        self._kinds = op_kinds()
        self._nodes: list[tuple[Any, ...]] = []
        self._values: dict[tuple[Any, ...], int] = {}

    def _value(self, *node: Any) -> int:
        value = self._values.setdefault(node, len(self._nodes))
        if value == len(self._nodes):
            if value == _MAX_NODES:
                raise UnsupportedError("too many values")
            self._nodes.append(node)
        return value

    def constant(self, number: Any) -> int:
        """Return the value of a NumPy bool or number of 32 or 64 bits."""
        number = np.uint32(number) if isinstance(number, bool | np.bool_) else number
        return self._value("constant", int.from_bytes(number.tobytes(), "little"), number.nbytes)

    def constant_of(self, value: int, form: Any = np.uint32) -> Any:
        """Return a constant as a number of a type, or None for a value that is not known."""
        node = self._nodes[value]
        if node[0] != "constant":
            return None
        return np.frombuffer(node[1].to_bytes(node[2], "little"), form)[0]

    def operand(self, number: int) -> int:
        """Return the value of an operand; values of all operands are numbered in order."""
        return self._value("operand", number)

    def key(self, first: int, second: int) -> int:
        return self._value("key", first, second)

    def key_words(self, key: int) -> tuple[int, int]:
        _, first, second = self._nodes[key]
        return first, second

    def threefry(self, key: int, counter: int) -> int:
        """Return the key of the two words of a counter."""
        call = self._value("threefry", *self.key_words(key), counter)
        return self.key(self._value("word", call, 0), self._value("word", call, 1))

    def apply(self, op: str, *operands: int) -> int:
        """Return the result of an op of csrc/image/parameters.h."""
        simpler = self._simplified(op, operands)
        if simpler is not None:
            return simpler
        if op not in self._kinds:
            raise UnsupportedError(op)
        return self._value(op, *operands)

    def select(self, test: int, then: int, other: int, wide: bool) -> int:
        constant = self.constant_of(test)
        if constant is not None or then == other:
            return other if constant == 0 else then
        return self.apply("select_d" if wide else "select_i", test, then, other)

    def _simplified(self, op: str, operands: Sequence[int]) -> int | None:
        name, _, kind = op.rpartition("_")
        if kind not in _FORMS or name == "select" or not operands:
            return None
        constants = [self.constant_of(value, _FORMS[kind]) for value in operands]
        if all(constant is not None for constant in constants):
            with np.errstate(all="ignore"):
                if name in _FOLDED:
                    return self.constant(_FOLDED[name](*constants))
                if name in _FOLDED_IN_FLOAT64:
                    exact = _FOLDED_IN_FLOAT64[name](np.float64(constants[0]))
                    return self.constant(_FORMS[kind](exact))
        if kind in "iu" and name == "add" and 0 in constants:
            return operands[1 - constants.index(0)]
        if name == "mul" and 1 in constants:
            return operands[1 - constants.index(1)]
        last = constants[-1]
        unchanged = {"sub": 0, "div": 1}.get(name)
        if last is not None and last == unchanged and not np.signbit(last):
            return operands[0]
        return None

    def gather(self, index: int, table: Sequence[int]) -> int:
        """Return the element of a table at an index, which is clamped to the table."""
        constant = self.constant_of(index, np.int32)
        if constant is not None:
            return table[min(max(int(constant), 0), len(table) - 1)]
        if len(set(table)) == 1:
            return table[0]
        if all(self.constant_of(value) is not None for value in table):
            if any(self._nodes[value][2] != 4 for value in table):
                raise UnsupportedError("a table of float64")
            return self._value("gather_i", index, tuple(table))
        if len(table) > _MAX_TABLE:
            raise UnsupportedError("a long table of values that are not constant")
        result, wide = table[-1], self.is_wide(table[-1])
        for number in range(len(table) - 2, -1, -1):
            below = self.apply("le_i", index, self.constant(np.int32(number)))
            result = self.select(below, table[number], result, wide)
        return result

    def is_wide(self, value: int) -> bool:
        """Return True for a double."""
        return _is_wide(self._nodes[value], self._kinds)

    def finish(self, operands: int, results: Sequence[int]) -> ParameterProgram:
        """Return the program of some results, with a number of values of operands."""
        return _Allocation(self._nodes, self._kinds, operands, results).program()


class _Allocation:
    """Assigns registers in the order of the nodes; one is free after the last use of its value."""

    def __init__(
        self,
        nodes: list[tuple[Any, ...]],
        kinds: dict[str, tuple[int, str]],
        operands: int,
        results: Sequence[int],
    ) -> None:
        self._nodes, self._kinds, self._results = nodes, kinds, results
        self._operands = np.full(operands, -1, np.int32)
        self._last_use = dict.fromkeys(results, len(nodes))
        self._register: dict[int, int] = {}
        self._free: tuple[list[int], list[int]] = ([], [])
        self._count = [0, 0]  # of registers of words and of doubles
        self._instructions: list[tuple[int, ...]] = []
        self._constants: list[int] = []
        self._tables: dict[tuple[int, ...], int] = {}
        self._words: dict[int, tuple[int, int]] = {}  # registers of the results of threefry

    def program(self) -> ParameterProgram:
        nodes = self._nodes
        for value in range(len(nodes) - 1, -1, -1):
            if value in self._last_use:
                for used in self._uses(value):
                    self._last_use.setdefault(used, value)
        for value in sorted(self._last_use):
            if nodes[value][0] == "operand":  # All are loaded before the first instruction.
                self._register[value] = self._operands[nodes[value][1]] = self._allocate(False)
        for value in sorted(self._last_use):
            self._add(value)
        for value in self._results:
            self._load_constant(value)
        if self._count[0] + 2 * self._count[1] > _MAX_WORDS:
            raise UnsupportedError("too many registers")
        if len(self._instructions) > _MAX_INSTRUCTIONS:
            raise UnsupportedError("too many instructions")
        return ParameterProgram(
            np.asarray(self._instructions, np.int32).tobytes(),
            np.asarray(self._constants, np.uint32).tobytes(),
            (self._count[0], self._count[1]),
            self._operands.tobytes(),
            np.asarray([self._register[value] for value in self._results], np.int32).tobytes(),
        )

    def _uses(self, value: int) -> tuple[int, ...]:
        op, *operands = self._nodes[value]
        if op in ("constant", "operand"):
            return ()
        return tuple(operands[:1] if op in ("word", "gather_i") else operands)

    def _allocate(self, wide: bool) -> int:
        free = self._free[wide]
        if not free:
            free.append(self._count[wide])
            self._count[wide] += 1
        return free.pop()

    def _load_constant(self, value: int) -> None:
        op, *rest = self._nodes[value]
        if op != "constant" or value in self._register:
            return
        bits, wide = rest[0], rest[1] == 8
        self._register[value] = self._allocate(wide)
        number = self._kinds["constant_d" if wide else "constant_i"][0]
        index = self._table((bits & 0xFFFFFFFF, bits >> 32)[: 1 + wide])
        self._instructions.append((number, self._register[value], 0, index, 0, 0))

    def _table(self, words: tuple[int, ...]) -> int:
        """Return the index of the first of some successive constants."""
        if words not in self._tables:
            self._tables[words] = len(self._constants)
            self._constants += words
            if len(self._constants) > _MAX_CONSTANTS:
                raise UnsupportedError("too many constants")
        return self._tables[words]

    def _add(self, value: int) -> None:
        op, *operands = self._nodes[value]
        if op in ("constant", "operand"):  # loaded before its first use
            return
        if op == "word":
            self._register[value] = self._words[operands[0]][operands[1]]
            return
        uses = self._uses(value)
        for used in uses:
            self._load_constant(used)
        registers = [self._register[used] for used in uses]
        for used in {*uses}:
            if self._last_use[used] == value:
                self._free[_is_wide(self._nodes[used], self._kinds)].append(self._register[used])
        number, kinds = self._kinds[op]
        out, second = self._allocate(kinds[0] == "d"), 0
        self._register[value] = out
        if op == "threefry":
            second = self._allocate(False)
            self._words[value] = out, second
        if op == "gather_i":
            constants = tuple(self._nodes[constant][1] for constant in operands[1])
            registers += [self._table(constants), len(constants)]
        registers += [registers[0]] * (3 - len(registers))
        self._instructions.append((number, out, second, *registers))


def _is_wide(node: tuple[Any, ...], kinds: dict[str, tuple[int, str]]) -> bool:
    if node[0] == "constant":
        return bool(node[2] == 8)
    return node[0] in kinds and kinds[node[0]][1][0] == "d"
