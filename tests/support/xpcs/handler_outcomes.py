"""Outcomes of calls of FFI handlers: a return, or the message of an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

OK = "the call returned"


def outcome(target: str, call: Mapping[str, Any]) -> str:
    """Run a call; return `OK` or the text of the error, which must name the op and an argument.

    The call has arrays for operands, NumPy's scalars for attributes and structs for results.
    """
    results = [v for v in call.values() if isinstance(v, jax.ShapeDtypeStruct)]
    attributes = {k: v for k, v in call.items() if isinstance(v, np.generic)}
    operands = [v for v in call.values() if isinstance(v, np.ndarray)]
    run = jax.ffi.ffi_call(target, results)
    try:
        outputs = jax.block_until_ready(jax.jit(lambda *xs: run(*xs, **attributes))(*operands))
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # depends on the version of JAX
        text = str(error)
        assert target.removesuffix(".v1") + ": " in text, text
        assert any(name in text for name in [*call, "result", "attribute", "_bar"]), text
        return text
    assert [x.shape for x in outputs] == [x.shape for x in results]
    return OK
