"""Files on servers, by URL: ranged reads with retries, and local copies in a cache folder."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import fnmatch
import functools
import hashlib
import io
import itertools
import math
import os
import random
import re
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from jaxkern.core.arguments import check_integer
from jaxkern.core.failures import describe_exception
from jaxkern.core.paths import atomic_write, home_path, lock_output
from jaxkern.core.progress import ProgressBar
from jaxkern.pipeline.sources.files import (
    Paths,
    expand_braces,
    expand_paths,
    import_extra,
    is_url,
    suffix_of,
)
from jaxkern.pipeline.sources.images.headers import ByteRanges

_REQUEST_BYTES = 1 << 21  # maximum size of a request
_GAP_BYTES = 1 << 14  # ranges with smaller gaps are read by one request
_REQUESTS = 64  # maximum number of requests at once
_FILES = 16  # maximum number of files that are opened or downloaded at once
_ATTEMPTS = 8
_TIMEOUT = 120.0  # seconds for an attempt
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 10.0  # seconds between attempts: doubled each time, with jitter
_VERSIONS = ("ETag", "etag", "generation", "Last-Modified", "LastModified", "updated", "mtime")

_IDENTITY = {"headers": {"Accept-Encoding": "identity"}}  # sizes are those of the file
#: protocol -> its package, and options for fsspec
_PROTOCOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "http": ("aiohttp", _IDENTITY),
    "https": ("aiohttp", _IDENTITY),
    "s3": ("s3fs", {"config_kwargs": {"max_pool_connections": _REQUESTS}}),
    "gs": ("gcsfs", {}),
}

_Result = TypeVar("_Result")
_slots = asyncio.Semaphore(_REQUESTS)
_calls = threading.local()  # requests of the threads of `in_threads`


class RemoteError(OSError):
    """A file cannot be read from its server, or was replaced while it was read."""


class Url(str):
    """The URL of a file, with the attribute `name` that a Path has."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """Return the last part of the path."""
        return re.sub(r"[?#].*", "", self).rpartition("/")[2]


#: a file of a source
File = Path | Url


def expand_files(paths: Paths, suffixes: Sequence[str], what: str) -> list[File]:
    """Expand paths as `expand_paths` does, and URLs: patterns of the last part, and folders.

    A URL without one of the suffixes is a folder. HTTP servers must list it as links. "?" is a
    pattern in the URLs of object stores, and begins a query in those of HTTP servers.
    """
    files: list[File] = []
    for path in [paths] if isinstance(paths, str | os.PathLike) else paths:
        if is_url(path):
            files += _expand_url(os.fspath(path), suffixes, what)
        else:
            files += expand_paths(path, suffixes, what)
    if not files:
        raise FileNotFoundError(f"{paths!r:.200} matches no file of {what}")
    return files


def _expand_url(url: str, suffixes: Sequence[str], what: str) -> Iterator[Url]:
    for name in expand_braces(url):
        magic = r"[*\[]" if name.startswith("http") else r"[*?\[]"
        is_folder = bool(suffixes) and suffix_of(name) not in suffixes
        if not is_folder and not re.search(magic, name):
            yield Url(name)
            continue
        system, path = _system(name)
        path = f"{path.rstrip('/')}/*" if is_folder else path
        folder, _, pattern = path.rpartition("/")
        # Unlike fsspec's glob, it raises errors of the server.
        system.invalidate_cache()
        list_folder = functools.partial(system._ls, f"{folder}/", detail=True)
        found = _run(_retry, f"the list of files {name}", list_folder)
        names = [each["name"] for each in found if each["type"] == "file"]
        files = [Url(system.unstrip_protocol(each)) for each in sorted(names)]
        # Links such as "?C=N;O=D", which sort a list, have no name.
        files = [file for file in files if file.name and fnmatch.fnmatchcase(file.name, pattern)]
        chosen = [file for file in files if not is_folder or suffix_of(file) in suffixes]
        if not chosen:
            raise FileNotFoundError(f"{name}: no such file ({what})")
        yield from chosen


def _system(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path in it."""
    protocol = url.partition(":")[0]
    if protocol not in _PROTOCOLS:
        raise ValueError(f"{url}: expected {'://, '.join(_PROTOCOLS)}://")
    package, options = _PROTOCOLS[protocol]
    import_extra(package, "remote")
    return import_extra("fsspec.core", "remote").url_to_fs(url, **options)


def _run(function: Callable[..., Coroutine[Any, Any, _Result]], *args: Any) -> _Result:
    """Run a coroutine in fsspec's thread and return its result."""
    loop = import_extra("fsspec.asyn", "remote").get_loop()
    future: Any = asyncio.run_coroutine_threadsafe(function(*args), loop)
    running: set[Any] = getattr(_calls, "running", set())
    running.add(future)
    try:
        return future.result()
    finally:
        future.cancel()  # after Ctrl-C
        running.discard(future)


def in_threads(function: Callable[..., _Result], *items: Iterable[Any]) -> list[_Result]:
    """Map a function in threads; the first error, or Ctrl-C, ends the requests of all."""
    running: set[Any] = set()
    stopped = False

    def call(*arguments: Any) -> _Result:
        if stopped:
            raise concurrent.futures.CancelledError
        _calls.running = running
        return function(*arguments)

    with concurrent.futures.ThreadPoolExecutor(_FILES, "jaxkern-remote") as threads:
        try:
            results = [threads.submit(call, *arguments) for arguments in zip(*items, strict=True)]
            concurrent.futures.wait(results, return_when="FIRST_EXCEPTION")
            failed = [result for result in results if result.done() and result.exception()]
            return [result.result() for result in failed[:1] or results]
        except BaseException:
            stopped = True
            threads.shutdown(wait=False, cancel_futures=True)
            for future in [*running]:
                future.cancel()
            raise


async def _gather(coroutines: Iterable[Any]) -> None:
    """Await all; the first error cancels the others."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _retry(
    what: str, attempt: Callable[[], Awaitable[_Result]], attempts: int | None = None
) -> _Result:
    """Return the result of an attempt; repeat it after failures that may be temporary."""
    attempts = _ATTEMPTS if attempts is None else attempts
    for number in itertools.count(1):
        try:
            async with _slots:
                return await asyncio.wait_for(attempt(), _TIMEOUT)
        except Exception as error:
            last, cause = _is_permanent(error), _cause_of(error)
            missing = isinstance(error, FileNotFoundError) and _status_of(cause) not in (401, 403)
            if last and missing:
                raise FileNotFoundError(f"{what}: no such file") from error
            if last or number == attempts:
                late = isinstance(error, TimeoutError)
                reason = f"no answer within {_TIMEOUT:g} s" if late else describe_exception(cause)
                count = f"{number} attempts failed, the last with " if number > 1 else ""
                raise RemoteError(f"{what} cannot be read: {count}{reason}") from error
        wait = min(_FIRST_WAIT * 2 ** (number - 1), _LONGEST_WAIT)
        await asyncio.sleep(random.uniform(0.5, 1) * wait)
    raise AssertionError


def _cause_of(error: BaseException) -> BaseException:
    # fsspec raises FileNotFoundError for failed connections and for forbidden files, too.
    return (isinstance(error, FileNotFoundError) and error.__cause__) or error


def _status_of(cause: BaseException) -> Any:
    return getattr(cause, "status", vars(cause).get("code"))


def _is_permanent(error: BaseException) -> bool:
    cause = _cause_of(error)
    status = _status_of(cause)
    if isinstance(status, int):
        return 400 <= status < 500 and status not in (408, 425, 429)
    if cause is not error:
        return not (isinstance(cause, OSError) or type(cause).__module__.startswith("aiohttp"))
    return isinstance(
        error, FileNotFoundError | PermissionError | NotImplementedError | TypeError | ValueError
    )


@dataclasses.dataclass(frozen=True, eq=False)
class RemoteFile:
    """A file on a server, as it was when it was opened."""

    url: Url
    size: int  # bytes
    version: str  # differs if the file was replaced: ETag or modification time, and size
    _system: Any
    _path: str

    @classmethod
    def open(cls, url: Url) -> RemoteFile:
        """Request size and version of a file."""
        system, path = _system(url)
        size, version = _run(_retry, str(url), lambda: _status(system, path))
        return cls(url, size, version, system, path)

    def __getitem__(self, part: slice) -> np.ndarray:
        """Read bytes [begin:end]: uint8."""
        begin, end, _ = part.indices(self.size)
        data = np.empty(max(end - begin, 0), np.uint8)
        _run(_gather, self._pieces(begin, begin + len(data), data))
        return data

    def check_unchanged(self) -> None:
        """Raise RemoteError if the file was replaced after it was opened."""
        if change := _run(self._change):
            raise RemoteError(change)

    async def _change(self, attempts: int | None = None) -> str:
        status = functools.partial(_status, self._system, self._path)
        _, version = await _retry(self.url, status, attempts)
        change = f"its version was {self.version} and is {version}; open it again"
        text = f"{self.url} was replaced while it was read: {change}"
        return "" if version == self.version else text

    def _pieces(self, begin: int, end: int, out: np.ndarray) -> list[Awaitable[None]]:
        """Return coroutines that read bytes into `out`, which begins at byte `begin`."""

        async def piece(first: int, last: int) -> None:
            data = await self.read(first, last)
            out[first - begin : last - begin] = np.frombuffer(data, np.uint8)

        steps = range(begin, end, _REQUEST_BYTES)
        return [piece(first, min(first + _REQUEST_BYTES, end)) for first in steps]

    async def read(self, begin: int, end: int) -> bytes:
        """Read bytes by one request, and repeat it if necessary; called in fsspec's thread."""

        async def attempt() -> bytes:
            data: bytes = await self._system._cat_file(self._path, start=begin, end=end)
            if len(data) < end - begin:
                raise EOFError(f"expected {end - begin} bytes, got {len(data)}")
            if len(data) > end - begin:
                raise NotImplementedError("the server ignores ranges")
            return data

        try:
            return await _retry(f"{self.url}, bytes {begin} to {end},", attempt)
        except Exception as error:
            change = ""
            with contextlib.suppress(Exception):  # the first error is the one to report
                change = await self._change(attempts=1)
            if change:
                raise RemoteError(change) from error
            raise


async def _status(system: Any, path: str) -> tuple[int, str]:
    system.invalidate_cache(path)
    info = await system._info(path)
    if info.get("size") is None:
        raise NotImplementedError("the server does not report the size of the file")
    tag = next((str(info[name]) for name in _VERSIONS if info.get(name)), "")
    return int(info["size"]), f"{tag} of {info['size']} bytes".strip()


class RemoteReader(io.RawIOBase):
    """A remote file as a binary file object."""

    def __init__(self, file: RemoteFile) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    seekable = readable

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}
        self._at = start[whence] + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._file[self._at : self._at + len(buffer)]
        buffer[: len(data)] = data.data
        self._at += len(data)
        return len(data)


@contextlib.contextmanager
def binary_file(file: File) -> Iterator[Any]:
    """Yield a path, or a file object of a URL, whose version is compared at the end."""
    if not isinstance(file, Url):
        yield file
        return
    remote = RemoteFile.open(file)
    try:
        yield RemoteReader(remote)
    except RemoteError:
        raise
    except Exception:
        remote.check_unchanged()
        raise
    remote.check_unchanged()


#: (file, offset, length) -> bytes
_Views = dict[tuple[int, int, int], memoryview]


def read_ranges(files: Sequence[RemoteFile], ranges: np.ndarray) -> _Views:
    """Read ranges int64 [N, 3] of (file, offset, length), adjacent ones by one request."""
    sizes = [file.size + 2 * _GAP_BYTES for file in files]
    bases = np.cumsum([0, *sizes])  # of the files in one address space, with gaps between them
    ranges = np.unique(ranges[ranges[:, 2] > 0], axis=0)
    begin = bases[ranges[:, 0]] + ranges[:, 1]
    end = np.maximum.accumulate(begin + ranges[:, 2])
    first = np.flatnonzero(np.append(True, begin[1:] > end[:-1] + _GAP_BYTES)[: len(begin)])
    last = np.append(first, len(begin))[1:] - 1
    views: _Views = {}
    pieces: list[Awaitable[None]] = []
    for a, b in zip(first.tolist(), last.tolist(), strict=True):
        number, start, _ = ranges[a].tolist()
        data = np.empty(int(end[b] - begin[a]), np.uint8)
        pieces += files[number]._pieces(start, start + len(data), data)
        memory = data.data
        for file, offset, length in ranges[a : b + 1].tolist():
            views[file, offset, length] = memory[offset - start : offset - start + length]
    _run(_gather, pieces)
    return views


@dataclasses.dataclass(frozen=True, eq=False)
class RemoteRanges(ByteRanges):
    """Byte ranges of remote files, the `blobs`; each thread keeps those of its current batch."""

    current: threading.local = dataclasses.field(default_factory=threading.local)

    def __getitem__(self, record: int) -> memoryview:
        file, offset, length = self.ranges[record].tolist()
        views: _Views = getattr(self.current, "views", {})
        if length == 0 or (file, offset, length) in views:
            return views.get((file, offset, length), memoryview(b""))
        files: Any = self.blobs
        data: np.ndarray = files[file][offset : offset + length]
        return data.data


@contextlib.contextmanager
def ranges_read(fields: Sequence[ByteRanges], records: np.ndarray) -> Iterator[None]:
    """Read the ranges of records in several fields of the same files, for this thread."""
    remote = [field for field in fields if isinstance(field, RemoteRanges)]
    if remote:
        files: Any = remote[0].blobs
        views = read_ranges(files, np.concatenate([field.ranges[records] for field in remote]))
        for field in remote:
            field.current.views = views
    try:
        yield
    finally:
        for field in remote:
            field.current.views = {}


_in_use: set[Path] = set()  # files of caches that this process may have open


def cached(
    paths: Paths,
    folder: str | os.PathLike[str],
    max_bytes: int | None = None,
    *,
    progress: bool = True,
) -> list[Path]:
    """Return paths of local copies of files on servers; download those that are missing.

    Every source reads the copies as any local files. A file that was replaced on its server is
    downloaded again. Processes that use the same folder download one after another.

    Args:
      paths: a URL, a pattern such as ``"s3://bucket/train-{000..063}.tar"``, or a list of them.
        Local paths are returned unchanged.
      folder: the cache folder; created if missing.
      max_bytes: maximum size of the folder in bytes. The least recently used files are removed
        first, but none that this process has used. None: no limit.
      progress: if True, show a progress bar.

    Raises:
      FileNotFoundError: a file does not exist.
      OSError: a file cannot be downloaded, or was replaced meanwhile; the message names it.
      ValueError: the files that this process uses exceed `max_bytes`.

    Example:
      >>> import tempfile, jaxkern as jk
      >>> folder = tempfile.mkdtemp()
      >>> path = folder + "/train.tar"
      >>> open(path, "w").close()
      >>> [str(local) == path for local in jk.pipeline.cached(path, folder + "/cache")]  # not a URL
      [True]
    """
    if max_bytes is not None:
        check_integer("max_bytes", max_bytes, 0)
    root = home_path(folder).absolute()
    files = expand_files(paths, (), "files")
    urls = [*dict.fromkeys(file for file in files if isinstance(file, Url))]
    with lock_output(root / "cache", math.inf):
        copies = {_copy_of(file, root): file for file in in_threads(RemoteFile.open, urls)}
        missing = {p: f for p, f in copies.items() if not p.exists() or p.stat().st_size != f.size}
        size = sum(file.size for file in missing.values())
        _make_room(root, {*copies}, size, max_bytes)
        _in_use.update(copies)
        with ProgressBar(progress and bool(missing), "download", "bytes") as bar:
            done = 0
            room = asyncio.Semaphore(_REQUESTS)  # bounds memory if the disk is slower than servers

            async def piece(file: RemoteFile, begin: int, out: Path) -> None:
                nonlocal done
                async with room:
                    data = await file.read(begin, min(begin + _REQUEST_BYTES, file.size))
                    await asyncio.to_thread(_write, out, begin, data)
                done += len(data)
                bar.update(done, size)

            def download(path: Path) -> None:
                file = missing[path]
                with atomic_write(path) as temporary:
                    steps = range(0, file.size, _REQUEST_BYTES)
                    _run(_gather, [piece(file, begin, temporary) for begin in steps])
                    file.check_unchanged()

            in_threads(download, missing)
        for path in copies:  # the access time; an index of headers compares the other one
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
    path_of = {file.url: path for path, file in copies.items()}
    return [path_of[file] if isinstance(file, Url) else file for file in files]


def _write(path: Path, begin: int, data: bytes) -> None:
    # After an error this thread may run longer than its caller, whose descriptors are reused.
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(data)


def _copy_of(file: RemoteFile, root: Path) -> Path:
    version = hashlib.blake2b(f"{file.url} {file.version}".encode(), digest_size=16).hexdigest()
    return root / version / (file.url.name if file.url.name.strip(".") else "file")


def _make_room(root: Path, requested: set[Path], size: int, max_bytes: int | None) -> None:
    """Remove files until `size` bytes are free."""
    if max_bytes is None:
        return
    entries = [path for path in root.glob("*/*") if re.fullmatch(r"[0-9a-f]{32}", path.parent.name)]
    status = {path: path.stat() for path in entries}
    total = size + sum(each.st_size for each in status.values())
    for path in sorted(status, key=lambda path: status[path].st_atime_ns):
        if total > max_bytes and path not in requested | _in_use:
            path.unlink()
            with contextlib.suppress(OSError):
                path.parent.rmdir()
            total -= status[path].st_size
    if total > max_bytes:
        raise ValueError(f"max_bytes is {max_bytes}; this process uses {total} bytes in {root}")
