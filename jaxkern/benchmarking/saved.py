"""Measurements on disk, and what a new one shows against a saved one."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from pathlib import Path
from typing import Any

from jaxkern.benchmarking.environment import differences
from jaxkern.benchmarking.measurement import Measurement, from_dict, plain
from jaxkern.benchmarking.samples import LEAST_SAMPLES, Outcome, Ratio, ratio_of_medians
from jaxkern.core.arguments import check_number
from jaxkern.core.quantities import format_duration

DIRECTORY = Path("benchmark-results")
FORMAT = "jaxkern measurement, version 1"


def save(measured: Measurement, directory: str | Path = DIRECTORY) -> Path:
    """Writes ``<name>-<date and time>.json`` with every sample; returns its path.

    Args:
      measured: what `profile_fn` or `PipelineBenchmark` returned, or an arm of a comparison:
        ``save(found["arm"])``.

    Raises:
      TypeError: for anything else.

    Example:
      >>> import tempfile, jaxkern as jk
      >>> measured = jk.benchmarking.profile_fn(sum, (1, 2, 3), calls=5, seconds=0)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     jk.benchmarking.load(jk.benchmarking.save(measured, folder)).name
      'sum'
    """
    if not isinstance(measured, Measurement):
        raise TypeError(
            f"measured is a {type(measured).__name__}; wanted a Measurement, which profile_fn and "
            'PipelineBenchmark return; an arm of a comparison is saved with save(found["arm"])'
        )
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    path = folder / f"{_file_name(measured.name)}-{now:%Y%m%dT%H%M%S%f}.json"
    record = {"format": FORMAT, **measured.as_dict()}
    path.write_text(json_text(record) + "\n")
    return path


def load(path: str | Path) -> Measurement:
    """Reads a measurement that `save` wrote.

    Raises:
      FileNotFoundError, ValueError: no such file, or one with something else in it.
    """
    path = Path(path)
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        return from_dict(record)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} holds no measurement that can be read: {error}") from error


def latest(name: str, directory: str | Path = DIRECTORY) -> Path:
    """The newest file that `save` wrote for a measurement of this name.

    Raises:
      FileNotFoundError: there is none.
    """
    return _saved(name, Path(directory))[-1]


def _saved(name: str, folder: Path) -> list[Path]:
    """The files of that name, the oldest first; at least one."""
    pattern = re.compile(re.escape(_file_name(name)) + r"-\d{8}T\d{12}\.json")
    found = sorted(path for path in folder.glob("*.json") if pattern.fullmatch(path.name))
    if not found:
        raise FileNotFoundError(f"no saved measurement of {name!r} in {folder}; save() writes one")
    return found


def json_text(record: Any) -> str:
    """A record as JSON; a number that is none (NaN, infinite) is null there.

    >>> json_text({"std": float("nan"), "shape": (2, 3)})
    '{"std": null, "shape": [2, 3]}'
    """
    return json.dumps(plain(record), allow_nan=False)


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-.") or "measurement"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a measurement shows against a baseline.

    Attributes:
      outcome: ``"faster"``, ``"slower"`` or ``"no difference shown"``.
      ratio: of the medians, now / baseline, with its bootstrap interval.
      same_machine: whether both were measured on a machine of the same description.
      notes: what else differs and bears on the outcome.
    """

    outcome: Outcome
    ratio: Ratio
    least_change: float
    same_machine: bool
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        level = f"{100 * self.ratio.confidence:.0f}% bootstrap interval of the ratio of medians"
        if self.ratio.samples < LEAST_SAMPLES:
            level = "ratio of medians"
        lines = [
            f"{self.outcome}: {self.ratio} times the baseline's time ({level}; "
            f"a change counts beyond {100 * self.least_change:.0f}%)"
        ]
        if not self.same_machine:
            lines.append("  another machine: this says nothing about a change of the code")
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


def compare_to_baseline(
    measured: Measurement,
    baseline: Measurement | str | Path,
    *,
    least_change: float = 0.05,
    confidence: float = 0.95,
) -> Verdict:
    """Whether a measurement is faster or slower than a saved one, beyond the noise of both.

    The samples of one process do not show how much processes differ from each other, hence
    ``least_change``: only an interval of the ratio that lies beyond it as a whole is a difference.
    Several saved runs show it: of a folder's runs on this machine, the median must lie beyond all.

    Args:
      baseline: a measurement, its file, or a folder: the newest there of the same name, and the
        runs before it for how much runs differ.

    Raises:
      FileNotFoundError, ValueError: no such baseline, or one of another kind; a negative or NaN
        ``least_change``.

    Example:
      >>> import jaxkern as jk
      >>> first = jk.benchmarking.profile_fn(sorted, list(range(1000)))
      >>> jk.benchmarking.compare_to_baseline(first, first).outcome
      'no difference shown'
    """
    least_change = check_number("least_change", least_change, 0)
    runs: list[Measurement] = []
    if not isinstance(baseline, Measurement):
        path = Path(baseline)
        runs = [load(p) for p in (_saved(measured.name, path) if path.is_dir() else [path])]
        baseline = runs[-1]
    if baseline.kind != measured.kind:
        raise ValueError(
            f"the baseline's samples are of one {baseline.kind} each and these of one "
            f"{measured.kind}; wanted two of a kind"
        )
    ratio = ratio_of_medians(
        measured.samples.seconds, baseline.samples.seconds, confidence=confidence
    )
    machine = differences(measured.environment, baseline.environment, "machine")
    # The date of a measurement differs always, and its name tells nothing of the work.
    notes = [*machine]
    for part in ("versions", "settings"):
        notes += differences(measured.environment, baseline.environment, part)
    if plain(measured.dimensions) != plain(baseline.dimensions):
        notes.append("the dimensions of the work differ: these are times of unequal work")
    if ratio.samples < LEAST_SAMPLES:
        notes.append(f"{ratio.samples} samples; {LEAST_SAMPLES} are the least that show anything")
    outcome = ratio.outcome(least_change)
    medians = [
        run.median
        for run in runs
        if not differences(run.environment, measured.environment, "machine")
    ]
    if outcome != "no difference shown" and len(medians) > 1:
        if min(medians) <= measured.median <= max(medians):
            outcome = "no difference shown"
            notes.append(
                f"the medians of {len(medians)} saved runs on this machine reach from "
                f"{format_duration(min(medians))} to {format_duration(max(medians))}, and this "
                "one is among them"
            )
    return Verdict(outcome, ratio, least_change, not machine, tuple(notes))
