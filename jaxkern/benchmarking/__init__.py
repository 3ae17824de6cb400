"""Measurements of functions and pipelines that can be compared, and profiles."""

from jaxkern.benchmarking.compare import Comparison, DifferentResultsError, compare
from jaxkern.benchmarking.measurement import (
    Measurement,
    Ratio,
    ResourceMeter,
    Resources,
    Samples,
    environment,
)
from jaxkern.benchmarking.profiling import PipelineBenchmark, profile_fn
from jaxkern.benchmarking.saved import Verdict, compare_to_baseline, load, report, save
from jaxkern.benchmarking.tracing import OpTime, Trace, trace

__all__ = [
    "Comparison",
    "DifferentResultsError",
    "Measurement",
    "OpTime",
    "PipelineBenchmark",
    "Ratio",
    "ResourceMeter",
    "Resources",
    "Samples",
    "Trace",
    "Verdict",
    "compare",
    "compare_to_baseline",
    "environment",
    "load",
    "profile_fn",
    "report",
    "save",
    "trace",
]
