"""Compiles a JAX function of single numbers to a parameter program."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image.parameters.assembler import Assembler, ParameterProgram, UnsupportedError

Values = Any  # integer arrays of the assembler's values, one for each element of an array

_KINDS = {"bool": "b", "int32": "i", "uint32": "u", "float32": "f", "float64": "d"}
_INLINED = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")
_MAX_CONSTANT = 1 << 16  # elements of the largest constant
_SORTED = 16  # elements of the longest array that is sorted
_SHIFTS = ("shift_left", "shift_right_logical", "shift_right_arithmetic")
_UNSIGNED_TOO = ("add", "sub", "mul", "and", "or", "xor", "eq", *_SHIFTS)
_EXCHANGED = {"gt": "lt", "ge": "le"}  # the same with exchanged operands
_REDUCTIONS = {"sum": "add", "max": "max", "min": "min", "prod": "mul", "and": "and", "or": "or"}


def compile_jaxpr(
    closed: Any, traced: Sequence[Any]
) -> tuple[ParameterProgram | None, list[np.ndarray | None]]:
    """Compile a jaxpr with the constants `traced`, of which tracers are its last operands.

    Returns the program of the results that are not constant, or None, and the constant results.
    Raises UnsupportedError for primitives without native ops.
    """
    if not jax.config.jax_threefry_partitionable:  # type: ignore[attr-defined]
        raise UnsupportedError("keys with jax_threefry_partitionable=False")
    compiler = _Compiler()
    jaxpr, count = closed, 0

    def operand(shape: Sequence[int]) -> Values:
        nonlocal count
        first, count = count, count + math.prod(shape)
        values = [compiler.assembler.operand(k) for k in range(first, count)]
        return np.asarray(values, np.int64).reshape(shape)

    operands = [operand(_checked_aval(var.aval).shape) for var in jaxpr.invars]
    constants = [
        operand(_checked_aval(jax.typeof(value), 3).shape)  # The call adds an axis of images.
        if isinstance(value, jax.core.Tracer)
        else compiler.constants(value, jax.typeof(value))
        for value in traced
    ]
    results = compiler.run(jaxpr, constants, operands)
    constant_results: list[np.ndarray | None] = []
    dynamic: list[int] = []
    for var, values in zip(jaxpr.outvars, results, strict=True):
        _checked_aval(var.aval)
        numbers = [compiler.assembler.constant_of(value) for value in values.ravel().tolist()]
        if any(number is None for number in numbers):
            constant_results.append(None)
            dynamic += values.ravel().tolist()
        else:
            bits = np.asarray(numbers, np.uint32)
            dtype = np.dtype(var.aval.dtype)
            array = bits != 0 if dtype.kind == "b" else bits.view(dtype)
            constant_results.append(array.reshape(values.shape))
    program = compiler.assembler.finish(count, dynamic) if dynamic else None
    return program, constant_results


def _checked_aval(aval: Any, max_rank: int = 4) -> Any:
    dtypes = ("bool", "int32", "uint32", "float32")
    if str(aval.dtype) not in dtypes or len(aval.shape) > max_rank:
        raise UnsupportedError(f"an array {aval}")
    return aval


def _kind(aval: Any) -> str:
    kind = _KINDS.get(str(aval.dtype))
    if kind is None:
        raise UnsupportedError(f"dtype {aval.dtype}")
    return kind


def _broadcasts(operands: Sequence[Values], shape: tuple[int, ...]) -> bool:
    return all(
        x.ndim in (0, len(shape))
        and all(size in (1, full) for size, full in zip(x.shape, shape, strict=False))
        for x in operands
    )


class _Compiler:
    def __init__(self) -> None:
        self.assembler = Assembler()

    def constants(self, constant: Any, aval: Any) -> Values:
        if str(aval.dtype) not in _KINDS or math.prod(aval.shape) > _MAX_CONSTANT:
            raise UnsupportedError(f"a constant {aval}")
        array = np.asarray(constant, aval.dtype)
        values = [self.assembler.constant(number) for number in array.ravel()]
        return np.asarray(values, np.int64).reshape(array.shape)

    def number(self, number: float, kind: str) -> int:
        forms = {"i": np.int32, "u": np.uint32, "f": np.float32, "d": np.float64, "b": np.bool_}
        return self.assembler.constant(np.asarray(number).astype(forms[kind])[()])

    def run(self, jaxpr: Any, constants: Sequence[Values], operands: Sequence[Values]) -> Any:
        values: dict[Any, Values] = dict(zip(jaxpr.constvars, constants, strict=True))
        values |= dict(zip(jaxpr.invars, operands, strict=True))

        def read(atom: Any) -> Values:
            if hasattr(atom, "val"):  # a literal
                return self.constants(atom.val, atom.aval)
            return values[atom]

        for equation in jaxpr.eqns:
            results = self._equation(equation, [read(atom) for atom in equation.invars])
            values |= dict(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, equation: Any, operands: list[Values]) -> Sequence[Values]:
        name, parameters = equation.primitive.name, equation.params
        if name in _INLINED:
            inner = parameters.get("jaxpr", parameters.get("call_jaxpr"))
            constants = [self.constants(value, jax.typeof(value)) for value in inner.consts]
            return self.run(inner.jaxpr, constants, operands)
        rule = _STRUCTURAL.get(name)
        if rule is not None:
            results = rule(parameters, *operands)
            return results if isinstance(results, list) else [results]
        if name.startswith("reduce_") and name[7:] in _REDUCTIONS:
            return [self._reduced(_REDUCTIONS[name[7:]], equation, *operands)]
        compose = _COMPOSED.get(name)
        if compose is not None:
            results = compose(self, equation, *operands)
            return results if isinstance(results, list) else [results]
        shapes = [atom.aval.shape for atom in equation.outvars]
        if len(shapes) != 1 or not operands or not _broadcasts(operands, shapes[0]):
            raise UnsupportedError(name)
        kind = _kind(equation.invars[0].aval)
        return [self._map(lambda *values: self._apply(name, kind, *values), *operands)]

    @staticmethod
    def _map(function: Callable[..., int], *operands: Values) -> Values:
        arrays = np.broadcast_arrays(*operands)
        rows = zip(*(array.ravel().tolist() for array in arrays), strict=True)
        return np.asarray([function(*row) for row in rows], np.int64).reshape(arrays[0].shape)

    def _apply(self, name: str, kind: str, *values: int) -> int:
        """Return the value of an elementwise primitive on operands of a kind."""
        assembler = self.assembler
        if name in _EXCHANGED:
            name, values = _EXCHANGED[name], values[::-1]
        if name == "ne":
            return assembler.apply("xor_i", self._apply("eq", kind, *values), self.number(1, "i"))
        integers = kind == "b" or (kind == "u" and name in _UNSIGNED_TOO)
        return assembler.apply(f"{name}_{'i' if integers else kind}", *values)

    # Elementwise primitives that are composed of others.

    def _neg(self, equation: Any, x: Values) -> Values:
        kind = _kind(equation.invars[0].aval)
        zero = self.number(-0.0 if kind in "fd" else 0, kind)
        return self._map(lambda value: self._apply("sub", kind, zero, value), x)

    def _abs(self, equation: Any, x: Values) -> Values:
        kind = _kind(equation.invars[0].aval)
        if kind == "f":
            bits = self.number(0x7FFFFFFF, "i")
            return self._map(lambda value: self.assembler.apply("and_i", value, bits), x)
        larger = self._map(lambda a, b: self._apply("max", kind, a, b), x, self._neg(equation, x))
        zero = self.number(0, kind)  # -0.0 + 0.0 is 0.0.
        return self._map(lambda value: self._apply("add", kind, value, zero), larger)

    def _sign(self, equation: Any, x: Values) -> Values:
        kind = _kind(equation.invars[0].aval)
        zero, one, minus = (self.number(number, kind) for number in (0, 1, -1))

        def sign(value: int) -> int:
            below, above = (self._apply(test, kind, value, zero) for test in ("lt", "gt"))
            rest = self.assembler.select(below, minus, value, kind == "d")
            return self.assembler.select(above, one, rest, kind == "d")

        return self._map(sign, x)

    def _not(self, equation: Any, x: Values) -> Values:
        ones = self.number(1 if _kind(equation.invars[0].aval) == "b" else -1, "i")
        return self._map(lambda value: self.assembler.apply("xor_i", value, ones), x)

    def _square(self, equation: Any, x: Values) -> Values:
        kind = _kind(equation.invars[0].aval)
        return self._map(lambda value: self._apply("mul", kind, value, value), x)

    def _clamp(self, equation: Any, low: Values, x: Values, high: Values) -> Values:
        kind = _kind(equation.invars[1].aval)
        above = self._map(lambda a, b: self._apply("max", kind, a, b), x, low)
        return self._map(lambda a, b: self._apply("min", kind, a, b), above, high)

    def _round(self, equation: Any, x: Values) -> Values:
        if equation.params["rounding_method"] != jax.lax.RoundingMethod.TO_NEAREST_EVEN:
            raise UnsupportedError("rounding half away from zero")
        kind = _kind(equation.invars[0].aval)
        return self._map(lambda value: self._apply("round", kind, value), x)

    def _select_n(self, equation: Any, test: Values, *cases: Values) -> Values:
        if len(cases) != 2 or _kind(equation.invars[0].aval) != "b":
            raise UnsupportedError("a choice of more than two cases")
        wide = _kind(equation.invars[1].aval) == "d"
        select = self.assembler.select
        return self._map(lambda t, a, b: select(t, b, a, wide), test, *cases)

    def _convert_element_type(self, equation: Any, x: Values) -> Values:
        from_kind, to = (_kind(atom.aval) for atom in (*equation.invars, *equation.outvars))
        apply = self.assembler.apply
        if to == "b" and from_kind != "b":
            zero = self.number(0, from_kind)
            return self._map(lambda value: self._apply("ne", from_kind, value, zero), x)
        if from_kind == to or (from_kind in "biu" and to in "iu"):
            return x
        op = f"{'i' if from_kind == 'b' else from_kind}_to_{to}"
        forms = {"i": np.int32, "u": np.uint32, "f": np.float32, "d": np.float64}

        def convert(value: int) -> int:
            constant = self.assembler.constant_of(value, forms.get(from_kind, np.uint32))
            if constant is not None and to in "fd":
                return self.assembler.constant(forms[to](constant))
            return apply(op, value)

        return self._map(convert, x)

    def _bitcast_convert_type(self, equation: Any, x: Values) -> Values:
        kinds = [_kind(atom.aval) for atom in (*equation.invars, *equation.outvars)]
        if not set(kinds) <= set("iuf"):
            raise UnsupportedError("a change of the size of a number")
        return x

    # Reductions, in the order of the elements.

    def _reduced(self, op: str, equation: Any, x: Values) -> Values:
        axes, kind = equation.params["axes"], _kind(equation.invars[0].aval)
        kept = [axis for axis in range(x.ndim) if axis not in axes]
        shape = [x.shape[axis] for axis in kept]
        count = math.prod(x.shape[axis] for axis in axes)
        rows = x.transpose([*kept, *axes]).reshape(*shape, count)
        if count == 0:
            raise UnsupportedError("a reduction of no elements")
        result = rows[..., 0]
        for k in range(1, count):
            result = self._map(lambda a, b: self._apply(op, kind, a, b), result, rows[..., k])
        return result

    def _argmax(self, equation: Any, x: Values) -> Values:
        (axis,), kind = equation.params["axes"], _kind(equation.invars[0].aval)
        if _kind(equation.outvars[0].aval) != "i" or kind in "fd":
            raise UnsupportedError("argmax")
        rows = np.moveaxis(x, axis, -1)
        select = self.assembler.select

        def first_largest(*values: int) -> int:
            best, index = values[0], self.number(0, "i")
            for k, value in enumerate(values[1:], 1):
                larger = self._apply("lt", kind, best, value)
                best = select(larger, value, best, kind == "d")
                index = select(larger, self.number(k, "i"), index, False)
            return index

        return self._map(first_largest, *(rows[..., k] for k in range(rows.shape[-1])))

    def _sort(self, equation: Any, *operands: Values) -> list[Values]:
        axis, kind = equation.params["dimension"], _kind(equation.invars[0].aval)
        length = operands[0].shape[axis]
        if equation.params["num_keys"] != 1 or kind not in "iu" or length > _SORTED:
            raise UnsupportedError("sort")
        if any(_kind(atom.aval) == "d" for atom in equation.invars):
            raise UnsupportedError("sort of float64")
        if length == 0:
            return list(operands)
        columns = [[np.moveaxis(x, axis, 0)[k] for k in range(length)] for x in operands]
        select = self.assembler.select
        # Odd-even transposition exchanges neighbours only, so equal elements keep their order.
        for start in range(length):
            for k in range(start % 2, length - 1, 2):
                keys = columns[0]
                swap = self._map(lambda a, b: self._apply("lt", kind, b, a), keys[k], keys[k + 1])
                for column in columns:
                    a, b = column[k], column[k + 1]
                    column[k] = self._map(lambda t, x, y: select(t, y, x, False), swap, a, b)
                    column[k + 1] = self._map(lambda t, x, y: select(t, x, y, False), swap, a, b)
        return [np.moveaxis(np.stack(column), 0, axis) for column in columns]

    def _gather(self, equation: Any, operand: Values, starts: Values) -> Values:
        """XLA's gather: https://openxla.org/stablehlo/spec#gather."""
        parameters, kind = equation.params, _kind(equation.invars[1].aval)
        numbers, sizes = parameters["dimension_numbers"], parameters["slice_sizes"]
        shape, mode = equation.outvars[0].aval.shape, parameters["mode"]
        offset_dims = numbers.offset_dims
        dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
        window = [d for d in range(operand.ndim) if d not in dropped]
        batch_dims = [d for d in range(len(shape)) if d not in offset_dims]
        strides = [math.prod(operand.shape[d + 1 :]) for d in range(operand.ndim)]
        if kind not in "iu":
            raise UnsupportedError("gather")
        is_key = jnp.issubdtype(equation.invars[0].aval.dtype, jax.dtypes.prng_key)
        checks = mode == jax.lax.GatherScatterMode.FILL_OR_DROP
        fill = parameters["fill_value"]
        assembler, table = self.assembler, operand.ravel().tolist()
        result = np.zeros(shape, np.int64)
        for position in np.ndindex(*shape):
            batch = [position[d] for d in batch_dims]
            at = [0] * operand.ndim
            for d, k in zip(window, offset_dims, strict=True):
                at[d] = position[k]
            batching = zip(
                numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True
            )
            for d, k in batching:
                at[d] = batch[k]
            inside, indices = self.number(1, "i"), []
            for k, d in enumerate(numbers.start_index_map):
                start, last = int(starts[(*batch, k)]), operand.shape[d] - sizes[d]
                zero, bound = self.number(0, kind), self.number(last, kind)
                if checks:
                    for pair in ((zero, start), (start, bound)):
                        test = self._apply("le", kind, *pair)
                        inside = assembler.apply("and_i", inside, test)
                clamped = self._apply("min", kind, self._apply("max", kind, start, zero), bound)
                constant = assembler.constant_of(clamped, np.int32)
                if constant is None:
                    indices.append((clamped, strides[d], last))
                else:
                    at[d] += int(constant)
            first = sum(a * stride for a, stride in zip(at, strides, strict=True))
            if not indices:
                value = table[first]
            elif is_key:
                raise UnsupportedError("an index of keys that is not constant")
            else:
                step = math.gcd(*(stride for _, stride, _ in indices))
                end = first + sum(stride * last for _, stride, last in indices) + 1
                index = self.number(0, "i")
                for clamped, stride, _ in indices:
                    scaled = assembler.apply("mul_i", clamped, self.number(stride // step, "i"))
                    index = assembler.apply("add_i", index, scaled)
                value = assembler.gather(index, table[first:end:step])
            if checks and assembler.constant_of(inside) != 1:
                default = self._fill(equation.outvars[0].aval, fill)
                value = assembler.select(inside, value, default, assembler.is_wide(value))
            result[position] = value
        return result

    def _fill(self, aval: Any, fill: Any) -> int:
        kind = _kind(aval)
        defaults = {"b": True, "i": -(2**31), "u": 2**32 - 1, "f": math.nan, "d": math.nan}
        return self.number(defaults[kind] if fill is None else fill, kind)

    def _iota(self, equation: Any) -> Values:
        shape, axis = equation.params["shape"], equation.params["dimension"]
        sides = [-1 if k == axis else 1 for k in range(len(shape))]
        row = np.arange(shape[axis]).reshape(sides)
        return self.constants(np.broadcast_to(row, shape), equation.outvars[0].aval)

    # Random numbers, as those of threefry2x32 keys with jax_threefry_partitionable.

    def _counter(self, key: int, number: int) -> int:
        return self.assembler.threefry(key, self.number(number, "u"))

    def _random_unwrap(self, equation: Any, keys: Values) -> Values:
        words = [self.assembler.key_words(key) for key in keys.ravel().tolist()]
        return np.asarray(words, np.int64).reshape(*keys.shape, 2)

    def _random_wrap(self, equation: Any, words: Values) -> Values:
        if equation.params["impl"].name != "threefry2x32":
            raise UnsupportedError("keys of another generator")
        return self._map(self.assembler.key, words[..., 0], words[..., 1])

    def _random_fold_in(self, equation: Any, keys: Values, numbers: Values) -> Values:
        return self._map(self.assembler.threefry, keys, numbers)

    def _random_split(self, equation: Any, keys: Values) -> Values:
        shape = tuple(equation.params["shape"])
        counters = range(math.prod(shape))
        split = [self._counter(key, k) for key in keys.ravel().tolist() for k in counters]
        return np.asarray(split, np.int64).reshape(*keys.shape, *shape)

    def _random_bits(self, equation: Any, keys: Values) -> Values:
        shape = tuple(equation.params["shape"])
        if equation.params["bit_width"] != 32:
            raise UnsupportedError("random bits of another width than 32")
        split = [
            self.assembler.apply("xor_i", *self.assembler.key_words(self._counter(key, k)))
            for key in keys.ravel().tolist()
            for k in range(math.prod(shape))
        ]
        return np.asarray(split, np.int64).reshape(*keys.shape, *shape)

    def _random_gamma(self, equation: Any, keys: Values, alpha: Values) -> Values:
        rows = alpha.reshape(keys.size, math.prod(alpha.shape[keys.ndim :])).tolist()
        log_space = equation.params["log_space"]

        def variate(key: int, value: int) -> int:
            words = self.assembler.key_words(key)
            result = self.assembler.apply("random_gamma", *words, value)
            return result if log_space else self.assembler.apply("exp_f", result)

        drawn = [
            variate(self._counter(key, k), value)
            for key, row in zip(keys.ravel().tolist(), rows, strict=True)
            for k, value in enumerate(row)
        ]
        return np.asarray(drawn, np.int64).reshape(alpha.shape)


_COMPOSED: dict[str, Callable[..., Any]] = {
    **{"neg": _Compiler._neg, "abs": _Compiler._abs, "sign": _Compiler._sign},
    **{"not": _Compiler._not, "square": _Compiler._square, "clamp": _Compiler._clamp},
    **{"round": _Compiler._round, "select_n": _Compiler._select_n, "sort": _Compiler._sort},
    **{"argmax": _Compiler._argmax, "gather": _Compiler._gather},
    "convert_element_type": _Compiler._convert_element_type,
    "bitcast_convert_type": _Compiler._bitcast_convert_type,
    "iota": _Compiler._iota,
    "random_wrap": _Compiler._random_wrap,
    "random_unwrap": _Compiler._random_unwrap,
    "random_fold_in": _Compiler._random_fold_in,
    "random_split": _Compiler._random_split,
    "random_bits": _Compiler._random_bits,
    "random_gamma": _Compiler._random_gamma,
}


# Primitives that only move elements: functions of their parameters and of NumPy arrays.


def _broadcast_in_dim(parameters: Any, x: Values) -> Values:
    shape = [1] * len(parameters["shape"])
    for axis, target in enumerate(parameters["broadcast_dimensions"]):
        shape[target] = x.shape[axis]
    return np.broadcast_to(x.reshape(shape), parameters["shape"])


def _slice(parameters: Any, x: Values) -> Values:
    strides = parameters["strides"] or [1] * x.ndim
    limits = zip(parameters["start_indices"], parameters["limit_indices"], strides, strict=True)
    return x[tuple(slice(*limit) for limit in limits)]


def _split(parameters: Any, x: Values) -> list[Values]:
    return np.split(x, np.cumsum(parameters["sizes"])[:-1], parameters["axis"])


_STRUCTURAL: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("stop_gradient", "copy", "copy_p", "pvary"), lambda parameters, x: x),
    "broadcast_in_dim": _broadcast_in_dim,
    "reshape": lambda parameters, x: x.reshape(parameters["new_sizes"]),
    "squeeze": lambda parameters, x: np.squeeze(x, parameters["dimensions"]),
    "expand_dims": lambda parameters, x: np.expand_dims(x, parameters["dimensions"]),
    "transpose": lambda parameters, x: x.transpose(parameters["permutation"]),
    "rev": lambda parameters, x: np.flip(x, parameters["dimensions"]),
    "slice": _slice,
    "split": _split,
    "concatenate": lambda parameters, *xs: np.concatenate(xs, parameters["dimension"]),
    "stack": lambda parameters, *xs: np.stack(xs, parameters["axis"]),
    "unstack": lambda parameters, x: list(np.moveaxis(x, parameters["axis"], 0)),
}
