"""Fused image augmentation with torchvision v2's names and semantics."""

from jaxkern.image.choices import RandomApply, RandomChoice, RandomOrder
from jaxkern.image.colour import (
    ColorJitter,
    Grayscale,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomChannelPermutation,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPhotometricDistort,
    RandomPosterize,
    RandomSolarize,
)
from jaxkern.image.compose import Compose
from jaxkern.image.detection import RandomIoUCrop, RandomZoomOut, SanitizeBoundingBoxes
from jaxkern.image.flips import RandomHorizontalFlip, RandomVerticalFlip
from jaxkern.image.geometric import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomResizedCrop,
    Resize,
)
from jaxkern.image.jpeg import decode_jpeg
from jaxkern.image.mixing import CutMix, MixUp
from jaxkern.image.noise import ElasticTransform, GaussianNoise
from jaxkern.image.policies import AugMix, AutoAugment, RandAugment, TrivialAugmentWide
from jaxkern.image.policy_tables import AutoAugmentPolicy
from jaxkern.image.producer import ChainProducer, EncodedProducer, MaskProducer
from jaxkern.image.ragged import Ragged
from jaxkern.image.sizes import RandomShortestSize, ScaleJitter
from jaxkern.image.transform import Transform
from jaxkern.image.values import Normalize, RandomErasing, ToDtype
from jaxkern.image.warps import (
    GaussianBlur,
    RandomAffine,
    RandomPerspective,
    RandomRotation,
)

__all__ = [
    "AugMix",
    "AutoAugment",
    "AutoAugmentPolicy",
    "CenterCrop",
    "ChainProducer",
    "ColorJitter",
    "Compose",
    "CutMix",
    "ElasticTransform",
    "EncodedProducer",
    "GaussianBlur",
    "GaussianNoise",
    "Grayscale",
    "MaskProducer",
    "MixUp",
    "Normalize",
    "Pad",
    "Ragged",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChannelPermutation",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomIoUCrop",
    "RandomOrder",
    "RandomPerspective",
    "RandomPhotometricDistort",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomShortestSize",
    "RandomSolarize",
    "RandomVerticalFlip",
    "RandomZoomOut",
    "Resize",
    "SanitizeBoundingBoxes",
    "ScaleJitter",
    "ToDtype",
    "Transform",
    "TrivialAugmentWide",
    "decode_jpeg",
]
