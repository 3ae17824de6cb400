"""Stages, each a fused chain and an image program, of one call (see csrc/image/stages.h)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.axes import batch_sharding, explicit_axes, in_auto_mode
from jaxkern.image.chain import twin
from jaxkern.image.chain.plan import ChainPlan, Dtype, Operands
from jaxkern.image.program import program_twin
from jaxkern.image.program.program import MAX_STEPS, ProgramStep, Step, program_operands

MAX_STAGES = 8  # of one call


@dataclasses.dataclass(frozen=True)
class Stage:
    """A fused chain, which only the first stage may lack, and steps of a program after it."""

    chain: ChainPlan | None
    steps: tuple[ProgramStep, ...] = ()


@dataclasses.dataclass(frozen=True)
class StagesPlan:
    """The structure of a call: static, and the same for all samples.

    Chains before the last one, and those that a program follows, have the layout NHWC and the
    output uint8 or float32.
    """

    stages: tuple[Stage, ...]
    channels: int
    source_dtype: Dtype

    @property
    def chains(self) -> tuple[ChainPlan, ...]:
        """The chains of all stages."""
        return tuple(stage.chain for stage in self.stages if stage.chain is not None)

    def output(self, source: Any) -> jax.ShapeDtypeStruct:
        """Return shape and dtype of one sample's output; without a chain, the source's."""
        if self.chains:
            return self.chains[-1].output()
        return jax.ShapeDtypeStruct(source.shape, source.dtype)

    @property
    def steps(self) -> tuple[ProgramStep, ...]:
        """The steps of all stages."""
        return tuple(step for stage in self.stages for step in stage.steps)


class StageOperands(NamedTuple):
    """`Operands` of all chains, and of all programs op i32 [N, P] and values f32 [N, P, 8]."""

    geometry: Any
    affine: Any
    fill: Any
    erase_box: Any
    erase_value: Any
    op: Any
    values: Any


Folded = tuple[ChainPlan, Operands]
Call = Folded | tuple[StagesPlan, StageOperands]
# Codes, values and the static part of some steps.
_ProgramOperands = tuple[Any, Any, tuple[ProgramStep, ...]]
_StageParts = tuple[Folded | None, list[_ProgramOperands]]


class StagesBuilder:
    """Collects successive chains and programs on images with the same number of channels."""

    def __init__(self, channels: int, source_dtype: Dtype) -> None:
        self.channels = channels
        self.source_dtype = source_dtype
        self._stages: list[_StageParts] = []

    def chain(self, folded: Folded | None) -> None:
        """Append a chain; None appends nothing."""
        if folded is not None:
            self._stages.append((folded, []))

    def program(
        self, steps: Callable[[dict[str, Any]], Sequence[Step]], params: dict[str, Any]
    ) -> None:
        """Append the steps that a transform makes of its parameters."""
        operands = _step_operands(steps, params)
        if operands[2] and not self._stages:
            self._stages.append((None, []))
        if operands[2]:
            self._stages[-1][1].append(operands)

    def calls(self, together: bool) -> Iterator[Call]:
        """Yield plans and operands of few calls, or else of a call for each chain and program."""
        each: list[list[_StageParts]] = []
        if together:
            starts = range(0, len(self._stages), MAX_STAGES)
            each = [self._stages[k : k + MAX_STAGES] for k in starts]
        else:
            for folded, programs in self._stages:
                each += [[(folded, [])]] if folded is not None else []
                each += [[(None, programs)]] if programs else []
        dtype = self.source_dtype
        for parts in each:
            call = StagesBuilder(self.channels, dtype)
            call._stages = parts
            finished = call.finish()
            assert finished is not None
            yield finished
            for folded, _ in parts:
                dtype = dtype if folded is None else folded[0].output_dtype

    def finish(self) -> Call | None:
        """Return the plan (of a single chain a `ChainPlan`) and operands; None without a change."""
        if len(self._stages) > MAX_STAGES:
            raise ValueError(
                f"at most {MAX_STAGES} stages fit in one call, got {len(self._stages)}; split them"
            )
        if not self._stages:
            return None
        chains = [folded[1] for folded, _ in self._stages if folded is not None]
        programs = [program for _, programs in self._stages for program in programs]
        if not programs and len(self._stages) == 1:
            return self._stages[0][0]
        programs = programs or [program_operands(())]  # Chains without a program between them.
        stages = tuple(
            Stage(folded and folded[0], tuple(step for *_, steps in programs for step in steps))
            for folded, programs in self._stages
        )
        longest = max(len(stage.steps) for stage in stages)
        if longest > MAX_STEPS:
            raise ValueError(
                f"at most {MAX_STEPS} steps may follow each other, got {longest}; split them"
            )
        op, values, _ = zip(*programs, strict=True)
        arrays = (*zip(*(chains or [self._no_chain()]), strict=True), op, values)
        operands = StageOperands(*(_concatenated(parts) for parts in arrays))
        return StagesPlan(stages, self.channels, self.source_dtype), operands

    def _no_chain(self) -> Operands:
        c = self.channels
        return Operands(
            np.zeros((1, 0, 14), np.int32),
            np.zeros((1, 0, 2, c), np.float32),
            np.zeros((1, 0, c), np.float32),
            np.zeros((1, 0, 4), np.int32),
            np.zeros((1, 0, c), np.float32),
        )


def _step_operands(
    steps: Callable[[dict[str, Any]], Sequence[Step]], params: dict[str, Any]
) -> _ProgramOperands:
    """Return the operands of steps; their computation is exempt from Explicit mode's rules."""
    names = [name for name, value in params.items() if isinstance(value, jax.Array)]
    traced = [params[name] for name in names]
    axes = explicit_axes(traced)
    static: tuple[ProgramStep, ...] = ()

    def operands(*arrays: Any) -> tuple[Any, Any]:
        nonlocal static
        op, values, static = program_operands(steps(params | dict(zip(names, arrays, strict=True))))
        if axes:  # The operands are sharded like the parameters.
            full = traced[0].shape[:1]
            op = jnp.broadcast_to(op, (*full, *op.shape[1:]))
            values = jnp.broadcast_to(values, (*full, *values.shape[1:]))
        return op, values

    specs = tuple(batch_sharding(traced, rank) for rank in (2, 3)) if axes else None
    op, values = in_auto_mode(operands, specs, axes)(*traced)
    return op, values, static


def _concatenated(parts: Sequence[Any]) -> Any:
    """Concatenate arrays [N or 1, rows, ...] along the rows."""
    full = [part for part in parts if part.shape[1] > 0] or list(parts[:1])
    if len(full) == 1:
        return full[0]
    batch = next((part.shape[0] for part in full if part.shape[0] != 1), 1)

    def join(numpy: Any, *arrays: Any) -> Any:
        wide = [numpy.broadcast_to(x, (batch, *x.shape[1:])) for x in arrays]
        return numpy.concatenate(wide, axis=1)

    if all(isinstance(part, np.ndarray) for part in full):
        return join(np, *full)
    traced = [part for part in full if not isinstance(part, np.ndarray)]
    sharded = [part for part in traced if part.shape[0] == batch] or traced

    def table(*arrays: Any) -> Any:
        operands = iter(arrays)
        return join(jnp, *(x if isinstance(x, np.ndarray) else next(operands) for x in full))

    spec = batch_sharding(sharded, full[0].ndim)
    return in_auto_mode(table, spec, explicit_axes(traced))(*traced)


def image_stages(pixels: jax.Array, *operands: jax.Array, plan: StagesPlan) -> jax.Array:
    """Run `plan` on pixels [H, W, C] in pure JAX, with `StageOperands` of one sample."""
    return _run((pixels,), twin.image_chain, operands, plan)


def ragged_stages(*arrays: jax.Array, plan: StagesPlan, **largest: Any) -> jax.Array:
    """Run `plan`, whose first stage has a chain, with arrays and sizes as of `ragged_chain`."""
    first = functools.partial(twin.ragged_chain, **largest)
    return _run(arrays[:4], first, arrays[4:], plan)


def _run(
    source: tuple[jax.Array, ...], run_chain: Any, operands: Sequence[jax.Array], plan: StagesPlan
) -> jax.Array:
    segment = erasure = step = 0
    for stage in plan.stages:
        chain, steps = stage.chain, len(stage.steps)
        image = source[0]
        if chain is not None:
            segments = slice(segment, segment + len(chain.segments))
            erasures = slice(erasure, erasure + sum(s.erasures for s in chain.segments))
            segment, erasure = segments.stop, erasures.stop
            of_chain = (array[segments] for array in operands[:3])
            of_erasures = (array[erasures] for array in operands[3:5])
            image = run_chain(*source, *of_chain, *of_erasures, plan=chain)
        if steps:
            of_program = (array[step : step + steps] for array in operands[5:])
            image = program_twin.image_program(image, *of_program, steps=stage.steps)
            step += steps
        source, run_chain = (image,), twin.image_chain
    return source[0]
