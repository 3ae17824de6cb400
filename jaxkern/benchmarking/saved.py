"""Saved measurements, comparison with a saved baseline, and reports in Markdown."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxkern.benchmarking.measurement import (
    MIN_SAMPLES,
    Measurement,
    Outcome,
    Ratio,
    Resources,
    differences,
    plain,
    ratio_of_medians,
)
from jaxkern.core.arguments import check_number
from jaxkern.core.quantities import format_duration

DIRECTORY = Path("benchmark-results")
FORMAT = "jaxkern measurement, version 1"
_PARTS = ("machine", "versions", "settings")
_NONE: Outcome = "no difference shown"


def save(measured: Measurement, directory: str | Path = DIRECTORY) -> Path:
    """Write ``<name>-<date and time>.json`` with every sample, and return its path.

    ``measured`` is a result of `profile_fn` or `PipelineBenchmark`, or an arm of a comparison,
    ``comparison["arm"]``.

    Example:
      >>> import tempfile, jaxkern as jk
      >>> measured = jk.benchmarking.profile_fn(sum, (1, 2, 3), calls=5, seconds=0)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     jk.benchmarking.load(jk.benchmarking.save(measured, folder)).name
      'sum'
    """
    if not isinstance(measured, Measurement):
        got = type(measured).__name__
        raise TypeError(f"measured: expected a Measurement (or an arm of a comparison), got {got}")
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    path = folder / f"{_file_name(measured.name)}-{now:%Y%m%dT%H%M%S%f}.json"
    path.write_text(json_text({"format": FORMAT, **measured.as_dict()}) + "\n")
    return path


def load(path: str | Path) -> Measurement:
    """Read a measurement that `save` wrote; ValueError if the file has other content.

    Example:
      >>> import tempfile, jaxkern as jk
      >>> measured = jk.benchmarking.profile_fn(sum, (1, 2, 3), calls=5, seconds=0)
      >>> path = jk.benchmarking.save(measured, tempfile.mkdtemp())
      >>> jk.benchmarking.load(path).seconds == measured.seconds
      True
    """
    path = Path(path)
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        if record["format"] != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        del record["format"], record["figures"]
        used = record.pop("resources")
        record |= {name: tuple(record[name]) for name in ("seconds", "methodology")}
        return Measurement(**record, resources=None if used is None else Resources(**used))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} does not contain a measurement: {error!r}") from error


def _saved_files(name: str, folder: Path) -> list[Path]:
    pattern = re.compile(re.escape(_file_name(name)) + r"-\d{8}T\d{12}\.json")
    files = sorted(path for path in folder.glob("*.json") if pattern.fullmatch(path.name))
    if not files:
        raise FileNotFoundError(f"no saved measurement of {name!r} in {folder}; save() writes one")
    return files


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-.") or "measurement"


def json_text(record: Any) -> str:
    """Return a record as JSON, with null for NaN and infinity."""
    return json.dumps(plain(record), allow_nan=False)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The comparison of a measurement with a baseline.

    Attributes:
      outcome: ``"faster"``, ``"slower"`` or ``"no difference shown"``.
      ratio: ratio of the medians, now / baseline, with its bootstrap interval.
      least_change: relative change below which a difference is ignored.
      same_machine: True if both machines have the same description.
      notes: other differences that affect the outcome.
    """

    outcome: Outcome
    ratio: Ratio
    least_change: float
    same_machine: bool
    notes: tuple[str, ...]

    def __str__(self) -> str:
        level = "ratio of medians"
        if self.ratio.samples >= MIN_SAMPLES:
            level += f" and {self.ratio.confidence:.0%} bootstrap interval"
        ignored = f"changes below {self.least_change:.0%} are ignored"
        lines = [f"{self.outcome}: {self.ratio} times the baseline's time ({level}; {ignored})"]
        if not self.same_machine:
            lines.append("  another machine: this says nothing about changes of the code")
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


def compare_to_baseline(
    measured: Measurement,
    baseline: Measurement | str | Path,
    *,
    least_change: float = 0.05,
    confidence: float = 0.95,
) -> Verdict:
    """Test if a measurement differs from a saved one by more than the noise of both.

    There is a difference only if the entire interval of the ratio exceeds ``least_change``, and, if
    the baseline is a directory with several runs on this machine, the median is outside the range
    of their medians.

    Args:
      measured: new measurement.
      baseline: a measurement, its file, or a directory: its newest measurement of the same name.
      least_change: relative change below which a difference is ignored.
      confidence: coverage of the bootstrap interval.

    Raises:
      FileNotFoundError, ValueError: if the baseline does not exist or has samples of another kind,
        or ``least_change`` is negative or NaN.

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
        files = _saved_files(measured.name, path) if path.is_dir() else [path]
        runs = [load(file) for file in files]
        baseline = runs[-1]
    kinds = measured.kind, baseline.kind
    if kinds[0] != kinds[1]:
        raise ValueError(f"expected one kind of sample, got one per {kinds[0]} and per {kinds[1]}")
    paired = _are_paired(measured, baseline)
    seconds = measured.seconds, baseline.seconds
    ratio = ratio_of_medians(*seconds, paired=paired, confidence=confidence)
    notes = [d for p in _PARTS for d in differences(measured.environment, baseline.environment, p)]
    if plain(measured.dimensions) != plain(baseline.dimensions):
        notes.append("the dimensions differ: these are times of unequal work")
    if ratio.samples < MIN_SAMPLES:
        notes.append(f"{ratio.samples} samples are too few, at least {MIN_SAMPLES} are needed")
    outcome = ratio.outcome(least_change)
    medians = [run.median for run in runs if _same_machine(run, measured)]
    if outcome != _NONE and len(medians) > 1 and min(medians) <= measured.median <= max(medians):
        outcome = _NONE
        bounds = f"{format_duration(min(medians))} to {format_duration(max(medians))}"
        notes.append(f"the median is among those of {len(medians)} saved runs here, {bounds}")
    same_machine = _same_machine(measured, baseline)
    return Verdict(outcome, ratio, least_change, same_machine, tuple(notes))


def _same_machine(a: Measurement, b: Measurement) -> bool:
    return not differences(a.environment, b.environment, "machine")


def _are_paired(a: Measurement, b: Measurement) -> bool:
    return bool(a.rounds) and a.rounds == b.rounds


def report(
    before: Measurement,
    after: Measurement,
    *,
    title: str | None = None,
    dimensions: Mapping[str, Any] | None = None,
    methodology: Sequence[str] = (),
    path: str | Path | None = None,
) -> str:
    """Return Markdown with the environment, dimensions, before, after, speedup and methodology.

    Args:
      before, after: two arms of a `Comparison`, two profiles, or two results of pipelines.
      title: first heading.
      dimensions, methodology: size of the work, and sentences, to add to those of the measurements.
      path: file to write the report to.

    Raises:
      ValueError: if the measurements are of different kinds.

    Example:
      >>> import jax.numpy as jnp, jaxkern as jk
      >>> arms = {"sum": jnp.sum, "dot": lambda x: jnp.dot(x, jnp.ones_like(x))}
      >>> comparison = jk.benchmarking.compare(arms, jnp.ones(8), rounds=5)
      >>> print(jk.benchmarking.report(comparison["dot"], comparison["sum"]).splitlines()[0])
      # dot against sum
    """
    verdict, where = compare_to_baseline(after, before, least_change=0), after.environment
    lines = [f"# {title or f'{before.name} against {after.name}'}", "", "## Environment", ""]
    lines.append(f"- date: {where.get('date')}")
    for part in _PARTS:
        shown = {k: v for k, v in where.get(part, {}).items() if v not in ("", None)}
        lines.append(f"- {part}: {_inline(shown)}")
    if before.environment != where:
        lines.append(f"- measured separately: before on {before.environment.get('date')}")
    sizes = {**before.dimensions, **after.dimensions, **(dimensions or {})}
    lines += ["", "## Dimensions", ""]
    lines += [f"- {name}: {_inline(value)}" for name, value in sizes.items()] or ["- not specified"]
    for heading, measured in (("Before", before), ("After", after)):
        lines += ["", f"## {heading}: {measured.name}", "", *_table(measured)]
    speedup, interval, bootstrap = verdict.ratio.inverse, "", ""
    if speedup.samples >= MIN_SAMPLES:
        bounds = f"{speedup.low:.3g} to {speedup.high:.3g}"
        interval = f" ({speedup.confidence:.0%} interval {bounds})"
        pairs = (
            "rounds drawn in pairs" if _are_paired(after, before) else "both drawn independently"
        )
        bootstrap = f" with a percentile bootstrap interval, {pairs}"
    words = "not shown to differ" if verdict.outcome == _NONE else verdict.outcome
    lines += ["", "## Speedup", ""]
    lines.append(f"**{speedup.value:.3g}x**{interval}: {after.name} is {words}.")
    notes = list(verdict.notes)
    if not verdict.same_machine:
        notes.insert(0, "another machine: this says nothing about changes of the code")
    lines += ["", *(f"- **{note}**" for note in notes)] if notes else []
    lines += ["", "## Methodology", ""]
    sentences = dict.fromkeys([*before.methodology, *after.methodology, *methodology])
    lines += [f"- {sentence}" for sentence in sentences]
    lines.append(f"- The speedup is a ratio of medians{bootstrap}.")
    text = "\n".join(lines) + "\n"
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
    return text


def _inline(value: Any) -> str:
    is_mapping = isinstance(value, Mapping)
    return ", ".join(f"{k} {v}" for k, v in value.items()) if is_mapping else str(value)


def _table(measured: Measurement) -> list[str]:
    rows = measured.described()
    if measured.resources is not None:
        scope = " (all arms)" if measured.kind == "arm" else ""
        rows[f"resources{scope}"] = str(measured.resources)
    return ["| | |", "|---|--:|", *(f"| {name} | {value} |" for name, value in rows.items())]
