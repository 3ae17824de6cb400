"""XPCS: two-time correlations, their normal equations, and fits in constant memory."""

from jaxkern.core.memory import memory_limit
from jaxkern.xpcs.analysis.averaging import AveragedResults, average_results
from jaxkern.xpcs.analysis.correlation_plots import plot_correlations
from jaxkern.xpcs.analysis.fit_many import FitOutcome, ManyFits, fit_many
from jaxkern.xpcs.analysis.many import CorrelatedFiles, FileOutcome, correlate_files
from jaxkern.xpcs.analysis.settings import Config, ConfigError, load_config, template
from jaxkern.xpcs.correlators.checks import CorrelationWarning
from jaxkern.xpcs.correlators.multitau import LiveMultiTau, multitau, multitau_events
from jaxkern.xpcs.correlators.multitau_state import (
    MultiTauState,
    PixelCorrelations,
    multitau_init,
    multitau_result,
    multitau_update,
)
from jaxkern.xpcs.correlators.results import (
    MultiTauResult,
    Overview,
    TwoTimeFitData,
    TwoTimeResult,
    multitau_delays,
)
from jaxkern.xpcs.correlators.two_time import twotime, twotime_events
from jaxkern.xpcs.detectors.frames import DetectorFileError, EventFrames, Events, FrameSource
from jaxkern.xpcs.detectors.opening import GrowingFrames, as_frames, open_frames
from jaxkern.xpcs.detectors.qmap import QMap, read_mask
from jaxkern.xpcs.files.aps import ApsData, ApsFile, ApsWriter, load_aps, write_aps
from jaxkern.xpcs.files.aps_entries import ApsFormatError
from jaxkern.xpcs.files.prepare import (
    Prepared,
    correct_diagonal,
    frame_window,
    frames_to_keep,
    select_phi,
    select_q,
)
from jaxkern.xpcs.files.results_reader import CorrelationResults, read_results
from jaxkern.xpcs.files.results_writer import write_results
from jaxkern.xpcs.files.simulation import simulate, simulate_to_file
from jaxkern.xpcs.files.sources import Source, as_source
from jaxkern.xpcs.fitting.data import BadDataError
from jaxkern.xpcs.fitting.evaluation import CheckpointError
from jaxkern.xpcs.fitting.fit import curve_fit, fit
from jaxkern.xpcs.fitting.options import (
    ErrorOptions,
    MemoryEstimate,
    SolverOptions,
    Strategy,
    StreamingOptions,
    estimate_memory,
)
from jaxkern.xpcs.fitting.posterior import Posterior, posterior
from jaxkern.xpcs.fitting.profile import Profile
from jaxkern.xpcs.fitting.result import (
    FitInterrupted,
    FitResult,
    FitTimings,
    load_result,
    save_result,
)
from jaxkern.xpcs.model import ops as ops
from jaxkern.xpcs.model.components import Components, ComponentTables, TwoComponent
from jaxkern.xpcs.model.correlation import g2, g2_at, residual
from jaxkern.xpcs.model.models import (
    CustomModel,
    Geometry,
    LaminarFlow,
    Model,
    Parameter,
    Static,
    StaticIsotropic,
    Tables,
)
from jaxkern.xpcs.model.normal import (
    NormalEquations,
    accumulate,
    assemble,
    log_likelihood,
    normal_equations,
)
from jaxkern.xpcs.model.ops import state_size
from jaxkern.xpcs.model.speckles import SimulatedFrames, simulate_frames, simulate_photons
from jaxkern.xpcs.model.twin import ROW_BLOCK
from jaxkern.xpcs.onetime.fit import fit_g2
from jaxkern.xpcs.onetime.result import G2Fit, PowerLaw

__all__ = [
    "ROW_BLOCK",
    "ApsData",
    "ApsFile",
    "ApsFormatError",
    "ApsWriter",
    "AveragedResults",
    "BadDataError",
    "CheckpointError",
    "ComponentTables",
    "Components",
    "Config",
    "ConfigError",
    "CorrelatedFiles",
    "CorrelationResults",
    "CorrelationWarning",
    "CustomModel",
    "DetectorFileError",
    "ErrorOptions",
    "EventFrames",
    "Events",
    "FileOutcome",
    "FitInterrupted",
    "FitOutcome",
    "FitResult",
    "FitTimings",
    "FrameSource",
    "G2Fit",
    "Geometry",
    "GrowingFrames",
    "LaminarFlow",
    "LiveMultiTau",
    "ManyFits",
    "MemoryEstimate",
    "Model",
    "MultiTauResult",
    "MultiTauState",
    "NormalEquations",
    "Overview",
    "Parameter",
    "PixelCorrelations",
    "Posterior",
    "PowerLaw",
    "Prepared",
    "Profile",
    "QMap",
    "SimulatedFrames",
    "SolverOptions",
    "Source",
    "Static",
    "StaticIsotropic",
    "Strategy",
    "StreamingOptions",
    "Tables",
    "TwoComponent",
    "TwoTimeFitData",
    "TwoTimeResult",
    "accumulate",
    "as_frames",
    "as_source",
    "assemble",
    "average_results",
    "correct_diagonal",
    "correlate_files",
    "curve_fit",
    "estimate_memory",
    "fit",
    "fit_g2",
    "fit_many",
    "frame_window",
    "frames_to_keep",
    "g2",
    "g2_at",
    "load_aps",
    "load_config",
    "load_result",
    "log_likelihood",
    "memory_limit",
    "multitau",
    "multitau_delays",
    "multitau_events",
    "multitau_init",
    "multitau_result",
    "multitau_update",
    "normal_equations",
    "open_frames",
    "plot_correlations",
    "posterior",
    "read_mask",
    "read_results",
    "residual",
    "save_result",
    "select_phi",
    "select_q",
    "simulate",
    "simulate_frames",
    "simulate_photons",
    "simulate_to_file",
    "state_size",
    "template",
    "twotime",
    "twotime_events",
    "write_aps",
    "write_results",
]
