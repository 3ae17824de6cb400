"""``report``: a before and an after as Markdown that says all one must know to believe it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxkern.benchmarking.environment import differences
from jaxkern.benchmarking.measurement import Measurement, plain
from jaxkern.benchmarking.samples import LEAST_SAMPLES, ratio_of_medians
from jaxkern.core.quantities import format_duration


def report(
    before: Measurement,
    after: Measurement,
    *,
    title: str | None = None,
    dimensions: Mapping[str, Any] | None = None,
    methodology: Sequence[str] = (),
    path: str | Path | None = None,
) -> str:
    """Markdown with the sections environment, dimensions, before, after, speedup, methodology.

    Args:
      before, after: two arms of a `Comparison`, two profiles, or two results of pipelines; one of
        them may come from `load`.
      dimensions: of the work, beside those that the measurements know.
      methodology: sentences to add to the measurements' own.
      path: also written there.

    Raises:
      ValueError: measurements of different kinds.

    Example:
      >>> import jax.numpy as jnp, jaxkern as jk
      >>> ways = {"sum": jnp.sum, "dot": lambda x: jnp.dot(x, jnp.ones_like(x))}
      >>> found = jk.benchmarking.compare(ways, jnp.ones(8), rounds=5)
      >>> print(jk.benchmarking.report(found["dot"], found["sum"]).splitlines()[0])
      # dot against sum
    """
    if before.kind != after.kind:
        raise ValueError(
            f"before is of one {before.kind} a sample and after of one {after.kind}; wanted two "
            "measurements of a kind"
        )
    paired = bool(before.rounds) and before.rounds == after.rounds
    ratio = ratio_of_medians(after.samples.seconds, before.samples.seconds, paired=paired)
    sizes = {**before.dimensions, **after.dimensions, **(dimensions or {})}
    together = paired or (before.environment == after.environment)
    lines = [f"# {title or f'{before.name} against {after.name}'}", "", "## Environment", ""]
    lines += _environment(after.environment)
    if not together:
        changed = [
            difference
            for part in ("machine", "versions", "settings")
            for difference in differences(after.environment, before.environment, part)
        ]
        lines += [f"- measured apart: before {before.environment.get('date')}"]
        lines += [f"- **differs from before**: {difference}" for difference in changed]
    lines += ["", "## Dimensions", ""]
    lines += [f"- {name}: {_plain(value)}" for name, value in sizes.items()] or ["- not given"]
    if plain(before.dimensions) != plain(after.dimensions):
        lines += ["- **the dimensions of before and after differ**"]
    for heading, measured in (("Before", before), ("After", after)):
        lines += ["", f"## {heading}: {measured.name}", "", *_table(measured)]
    lines += ["", "## Speedup", ""]
    shown = ratio.samples >= LEAST_SAMPLES
    interval = (
        f"{100 * ratio.confidence:.0f}% interval {ratio.inverse.low:.3g} to "
        f"{ratio.inverse.high:.3g}"
        if shown
        else f"{ratio.samples} samples, too few for an interval"
    )
    lines += [
        f"**{ratio.inverse.value:.3g}x** ({interval}): {after.name} is {_words(ratio.outcome())}.",
        "",
        "## Methodology",
        "",
    ]
    said = dict.fromkeys([*before.methodology, *after.methodology, *methodology])
    lines += [f"- {sentence}" for sentence in said]
    how = "rounds drawn in pairs" if paired else "both drawn independently"
    interval = f" with a percentile bootstrap interval, {how}" if shown else ""
    lines += [f"- The speedup is a ratio of medians{interval}."]
    text = "\n".join(lines) + "\n"
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
    return text


def _words(outcome: str) -> str:
    return "not shown to differ" if outcome == "no difference shown" else outcome


def _environment(found: Mapping[str, Any]) -> list[str]:
    machine, versions = found.get("machine", {}), found.get("versions", {})
    settings = {k: v for k, v in found.get("settings", {}).items() if v not in ("", None)}
    return [
        f"- date: {found.get('date')}",
        f"- machine: {_plain(machine)}",
        f"- versions: {_plain(versions)}",
        f"- settings: {_plain(settings)}",
    ]


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {inner}" for name, inner in value.items())
    return str(value)


def _table(measured: Measurement) -> list[str]:
    figures = measured.figures()
    rows = [("samples", str(figures["count"]))]
    rows += [
        (n, format_duration(figures[n])) for n in ("median", "mean", "std", "min", "max", "p90")
    ]
    for name in ("examples_per_second", "batches_per_second"):
        if name in figures:
            rows.append((name, f"{figures[name]:,.1f}"))
    if "compile_seconds" in figures:
        rows.append(("compile", format_duration(figures["compile_seconds"])))
    if measured.resources is not None:
        whole = " (all arms)" if measured.kind == "arm" else ""
        rows.append((f"resources{whole}", str(measured.resources)))
    return ["| | |", "|---|--:|", *(f"| {name} | {value} |" for name, value in rows)]
