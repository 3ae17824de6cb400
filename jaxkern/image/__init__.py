"""Fused image augmentation with torchvision v2's names and semantics."""

from jaxkern.image.compose import Compose
from jaxkern.image.geometric import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from jaxkern.image.jpeg import decode_jpeg
from jaxkern.image.mixing import CutMix, MixUp
from jaxkern.image.producer import ChainProducer, EncodedProducer
from jaxkern.image.ragged import Ragged
from jaxkern.image.transform import Transform
from jaxkern.image.values import Normalize, RandomErasing, ToDtype

__all__ = [
    "CenterCrop",
    "ChainProducer",
    "Compose",
    "CutMix",
    "EncodedProducer",
    "MixUp",
    "Normalize",
    "Pad",
    "Ragged",
    "RandomCrop",
    "RandomErasing",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "ToDtype",
    "Transform",
    "decode_jpeg",
]
