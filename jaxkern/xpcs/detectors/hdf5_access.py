"""HDF5 files of detectors: opening, links, plugins of filters; errors name the place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxkern.xpcs.detectors.frames import DetectorFileError

if TYPE_CHECKING:
    import h5py


def open_hdf5(name: str) -> h5py.File:
    """The file, open for reading."""
    try:
        import h5py
    except ImportError as error:
        raise ImportError(
            f"{name} is read by h5py, which is not installed; pip install 'jaxkern[xpcs]'"
        ) from error

    if not Path(name).exists():
        raise FileNotFoundError(f"there is no file {name!r}")
    try:
        return h5py.File(name, "r")
    except (OSError, RuntimeError, ValueError) as error:
        # A detector that still writes it may let others read (single writer, multiple readers).
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            return h5py.File(name, "r", libver="latest", swmr=True)
        raise DetectorFileError(f"{name} cannot be opened as an HDF5 file: {error}") from error


@contextlib.contextmanager
def hdf5_errors(name: str, place: str | None = None) -> Iterator[None]:
    """What h5py raises where groups, links, headers or data cannot be read, with the path."""
    try:
        yield
    except DetectorFileError:
        raise
    except (
        KeyError, IndexError, OSError, RuntimeError, TypeError, ValueError, MemoryError,
        OverflowError, AttributeError,
    ) as error:  # fmt: skip
        reason = error.args[0] if error.args else error
        where = name if place is None else f"{name}: {place}"
        raise DetectorFileError(
            f"{where} cannot be read; the file is damaged, or links to what is not there: {reason}"
        ) from error


def look(group: Any, name: str) -> Any:
    """What stands under a name, or None; links that lead nowhere are told."""
    import h5py

    at = group
    for step in name.strip("/").split("/"):
        if not step:
            continue
        if not isinstance(at, h5py.Group):
            return None
        link = at.get(step, getlink=True)
        if link is None:
            return None
        try:
            at = at[step]
        except (KeyError, OSError, RuntimeError) as error:
            target = link.path if hasattr(link, "path") else step
            other = f"{link.filename}, " if hasattr(link, "filename") else ""
            raise DetectorFileError(
                f"{group.file.filename}: {at.name.rstrip('/')}/{step} is a link to {other}"
                f"{target}, which is not there"
            ) from error
    return at


def check_filters(name: str, stored: h5py.Dataset) -> None:
    """Brings the plugins in where a compression needs them; raises where they are missing."""
    import h5py

    plist = stored.id.get_create_plist()
    codes = [plist.get_filter(number)[0] for number in range(plist.get_nfilters())]
    missing = [code for code in codes if not h5py.h5z.filter_avail(code)]
    if not missing:
        return
    with contextlib.suppress(ImportError):
        import hdf5plugin  # noqa: F401, registers them

        missing = [code for code in missing if not h5py.h5z.filter_avail(code)]
        if not missing:
            return
        raise DetectorFileError(
            f"{name}: {stored.name} is compressed by the HDF5 filters {missing}, which neither "
            "h5py nor the installed hdf5plugin has"
        )
    raise ImportError(
        f"{name}: {stored.name} is compressed by the HDF5 filters {missing} (bitshuffle and LZ4 "
        "are 32008), which hdf5plugin has; pip install 'jaxkern[detectors]'"
    )


def check_virtual(name: str, stored: h5py.Dataset) -> None:
    """Raises where a file is missing of which a virtual data set would read zeros."""
    for path in _virtual_files(stored):
        if not path.exists():
            raise DetectorFileError(f"{name}: {stored.name} is made of {path}, which is not there")


def linked_files(name: str, sets: Iterable[h5py.Dataset]) -> tuple[str, ...]:
    """The files that data sets of the file `name` lie in, without itself."""
    found: dict[str, None] = {}
    for stored in sets:
        for path in (Path(stored.file.filename), *_virtual_files(stored)):
            found[str(path.absolute())] = None
    found.pop(str(Path(name).absolute()), None)
    return tuple(found)


def _virtual_files(stored: h5py.Dataset) -> Iterator[Path]:
    """Files that a virtual data set is made of, but those with numbers in their names."""
    if not stored.is_virtual:
        return
    folder = Path(stored.file.filename).parent
    for source in stored.virtual_sources():
        if source.file_name != "." and "%" not in source.file_name:
            beside = folder / source.file_name
            yield beside if beside.exists() else Path(source.file_name)
