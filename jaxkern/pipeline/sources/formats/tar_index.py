"""Where the members of tar shards lie: read from their headers once, and kept in a cache folder."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import os
import tarfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxkern.core.archives import npz_bytes
from jaxkern.core.caches import cache_folder
from jaxkern.core.paths import write_atomically
from jaxkern.core.progress import ProgressBar

#: endings of members that are a whole number each, which the index keeps
NUMBERS = ("cls", "cls2", "class", "count", "index", "inx", "id")
_WORTH_KEEPING = 1000  # members; those of fewer are read at once
_SETTLED = 2_000_000_000  # ns: a file that was changed later may change again within its time stamp
_VERSION = 1


@dataclasses.dataclass(frozen=True, eq=False)
class ShardIndex:
    """The samples of one shard: members with one name up to the first dot of its last part.

    Attributes:
      names: of the samples, in UTF-8, each with a zero behind it; uint8 [bytes].
      endings: of members, each once; str [E].
      sample, ending: of each member, the place in `names` and `endings`; int64 and int32 [M].
      offset, length: of each member's bytes in the file; int64 [M].
      number: of each member whose ending is in `NUMBERS`; int64 [M].
      is_number: whether it is one; bool [M].
    """

    names: np.ndarray
    endings: np.ndarray
    sample: np.ndarray
    ending: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    number: np.ndarray
    is_number: np.ndarray

    @functools.cached_property
    def keys(self) -> list[str]:
        """The names of the samples."""
        return self.names.tobytes().decode("utf-8", "surrogateescape").split("\0")[:-1]

    @property
    def samples(self) -> int:
        """How many."""
        return int(self.sample[-1]) + 1 if len(self.sample) else 0

    def of(self, endings: Sequence[str]) -> np.ndarray:
        """The members with one of these endings, in order."""
        wanted = [k for k, ending in enumerate(self.endings.tolist()) if ending in endings]
        return np.flatnonzero(np.isin(self.ending, wanted))


def shard_indices(files: Sequence[Path], data: Sequence[np.ndarray]) -> list[ShardIndex]:
    """Of each shard, whose bytes are given too; from the cache folder where it has not changed."""
    found = []
    with ProgressBar(True, "index", "shards") as bar:
        for number, (file, content) in enumerate(zip(files, data, strict=True)):
            found.append(_kept_index(file, content))
            bar.update(number + 1, len(files))
    return found


def _kept_index(file: Path, data: np.ndarray) -> ShardIndex:
    status = file.stat()
    stamp = np.array([_VERSION, len(data), status.st_mtime_ns])
    folder = cache_folder()
    name = f"{file.name[:40]}-{zlib.crc32(os.fsencode(file)):08x}.npz"
    path = None if folder is None else folder / "shards" / name
    if path is not None and (kept := _read(path, stamp, len(data))) is not None:
        return kept
    index = _read_headers(file, data)
    settled = time.time_ns() - status.st_mtime_ns > _SETTLED
    if path is not None and settled and len(index.sample) >= _WORTH_KEEPING:
        content = npz_bytes({"stamp": stamp, **{f.name: getattr(index, f.name) for f in _FIELDS}})
        # Without a place to keep it, the next process reads the headers again.
        with contextlib.suppress(OSError):
            write_atomically(path, content)
    return index


_FIELDS = dataclasses.fields(ShardIndex)


def _read(path: Path, stamp: np.ndarray, size: int) -> ShardIndex | None:
    """What a file holds of a shard; None where it is of another one, or damaged."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as archive:
            if not np.array_equal(archive["stamp"], stamp):
                return None
            index = ShardIndex(**{field.name: archive[field.name] for field in _FIELDS})
        last = index.offset + index.length
        rises = np.diff(index.sample, prepend=0)
        whole = (
            (index.offset >= 0).all()
            and (index.length >= 0).all()
            and (last <= size).all()
            and ((rises == 0) | (rises == 1)).all()
            and len(index.keys) == index.samples
        )
        return index if whole else None
    except Exception:  # whatever a damaged archive raises
        return None


def _read_headers(file: Path, data: np.ndarray) -> ShardIndex:
    keys: list[str] = []
    endings: dict[str, int] = {}
    members: list[tuple[int, int, int, int, int, bool]] = []
    seen: set[int] = set()  # endings of the sample
    end = 0
    try:
        with tarfile.open(file, "r:") as tar:
            for member in tar:
                end = member.offset_data + (-(-member.size // 512) * 512 if member.isreg() else 0)
                tar.members = []  # type: ignore[attr-defined]  # it would keep all of them
                folder, _, last = member.name.rpartition("/")
                stem, dot, ending = last.partition(".")
                is_link = member.islnk() or member.issym()
                if not (member.isreg() or is_link) or not dot or not stem or stem.startswith("__"):
                    continue
                if is_link or member.issparse() or member.offset_data + member.size > len(data):
                    raise tarfile.ReadError(f"{member.name} does not lie in it as it is")
                key = f"{folder}/{stem}" if folder else stem
                if not keys or keys[-1] != key:
                    keys.append(key)
                    seen = set()
                kind = endings.setdefault(ending.lower(), len(endings))
                if kind in seen:
                    raise tarfile.ReadError(f"{member.name} is in it twice")
                seen.add(kind)
                number = None
                if ending.lower().rpartition(".")[2] in NUMBERS:
                    start = member.offset_data
                    number = _whole(data[start : start + min(member.size, 40)].tobytes())
                members.append(
                    (
                        len(keys) - 1,
                        kind,
                        member.offset_data,
                        member.size,
                        number or 0,
                        number is not None and member.size <= 40,
                    )
                )
    except (tarfile.TarError, ValueError, OverflowError) as error:
        packed = data[:2].tobytes() in (b"\x1f\x8b", b"BZ", b"\xfd7", b"\x28\xb5")
        raise ValueError(
            f"{file} is no tar file that can be read: {error}"
            + ("; it is compressed: unpack it first, samples are read in any order" * packed)
        ) from error
    if len(data) < end + 512 or _holds_more(data, end):
        # tarfile takes what it does not understand behind the first member for the end, and does
        # not see another tar file behind it.
        raise ValueError(
            f"{file} is damaged, cut short or several files in one: its members end at byte {end} "
            f"of {len(data)}, where the zeros that end a tar file are wanted, and nothing else"
        )
    table = np.array(members, np.int64).reshape(-1, 6)
    names = "".join(f"{key}\0" for key in keys).encode("utf-8", "surrogateescape")
    return ShardIndex(
        np.frombuffer(names, np.uint8),
        np.array(list(endings), str),
        table[:, 0].copy(),
        table[:, 1].astype(np.int32),
        table[:, 2].copy(),
        table[:, 3].copy(),
        table[:, 4].copy(),
        table[:, 5].astype(bool),
    )


def _holds_more(data: np.ndarray, begin: int) -> bool:
    """Whether a byte from `begin` on is not zero; reads no further than the block that holds it."""
    step = 1 << 16
    return any(data[k : k + step].any() for k in range(begin, len(data), step))


def _whole(data: bytes) -> int | None:
    """The whole number that a member is, if it fits into 64 bits."""
    try:
        number = int(data.decode("ascii", "replace"))
    except ValueError:
        return None
    return number if -(2**63) <= number < 2**63 else None
