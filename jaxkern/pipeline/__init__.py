"""Pipelines that feed a device from a source of records, and resume exactly."""

from jaxkern.pipeline.expanding import Filter, FlatMap, Window
from jaxkern.pipeline.explanation import Explanation, Overview, Stage
from jaxkern.pipeline.iteration import PipelineIterator
from jaxkern.pipeline.mixtures import Rebatch, Repeat, Take, concat, mix, zip
from jaxkern.pipeline.nodes import Cache
from jaxkern.pipeline.operators import (
    Conditional,
    Element,
    ElementOperator,
    ElementOperatorConfig,
    OperatorNode,
    Probabilistic,
)
from jaxkern.pipeline.packing.packing import pack
from jaxkern.pipeline.pipeline import Pipeline, from_source, from_stream
from jaxkern.pipeline.plan import RecompilationWarning
from jaxkern.pipeline.prefetch import DevicePlacement, Prefetcher, prefetch_to_device
from jaxkern.pipeline.sources.combined import Subset
from jaxkern.pipeline.sources.formats.arrow import ArrowSource, HuggingFaceSource, ParquetSource
from jaxkern.pipeline.sources.formats.record_files import ArrayRecordSource, TFRecordSource
from jaxkern.pipeline.sources.formats.webdataset import WebDatasetSource
from jaxkern.pipeline.sources.images.fields import Encoded
from jaxkern.pipeline.sources.images.sources import EncodedRecords, ImageFiles, ImageFolder
from jaxkern.pipeline.sources.packed.source import PackedSource
from jaxkern.pipeline.sources.remote import cached
from jaxkern.pipeline.sources.source import ArraySource, BatchSource, EncodedImages
from jaxkern.pipeline.sources.stored_arrays import HDF5Source, TokenSource, ZarrSource
from jaxkern.pipeline.token_packing import Pack
from jaxkern.pipeline.tuning import PipelineStats

__all__ = [
    "ArrayRecordSource",
    "ArraySource",
    "ArrowSource",
    "BatchSource",
    "Cache",
    "Conditional",
    "DevicePlacement",
    "Element",
    "ElementOperator",
    "ElementOperatorConfig",
    "Encoded",
    "EncodedImages",
    "EncodedRecords",
    "Explanation",
    "Filter",
    "FlatMap",
    "HDF5Source",
    "HuggingFaceSource",
    "ImageFiles",
    "ImageFolder",
    "OperatorNode",
    "Overview",
    "Pack",
    "PackedSource",
    "ParquetSource",
    "Pipeline",
    "PipelineIterator",
    "PipelineStats",
    "Prefetcher",
    "Probabilistic",
    "Rebatch",
    "RecompilationWarning",
    "Repeat",
    "Stage",
    "Subset",
    "TFRecordSource",
    "Take",
    "TokenSource",
    "WebDatasetSource",
    "Window",
    "ZarrSource",
    "cached",
    "concat",
    "from_source",
    "from_stream",
    "mix",
    "pack",
    "prefetch_to_device",
    "zip",
]
