"""Formats that data sets come in, each as a source of batches."""

from jaxkern.pipeline.formats.array_record import ArrayRecordSource as ArrayRecordSource
from jaxkern.pipeline.formats.arrow import ArrowSource as ArrowSource
from jaxkern.pipeline.formats.arrow import ParquetSource as ParquetSource
from jaxkern.pipeline.formats.huggingface import HuggingFaceSource as HuggingFaceSource
from jaxkern.pipeline.formats.huggingface import huggingface_source as huggingface_source
from jaxkern.pipeline.formats.tfrecord import TFRecordSource as TFRecordSource
from jaxkern.pipeline.formats.webdataset import WebDatasetSource as WebDatasetSource
from jaxkern.pipeline.formats.zarr import ZarrSource as ZarrSource
