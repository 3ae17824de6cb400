"""Fits of many data sets: q rings, scans and time windows, to one table."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pickle
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxkern.core.arguments import check_integer
from jaxkern.core.paths import home_path, lock_output, natural_order
from jaxkern.core.progress import ProgressBar
from jaxkern.core.tables import Row, Table
from jaxkern.core.tasks import choose_engine
from jaxkern.core.version import __version__
from jaxkern.xpcs.analysis.many import describe_error
from jaxkern.xpcs.analysis.run import fit_measurement, open_measurement, time_step
from jaxkern.xpcs.analysis.settings import Config
from jaxkern.xpcs.files.aps import ApsFile
from jaxkern.xpcs.files.prepare import frame_window
from jaxkern.xpcs.files.provenance import file_stamp
from jaxkern.xpcs.fitting.fit import fit
from jaxkern.xpcs.fitting.options import StreamingOptions
from jaxkern.xpcs.fitting.result import FitResult, load_result, save_result
from jaxkern.xpcs.model.models import Geometry, Model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SCALES = ("contrast", "offset")


class FitTask(NamedTuple):
    """A data set: its labels, folder of results or None, (model, data) or settings, provenance."""

    name: str
    labels: Mapping[str, Any]
    folder: Path | None
    source: tuple[Model, Any] | Config
    provenance: Mapping[str, Any] | None


@dataclass(frozen=True)
class FitOutcome:
    """Outcome of a data set.

    Attributes:
      name: of the data set.
      labels: its q, age, or others.
      status: "done", "skipped" (results of the same data and arguments exist) or "failed" (an
        error; a fit that ended without success is "done").
      error: error of the last attempt; "" unless it failed.
      row: parameters, errors, and the quality of the fit.

    Example:
      >>> import jaxkern as jk
      >>> print(jk.xpcs.FitOutcome("run1", {"q": 0.005}, "failed", error="no data"))
      run1: failed: no data
    """

    name: str
    labels: Mapping[str, Any]
    status: str
    error: str = ""
    row: Row = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        message = self.error or self.row.get("message", "")
        if self.status == "done" and not self.row.get("success"):
            return f"{self.name}: the fit did not succeed: {message}"
        return f"{self.name}: {self.status}" + (f": {message}" if self.error else "")


@dataclass(frozen=True, eq=False)
class ManyFits(Table):
    """Result of `fit_many`.

    Attributes:
      outcomes: outcome of each data set, in order.

    Example:
      >>> import jaxkern as jk
      >>> outcomes = tuple(jk.xpcs.FitOutcome(f"run{k}", {"q": 0.005}, "done") for k in range(2))
      >>> jk.xpcs.ManyFits(outcomes).count("done")
      2
    """

    outcomes: tuple[FitOutcome, ...]

    @property
    def table(self) -> list[Row]:
        """A row for each data set: labels, parameters and errors, chi2, success and message."""
        return [
            {"data": o.name, **o.labels, "status": o.status, "success": False, **o.row}
            | ({"message": o.error} if o.error else {})
            for o in self.outcomes
        ]

    @property
    def params(self) -> dict[str, np.ndarray]:
        """Name -> [n] values of the data sets, NaN where there are none."""
        return self._columns("")

    @property
    def errors(self) -> dict[str, np.ndarray]:
        """Name -> [n] standard errors, NaN where there are none."""
        return self._columns("_err")

    @property
    def success(self) -> np.ndarray:
        """[n] True where the fit succeeded."""
        return np.array([bool(row["success"]) for row in self.table])

    @property
    def compilations(self) -> int:
        """Number of data sets for whose fit a program was compiled."""
        return sum(o.row.get("compile_seconds", 0) > 0 for o in self.outcomes if o.status == "done")

    def count(self, status: str) -> int:
        """Return the number of data sets that are "done", "skipped" or "failed"."""
        return sum(outcome.status == status for outcome in self.outcomes)

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the table as Parquet if the path ends in .parquet, else as CSV; return the path."""
        path = home_path(path)
        return self.to_parquet(path) if path.suffix.lower() == ".parquet" else self.to_csv(path)

    def plot(self, path: str | Path | None = None, against: str | None = None) -> Figure:
        """Plot the physics parameters, and save the figure if a path is given.

        Args:
          path: of the figure.
          against: a label; by default the first one with several values, or else the number of the
            data set. Other labels of numbers with several values become series. Fits without
            success are drawn as hollow symbols.
        """
        from matplotlib.figure import Figure

        labels = self._labels()
        # A file that cannot be read has no labels.
        used = [k for k, outcome in enumerate(self.outcomes) if {*labels} <= {*outcome.labels}]
        rows = [self.table[k] for k in used]
        varying = [name for name in labels if len({row[name] for row in rows}) > 1]
        numbers = (int, float, np.integer, np.floating)
        numeric = [n for n in varying if all(isinstance(r[n], numbers) for r in rows)]
        if against is not None and against not in numeric:
            raise ValueError(
                f"against: expected a label of different numbers, {', '.join(numeric) or 'none'}, "
                f"got {against!r}"
            )
        axis = against or next(iter(numeric), None)
        x = np.array(used) + 1 if axis is None else np.array([r[axis] for r in rows])
        others = [name for name in numeric if name != axis]
        keys = [tuple(row[name] for name in others) for row in rows]
        params, errors = ({n: v[used] for n, v in c.items()} for c in (self.params, self.errors))
        good = self.success[used]
        names = [name for name in params if not name.startswith(_SCALES)] or list(params)
        columns = min(3, max(len(names), 1))
        lines = max(-(-len(names) // columns), 1)
        figure = Figure(figsize=(3.6 * columns, 2.6 * lines), layout="constrained")
        for k, name in enumerate(names):
            axes = figure.add_subplot(lines, columns, k + 1)
            for number, key in enumerate(dict.fromkeys(keys)):
                series = np.array([other == key for other in keys]) & np.isfinite(params[name])
                label = ", ".join(f"{n} {v:.4g}" for n, v in zip(others, key, strict=True))
                for chosen, style in ((series & good, {}), (series & ~good, {"mfc": "none"})):
                    error = np.where(np.isfinite(errors[name]), errors[name], 0.0)[chosen]
                    axes.errorbar(
                        x[chosen], params[name][chosen], error, fmt="o", ms=4, lw=0.8,
                        color=f"C{number % 10}", label=None if style else label, **style,
                    )  # fmt: skip
            axes.set(xlabel=axis or "data set", ylabel=name)
            if others and k == 0 and len(set(keys)) <= 10:
                axes.legend(frameon=False, fontsize=7)
        if path is not None:
            figure.savefig(path)
        return figure

    def _labels(self) -> list[str]:
        return list(dict.fromkeys(name for o in self.outcomes for name in o.labels))

    def _columns(self, suffix: str) -> dict[str, np.ndarray]:
        rows = [outcome.row for outcome in self.outcomes]
        names = dict.fromkeys(n.removesuffix("_err") for r in rows for n in r if n.endswith("_err"))
        return {n: np.array([r.get(n + suffix, np.nan) for r in rows], float) for n in names}

    def __repr__(self) -> str:
        counts = ", ".join(f"{self.count(s)} {s}" for s in ("done", "skipped", "failed"))
        text = f"{len(self.outcomes)} data sets: {counts}; {self.success.sum()} fits succeeded"
        bad = [str(o) for o, ok in zip(self.outcomes, self.success, strict=True) if not ok]
        return "\n  ".join([text, *bad])


def fit_many(
    data: Mapping[str, Any] | Iterable[Any],
    model: Model | Sequence[Model],
    *,
    labels: Mapping[str, Sequence[Any]] | None = None,
    output: str | os.PathLike[str] | None = None,
    engine: Any = None,
    scheduler: str | None = None,
    workers: int | None = None,
    retries: int = 1,
    force: bool = False,
    progress: bool = True,
    shown: Callable[[FitOutcome], None] | None = None,
    **options: Any,
) -> ManyFits:
    """Fit a model to many data sets, each with its own parameters, and return one table.

    Models of equal type and shape share one compiled program, whatever their q, angles and times.
    A fit that does not succeed is repeated with ``search="wide"``, and the better one is kept.

    Args:
      data: name -> data, or a list of data; see `fit`. Paths are named by their stem, others by
        their number.
      model: for all data sets, or one for each, such as one for each q.
      labels: name -> values of the data sets for the table and for plots, such as the age in s. By
        default "q" of the geometries.
      output: folder with a folder of results for each data set, by which the same call resumes: a
        data set with results of the same data, model and arguments is skipped. Open files are
        fitted again; the functions of custom models are not compared. None to save nothing.
      engine, scheduler, workers: see `correlate_files`.
      retries: how many times a data set that raised an error is retried.
      force: fit data sets again whose results exist.
      progress: True for a progress bar on a terminal.
      shown: called with the outcome of each data set.
      **options: of `fit`, for all data sets.

    Returns:
      `ManyFits`. Data sets that raised an error are in its table.

    Raises:
      ValueError: for repeated names, no data, and another number of models or labels.

    Example:
      >>> import jaxkern as jk, numpy as np
      >>> models = [jk.xpcs.Static(jk.xpcs.Geometry(q, None, .1, .1 * np.arange(40), 0.))
      ...           for q in (.004, .006)]
      >>> noise = np.random.default_rng(0).normal(size=(1, 40, 40)) * 0.01
      >>> data = [jk.xpcs.simulate(m, [2e4, 0.2, 50.], 0.3, 1.0) + noise for m in models]
      >>> fits = jk.xpcs.fit_many(data, models, search="local")
      >>> fits.params["D0"].shape, [row["q"] for row in fits.table]
      ((2,), [0.004, 0.006])
    """
    if isinstance(data, Mapping):
        sets = {str(name): value for name, value in data.items()}
    else:
        items = list(data)
        names = [
            Path(item).stem if isinstance(item, str | os.PathLike) else str(k)
            for k, item in enumerate(items, 1)
        ]
        sets = dict(zip(names, items, strict=True))
        if len(sets) < len(items):
            raise ValueError(f"data: expected different names, got {names}; pass a mapping")
    if not sets:
        raise ValueError("data: expected at least one data set")
    for name in sets if output is not None else ():
        if Path(name).name != name or name in ("", ".."):
            raise ValueError(f"data: expected names of folders in {output}, got {name!r}")
    models = [model] * len(sets) if isinstance(model, Model) else list(model)
    columns = {"q": [m.geometry.q for m in models]} | dict(labels or {})
    for what, values in (("model", models), *columns.items()):
        if len(values) != len(sets):
            raise ValueError(f"{what}: expected {len(sets)}, one per data set, got {len(values)}")
    folder = None if output is None else home_path(output).absolute()
    digest = "" if folder is None else _digest(options)
    tasks = []
    for k, (name, value) in enumerate(sets.items()):
        provenance = None
        if folder is not None:
            provenance = {
                "data": _stamp(value), "model": _model_digest(models[k]), "options": digest,
                "jaxkern": __version__,
            }  # fmt: skip
        own = {label: values[k] for label, values in columns.items()}
        where = None if folder is None else folder / name
        tasks.append(FitTask(name, own, where, (models[k], value), provenance))
    return _fit_all(tasks, options, engine, scheduler, workers, retries, force, progress, shown)


def fit_files(
    config: Config,
    files: Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    rings: bool = False,
    windows: int = 1,
    engine: Any = None,
    scheduler: str | None = None,
    workers: int | None = None,
    retries: int = 1,
    force: bool = False,
    progress: bool = True,
    shown: Callable[[FitOutcome], None] | None = None,
) -> ManyFits:
    """Fit files with the same settings, see `fit_many`.

    Args:
      config: settings; each file replaces `data_files.file`.
      files: paths of the data files.
      output: folder with a folder of results for each file, ring and window.
      rings: True to fit each q of a file.
      windows: number of equal windows of the frames that are fitted separately. The label "age" is
        the time of their middle in s, from the first frame of the file.
      engine, scheduler, workers, retries, force, progress, shown: see `fit_many`.
    """
    check_integer("windows", windows, 1)
    ordered = natural_order(str(home_path(file).absolute()) for file in files)
    tasks: dict[str, FitTask] = {}
    unreadable: dict[str, Exception] = {}
    for number, file in enumerate(ordered, 1):
        replaced = dataclasses.replace(config.data_files, file=file)
        try:
            parts = _parts(dataclasses.replace(config, data_files=replaced), rings, windows)
        except (OSError, ValueError) as error:
            unreadable[Path(file).stem] = error
            continue
        for name, labels, settings in parts:
            if name in tasks:
                raise ValueError(f"files: expected different names, got {name} twice")
            labels = {**labels, "file": number} if len(ordered) > 1 else labels
            provenance = {
                "file": file_stamp(Path(file)),
                "jaxkern": __version__,
                "settings": {**dataclasses.asdict(settings), "output": None},
            }
            folder = home_path(output).absolute() / name
            tasks[name] = FitTask(name, labels, folder, settings, provenance)
    if not tasks:
        raise next(iter(unreadable.values()), ValueError("files: expected at least one data file"))
    failed = [
        FitOutcome(name, {}, "failed", describe_error(error)) for name, error in unreadable.items()
    ]
    if shown is not None:
        for outcome in failed:
            shown(outcome)
    rest = (engine, scheduler, workers, retries, force, progress, shown)
    fits = _fit_all(list(tasks.values()), {}, *rest)
    return ManyFits((*fits.outcomes, *failed))


def _parts(config: Config, rings: bool, windows: int) -> list[tuple[str, dict[str, Any], Config]]:
    """Return name, labels and settings of the rings and windows of a file."""
    files, frames = config.data_files, config.analysis.frames
    path = Path(files.file)
    with ApsFile(path, None if files.layout == "auto" else files.layout) as file:
        values, n_t = np.unique(file.q), file.shape[1]
        dt = time_step(config.experiment, file.dt, path)[0]
        tolerance = 1e-6 if file.layout == "aps-u" else files.q_tolerance
    choices: list[float | None] = [files.q]
    if rings:
        groups: list[list[float]] = []
        for q in values.tolist():
            if groups and q <= groups[-1][0] * (1 + tolerance):
                groups[-1].append(q)
            else:
                groups.append([q])
        choices = [float(np.mean(group)) for group in groups]
    start, stop = frame_window(n_t, frames.start, frames.end)
    size = (stop - start) // windows
    if size < 2:
        raise ValueError(f"windows: expected at least 2 frames each, got {stop - start} frames")
    parts = []
    for q in choices:
        for k in range(windows):
            name, labels, first = path.stem, {}, start + k * size
            chosen = config
            if q is not None:
                labels["q"] = q
                chosen = dataclasses.replace(chosen, data_files=dataclasses.replace(files, q=q))
            if rings:
                name += f"-q{q:.6g}"
            if windows > 1:
                name += f"-frames{first + 1}-{first + size}"
                labels["age"] = (first + (size - 1) / 2) * dt
                window = dataclasses.replace(frames, start=first + 1, end=first + size)
                analysis = dataclasses.replace(config.analysis, frames=window)
                chosen = dataclasses.replace(chosen, analysis=analysis)
            parts.append((name, labels, chosen))
    return parts


def _fit_all(
    tasks: Sequence[FitTask],
    options: Mapping[str, Any],
    engine: Any,
    scheduler: str | None,
    workers: int | None,
    retries: int,
    force: bool,
    progress: bool,
    shown: Callable[[FitOutcome], None] | None,
) -> ManyFits:
    check_integer("retries", retries, 0)
    outcomes: dict[str, FitOutcome] = {}
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(ProgressBar(progress, "fitting", "data set"))
        bar.update(0, len(tasks))

        def add(task: FitTask, status: str, **known: Any) -> None:
            outcomes[task.name] = FitOutcome(task.name, task.labels, status, **known)
            bar.update(len(outcomes), text=f"fitting, last {task.name}")
            if shown is not None:
                shown(outcomes[task.name])

        pending = []
        for task in tasks:
            row = None if force else _finished(task)
            if row is None:
                pending.append(task)
            else:
                add(task, "skipped", row=row)
        if pending:
            run_all = stack.enter_context(choose_engine(engine, scheduler, workers))
            for task, result in run_all(run_fit, pending, (dict(options), force), retries):
                if isinstance(result, BaseException):
                    add(task, "failed", error=describe_error(result))
                else:
                    add(task, "done", row=result)
    return ManyFits(tuple(outcomes[task.name] for task in tasks))


def run_fit(task: FitTask, common: tuple[dict[str, Any], bool]) -> Row:
    """Fit a data set, here or on a worker, save its results and return its row."""
    options, force = common
    if task.folder is None:
        return _row(*_fit_twice(task, options)[:2])
    with lock_output(task.folder / "results.json"):
        row = None if force else _finished(task)  # by another process
        if row is None:
            result, repeated, geometry = _fit_twice(task, options)
            settings = task.source if isinstance(task.source, Config) else None
            save_result(
                task.folder, result, geometry,
                None if settings is None else dataclasses.asdict(settings),
                {**(task.provenance or {}), "repeated": repeated},
            )  # fmt: skip
            row = _row(result, repeated)
    return row


def _fit_twice(task: FitTask, options: dict[str, Any]) -> tuple[FitResult, bool, Geometry]:
    """Fit, and again with a wide search without success; the better result, and if it was so.

    Data sets and searches have separate checkpoints, which may be used at the same time.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", ".* are excluded", RuntimeWarning)  # the result has it
        if isinstance(task.source, Config):
            config = task.source
            measurement = stack.enter_context(open_measurement(config))
            geometry, search = measurement.model.geometry, config.optimization.search

            def attempt(search: Any) -> FitResult:
                streaming = config.optimization.streaming
                parent = streaming.checkpoint_dir or (task.folder or Path()) / "checkpoints"
                own = str(Path(parent) / f"{task.name}-{search}")
                streaming = dataclasses.replace(streaming, checkpoint_dir=own)
                how = dataclasses.replace(config.optimization, search=search, streaming=streaming)
                chosen = dataclasses.replace(config, optimization=how)
                return fit_measurement(chosen, measurement, task.folder or ".", progress=False)
        else:
            model, data = task.source
            geometry, search = model.geometry, options.get("search", "auto")

            def attempt(search: Any) -> FitResult:
                streaming = options.get("streaming") or StreamingOptions()
                own = Path(streaming.checkpoint_dir) / f"{task.name}-{search}"
                streaming = dataclasses.replace(streaming, checkpoint_dir=own)
                changed = {"search": search, "streaming": streaming, "progress": False}
                return fit(model, data, **{**options, **changed})

        result = attempt(search)
        repeated = not result.success and search != "wide"
        if repeated:
            result = min(attempt("wide"), result, key=lambda r: (not r.success, r.cost))
        return result, repeated, geometry


def _row(result: FitResult, repeated: bool) -> Row:
    values = zip(result.names, result.popt.tolist(), result.perr.tolist(), strict=True)
    row: Row = {}
    for name, value, error in values:
        row |= {name: value, f"{name}_err": error}
    return row | {
        "chi2": result.chi2,
        "reduced_chi2": result.reduced_chi2,
        "passes": result.nfev,
        "repeated": repeated,
        "compile_seconds": result.timings.compile,
        "success": result.success,
        "message": result.message,
    }


def _finished(task: FitTask) -> Row | None:
    """Return the row of saved results of the same data and arguments, or None."""
    if task.folder is None or not (task.folder / "results.json").exists():
        return None
    try:
        summary, arrays = load_result(task.folder)
        stored = dict(summary.get("provenance") or {})
        repeated = stored.pop("repeated", False)
        if stored != json.loads(json.dumps(task.provenance)):
            return None
        row: Row = {}
        columns = (arrays[name].tolist() for name in ("names", "popt", "perr"))
        for name, value, error in zip(*columns, strict=True):
            row |= {name: value, f"{name}_err": error}
        same = {name: summary[name] for name in ("chi2", "reduced_chi2", "success", "message")}
        same |= {"passes": summary["nfev"], "repeated": repeated}
        same["compile_seconds"] = summary["timings"]["compile"]
    except (ValueError, KeyError, OSError):  # damaged or foreign
        return None
    return row | same


def _stamp(data: Any) -> Any:
    """Return the stamp of a file, or the digest of numbers; other data differ in every call."""
    return file_stamp(Path(data)) if isinstance(data, str | os.PathLike) else _digest(data)


def _model_digest(model: Model) -> str:
    settings = (model.parameters, model.shear_power, model.columns_A, model.columns_X)
    return _digest((type(model).__name__, pickle.dumps(model.geometry), settings))


def _digest(value: Any) -> str:
    code = hashlib.blake2b(digest_size=16)
    if hasattr(value, "__array__"):
        array = np.ascontiguousarray(value)
        code.update(f"{array.shape} {array.dtype}".encode())
        code.update(array.reshape(-1).view(np.uint8).data)
    else:
        try:
            code.update(pickle.dumps(value))
        except Exception:  # pickle's errors have no common class
            code.update(os.urandom(16))  # such as an open file: never equal
    return code.hexdigest()
