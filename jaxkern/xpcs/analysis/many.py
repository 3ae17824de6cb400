"""Many files of frames to a file of results each, and one table, here or on a cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from numpy.typing import NDArray

from jaxkern.core.arguments import check_integer
from jaxkern.core.paths import home_path, lock_output, remove_leftovers
from jaxkern.core.progress import ProgressBar
from jaxkern.core.tables import Row
from jaxkern.core.tasks import choose_engine
from jaxkern.core.version import __version__
from jaxkern.xpcs.analysis.correlate import CorrelationChoices, correlate_file
from jaxkern.xpcs.analysis.correlation_plots import LAST_PLOT
from jaxkern.xpcs.analysis.results_table import table_rows, table_text, write_table
from jaxkern.xpcs.correlators.checks import HotPixels
from jaxkern.xpcs.detectors.opening import SUFFIXES, frame_files
from jaxkern.xpcs.detectors.qmap import QMap, masked_map
from jaxkern.xpcs.files.provenance import read_provenance, rerun_reason
from jaxkern.xpcs.files.results_reader import read_summary


class FileTask(NamedTuple):
    """A file of frames, its file of results, and its folder of plots or None; absolute paths."""

    file: Path
    output: Path
    plots: Path | None


class CommonChoices(NamedTuple):
    """Arguments that all files share; `provenance` is stored in their results."""

    choices: CorrelationChoices
    qmap: QMap
    force: bool
    plot_all: bool
    provenance: dict[str, Any]

    def check_finished(self, task: FileTask) -> tuple[Row, ...] | str:
        """Return the rows of a finished file, or else the reason to run it; "" without results."""
        if self.force or not task.output.exists():
            return ""
        stored = read_provenance(task.output)
        if stored is None:
            raise FileExistsError(
                f"{task.output} exists and has no provenance of results; use another folder, or "
                "--force (force=True) to replace it"
            )
        reason = rerun_reason(task.file, self.provenance, stored)
        if reason is not None:
            return reason
        try:
            rows = _rows_of_results(task.output)
        except (ValueError, OSError) as error:
            return str(error)
        if task.plots is not None and not (task.plots / LAST_PLOT).exists():
            return "it has no plots"
        return rows or "it holds no g2"


def file_tasks(
    files: Any,
    other_inputs: Sequence[Path],
    folder: str | os.PathLike[str],
    plots: str | os.PathLike[str] | None,
) -> list[FileTask]:
    """Return a task for each file after checks of all paths; other inputs are not frames."""
    folder = home_path(folder).absolute()
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"folder: expected a folder for results, got the file {folder}")
    if plots is not None and (drawn := home_path(plots)).exists() and not drawn.is_dir():
        raise NotADirectoryError(f"plots: expected a folder, got the file {drawn}")
    paths = []
    for path in map(home_path, [files] if isinstance(files, str | os.PathLike) else files):
        if path.is_dir():
            if path.resolve() == folder.resolve():
                raise ValueError(f"folder: expected another folder than that of the files, {path}")
            paths += frame_files(path, other_inputs)
        elif path.exists():
            paths.append(path)
        else:
            raise FileNotFoundError(f"file not found: {path}")
    if not paths:
        raise ValueError("files: expected at least one file of frames")
    inputs = {path.resolve() for path in (*paths, *other_inputs)}
    tasks: dict[Path, FileTask] = {}
    for path in paths:
        known = [suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)]
        # The name without its known suffix, such as .bin.000.
        stem = path.name[: -len(max(known, key=len))] if known else path.stem
        output = folder / f"{stem}.hdf"
        if output in tasks:
            raise ValueError(
                f"files: expected different names, got {tasks[output].file} and {path}, whose "
                f"results would both be {output}; use a folder of results for each"
            )
        if output.resolve() in inputs:
            raise ValueError(
                f"folder: {output}, results of {path}, is also an input file; use another folder"
            )
        file_plots = None if plots is None else home_path(plots).absolute() / stem
        tasks[output] = FileTask(path.absolute(), output, file_plots)
    return list(tasks.values())


def run_task(task: FileTask, common: CommonChoices) -> tuple[Row, ...]:
    """Correlate a file, here or on a worker, and return its rows of the table."""
    version = common.provenance["jaxkern"]
    if version != __version__:
        raise RuntimeError(f"expected jaxkern {version} on the worker, got {__version__}")
    with lock_output(task.output):
        remove_incomplete([task])
        # Another process, or a worker that was killed before its report, may have finished it.
        rows = common.check_finished(task)
        if isinstance(rows, str):
            if task.plots is not None:  # remove plots of earlier results
                (task.plots / LAST_PLOT).unlink(missing_ok=True)
            plots: Any = {"plots": task.plots, "plot_all": common.plot_all}
            correlate_file(task.file, common.qmap, task.output, common.choices, **plots)
            rows = _rows_of_results(task.output)
    return rows


def _rows_of_results(path: Path) -> tuple[Row, ...]:
    result, empty_frames, warnings = read_summary(path)
    return () if result is None else tuple(table_rows(result, empty_frames, warnings))


def remove_incomplete(tasks: Iterable[FileTask]) -> None:
    """Delete incomplete files of killed processes."""
    for task in tasks:
        if task.output.parent.is_dir():
            remove_leftovers(task.output)


@dataclass(frozen=True)
class FileOutcome:
    """Outcome of a file.

    Attributes:
      file: the file of frames.
      output: the file of results.
      status: "done", "skipped" (results of the same file and arguments exist) or "failed".
      rerun_reason: reason for which existing results were replaced; "" if there were none.
      error: error of the last attempt; "" unless it failed.
      rows: rows of the table, one for each bin.

    Example:
      >>> import pathlib, jaxkern as jk
      >>> path = pathlib.Path("run1.h5")
      >>> print(jk.xpcs.FileOutcome(path, path.with_suffix(".hdf"), "failed", error="truncated"))
      run1.h5: failed: truncated
    """

    file: Path
    output: Path
    status: str
    rerun_reason: str = ""
    error: str = ""
    rows: tuple[Row, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        if self.status == "skipped":
            return f"{self.file}: {self.output} is finished, skipped"
        reason = f" (rerun: {self.rerun_reason})" if self.rerun_reason else ""
        if self.status == "failed":
            return f"{self.file}: failed: {self.error}{reason}"
        return f"{self.file}: wrote {self.output}{reason}"


@dataclass(frozen=True)
class CorrelatedFiles:
    """Result of `correlate_files`; its `repr` is a table.

    Attributes:
      outcomes: outcome of each file, in the order of the files.

    Example:
      >>> import pathlib, jaxkern as jk
      >>> path = pathlib.Path("run1.h5")
      >>> outcome = jk.xpcs.FileOutcome(path, path.with_suffix(".hdf"), "failed", error="truncated")
      >>> files = jk.xpcs.CorrelatedFiles((outcome,))
      >>> files.count("failed"), files.errors[path]
      (1, 'truncated')
    """

    outcomes: tuple[FileOutcome, ...]

    @property
    def table(self) -> list[Row]:
        """A row for each file and bin; a failed file has one row with its error."""
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
        """Warnings about bins or pixels, by file."""
        texts = {o.file: o.rows[0].get("warnings") for o in self.outcomes if o.rows}
        return {path: text for path, text in texts.items() if text}

    @property
    def errors(self) -> dict[Path, str]:
        """The error of the last attempt, for each file that failed."""
        return {o.file: o.error for o in self.outcomes if o.status == "failed"}

    def count(self, status: str) -> int:
        """Return the number of files that are "done", "skipped" or "failed"."""
        return sum(outcome.status == status for outcome in self.outcomes)

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the table as CSV or Parquet, depending on the path's suffix; return the path.

        Raises:
          ValueError: another suffix.
          ImportError: pyarrow is required for Parquet and not installed.
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
    groups: int = 0,
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
    """Correlate files of frames, each into a file of results, and summarize them in one table.

    Results are written atomically, with their provenance: name, size and time of the file, the map,
    the arguments and the version of jaxkern. A file whose results exist with the same provenance is
    skipped, so that an interrupted run can be resumed. Several processes may share a folder: each
    file is correlated by one of them.

    Args:
      files: paths, or a folder for all of its files with a known suffix, except files that end in
        ``_metadata.hdf``, the map, and the metadata.
      qmap: the bins of the pixels for all files, or the path of a map.
      folder: folder of the results, ``NAME.hdf`` for each file ``NAME.suffix``.
      dpl, normalize, bad_frames, begin, end, stride, average: for each file, see `multitau`.
      intensity_cut, bins, parts, groups, frame_time, hot_pixels: for each file, see `multitau`.
      mask, blemish: [H, W], true where a pixel is good, or paths of such files, see `read_mask`.
      twotime: form of two-time correlations, see `twotime`; None to compute g2 only. With a form,
        `bins` are the bins with two-time correlations.
      smoothing: see `twotime`.
      dataset: data set of HDF5 files, see `open_frames`.
      metadata: a ``*_metadata.hdf`` for all files, see `write_results`.
      plots: folder with a folder of plots for each file; a file without its plots is not finished.
      plot_all: see `plot_correlations`.
      engine: None for one file at a time in this process; "dask" for the workers of a
        dask.distributed cluster, with one file at a time on each and the threads of the worker; or
        a `distributed.Client`. Paths must be the same on all machines.
      scheduler: for "dask", the address of a scheduler or the file that it wrote; None for a
        cluster of local processes.
      workers: number of local processes.
      retries: how many times a failed file is retried.
      force: correlate all files, and replace existing files.
      progress: show a progress bar on the terminal.
      shown: called with the outcome of each file.

    Returns:
      A `CorrelatedFiles`. Failed files are in its `errors`.

    Raises:
      FileNotFoundError: a file, or the map, does not exist.
      FileExistsError: another file has the name of a file of results, without `force`.
      ValueError: two files with the same name of results, invalid arguments, or an invalid map.
      ConnectionError: the cluster's scheduler did not respond for 30 s.
      ImportError: "dask" without `distributed`: ``pip install 'jaxkern-native[dask]'``.

    Example:
      >>> import numpy as np, pathlib, tempfile
      >>> import jaxkern as jk
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> for k in range(2):
      ...     frames = np.random.default_rng(k).poisson(1.0, (40, 4, 4)).astype("u1")
      ...     np.save(folder / f"run{k}.npy", frames)
      >>> qmap = jk.xpcs.QMap(np.ones((4, 4), int), q=[0.01])
      >>> results = jk.xpcs.correlate_files(folder, qmap, folder / "results")
      >>> [(row["status"], row["bin"], row["frames"]) for row in results.table]
      [('done', 1, 40), ('done', 1, 40)]
      >>> results = jk.xpcs.correlate_files(folder, qmap, folder / "results")
      >>> results.count("skipped"), results.write(folder / "table.csv").name
      (2, 'table.csv')
    """
    if metadata is not None:
        metadata = home_path(metadata).absolute()  # workers have other working directories
    selection: Any = (dpl, normalize, bad_frames, begin, end, stride, average, intensity_cut)
    options: Any = (
        hot_pixels,
        bins,
        parts,
        twotime,
        smoothing,
        frame_time,
        dataset,
        metadata,
        groups,
    )
    choices = CorrelationChoices(*selection, *options)
    check_integer("retries", retries, 0)
    runner = choose_engine(engine, scheduler, workers)
    paths = (qmap, mask, blemish, choices.metadata)
    inputs = [home_path(x).absolute() for x in paths if isinstance(x, str | os.PathLike)]
    qmap = masked_map(qmap if isinstance(qmap, QMap) else QMap.read(inputs[0]), mask, blemish)
    choices.check(qmap)
    tasks = file_tasks(files, inputs, folder, plots)
    common = CommonChoices(choices, qmap, force, plot_all, choices.provenance(qmap))
    before = {task.output: common.check_finished(task) for task in tasks}
    pending = [task for task in tasks if isinstance(before[task.output], str)]
    outcomes: dict[Path, FileOutcome] = {}
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(ProgressBar(progress, "correlating", "file"))
        bar.update(0, len(tasks))

        def on_outcome(outcome: FileOutcome) -> None:
            outcomes[outcome.output] = outcome
            bar.update(len(outcomes), text=f"correlating, last {outcome.file.name}")
            if shown is not None:
                shown(outcome)

        for task in tasks:
            if not isinstance(rows := before[task.output], str):
                on_outcome(FileOutcome(task.file, task.output, "skipped", rows=rows))
        if pending:
            if engine is None or (isinstance(engine, str) and scheduler is None):
                # This runs after the end of all local processes.
                stack.callback(remove_incomplete, pending)
            run_all = stack.enter_context(runner)
            for task, result in run_all(run_task, pending, common, retries):
                failed = isinstance(result, BaseException)
                known: Any = {"error": describe_error(result)} if failed else {"rows": result}
                status, reason = "failed" if failed else "done", str(before[task.output])
                on_outcome(FileOutcome(task.file, task.output, status, reason, **known))
    return CorrelatedFiles(tuple(outcomes[task.output] for task in tasks))


def describe_error(error: BaseException) -> str:
    known = isinstance(error, ValueError | OSError | MemoryError | ImportError) and str(error)
    return str(error) if known else f"{type(error).__name__}: {error}"
