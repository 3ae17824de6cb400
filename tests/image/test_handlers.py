"""The FFI handlers are a trust boundary: a serialized program may call them with anything."""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxkern as jk

CHAIN = "jaxkern.image_chain.v1"
RAGGED = "jaxkern.image_chain_ragged.v1"
MIX = "jaxkern.image_mix.v1"
PROGRAM = "jaxkern.image_program.v1"
STAGES = "jaxkern.image_stages.v1"
RAGGED_STAGES = "jaxkern.image_stages_ragged.v1"

if CHAIN not in jk.export_targets() and "cpu" not in os.environ.get("JAXKERN_REQUIRE", ""):
    pytest.skip("this installation has no native image kernels", allow_module_level=True)

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
FEW = settings(max_examples=150, deadline=None, derandomize=True, database=None)
SIDE = 4  # side of sources and results
BATCH = 2
# top, left, box, resampled, valid rectangle, row and column offset and step
WHOLE = [0, 0, SIDE, SIDE, SIDE, SIDE, 0, 0, SIDE, SIDE, 0, 1, 0, 1]
OK = "the call returned"

_compiled: dict[Any, Any] = {}


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def chain(segments: int = 1, erasures: int = 0, channels: int = 3, **changed: Any) -> dict:
    """Return the operands and attributes of a valid chain, with some replaced."""
    call: dict[str, Any] = {
        "images": np.arange(BATCH * SIDE * SIDE * channels, dtype=np.uint8).reshape(
            BATCH, SIDE, SIDE, channels
        ),
        "geometry": np.tile(i32(*WHOLE), (BATCH, segments, 1)),
        "affine": np.ones((BATCH, segments, 2, channels), np.float32),
        "fill": np.zeros((BATCH, segments, channels), np.float32),
        "erase_box": np.zeros((BATCH, erasures, 4), np.int32),
        "erase_value": np.zeros((BATCH, erasures, channels), np.float32),
        "filter": np.full(segments, 2, np.int32),
        "size": np.full(2 * segments, SIDE, np.int32),
        "erasures": i32(erasures, *[0] * (segments - 1))[:segments],
        "rounding": np.zeros(segments, np.int32),
        "layout": np.int32(0),
        "out": jax.ShapeDtypeStruct((BATCH, SIDE, SIDE, channels), np.float32),
    }
    return call | changed


def ragged(**changed: Any) -> dict:
    size = SIDE * SIDE * 3
    call = chain()
    del call["images"]
    return {
        "buffer": np.arange(BATCH * size, dtype=np.uint8).reshape(1, -1),
        "offset": i32(0, size),
        "height": i32(SIDE, SIDE),
        "width": i32(SIDE, SIDE),
        **call,
    } | changed


def mix(**changed: Any) -> dict:
    shape = (BATCH, SIDE, SIDE, 3)
    return {
        "x": np.ones(shape, np.float32),
        "partner": np.zeros(shape, np.float32),
        "lam": np.full(BATCH, 0.25, np.float32),
        "box": np.zeros((BATCH, 4), np.int32),
        "layout": np.int32(0),
        "out": jax.ShapeDtypeStruct(shape, np.float32),
    } | changed


def program(steps: int = 2, dtype: Any = np.uint8, **changed: Any) -> dict:
    shape = (BATCH, SIDE, SIDE, 3)
    return {
        "images": np.arange(BATCH * SIDE * SIDE * 3).reshape(shape).astype(dtype),
        "op": np.tile(i32(*range(steps)), (BATCH, 1)),
        "values": np.full((BATCH, steps, 8), 0.5, np.float32),
        "codes": np.full(steps, 2**22 - 1, np.int32),
        "interpolation": i32(*[0, 1] * steps)[:steps],
        "kernel": np.full(2 * steps, 3, np.int32),
        "fill": np.zeros(3 * steps, np.float32),
        "out": jax.ShapeDtypeStruct(shape, np.dtype(dtype)),
    } | changed


def stages(source: dict | None = None, **changed: Any) -> dict:
    """Return a call of two stages, each with a segment and a step, and u8 images between them."""
    two, steps = chain(segments=2), program()
    call = source or {"images": two["images"]}
    call |= {k: two[k] for k in ("geometry", "affine", "fill", "erase_box", "erase_value")}
    call |= {k: steps[k] for k in ("op", "values", "codes", "interpolation", "kernel")}
    call |= {k: two[k] for k in ("filter", "size", "erasures", "layout")}
    call |= {"warp_fill": steps["fill"], "rounding": i32(1, 1), "segments": i32(1, 1)}
    call |= {"steps": i32(1, 1), "dtype": i32(0, 0)}
    return call | {"out": jax.ShapeDtypeStruct((BATCH, SIDE, SIDE, 3), np.uint8)} | changed


def ragged_stages(**changed: Any) -> dict:
    names = ("buffer", "offset", "height", "width")
    return stages({k: v for k, v in ragged().items() if k in names}, **changed)


ATTRIBUTES = ("filter", "size", "erasures", "rounding", "layout")
PROGRAM_ATTRIBUTES = ("codes", "interpolation", "kernel", "fill")
STAGE_ATTRIBUTES = (*ATTRIBUTES, "segments", "steps", "dtype", *PROGRAM_ATTRIBUTES[:3], "warp_fill")


def attributes_of(target: str) -> tuple[str, ...]:
    if target in (STAGES, RAGGED_STAGES):
        return STAGE_ATTRIBUTES
    return PROGRAM_ATTRIBUTES if target == PROGRAM else ATTRIBUTES


def outcome(target: str, call: dict) -> str:
    """Run the call and return OK or the error's text. Programs are compiled once per structure."""
    out = call["out"]
    names = attributes_of(target)
    attributes = {k: v for k, v in call.items() if k in names}
    operands = [v for k, v in call.items() if k not in (*names, "out")]
    key = (
        target,
        (out.shape, str(out.dtype)),
        tuple((k, str(v.dtype), v.shape, v.tobytes()) for k, v in attributes.items()),
        tuple((v.shape, str(v.dtype)) for v in operands),
    )
    if key not in _compiled:
        run = jax.ffi.ffi_call(target, out)
        _compiled[key] = jax.jit(lambda *xs: run(*xs, **attributes))
    try:
        result = np.asarray(_compiled[key](*operands))
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # JAX maps one status to either
        return str(error)
    assert result.shape == out.shape
    assert result.dtype == out.dtype
    return OK


def survives(target: str, call: dict) -> str:
    """Run the call; an error must name the op and an argument of the call."""
    text = outcome(target, call)
    if text is not OK:
        assert target.removesuffix(".v1") + ": " in text, text
        names = [*call, "result", "attribute", "image ", "segments"]
        assert any(name in text for name in names), text
    return text


def edged(*sane: int) -> st.SearchStrategy[int]:
    near = [v + d for v in sane for d in (-1, 0, 1)]
    edges = [INT_MIN, INT_MIN + 1, -1, 0, 1, 2, 2**24, 2**24 + 1, INT_MAX - 1, INT_MAX]
    return st.sampled_from([*near, *edges])


FIELDS = st.lists(
    st.tuples(st.integers(0, BATCH - 1), st.integers(0, 13), edged(SIDE)), min_size=1, max_size=3
)
FLOATS = st.sampled_from([0.0, 1.0, -1.0, 3e38, 1e-40, float("nan"), float("inf"), float("-inf")])


@FEW
@given(FIELDS, st.sampled_from([0, 1, 2, 3]), FLOATS, st.sampled_from(["float32", "bfloat16"]))
def test_geometry(edits, filter, scale, dtype):
    call = chain(filter=i32(filter))
    for sample, field, value in edits:
        call["geometry"][sample, 0, field] = value
    call["affine"][:, :, 0] = scale
    call["out"] = jax.ShapeDtypeStruct(call["out"].shape, jax.numpy.dtype(dtype))
    text = survives(CHAIN, call)
    assert text is OK or "'geometry' of sample" in text


@FEW
@given(FIELDS, FIELDS, st.sampled_from([0, 1, 2, 3]))
def test_geometry_of_two_segments(first, second, filter):
    call = chain(segments=2, filter=i32(filter, 3))
    for segment, edits in enumerate((first, second)):
        for sample, field, value in edits:
            call["geometry"][sample, segment, field] = value
    survives(CHAIN, call)


@FEW
@given(st.lists(edged(SIDE), min_size=16, max_size=16), FLOATS)
def test_erase_boxes(values, fill):
    call = chain(erasures=2, erase_box=np.array(values, np.int32).reshape(BATCH, 2, 4))
    call["erase_value"] += np.float32(fill)
    assert survives(CHAIN, call) is OK


LAST = SIDE * SIDE * 3


@FEW
@given(
    st.lists(edged(0, LAST, 2 * LAST), min_size=BATCH, max_size=BATCH),
    st.lists(edged(SIDE), min_size=2 * BATCH, max_size=2 * BATCH),
)
def test_ragged_offsets(offsets, sizes):
    call = ragged(offset=i32(*offsets), height=i32(*sizes[:BATCH]), width=i32(*sizes[BATCH:]))
    text = survives(RAGGED, call)
    inside = all(
        o >= 0 and h >= 1 and w >= 1 and o + h * w * 3 <= 2 * LAST
        for o, h, w in zip(offsets, call["height"].tolist(), call["width"].tolist(), strict=True)
    )
    if not inside:
        assert "operand 'buffer'" in text or "'geometry'" in text


@FEW
@given(st.lists(edged(SIDE), min_size=8, max_size=8), FLOATS, st.sampled_from(["f4", "u1"]))
def test_mix_values(values, lam, dtype):
    shape = (BATCH, SIDE, SIDE, 3)
    call = mix(
        x=np.ones(shape, dtype),
        partner=np.zeros(shape, dtype),
        lam=np.full(BATCH, lam, np.float32),
        box=np.array(values, np.int32).reshape(BATCH, 4),
        out=jax.ShapeDtypeStruct(shape, np.dtype(dtype)),
    )
    assert survives(MIX, call) is OK


@FEW
@given(
    st.lists(edged(21), min_size=2 * BATCH, max_size=2 * BATCH),
    st.lists(FLOATS, min_size=32, max_size=32),
    st.sampled_from(["f4", "u1"]),
)
def test_program_codes_and_values(codes, values, dtype):
    call = program(dtype=np.dtype(dtype))
    call["op"] = i32(*codes).reshape(BATCH, 2)
    call["values"] = np.array(values, np.float32).reshape(BATCH, 2, 8)
    assert survives(PROGRAM, call) is OK


@FEW
@given(
    st.lists(st.tuples(st.integers(0, 1), FIELDS), min_size=1, max_size=2),
    st.lists(edged(13), min_size=2 * BATCH, max_size=2 * BATCH),
    st.lists(FLOATS, min_size=32, max_size=32),
)
def test_geometry_and_codes_of_stages(edits, codes, values):
    call = stages()
    for segment, fields in edits:
        for sample, field, value in fields:
            call["geometry"][sample, segment, field] = value
    call["op"] = i32(*codes).reshape(BATCH, 2)
    call["values"] = np.array(values, np.float32).reshape(BATCH, 2, 8)
    text = survives(STAGES, call)
    assert text is OK or "'geometry' of sample" in text


MAKERS = {
    CHAIN: chain,
    RAGGED: ragged,
    MIX: mix,
    PROGRAM: program,
    STAGES: stages,
    RAGGED_STAGES: ragged_stages,
}


def geometry_with(sample: int, field: int, value: int) -> np.ndarray:
    geometry = chain()["geometry"]
    geometry[sample, 0, field] = value
    return geometry


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


def struct(*shape: int, dtype: Any = np.float32) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


SQUARE = (BATCH, SIDE, SIDE, 3)
LATE = {"segments": i32(0, 1), "filter": i32(2), "size": i32(4, 4), "erasures": i32(0)}
# Each: the target, the call, and facts of its message.
CASES: list[tuple[str, dict, str]] = [
    (PROGRAM, program(kernel=i32(3, 3, 4, 3)), "attribute 'kernel' & 4"),
    (PROGRAM, program(dtype=np.float16), "result & float16 & uint8"),
    (STAGES, stages(steps=i32(1, 2)), "'segments' & 'steps' & 2 filters & 4 sizes & 2 codes"),
    (STAGES, stages(filter=i32(2, 9)), "'filter' of segment 1 & 9"),
    (STAGES, stages(kernel=i32(3, 3, 4, 3)), "attribute 'kernel' & 4"),
    (
        STAGES,
        stages(dtype=i32(1, 0)),
        "'dtype' and 'layout' of stage 0 & 1 and 0 & uint8 & float32",
    ),
    (STAGES, stages(op=zeros(BATCH, 1, dtype="i4")), "operand 'op' & [2|1, 2] & [2, 1]"),
    (
        RAGGED_STAGES,
        ragged_stages(**LATE, rounding=i32(1)),
        "'segments' of stage 0 & 1 steps & source dtype 0 & 0 x 0",
    ),
    (STAGES, stages(out=struct(*SQUARE)), "result & 'dtype' & float32"),
    (CHAIN, chain(affine=zeros(BATCH, 1, 2, 3, dtype="i4")), "operand 'affine' & float32 & int32"),
    (
        CHAIN,
        chain(images=zeros(*SQUARE, dtype="i1")),
        "operand 'images' & uint8, float16, bfloat16 or float32 & int8",
    ),
    (
        CHAIN,
        chain(out=struct(*SQUARE, dtype="i4")),
        "result & uint8, float16, bfloat16 or float32 & int32",
    ),
    (CHAIN, chain(fill=zeros(3)), "operand 'fill' & [2|1, 1, 3] & [3]"),
    (CHAIN, chain(out=struct(SIDE, 3)), "result & [4, 3] & 3 axes & 12 batch axes"),
    (
        CHAIN,
        chain(images=zeros(3, SIDE, SIDE, 3, dtype="u1")),
        "operand 'images' & [2|1, any, any, 3] & [3, 4, 4, 3]",
    ),
    (CHAIN, chain(channels=2), "'channels' of segment 0 & 1, 3 or 4 & got 2"),
    (
        CHAIN,
        chain(images=zeros(BATCH, SIDE, SIDE, 4, dtype="u1")),
        "operand 'images' & [2|1, any, any, 3] & [2, 4, 4, 4]",
    ),
    (
        CHAIN,
        chain(geometry=geometry_with(1, 1, 1)),
        "'geometry' of sample 1, segment 0 & columns 1 to 4 & input of 4",
    ),
    (
        RAGGED,
        ragged(offset=i32(0, LAST + 1)),
        "image 1 & 4 x 4 x 3 bytes & offset 49 & 'buffer' of 96 bytes",
    ),
    (CHAIN, chain(layout=np.int32(7)), "attribute 'layout' & NHWC & 7"),
    (MIX, mix(layout=np.int32(7)), "attribute 'layout' & NHWC & 7"),
    (CHAIN, chain(filter=i32(9)), "'filter' of segment 0 & bicubic & 9"),
    (CHAIN, chain(segments=0), "'filter', 'size' & 1 to 8 & 0, 0, 0 and 0"),
    (CHAIN, chain(segments=9), "'filter', 'size' & 1 to 8 & 9, 18, 9 and 9"),
    (
        MIX,
        mix(partner=zeros(BATCH, SIDE, SIDE, 4)),
        "operand 'partner' & [2|1, 4, 4, 3] & [2, 4, 4, 4]",
    ),
]


@pytest.mark.parametrize(("target", "call", "facts"), CASES, ids=[facts for *_, facts in CASES])
def test_message_names_the_op_the_argument_and_its_value(target, call, facts):
    text = outcome(target, call)
    line = text.splitlines()[0]
    named = (target.removesuffix(".v1") + ": ", *facts.split(" & "))
    assert all(fact in line for fact in named), text


@pytest.mark.parametrize("target", MAKERS)
def test_unchanged_calls_run(target):
    assert survives(target, MAKERS[target]()) is OK


def test_mix_of_2_to_the_48_empty_images():
    """There is nothing to compute, and a loop over the samples would take weeks."""
    many = 2**48
    call = mix(
        x=np.zeros((many, 0, SIDE, 3), np.float32),
        partner=np.zeros((1, 0, SIDE, 3), np.float32),
        lam=np.zeros(1, np.float32),
        box=np.zeros((1, 4), np.int32),
        out=jax.ShapeDtypeStruct((many, 0, SIDE, 3), np.float32),
    )
    assert survives(MIX, call) is OK
