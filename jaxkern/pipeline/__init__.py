"""Pipelines that feed a device from a source of records, and resume exactly."""

from jaxkern.pipeline.combining import Repeat as Repeat
from jaxkern.pipeline.combining import Take as Take
from jaxkern.pipeline.element import Element as Element
from jaxkern.pipeline.element import ElementOperator as ElementOperator
from jaxkern.pipeline.element import ElementOperatorConfig as ElementOperatorConfig
from jaxkern.pipeline.expanding import FlatMap as FlatMap
from jaxkern.pipeline.expanding import Window as Window
from jaxkern.pipeline.explanation import Explanation as Explanation
from jaxkern.pipeline.explanation import Overview as Overview
from jaxkern.pipeline.explanation import Stage as Stage
from jaxkern.pipeline.iteration import PipelineIterator as PipelineIterator
from jaxkern.pipeline.mixtures import concat as concat
from jaxkern.pipeline.mixtures import mix as mix
from jaxkern.pipeline.mixtures import zip as zip
from jaxkern.pipeline.nodes import Cache as Cache
from jaxkern.pipeline.nodes import Rebatch as Rebatch
from jaxkern.pipeline.operators import Conditional as Conditional
from jaxkern.pipeline.operators import OperatorNode as OperatorNode
from jaxkern.pipeline.operators import Probabilistic as Probabilistic
from jaxkern.pipeline.packing.packing import pack as pack
from jaxkern.pipeline.pipeline import Pipeline as Pipeline
from jaxkern.pipeline.pipeline import from_source as from_source
from jaxkern.pipeline.pipeline import from_stream as from_stream
from jaxkern.pipeline.prefetch import DevicePlacement as DevicePlacement
from jaxkern.pipeline.prefetch import Prefetcher as Prefetcher
from jaxkern.pipeline.prefetch import prefetch_to_device as prefetch_to_device
from jaxkern.pipeline.program import RecompilationWarning as RecompilationWarning
from jaxkern.pipeline.sequential import Filter as Filter
from jaxkern.pipeline.sources.combined import Subset as Subset
from jaxkern.pipeline.sources.formats.arrow import ArrowSource as ArrowSource
from jaxkern.pipeline.sources.formats.arrow import HuggingFaceSource as HuggingFaceSource
from jaxkern.pipeline.sources.formats.arrow import ParquetSource as ParquetSource
from jaxkern.pipeline.sources.formats.record_files import ArrayRecordSource as ArrayRecordSource
from jaxkern.pipeline.sources.formats.record_files import TFRecordSource as TFRecordSource
from jaxkern.pipeline.sources.formats.webdataset import WebDatasetSource as WebDatasetSource
from jaxkern.pipeline.sources.images.fields import Encoded as Encoded
from jaxkern.pipeline.sources.images.sources import EncodedRecords as EncodedRecords
from jaxkern.pipeline.sources.images.sources import ImageFiles as ImageFiles
from jaxkern.pipeline.sources.images.sources import ImageFolder as ImageFolder
from jaxkern.pipeline.sources.packed.source import PackedSource as PackedSource
from jaxkern.pipeline.sources.source import ArraySource as ArraySource
from jaxkern.pipeline.sources.source import BatchSource as BatchSource
from jaxkern.pipeline.sources.source import EncodedImages as EncodedImages
from jaxkern.pipeline.sources.stored_arrays import HDF5Source as HDF5Source
from jaxkern.pipeline.sources.stored_arrays import TokenSource as TokenSource
from jaxkern.pipeline.sources.stored_arrays import ZarrSource as ZarrSource
from jaxkern.pipeline.token_packing import Pack as Pack
from jaxkern.pipeline.tuning import PipelineStats as PipelineStats

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
    "concat",
    "from_source",
    "from_stream",
    "mix",
    "pack",
    "prefetch_to_device",
    "zip",
]
