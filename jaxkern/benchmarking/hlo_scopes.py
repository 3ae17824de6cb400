"""The named scope of every instruction, read from the compiled programs that a profile holds.

Events of a profile name a program and an instruction; the scope (HLO's ``op_name``) is in the
serialized programs beside them. Both are protocol buffers, whose wire format is read here as far as
it takes: fields are numbered as in openxla's xplane.proto and hlo.proto.
"""

from __future__ import annotations

from collections.abc import Iterator

# XSpace.planes; XPlane.name, .event_metadata (a map: its entries' value); XEventMetadata.name,
# .stats; XStat.bytes_value.
_PLANES, _PLANE_NAME, _EVENT_METADATA, _MAP_VALUE, _PROGRAM, _STATS, _BYTES = 1, 2, 4, 2, 2, 5, 6
# HloProto.hlo_module; HloModuleProto.computations; HloComputationProto.instructions;
# HloInstructionProto.name, .metadata; OpMetadata.op_name.
_MODULE, _COMPUTATIONS, _INSTRUCTIONS, _NAME, _METADATA, _OP_NAME = 1, 3, 2, 1, 7, 2
_METADATA_PLANE = b"/host:metadata"

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


def read_scopes(profile: bytes) -> dict[tuple[str, str], str]:
    """``{(program, instruction): scope}`` of a serialized XSpace.

    A program is named with its number, ``jit_f(3)``: a process has many of one name, and the
    profile holds all that are alive.

    Raises:
      ValueError: bytes that are no protocol buffer message.
    """
    found: dict[tuple[str, str], str] = {}
    for plane in _each(profile, _PLANES):
        if _METADATA_PLANE not in _each(plane, _PLANE_NAME):
            continue
        for entry in _each(plane, _EVENT_METADATA):
            for metadata in _each(entry, _MAP_VALUE):
                name = _text(metadata, _PROGRAM)
                for stat in _each(metadata, _STATS):
                    for program in _each(stat, _BYTES):
                        found.update(_program_scopes(name, program))
    return found


def _program_scopes(name: str, program: bytes) -> Iterator[tuple[tuple[str, str], str]]:
    for module in _each(program, _MODULE):
        for computation in _each(module, _COMPUTATIONS):
            for instruction in _each(computation, _INSTRUCTIONS):
                for metadata in _each(instruction, _METADATA):
                    yield (name, _text(instruction, _NAME)), _text(metadata, _OP_NAME)


def _text(message: bytes, field: int) -> str:
    return next(iter(_each(message, field)), b"").decode(errors="replace")


def _each(message: bytes, field: int) -> list[bytes]:
    """The values of a field whose type has a length: text, bytes or a message."""
    found, at = [], 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _, at = _varint(message, at)
        elif kind == _LENGTH:
            size, at = _varint(message, at)
            if number == field:
                found.append(message[at : at + size])
            at += size
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a field has the wire type {kind}; wanted a protocol buffer message")
    if at != len(message):
        raise ValueError("a message ends inside a field; wanted a whole protocol buffer message")
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message):
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("a message ends inside a number; wanted a whole protocol buffer message")
