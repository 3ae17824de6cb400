"""Fused image augmentation with torchvision v2's names and semantics."""

from jaxkern.image.compose.compose import Compose
from jaxkern.image.compose.producer import ChainProducer, EncodedProducer, MaskProducer
from jaxkern.image.jpeg import decode_jpeg
from jaxkern.image.program.program import Code, program_step
from jaxkern.image.ragged import Ragged
from jaxkern.image.transforms.choices import RandomApply, RandomChoice, RandomOrder
from jaxkern.image.transforms.colour import (
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
from jaxkern.image.transforms.crops import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
)
from jaxkern.image.transforms.detection import RandomIoUCrop, RandomZoomOut, SanitizeBoundingBoxes
from jaxkern.image.transforms.policies import (
    AugMix,
    AutoAugment,
    AutoAugmentPolicy,
    RandAugment,
    TrivialAugmentWide,
)
from jaxkern.image.transforms.sizes import RandomShortestSize, Resize, ScaleJitter
from jaxkern.image.transforms.transform import Transform
from jaxkern.image.transforms.values import (
    CutMix,
    GaussianBlur,
    GaussianNoise,
    MixUp,
    Normalize,
    RandomErasing,
    ToDtype,
)
from jaxkern.image.transforms.warps import (
    ElasticTransform,
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
    "Code",
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
    "program_step",
]
