"""The FFI handlers are a trust boundary: a serialized program may call them with anything.

Would catch: a read or write out of bounds (the process dies), an operand that is not checked, a
result computed from a bad one, a message that does not name the op and what was wrong with it.
"""

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
SIDE = 4  # of sources and results
BATCH = 2
# top, left, box, resampled, valid rectangle, row and column offset and step
WHOLE = [0, 0, SIDE, SIDE, SIDE, SIDE, 0, 0, SIDE, SIDE, 0, 1, 0, 1]
OK = "the call returned"

_compiled: dict[Any, Any] = {}


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def chain(segments: int = 1, erasures: int = 0, channels: int = 3, **changed: Any) -> dict:
    """The operands and attributes of a valid chain, with some replaced."""
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
    """Two stages of a segment and a step each, with u8 between them, of dense or other images."""
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
    """Runs the call: OK, or the error's text. One compiled program a structure, not a call."""
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
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # JAX's choice, for one status
        return str(error)
    assert result.shape == out.shape
    assert result.dtype == out.dtype
    return OK


def survives(target: str, call: dict) -> str:
    """The call returns, or its error names the op and something that the call has."""
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


# ---------------------------------------------------------------- values: one program, any data

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
def test_ragged_places(offsets, sizes):
    call = ragged(offset=i32(*offsets), height=i32(*sizes[:BATCH]), width=i32(*sizes[BATCH:]))
    text = survives(RAGGED, call)
    inside = all(
        o >= 0 and h >= 1 and w >= 1 and o + h * w * 3 <= 2 * LAST
        for o, h, w in zip(offsets, call["height"].tolist(), call["width"].tolist(), strict=True)
    )
    if not inside:
        assert "does not lie inside operand 'buffer'" in text or "'geometry'" in text


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


# ---------------------------------------------------------------- messages


def geometry_with(sample: int, field: int, value: int) -> np.ndarray:
    geometry = chain()["geometry"]
    geometry[sample, 0, field] = value
    return geometry


CASES = {
    "a program's blur": (
        PROGRAM,
        program(kernel=i32(3, 3, 4, 3)),
        "jaxkern.image_program: attribute 'kernel' holds 4; wanted odd sizes to",
    ),
    "a program's dtype": (
        PROGRAM,
        program(dtype=np.float16),
        "jaxkern.image_program: the result has dtype float16; wanted uint8 or float32",
    ),
    "counts of stages": (
        STAGES,
        stages(steps=i32(1, 2)),
        "jaxkern.image_stages: attributes describe 2 stages with 2 segments, 4 sizes",
    ),
    "a stage's filter": (
        STAGES,
        stages(filter=i32(2, 9)),
        "jaxkern.image_stages: attribute 'filter' of segment 1 is out of range; wanted none",
    ),
    "a stage's blur": (
        STAGES,
        stages(kernel=i32(3, 3, 4, 3)),
        "jaxkern.image_stages: attribute 'kernel' holds 4; wanted odd sizes to",
    ),
    "half floats between stages": (
        STAGES,
        stages(dtype=i32(1, 0)),
        "jaxkern.image_stages: attributes 'dtype' and 'layout' of stage 0 are 1 and 0; wanted "
        "0 (uint8) or 3 (float32), and 0 (NHWC), where a program or chain follows",
    ),
    "codes of stages": (
        STAGES,
        stages(op=np.zeros((BATCH, 1), np.int32)),
        "jaxkern.image_stages: operand 'op' has shape [2, 1]; wanted [2|1, 2]",
    ),
    "a ragged program": (
        RAGGED_STAGES,
        ragged_stages(
            segments=i32(0, 1), filter=i32(2), size=i32(4, 4), erasures=i32(0), rounding=i32(1)
        ),
        "jaxkern.image_stages_ragged: attribute 'segments' of stage 0 is 0, with 1 steps, dtype 0 "
        "behind dtype 0, and images of 0 x 0 (0: they differ); wanted a program there, ",
    ),
    "the result of stages": (
        STAGES,
        stages(out=jax.ShapeDtypeStruct((BATCH, SIDE, SIDE, 3), np.float32)),
        "jaxkern.image_stages: the result has dtype float32; wanted what attribute 'dtype' says",
    ),
    "dtype": (
        CHAIN,
        chain(affine=np.ones((BATCH, 1, 2, 3), np.int32)),
        "jaxkern.image_chain: operand 'affine' has dtype int32; wanted float32",
    ),
    "dtype of images": (
        CHAIN,
        chain(images=np.zeros((BATCH, SIDE, SIDE, 3), np.int8)),
        "jaxkern.image_chain: operand 'images' has dtype int8; "
        "wanted uint8, float16, bfloat16 or float32",
    ),
    "dtype of the result": (
        CHAIN,
        chain(out=jax.ShapeDtypeStruct((BATCH, SIDE, SIDE, 3), np.int32)),
        "jaxkern.image_chain: the result has dtype int32; "
        "wanted uint8, float16, bfloat16 or float32",
    ),
    "rank": (
        CHAIN,
        chain(fill=np.zeros(3, np.float32)),
        "jaxkern.image_chain: operand 'fill' has shape [3]; wanted [2|1, 1, 3]",
    ),
    "rank of the result": (
        CHAIN,
        chain(out=jax.ShapeDtypeStruct((SIDE, 3), np.float32)),
        "jaxkern.image_chain: the result has shape [4, 3]; "
        "wanted 3 axes after at most 12 batch axes",
    ),
    "batch size": (
        CHAIN,
        chain(images=np.zeros((3, SIDE, SIDE, 3), np.uint8)),
        "jaxkern.image_chain: operand 'images' has shape [3, 4, 4, 3]; wanted [2|1, any, any, 3]",
    ),
    "channels": (
        CHAIN,
        chain(channels=2),
        "jaxkern.image_chain: attribute 'channels' of segment 0 is out of range; wanted 1, 3 or 4",
    ),
    "channels of images": (
        CHAIN,
        chain(images=np.zeros((BATCH, SIDE, SIDE, 4), np.uint8)),
        "jaxkern.image_chain: operand 'images' has shape [2, 4, 4, 4]; wanted [2|1, any, any, 3]",
    ),
    "box": (
        CHAIN,
        chain(geometry=geometry_with(1, 1, 1)),
        "jaxkern.image_chain: operand or attribute 'geometry' of sample 1, segment 0 is out of "
        "range: columns from 1, 4 of them, in an input of 4; wanted a box of at least one column "
        "inside the input",
    ),
    "ragged image": (
        RAGGED,
        ragged(offset=i32(0, LAST + 1)),
        "jaxkern.image_chain_ragged: image 1 of 4 x 4 x 3 bytes at offset 49 does not lie inside "
        "operand 'buffer' of 96 bytes",
    ),
    "layout": (
        CHAIN,
        chain(layout=np.int32(7)),
        "jaxkern.image_chain: attribute 'layout' is 7; wanted 0 (NHWC) or 1 (NCHW)",
    ),
    "layout of a mix": (
        MIX,
        mix(layout=np.int32(7)),
        "jaxkern.image_mix: attribute 'layout' is 7; wanted 0 (NHWC) or 1 (NCHW)",
    ),
    "filter": (
        CHAIN,
        chain(filter=i32(9)),
        "jaxkern.image_chain: attribute 'filter' of segment 0 is out of range; "
        "wanted none, nearest, bilinear, antialias or one of four bicubic ones",
    ),
    "no segment": (
        CHAIN,
        chain(segments=0),
        "jaxkern.image_chain: attributes describe 0 segments with 0 sizes, 0 erasure counts and "
        "0 roundings; wanted 1 to 8 segments, two sizes each and one of the rest",
    ),
    "nine segments": (
        CHAIN,
        chain(segments=9),
        "jaxkern.image_chain: attributes describe 9 segments with 18 sizes, 9 erasure counts and "
        "9 roundings; wanted 1 to 8 segments, two sizes each and one of the rest",
    ),
    "partner": (
        MIX,
        mix(partner=np.zeros((BATCH, SIDE, SIDE, 4), np.float32)),
        "jaxkern.image_mix: operand 'partner' has shape [2, 4, 4, 4]; wanted [2|1, 4, 4, 3]",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_message(name):
    target, call, message = CASES[name]
    text = outcome(target, call)
    assert message in text.splitlines()[0], text


@pytest.mark.parametrize("target", MAKERS)
def test_unchanged_calls_run(target):
    assert survives(target, MAKERS[target]()) is OK


def test_mix_of_endless_empty_images():
    """Nothing to compute, whatever the number of samples; walking them would take weeks."""
    many = 2**48
    call = mix(
        x=np.zeros((many, 0, SIDE, 3), np.float32),
        partner=np.zeros((1, 0, SIDE, 3), np.float32),
        lam=np.zeros(1, np.float32),
        box=np.zeros((1, 4), np.int32),
        out=jax.ShapeDtypeStruct((many, 0, SIDE, 3), np.float32),
    )
    assert survives(MIX, call) is OK
