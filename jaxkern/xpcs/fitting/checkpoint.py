"""The file that a fit resumes from: written whole or not at all, and checked before it is believed.

A file is a magic word, the SHA-256 of what follows, and an npz archive: the fingerprint of the fit
as JSON, the log of finished passes (points and states), and the unfinished pass with the states of
its finished chunks. The solver has no state of its own here: replaying the log brings it back.
"""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.archives import npz_bytes
from jaxkern.core.paths import remove_leftovers, write_atomically

Array = NDArray[np.float64]

_MAGIC = b"jaxkern-fit-1\n"


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be resumed from; the message says why."""


@dataclass
class PartialPass:
    """A pass that was under way: its point, the states so far and how many chunks are in them."""

    x: Array
    states: Array  # [n_phi, S]
    chunks: int


@dataclass
class PassLog:
    """What a fit has computed: finished passes in order, one that is under way, bad blocks.

    `excluded` holds (angle, row block) pairs. When a block turns bad in the middle of a fit, the
    cost is another function from then on: the solver starts again from `start`, and the passes
    before it are only counted, in `earlier`. `extra` holds the states of the finished passes for
    the errors, which follow the solver's last.
    """

    points: list[Array] = field(default_factory=list)
    states: list[Array] = field(default_factory=list)  # [n_phi, S] each
    partial: PartialPass | None = None
    excluded: list[tuple[int, int]] = field(default_factory=list)
    start: Array | None = None
    earlier: int = 0
    extra: list[Array] = field(default_factory=list)  # [n_phi, S] each


def _pack(fingerprint: dict[str, Any], log: PassLog) -> bytes:
    arrays: dict[str, Any] = {
        "fingerprint": np.frombuffer(json.dumps(fingerprint, sort_keys=True).encode(), np.uint8),
        "excluded": np.array(log.excluded, np.int64).reshape(-1, 2),
        "earlier": np.int64(log.earlier),
        "points": np.array(log.points),
        "states": np.array(log.states),
        "extra": np.array(log.extra),
    }
    if log.start is not None:
        arrays["start"] = log.start
    if log.partial is not None:
        arrays["partial_x"] = log.partial.x
        arrays["partial_states"] = log.partial.states
        arrays["partial_chunks"] = np.int64(log.partial.chunks)
    return npz_bytes(arrays)


def save(path: Path, fingerprint: dict[str, Any], log: PassLog) -> None:
    """Replaces the file at `path` in one step; a kill at any moment leaves the old or the new."""
    payload = _pack(fingerprint, log)
    digest = hashlib.sha256(payload).hexdigest().encode() + b"\n"
    write_atomically(path, _MAGIC + digest + payload)


def load(path: Path, fingerprint: dict[str, Any], sizes: tuple[int, int, int]) -> PassLog:
    """Reads a checkpoint of the fit with this fingerprint.

    Args:
      path: the file.
      fingerprint: of the fit.
      sizes: free parameters, angles and numbers of a state.

    Raises:
      CheckpointError: if the file is damaged or belongs to another fit, with the reason.
    """
    content = path.read_bytes()
    if not content.startswith(_MAGIC):
        raise CheckpointError(f"{path} is not a checkpoint of this version of jaxkern's fit")
    start = len(_MAGIC) + 65
    payload = content[start:]
    if hashlib.sha256(payload).hexdigest().encode() + b"\n" != content[len(_MAGIC) : start]:
        raise CheckpointError(
            f"{path} is damaged: its checksum does not match its {len(payload)} bytes of content; "
            "delete it to start the fit anew"
        )
    damaged = f"{path} is damaged: it holds no passes of this fit; delete it to start the fit anew"
    try:
        theirs, log = _unpack(payload)
    except Exception as error:  # of JSON, zip and NumPy, which have no kind in common
        raise CheckpointError(f"{damaged} ({error})") from error
    # Through JSON, so that both sides went the same way.
    ours = json.loads(json.dumps(fingerprint, sort_keys=True))
    if theirs != ours:
        raise CheckpointError(_difference(path, ours, theirs))
    try:
        _check_shapes(log, sizes)
    except ValueError as error:
        raise CheckpointError(f"{damaged} ({error})") from error
    return log


def _unpack(payload: bytes) -> tuple[dict[str, Any], PassLog]:
    """The inverse of `_pack`, with any exception for what it did not write."""
    with np.load(io.BytesIO(payload), allow_pickle=False) as arrays:
        theirs = json.loads(arrays["fingerprint"].tobytes().decode())
        if not isinstance(theirs, dict):
            raise ValueError("the fingerprint is no mapping")
        log = PassLog(
            excluded=[(int(angle), int(block)) for angle, block in arrays["excluded"]],
            start=arrays.get("start"),
            earlier=int(arrays["earlier"]),
            points=list(arrays["points"]),
            states=list(arrays["states"]),
            extra=list(arrays["extra"]),
        )
        if "partial_x" in arrays:
            log.partial = PartialPass(
                arrays["partial_x"], arrays["partial_states"], int(arrays["partial_chunks"])
            )
    return theirs, log


def _check_shapes(log: PassLog, sizes: tuple[int, int, int]) -> None:
    """Raises ValueError for arrays that are not float64 of the fit's sizes."""
    if len(log.points) != len(log.states):
        raise ValueError(f"{len(log.points)} points and {len(log.states)} states")
    points = log.points + ([] if log.start is None else [log.start])
    # A pass at another point than the fit comes to is not gone on with, so x may be anything.
    states = log.states + log.extra + ([] if log.partial is None else [log.partial.states])
    for array, shape in [(p, sizes[:1]) for p in points] + [(s, sizes[1:]) for s in states]:
        if array.dtype != np.float64 or array.shape != shape:
            raise ValueError(f"{array.dtype} {list(array.shape)} where float64 {shape} belongs")
    counts = [log.earlier, *(n for pair in log.excluded for n in pair)]
    if min(counts) < 0 or (log.partial is not None and log.partial.chunks < 0):
        raise ValueError("a negative count")


def _difference(path: Path, ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    differing = [
        f"{key} (there {_shown(theirs.get(key))}, here {_shown(ours.get(key))})"
        for key in sorted({*ours, *theirs})
        if ours.get(key) != theirs.get(key)
    ]
    return (
        f"{path} belongs to another fit; it differs in {', '.join(differing)}. "
        "Give another checkpoint_dir, or delete the file to start anew"
    )


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:16] + "..."


def remove(path: Path) -> None:
    """Deletes the checkpoint, and what writes that were killed half-way left beside it."""
    path.unlink(missing_ok=True)
    if path.parent.is_dir():
        remove_leftovers(path)


def digest(*arrays: Any) -> str:
    """A short fingerprint of arrays: their bytes, shapes and dtypes."""
    total = hashlib.sha256()
    for array in arrays:
        value = np.ascontiguousarray(array)
        total.update(f"{value.dtype.str}{value.shape}".encode())
        total.update(value.tobytes())
    return total.hexdigest()[:32]
