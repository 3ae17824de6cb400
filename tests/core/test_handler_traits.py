"""Would catch: a handler with scratch memory that XLA captures into a command buffer.

Such a CUDA graph replays a capture, and the handlers of XPCS and of image chains launch kernels on
scratch memory that XLA may reuse for something else by then. XLA captures only handlers with the
trait `kCmdBufferCompatible`, which those without scratch memory have.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util

import pytest

from jaxkern.core import registry

COMMAND_BUFFER_COMPATIBLE = 1
METADATA = 1  # XLA_FFI_Extension_Metadata
WITHOUT_SCRATCH = {
    "jaxkern.image_mix.v1",
    "jaxkern.multitau_update.v1",
    "jaxkern.two_time_g2_at.v1",
}
MODULES = [
    name for name in ("jaxkern._cpu", "jaxkern._cuda") if importlib.util.find_spec(name) is not None
]


# The first fields of structs of xla/ffi/api/c_api.h, by which XLA queries a handler's metadata.
class ApiVersion(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
    ]


class Metadata(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("api_version", ApiVersion),
        ("traits", ctypes.c_uint32),
        ("state_type_id", ctypes.c_int64),
    ]


class MetadataExtension(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("metadata", ctypes.POINTER(Metadata)),
    ]


class CallFrame(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.POINTER(MetadataExtension)),
        ("rest", ctypes.c_void_p * 19),  # up to `attrs`; handlers check the size of the struct
    ]


def metadata_of(capsule: object) -> Metadata:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(CallFrame))(pointer(capsule, None))
    metadata = Metadata(struct_size=ctypes.sizeof(Metadata))
    size = ctypes.sizeof(MetadataExtension)
    extension = MetadataExtension(size, METADATA, None, ctypes.pointer(metadata))
    frame = CallFrame(ctypes.sizeof(CallFrame), ctypes.pointer(extension))
    assert handler(ctypes.byref(frame)) is None
    return metadata


@pytest.mark.skipif(not MODULES, reason="this installation has no native module")
def test_only_handlers_without_scratch_memory_are_captured() -> None:
    for name in MODULES:
        native = importlib.import_module(name)
        table = native.registrations()
        assert table
        for target, capsule in table.items():
            metadata = metadata_of(capsule)
            # Checks that the structs above have the layout of the headers.
            version = metadata.api_version
            assert (version.major, version.minor) == native.abi() <= registry.running_abi()
            captured = metadata.traits & COMMAND_BUFFER_COMPATIBLE != 0
            assert captured == (name == "jaxkern._cuda" and target in WITHOUT_SCRATCH), target
