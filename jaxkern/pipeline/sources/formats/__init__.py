"""Sources for common file formats and data set libraries."""

from jaxkern.pipeline.sources.formats.arrow import ArrowSource as ArrowSource
from jaxkern.pipeline.sources.formats.arrow import ParquetSource as ParquetSource
from jaxkern.pipeline.sources.formats.huggingface import HuggingFaceSource as HuggingFaceSource
from jaxkern.pipeline.sources.formats.huggingface import huggingface_source as huggingface_source
from jaxkern.pipeline.sources.formats.record_files import ArrayRecordSource as ArrayRecordSource
from jaxkern.pipeline.sources.formats.record_files import TFRecordSource as TFRecordSource
from jaxkern.pipeline.sources.formats.webdataset import WebDatasetSource as WebDatasetSource
from jaxkern.pipeline.sources.formats.zarr import ZarrSource as ZarrSource
