"""HTML pages of results: of a fit, and of correlations with fits of g2."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxkern.core.version import __version__, installed_versions
from jaxkern.xpcs.analysis import correlation_plots, fit_plots
from jaxkern.xpcs.analysis.html_page import Page
from jaxkern.xpcs.analysis.run import draw_measurement, open_measurement
from jaxkern.xpcs.analysis.settings import parse_config, template
from jaxkern.xpcs.correlators.results import MultiTauResult
from jaxkern.xpcs.files.provenance import read_provenance
from jaxkern.xpcs.files.results_reader import read_results, read_summary
from jaxkern.xpcs.fitting.result import SCALES, load_result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CAPTIONS = {
    "cuts": "g2 against the lag in bands of the sample's age: means with standard errors, the "
    "model as lines, and the differences below",
    "maps": "Data, model and residuals of some angles",
    "residuals": "Histograms of the residuals",
    "parameters": "Parameters, rates, and correlations of the errors",
    "convergence": "Cost in each pass over the data",
}
_STATISTICS = {
    "reduced chi2": "reduced_chi2",
    "chi2": "chi2",
    "points": "count",
    "independent points": "independent_count",
    "passes over the data": "nfev",
    "starts": "search",
    "errors": "errors",
    "noise": "sigma_method",
    "strategy": "strategy",
    "used part of the data": "success_rate",
}


def report_fit(folder: Path, output: Path) -> Path:
    """Write a page about the fit in a folder, with plots from its data file.

    Raises:
      FileNotFoundError: no results in the folder, or the data file is gone.
    """
    summary, arrays = load_result(folder)
    config = parse_config(summary["settings"])
    with open_measurement(config) as measurement:
        views, figures = draw_measurement(config, measurement, folder)
        described = (measurement.describe(), *measurement.notes)
    geometry = summary["geometry"]
    page = Page(f"Fit of {Path(config.data_files.file).name}", described[0])
    state = "The fit succeeded" if summary["success"] else "The fit did not succeed"
    page.text(f"{state}: {summary['message']}")
    page.remarks((*described[1:], *summary["warnings"]))
    page.heading("Parameters")
    page.text(f"Model {config.analysis.model}, scaling {config.scaling}.")
    width = _interval(summary["errors"])
    page.table([_parameter_row(name, one, width) for name, one in summary["parameters"].items()])
    page.figure(figures["parameters"], _CAPTIONS["parameters"])
    page.heading("Data and model")
    for name in ("cuts", "maps"):
        page.figure(figures[name], _CAPTIONS[name])
    page.heading("Residuals")
    shown = {view.phi: view.mean_square for view in views}
    sigma = summary["sigma"] or [None] * len(geometry["phi"])
    scales = (arrays[name].tolist() for name in SCALES)
    page.table(
        [
            {
                "angle (deg)": phi,
                "contrast": contrast,
                "its error": contrast_error,
                "baseline": offset,
                "error of baseline": offset_error,
                "sigma": noise,
                "mean square residual": shown.get(phi),
            }
            for phi, contrast, contrast_error, offset, offset_error, noise in zip(
                geometry["phi"], *scales, sigma, strict=True
            )
        ]
    )
    page.figure(figures["residuals"], _CAPTIONS["residuals"])
    page.heading("Fit")
    page.values({title: summary[name] for title, name in _STATISTICS.items()})
    page.figure(figures["convergence"], _CAPTIONS["convergence"])
    page.heading("Reproduce")
    page.text(
        "Save the settings as config.yaml and run "
        "`python -m jaxkern xpcs fit --config config.yaml`."
    )
    page.code("Settings", template(config))
    page.text(_versions())
    return page.write(output)


def _interval(errors: str) -> float:
    """Return half the width of a 95% interval in errors: Student's for B parts of a jackknife."""
    from scipy.special import stdtrit

    parts = re.match(r"jackknife over (\d+)", errors)
    return float(stdtrit(int(parts[1]) - 1 if parts else 1e9, 0.975))


def _parameter_row(name: str, one: dict[str, Any], width: float) -> dict[str, Any]:
    value, error = one["value"], one["error"]
    known = not one["held"] and value is not None and error is not None
    low, high = (value - width * error, value + width * error) if known else (None, None)
    return {
        "parameter": name,
        "value": value,
        "error": "held" if one["held"] else error,
        "95% low": low,
        "95% high": high,
        "unit": one["unit"],
    }


def report_correlations(
    path: Path, output: Path, model: str = "exponential", frame_time: float | None = None
) -> Path:
    """Write a page about a file of results: g2 with fits, their rates against q and time, maps.

    Args:
      path: results of `write_results` or boost-corr.
      output: the page.
      model: of g2, see `jaxkern.xpcs.fit_g2`.
      frame_time: seconds between detector frames; None for that of the file.
    """
    result, empty_frames, warnings = read_summary(path)
    bins = [*empty_frames][: correlation_plots.MOST_MAPS]
    two_time = read_results(path, bins=bins).twotime if result is None or bins else None
    if result is not None and frame_time is not None:
        result = result.with_frame_time(frame_time)
    any_result = result or two_time
    assert any_result is not None
    page = Page(f"Correlations of {path.name}", repr(any_result))
    page.remarks(dict.fromkeys((*any_result.warnings, *warnings)))
    if result is not None:
        _add_g2(page, result, model)
    if two_time is not None:
        page.heading("Two-time correlations")
        page.figure(
            correlation_plots.plot_twotime(two_time),
            f"{len(two_time.bins)} of {max(len(empty_frames), len(two_time.bins))} bins, and g2 of "
            "the whole run and of its parts",
        )
    if (overview := any_result.overview) is not None:
        page.heading("Intensity and detector")
        intensity = correlation_plots.plot_intensity(overview, any_result.frame_time)
        page.figure(intensity, "Mean counts of a pixel in each frame")
        detector = correlation_plots.plot_detector(overview, any_result.qmap)
        page.figure(detector, "Mean image without and with the bins")
    if provenance := read_provenance(path):
        page.heading("Provenance")
        page.values({name: str(value) for name, value in provenance.items()})
    page.text(_versions())
    return page.write(output)


def _add_g2(page: Page, result: MultiTauResult, model: str) -> None:
    """Add g2 of all bins, their fits, and the power law and the stability of the rates."""
    page.heading("g2")
    page.figure(correlation_plots.plot_g2(result), "g2 with standard errors over the pixels")
    if result.tau is None:
        page.text("The time between frames is unknown, so g2 is not fitted; use --frame-time.")
        return
    fit = result.fit_g2(model)
    page.heading(f"Fits of the model {model}")
    page.text(str(fit).split("\n", 1)[0])
    page.figure(fit.plot(), "g2 with the fits")
    page.table(fit.table)
    for name in [name for name in fit.params if name.endswith("rate")]:
        page.heading(f"{name} against q")
        try:
            law = fit.tau_q(name)
        except ValueError as error:
            page.text(f"No power law: {error}")
        else:
            page.text(str(law))
            page.figure(law.plot(), f"1 / {name} against q with the power law")
    rates = [part.fit_g2(model) for part in result.parts]
    if len(rates) > 1 and all(part.frame_time for part in result.parts):
        page.heading("Stability")
        page.figure(
            _plot_stability(result, rates), "Rates of equal parts of the run, with standard errors"
        )


def _plot_stability(result: MultiTauResult, fits: Sequence[Any]) -> Figure:
    figure = fit_plots.new_figure(7.0, 3.6)
    axes = figure.subplots()
    lengths = np.array([part.n_frames * (part.frame_time or math.nan) for part in result.parts])
    middle = np.cumsum(lengths) - lengths / 2
    name = next(name for name in fits[0].params if name.endswith("rate"))
    count = len(result.bins)
    for k in np.unique(np.linspace(0, count - 1, min(count, 9)).round().astype(int)):
        rate = np.array([fit.params[name][k] if fit.success[k] else np.nan for fit in fits])
        error = np.array([fit.errors[name][k] for fit in fits])
        error = np.where(np.isfinite(error), error, 0.0)
        label = f"bin {result.bins[k]}" + ("" if result.q is None else f", q {result.q[k]:.4g}")
        axes.errorbar(middle, rate, error, fmt=".-", ms=4, lw=0.7, label=label)
    axes.set_yscale("log")
    fit_plots.label_axes(axes, "time (s)", f"{name} (1/s)")
    figure.legend(loc="outside right upper", fontsize=7, frameon=False)
    return figure


def _versions() -> str:
    found = installed_versions("jax", "jaxlib", "numpy", "h5py")
    return ", ".join([f"jaxkern {__version__}", *(f"{n} {v}" for n, v in found.items())])
