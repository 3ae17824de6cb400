"""Measuring functions and pipelines: timings one can compare, and where the time goes.

`profile_fn` times a function, `PipelineBenchmark` a stream of batches, `compare` several ways to do
the same work; `report` writes a before and an after as Markdown, `save`, `load` and
`compare_to_baseline` keep measurements and judge new ones; `trace` shows the operations.
"""

from __future__ import annotations

from jaxkern.benchmarking.call_profile import Profile as Profile
from jaxkern.benchmarking.call_profile import profile_fn as profile_fn
from jaxkern.benchmarking.compare import Comparison as Comparison
from jaxkern.benchmarking.compare import compare as compare
from jaxkern.benchmarking.environment import environment as environment
from jaxkern.benchmarking.equality import DifferentResultsError as DifferentResultsError
from jaxkern.benchmarking.measurement import Measurement as Measurement
from jaxkern.benchmarking.op_times import OpTime as OpTime
from jaxkern.benchmarking.op_times import Trace as Trace
from jaxkern.benchmarking.op_times import trace as trace
from jaxkern.benchmarking.report import report as report
from jaxkern.benchmarking.resources import ResourceMeter as ResourceMeter
from jaxkern.benchmarking.resources import Resources as Resources
from jaxkern.benchmarking.samples import Ratio as Ratio
from jaxkern.benchmarking.samples import Samples as Samples
from jaxkern.benchmarking.saved import Verdict as Verdict
from jaxkern.benchmarking.saved import compare_to_baseline as compare_to_baseline
from jaxkern.benchmarking.saved import latest as latest
from jaxkern.benchmarking.saved import load as load
from jaxkern.benchmarking.saved import save as save
from jaxkern.benchmarking.stream import PipelineBenchmark as PipelineBenchmark
from jaxkern.benchmarking.stream import PipelineResult as PipelineResult

__all__ = [
    "Comparison",
    "DifferentResultsError",
    "Measurement",
    "OpTime",
    "PipelineBenchmark",
    "PipelineResult",
    "Profile",
    "Ratio",
    "ResourceMeter",
    "Resources",
    "Samples",
    "Trace",
    "Verdict",
    "compare",
    "compare_to_baseline",
    "environment",
    "latest",
    "load",
    "profile_fn",
    "report",
    "save",
    "trace",
]
