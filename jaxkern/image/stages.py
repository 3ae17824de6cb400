"""Stages: chains and programs that take turns on an image in one call (csrc/image/stages.h)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.explicit import batch_sharding, explicit_axes, in_auto_mode
from jaxkern.image.chain import twin
from jaxkern.image.chain.plan import ChainPlan, Dtype, Operands
from jaxkern.image.program import program_twin
from jaxkern.image.program.program import MAX_STEPS, ProgramStep, Step, program_operands

MAX_STAGES = 8  # of one call


@dataclasses.dataclass(frozen=True)
class Stage:
    """A chain, None in the first stage alone, and the steps of the program that follows it."""

    chain: ChainPlan | None
    steps: tuple[ProgramStep, ...] = ()


@dataclasses.dataclass(frozen=True)
class StagesPlan:
    """What is the same for every sample of a call; hashable, so it can be a static argument.

    Attributes:
      stages: in order; only the last one's chain may have another layout than NHWC, or another
        output than uint8 or float32, and no program behind it then.
    """

    stages: tuple[Stage, ...]
    channels: int
    source_dtype: Dtype

    @property
    def chains(self) -> tuple[ChainPlan, ...]:
        """Those of all stages."""
        return tuple(stage.chain for stage in self.stages if stage.chain is not None)

    def output(self, source: Any) -> jax.ShapeDtypeStruct:
        """Shape and dtype of one sample's output; those of the source where there is no chain."""
        if self.chains:
            return self.chains[-1].output()
        return jax.ShapeDtypeStruct(source.shape, source.dtype)

    @property
    def steps(self) -> tuple[ProgramStep, ...]:
        """Those of all stages."""
        return tuple(step for stage in self.stages for step in stage.steps)


class StageOperands(NamedTuple):
    """Per-sample arrays of one call, the leading axis of size N or 1 (shared).

    Those of chains (`Operands`) and of programs, op i32 [N, P] and values f32 [N, P, 8], of all
    stages one behind the other.
    """

    geometry: Any
    affine: Any
    fill: Any
    erase_box: Any
    erase_value: Any
    op: Any
    values: Any


Folded = tuple[ChainPlan, Operands]
Call = Folded | tuple[StagesPlan, StageOperands]
# op, values and the static part of some steps
_Program = tuple[Any, Any, tuple[ProgramStep, ...]]
_Part = tuple[Folded | None, list[_Program]]


class StagesBuilder:
    """Collects the chains and programs that follow each other on images of as many channels."""

    def __init__(self, channels: int, source_dtype: Dtype) -> None:
        self.channels = channels
        self.source_dtype = source_dtype
        self._parts: list[_Part] = []

    def chain(self, folded: Folded | None) -> None:
        """A chain follows; None changes nothing."""
        if folded is not None:
            self._parts.append((folded, []))

    def program(
        self, steps: Callable[[dict[str, Any]], Sequence[Step]], params: dict[str, Any]
    ) -> None:
        """The steps follow that a transform makes of its parameters."""
        made = _program(steps, params)
        if made[2] and not self._parts:
            self._parts.append((None, []))
        if made[2]:
            self._parts[-1][1].append(made)

    def calls(self, together: bool) -> Iterator[Call]:
        """What `finish` returns for one call after the other: as few as there can be together,
        else one for each chain and program.
        """
        each: list[list[_Part]] = []
        if together:
            starts = range(0, len(self._parts), MAX_STAGES)
            each = [self._parts[k : k + MAX_STAGES] for k in starts]
        else:
            for folded, programs in self._parts:
                each += [[(folded, [])]] if folded is not None else []
                each += [[(None, programs)]] if programs else []
        dtype = self.source_dtype
        for parts in each:
            call = StagesBuilder(self.channels, dtype)
            call._parts = parts
            finished = call.finish()
            assert finished is not None
            yield finished
            for folded, _ in parts:
                dtype = dtype if folded is None else folded[0].output_dtype

    def finish(self) -> Call | None:
        """The plan and its operands; None where nothing changes, and a chain's where there is
        nothing else.

        Raises:
          ValueError: for more stages or steps than one call takes.
        """
        if len(self._parts) > MAX_STAGES:
            raise ValueError(
                f"{len(self._parts)} chains with programs between them; wanted at most "
                f"{MAX_STAGES}: reorder the transforms, or split them into two Compose objects"
            )
        if not self._parts:
            return None
        chains = [folded[1] for folded, _ in self._parts if folded is not None]
        drawn = [program for _, programs in self._parts for program in programs]
        if not drawn and len(self._parts) == 1:
            return self._parts[0][0]
        drawn = drawn or [program_operands(())]  # of chains with nothing between them
        stages = tuple(
            Stage(folded and folded[0], tuple(step for *_, steps in programs for step in steps))
            for folded, programs in self._parts
        )
        most = max(len(stage.steps) for stage in stages)
        if most > MAX_STEPS:
            raise ValueError(
                f"{most} operations follow each other; wanted at most {MAX_STEPS}: split them "
                "into two Compose objects"
            )
        op, values, _ = zip(*drawn, strict=True)
        arrays = (*zip(*(chains or [self._no_chain()]), strict=True), op, values)
        operands = StageOperands(*(_joined(parts) for parts in arrays))
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


def _program(steps: Callable[[dict[str, Any]], Sequence[Step]], params: dict[str, Any]) -> _Program:
    """The operands of steps. What makes them need not follow the rules of Explicit mode."""
    names = [name for name, value in params.items() if isinstance(value, jax.Array)]
    drawn = [params[name] for name in names]
    axes = explicit_axes(drawn)
    static: tuple[ProgramStep, ...] = ()

    def operands(*arrays: Any) -> tuple[Any, Any]:
        nonlocal static
        op, values, static = program_operands(steps(params | dict(zip(names, arrays, strict=True))))
        if axes:  # all of them lie like the parameters
            full = drawn[0].shape[:1]
            op = jnp.broadcast_to(op, (*full, *op.shape[1:]))
            values = jnp.broadcast_to(values, (*full, *values.shape[1:]))
        return op, values

    specs = tuple(batch_sharding(drawn, rank) for rank in (2, 3)) if axes else None
    op, values = in_auto_mode(operands, specs, axes)(*drawn)
    return op, values, static


def _joined(parts: Sequence[Any]) -> Any:
    """Arrays [N or 1, rows, ...] one behind the other along the rows."""
    full = [part for part in parts if part.shape[1] > 0] or list(parts[:1])
    if len(full) == 1:
        return full[0]
    batch = next((part.shape[0] for part in full if part.shape[0] != 1), 1)

    def join(numpy: Any, *arrays: Any) -> Any:
        wide = [numpy.broadcast_to(x, (batch, *x.shape[1:])) for x in arrays]
        return numpy.concatenate(wide, axis=1)

    if all(isinstance(part, np.ndarray) for part in full):
        return join(np, *full)
    drawn = [part for part in full if not isinstance(part, np.ndarray)]
    sharded = [part for part in drawn if part.shape[0] == batch] or drawn

    def table(*arrays: Any) -> Any:
        given = iter(arrays)
        return join(jnp, *(x if isinstance(x, np.ndarray) else next(given) for x in full))

    spec = batch_sharding(sharded, full[0].ndim)
    return in_auto_mode(table, spec, explicit_axes(drawn))(*drawn)


def image_stages(pixels: jax.Array, *operands: jax.Array, plan: StagesPlan) -> jax.Array:
    """Runs `plan` on pixels [H, W, C] in pure JAX, with `StageOperands` of one sample."""

    def first(chain: ChainPlan, given: Operands) -> jax.Array:
        return twin.image_chain(pixels, *given, plan=chain)

    return _through(pixels, first, StageOperands(*operands), plan)


def ragged_stages(
    buffer: jax.Array,
    offset: jax.Array,
    height: jax.Array,
    width: jax.Array,
    *operands: jax.Array,
    plan: StagesPlan,
    max_height: int,
    max_width: int,
) -> jax.Array:
    """Runs `plan`, whose first stage has a chain, on the image that starts at buffer[offset]."""

    def first(chain: ChainPlan, given: Operands) -> jax.Array:
        return twin.ragged_chain(
            buffer,
            offset,
            height,
            width,
            *given,
            plan=chain,
            max_height=max_height,
            max_width=max_width,
        )

    return _through(buffer, first, StageOperands(*operands), plan)


def _through(
    image: jax.Array,
    first: Callable[[ChainPlan, Operands], jax.Array],
    given: StageOperands,
    plan: StagesPlan,
) -> jax.Array:
    segment = erasure = step = 0
    for k, stage in enumerate(plan.stages):
        chain, steps = stage.chain, len(stage.steps)
        if chain is not None:
            segments = slice(segment, segment + len(chain.segments))
            erasures = slice(erasure, erasure + sum(s.erasures for s in chain.segments))
            segment, erasure = segments.stop, erasures.stop
            operands = Operands(
                *(array[segments] for array in given[:3]),
                *(array[erasures] for array in given[3:5]),
            )
            image = (
                first(chain, operands) if k == 0 else twin.image_chain(image, *operands, plan=chain)
            )
        if steps:
            drawn = (array[step : step + steps] for array in given[5:])
            image = program_twin.image_program(image, *drawn, steps=stage.steps)
            step += steps
    return image
