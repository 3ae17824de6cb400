"""Measurements of functions and pipelines that can be compared, and profiles.

`profile_fn` times a function, `PipelineBenchmark` an iterable of batches, and `compare` several
implementations of the same work. `report` writes a comparison as Markdown; `save`, `load` and
`compare_to_baseline` store measurements and judge new ones; `trace` shows the operations.
"""

from jaxkern.benchmarking.call_profile import Profile, profile_fn
from jaxkern.benchmarking.compare import Comparison, DifferentResultsError, compare
from jaxkern.benchmarking.environment import environment
from jaxkern.benchmarking.measurement import Measurement, ResourceMeter, Resources
from jaxkern.benchmarking.samples import Ratio, Samples
from jaxkern.benchmarking.saved import Verdict, compare_to_baseline, latest, load, report, save
from jaxkern.benchmarking.stream import PipelineBenchmark, PipelineResult
from jaxkern.benchmarking.tracing import OpTime, Trace, trace

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
