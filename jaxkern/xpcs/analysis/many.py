"""Many files of frames to a file of results each, and one table of all of them.

The tasks run one after another here, or on a cluster.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from jaxkern.core.arguments import check_integer
from jaxkern.core.paths import home_path
from jaxkern.core.progress import ProgressBar
from jaxkern.xpcs.analysis.correlate import CorrelationChoices
from jaxkern.xpcs.analysis.file_tasks import (
    CommonChoices,
    file_tasks,
    run_in_turn,
    run_task,
    sweep,
)
from jaxkern.xpcs.analysis.results_table import Row, table_text, write_table
from jaxkern.xpcs.correlators.hot_pixels import HotPixels
from jaxkern.xpcs.detectors.mask_files import masked_map
from jaxkern.xpcs.detectors.qmap import QMap

# Runs tasks, each by a function of it and what all have in common, and tries them again.
_RunAll = Callable[[Callable[[Any, Any], Any], Sequence[Any], Any, int], Iterator[tuple[Any, Any]]]


@dataclass(frozen=True)
class FileOutcome:
    """What became of a file.

    Attributes:
      file: of frames.
      output: its results.
      status: "done", "skipped" (they were there, of the same file and choices) or "failed".
      again: why results that were there were replaced; "" where there were none.
      error: of the last attempt; "" where it did not fail.
      rows: of the table, one for each bin.
    """

    file: Path
    output: Path
    status: str
    again: str = ""
    error: str = ""
    rows: tuple[Row, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        if self.status == "skipped":
            return f"{self.file}: {self.output} is finished, skipped"
        why = f" (done again: {self.again})" if self.again else ""
        if self.status == "failed":
            return f"{self.file}: failed: {self.error}{why}"
        return f"{self.file}: wrote {self.output}{why}"


@dataclass(frozen=True)
class CorrelatedFiles:
    """What `correlate_files` made, in the order of the files; its text is a table.

    Attributes:
      outcomes: of each file.
    """

    outcomes: tuple[FileOutcome, ...]

    @property
    def table(self) -> list[Row]:
        """A row for each file and bin; a failed file has one, with its error."""
        rows = []
        for outcome in self.outcomes:
            common = {
                "file": str(outcome.file),
                "status": outcome.status,
                "error": outcome.error or None,
                "results": None if outcome.status == "failed" else str(outcome.output),
            }
            rows += [{**common, **row} for row in outcome.rows or ({},)]
        return rows

    @property
    def warnings(self) -> dict[Path, str]:
        """The files with doubtful bins or pixels, and what is doubtful."""
        found = {o.file: o.rows[0].get("warnings") for o in self.outcomes if o.rows}
        return {path: text for path, text in found.items() if text}

    @property
    def errors(self) -> dict[Path, str]:
        """The files that failed, with the error of the last attempt."""
        return {o.file: o.error for o in self.outcomes if o.status == "failed"}

    def count(self, status: str) -> int:
        """How many files are "done", "skipped" or "failed"."""
        return sum(outcome.status == status for outcome in self.outcomes)

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Writes the table, as CSV or Parquet by the path's suffix; returns the path.

        Raises:
          ValueError: another suffix.
          ImportError: a Parquet file, and no pyarrow.
        """
        return write_table(home_path(path), self.table)

    def __repr__(self) -> str:
        counts = ", ".join(f"{self.count(s)} {s}" for s in ("done", "skipped", "failed"))
        return f"{len(self.outcomes)} files: {counts}\n{table_text(self.table)}"


def correlate_files(
    files: Iterable[str | os.PathLike[str]] | str | os.PathLike[str],
    qmap: QMap | str | os.PathLike[str],
    folder: str | os.PathLike[str],
    dpl: int = 4,
    normalize: bool = False,
    bad_frames: Sequence[int] | NDArray[Any] | None = None,
    begin: int = 0,
    end: int | None = None,
    stride: int = 1,
    average: int = 1,
    *,
    intensity_cut: tuple[float | None, float | None] | None = None,
    mask: Any = None,
    blemish: Any = None,
    hot_pixels: HotPixels = "report",
    bins: Sequence[int] | NDArray[Any] | None = None,
    parts: int = 0,
    twotime: Any = None,
    smoothing: Literal["static", "none"] = "static",
    frame_time: float | None = None,
    dataset: str | None = None,
    metadata: str | os.PathLike[str] | None = None,
    plots: str | os.PathLike[str] | None = None,
    plot_all: bool = False,
    engine: Any = None,
    scheduler: str | None = None,
    workers: int | None = None,
    retries: int = 1,
    force: bool = False,
    progress: bool = True,
    shown: Callable[[FileOutcome], None] | None = None,
) -> CorrelatedFiles:
    """Correlates files of frames, each into a file of results, and sums them up in one table.

    A file's results are written whole or not at all, and say what they were made of: name, size and
    time of the file, the map, the choices and jaxkern's version. Where such results are there
    already the file is skipped, so that a run that was ended somewhere goes on where it was.

    Args:
      files: paths, or a folder: all of its files whose ending a reader knows, without those that
        end in ``_metadata.hdf``, the map, and the metadata.
      qmap: the bins of the pixels, of all files, or the path of a map.
      folder: of the results, ``NAME.hdf`` for each file ``NAME.suffix``.
      dpl, normalize, bad_frames, begin, end, stride, average: of each file, see `multitau`.
      intensity_cut, bins, parts, frame_time, hot_pixels: likewise.
      mask, blemish: [H, W], true where a pixel is good, or paths of such files, see `read_mask`.
      twotime: the form of two-time correlations, as `twotime` has it, or None for none. With them,
        `bins` are those that have one.
      smoothing: see `twotime`.
      dataset: of HDF5 files, see `open_frames`.
      metadata: a ``*_metadata.hdf`` for all of them, see `write_results`.
      plots: a folder of folders of plots, one for each file; one without its plots is not finished.
      plot_all: see `plot_correlations`.
      engine: None: one file after the other in this process. "dask": on the workers of a
        dask.distributed cluster, one file at a time on each, with the threads that dask gives the
        worker. A `distributed.Client`: of that one's cluster. Paths must be the same everywhere.
      scheduler: with "dask", the address of a scheduler or the file that it wrote; without it the
        cluster is made of processes here.
      workers: how many of them.
      retries: how often a file that failed is tried again.
      force: do all files, and replace whatever stands where results belong.
      progress: a bar on the terminal.
      shown: called with each file's outcome, as they come.

    Returns:
      A `CorrelatedFiles`. Files that failed are in its `errors`; the others are done.

    Raises:
      FileNotFoundError: a file, or the map, is not there.
      FileExistsError: where results belong there is something else, without `force`.
      ValueError: two files whose results would have one name, choices that cannot be, a map that
        cannot be read.
      ConnectionError: the cluster's scheduler went away, for which 30 s are waited.
      ImportError: "dask" without `distributed`: ``pip install 'jaxkern[dask]'``.

    Example:
      >>> import numpy as np, pathlib, tempfile
      >>> import jaxkern as jk
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> for k in range(2):
      ...     frames = np.random.default_rng(k).poisson(1.0, (40, 4, 4)).astype("u1")
      ...     np.save(folder / f"run{k}.npy", frames)
      >>> qmap = jk.xpcs.QMap(np.ones((4, 4), int), q=[0.01])
      >>> found = jk.xpcs.correlate_files(folder, qmap, folder / "results")
      >>> [(row["status"], row["bin"], row["frames"]) for row in found.table]
      [('done', 1, 40), ('done', 1, 40)]
      >>> found = jk.xpcs.correlate_files(folder, qmap, folder / "results")
      >>> found.count("skipped"), found.write(folder / "table.csv").name
      (2, 'table.csv')
    """
    choices = CorrelationChoices(
        dpl=dpl,
        normalize=normalize,
        bad_frames=bad_frames,
        begin=begin,
        end=end,
        stride=stride,
        average=average,
        intensity_cut=intensity_cut,
        hot_pixels=hot_pixels,
        bins=bins,
        parts=parts,
        twotime=twotime,
        smoothing=smoothing,
        frame_time=frame_time,
        dataset=dataset,
        # Workers have folders of their own.
        metadata=None if metadata is None else home_path(metadata).absolute(),
    )
    check_integer("retries", retries, 0)
    opened = _engine(engine, scheduler, workers)
    given = [] if choices.metadata is None else [choices.metadata]
    if not isinstance(qmap, QMap):
        given.append(home_path(qmap).absolute())
        qmap = QMap.read(given[-1])
    qmap = masked_map(qmap, mask, blemish)
    given += [home_path(x).absolute() for x in (mask, blemish) if isinstance(x, str | os.PathLike)]
    choices.check(qmap)
    tasks = file_tasks(files, given, folder, plots, plot_all)
    common = CommonChoices(choices, qmap, force, choices.told(qmap))
    before = {task.output: common.look(task) for task in tasks}
    left = [task for task in tasks if isinstance(before[task.output], str)]
    outcomes: dict[Path, FileOutcome] = {}
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(ProgressBar(progress, "correlating", "file"))
        bar.update(0, len(tasks))

        def came(outcome: FileOutcome) -> None:
            outcomes[outcome.output] = outcome
            bar.update(len(outcomes), text=f"correlating, last {outcome.file.name}")
            if shown is not None:
                shown(outcome)

        for task in tasks:
            if not isinstance(rows := before[task.output], str):
                came(FileOutcome(task.file, task.output, "skipped", rows=rows))
        if left:
            if engine is None or (isinstance(engine, str) and scheduler is None):
                stack.callback(sweep, left)  # behind the end of all that could write there
            run_all = stack.enter_context(opened)
            for task, found in run_all(run_task, left, common, retries):
                why = str(before[task.output])
                if isinstance(found, BaseException):
                    came(FileOutcome(task.file, task.output, "failed", why, _words(found)))
                else:
                    came(FileOutcome(task.file, task.output, "done", why, rows=found))
    return CorrelatedFiles(tuple(outcomes[task.output] for task in tasks))


def _engine(
    engine: Any, scheduler: str | None, workers: int | None
) -> contextlib.AbstractContextManager[_RunAll]:
    """What runs the tasks; nothing of it begins before it is entered."""
    if engine is None:
        if scheduler is not None or workers is not None:
            raise ValueError('scheduler and workers are of engine="dask"; wanted it too')
        return contextlib.nullcontext(run_in_turn)
    if isinstance(engine, str) and engine != "dask":
        raise ValueError(f'engine is {engine!r}; wanted None, "dask" or a distributed.Client')
    try:
        from jaxkern.xpcs.analysis import dask_engine
    except ModuleNotFoundError as error:
        if error.name not in ("dask", "distributed"):
            raise
        raise ImportError(
            "the engine dask needs dask.distributed, which is not installed: "
            "pip install 'jaxkern[dask]'"
        ) from error
    return dask_engine.opened(engine, scheduler, workers)


def _words(error: BaseException) -> str:
    known = isinstance(error, ValueError | OSError | MemoryError | ImportError) and str(error)
    return str(error) if known else f"{type(error).__name__}: {error}"
