"""One file of many: what is to be done of it, whether it is finished, and doing it.

Each file is a task of its own, here or on a worker, and its results are written whole.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxkern.core.paths import home_path, remove_leftovers
from jaxkern.core.version import __version__
from jaxkern.xpcs.analysis.correlate import CorrelationChoices, correlate_file
from jaxkern.xpcs.analysis.correlation_plots import LAST_PLOT
from jaxkern.xpcs.analysis.results_table import Row, rows_of
from jaxkern.xpcs.detectors.opening import SUFFIXES, frame_files
from jaxkern.xpcs.detectors.qmap import QMap
from jaxkern.xpcs.files.made_of import read_made_of, why_again
from jaxkern.xpcs.files.results_reader import read_multitau, read_two_time_doubts


@dataclass(frozen=True)
class FileTask:
    """A file of frames, where its results belong, and a folder of plots or None; absolute."""

    file: Path
    output: Path
    plots: Path | None
    plot_all: bool = False


@dataclass(frozen=True)
class CommonChoices:
    """What all files have in common; `told` is what their results say of it."""

    choices: CorrelationChoices
    qmap: QMap
    force: bool
    told: dict[str, Any]

    def look(self, task: FileTask) -> tuple[Row, ...] | str:
        """The rows of a file that is finished; else why it is done again, "" where it is not there.

        Raises:
          FileExistsError: there is what does not say that it is results of frames.
        """
        if self.force or not task.output.exists():
            return ""
        there = read_made_of(task.output)
        if there is None:
            raise FileExistsError(
                f"{task.output} is there and does not say what it was made of; wanted a folder "
                "where nothing else has the names of results, or --force (force=True), which "
                "replaces it"
            )
        why = why_again(task.file, self.told, there)
        if why is not None:
            return why
        try:
            rows = _rows_of_results(task.output)
        except (ValueError, OSError) as error:
            return str(error)
        if task.plots is not None and not (task.plots / LAST_PLOT).exists():
            return "it has no plots"
        return rows or "it holds no g2"


def file_tasks(
    files: Any,
    given: Sequence[Path],
    folder: str | os.PathLike[str],
    plots: str | os.PathLike[str] | None,
    plot_all: bool = False,
) -> list[FileTask]:
    """A task for each file, of which `given` are none; raises for what cannot be done."""
    folder = home_path(folder).absolute()
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"the results' folder {folder} is a file; wanted a folder")
    if plots is not None and (drawn := home_path(plots)).exists() and not drawn.is_dir():
        raise NotADirectoryError(f"the plots' folder {drawn} is a file; wanted a folder")
    paths = []
    for path in map(home_path, [files] if isinstance(files, str | os.PathLike) else files):
        if path.is_dir():
            if path.resolve() == folder.resolve():
                raise ValueError(f"{path} has both files and results; wanted another folder")
            paths += frame_files(path, given)
        elif path.exists():
            paths.append(path)
        else:
            raise FileNotFoundError(f"there is no file {path}")
    if not paths:
        raise ValueError("there are no files of frames; wanted one at least")
    read = {path.resolve() for path in (*paths, *given)}
    tasks: dict[Path, FileTask] = {}
    for path in paths:
        stem = _stem(path.name)
        output = folder / f"{stem}.hdf"
        if output in tasks:
            raise ValueError(
                f"the results of {tasks[output].file} and {path} would both be {output}; wanted "
                "files of different names, or a folder of results for each"
            )
        if output.resolve() in read:
            raise ValueError(
                f"{output}, the results of {path}, is one of the files that are read; wanted "
                "another folder of results"
            )
        of_file = None if plots is None else home_path(plots).absolute() / stem
        tasks[output] = FileTask(path.absolute(), output, of_file, plot_all)
    return list(tasks.values())


def _stem(name: str) -> str:
    """A name without the ending that a reader knows, such as .bin.000."""
    known = [suffix for suffix in SUFFIXES if name.lower().endswith(suffix)]
    return name[: -len(max(known, key=len))] if known else Path(name).stem


def run_in_turn(
    run: Callable[[Any, Any], Any], tasks: Sequence[Any], common: Any, retries: int
) -> Iterator[tuple[Any, Any]]:
    """Each task with what ``run(task, common)`` gave, or its exception.

    One that raises is tried again behind the others.
    """
    waiting = deque((task, 0) for task in tasks)
    while waiting:
        task, tried = waiting.popleft()
        try:
            found = run(task, common)
        except Exception as error:
            if tried < retries:
                waiting.append((task, tried + 1))
                continue
            found = error
        yield task, found


def run_task(task: FileTask, common: CommonChoices) -> tuple[Row, ...]:
    """Makes a file's results, here or on a worker; returns its rows of the table."""
    if common.told["jaxkern"] != __version__:
        raise RuntimeError(f"the worker has jaxkern {__version__}, not {common.told['jaxkern']}")
    sweep([task])
    # A worker may have died between the last step of a file and its report.
    rows = common.look(task)
    if isinstance(rows, str):
        if task.plots is not None:  # so that those of earlier results are not taken for these
            (task.plots / LAST_PLOT).unlink(missing_ok=True)
        correlate_file(
            task.file,
            common.qmap,
            task.output,
            common.choices,
            plots=task.plots,
            plot_all=task.plot_all,
        )
        rows = _rows_of_results(task.output)
    return rows


def _rows_of_results(path: Path) -> tuple[Row, ...]:
    found = read_multitau(path)
    return () if found is None else tuple(rows_of(found, *read_two_time_doubts(path)))


def sweep(tasks: Iterable[FileTask]) -> None:
    """Deletes what was left half-written where a process was killed."""
    for task in tasks:
        if task.output.parent.is_dir():
            remove_leftovers(task.output)
