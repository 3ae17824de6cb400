"""Augmentation policies: they draw the colour and warp ops of each image, and their magnitudes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.arguments import check_integer
from jaxkern.image.policies.tables import (
    AUG_MIX,
    AUTO_AUGMENT,
    RAND_AUGMENT,
    TRIVIAL_AUGMENT_WIDE,
    AutoAugmentPolicy,
    Space,
    magnitude_table,
    pairs,
    signed_ops,
)
from jaxkern.image.program.coefficients import affine_coefficients
from jaxkern.image.program.program import (
    MAX_STEPS,
    VALUES,
    Code,
    ProgramStep,
    Step,
    codes_where,
    step_values,
)
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.transform import Kind, Size, Transform, set_fields, uniform_below
from jaxkern.image.transforms.warps import warp_fill

_CODES = {
    "Identity": Code.NONE,
    **dict.fromkeys(("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"), Code.WARP),
    "Brightness": Code.BRIGHTNESS,
    "Color": Code.SATURATION,
    "Contrast": Code.CONTRAST,
    "Sharpness": Code.SHARPNESS,
    "Posterize": Code.POSTERIZE,
    "Solarize": Code.SOLARIZE,
    "AutoContrast": Code.AUTOCONTRAST,
    "Equalize": Code.EQUALIZE,
    "Invert": Code.INVERT,
}
_FACTORS = ("Brightness", "Color", "Contrast", "Sharpness")


def static_step(ops: Sequence[str], interpolation: str, fill: Any) -> ProgramStep:
    """Return the static part of a step that runs one of `ops`."""
    codes = tuple(sorted({_CODES[name] for name in ops} - {Code.NONE}))
    return ProgramStep(codes, interpolation, fill=(math.nan,) if fill is None else fill)


def checked_ops(op: Any, ops: Sequence[str], where: str) -> Any:
    """Return `op`; reject invalid indices in NumPy arrays."""
    if isinstance(op, np.ndarray) and op.size and not -1 <= op.min() <= op.max() < len(ops):
        wrong = op[(op < -1) | (op >= len(ops))].flat[0]
        raise ValueError(
            f"{where}: expected op to index OPS, 0 to {len(ops) - 1}, or -1 for no op, got {wrong}"
        )
    return op


def op_steps(ops: Sequence[str], op: Any, magnitude: Any, size: Size) -> tuple[Any, Any]:
    """Return program codes i32 [...] and values f32 [..., VALUES] of ops.

    `ops` are the names that `op` i32 [...] indexes; any other number leaves an image unchanged.
    `magnitude` f32 [...] is in the units of `AutoAugment`.
    """
    valid = (op >= 0) & (op < len(ops))
    index = jnp.clip(op, 0, len(ops) - 1)

    def named(*names: str) -> Any:
        return valid & jnp.asarray([name in names for name in ops])[index]

    codes = jnp.asarray([int(_CODES[name]) for name in ops], np.int32)[index]
    code = jnp.where(valid, codes, int(Code.NONE))
    truncated = jnp.trunc(magnitude)
    # A blend with the factor 1 + m has the second value 1 - factor = -m, without rounding.
    first = jnp.where(named(*_FACTORS), 1.0 + magnitude, magnitude)
    first = jnp.where(named("Posterize"), truncated, first)
    rest = jnp.where(named(*_FACTORS), -magnitude, 0.0)
    zeros = [jnp.zeros_like(magnitude)] * (VALUES - 2)
    values = jnp.stack([first, rest, *zeros], axis=-1)
    warp = (code == int(Code.WARP))[..., None]
    return code, jnp.where(warp, _coefficients(named, magnitude, truncated, size), values)


def _coefficients(named: Any, magnitude: Any, truncated: Any, size: Size) -> Any:
    """Return the coefficients of warps: see coefficients.py.

    Shears fix the top left corner: (x + m y, y) and (x, y + m x). Rotations fix the centre.
    """
    zero = jnp.zeros_like(magnitude)
    # torchvision's rotate has the opposite sense of rotation to its affine.
    angle = jnp.where(named("Rotate"), -magnitude, zero)
    rotation = affine_coefficients(angle, zero, zero, zero + 1, zero, zero, size=size)
    x, y = named("ShearX"), named("ShearY")
    right, down = named("TranslateX"), named("TranslateY")
    half_height, half_width = (0.5 * side for side in size)
    c1, c3 = jnp.where(x, magnitude, zero), jnp.where(y, magnitude, zero)
    c2 = jnp.where(right, -truncated, jnp.where(x, magnitude * half_height, zero))
    c5 = jnp.where(down, -truncated, jnp.where(y, magnitude * half_width, zero))
    # Without a rotation, `rotation` is exactly the identity map.
    return rotation + jnp.stack([zero, c1, c2, c3, zero, c5, zero, zero], axis=-1)


def _with_sign(space: Space, op: jax.Array, magnitude: jax.Array, fraction: jax.Array) -> Any:
    """Negate `magnitude` where the op is signed and the fraction is below 1/2."""
    negative = jnp.asarray(signed_ops(space))[op] & (fraction < 0.5)
    return jnp.where(negative, -magnitude, magnitude)


class _Policy(Transform):
    """Base class: ops by name, applied in order."""

    OPS: ClassVar[tuple[str, ...]]
    kind: ClassVar[Kind] = "program"
    expects_unit_range: ClassVar[bool] = True
    geometric = True

    interpolation: str
    fill: Any

    def _checked(self, **fields: Any) -> None:
        set_fields(
            self,
            interpolation=checks.choice(self.interpolation, "interpolation", checks.INTERPOLATIONS),
            fill=warp_fill(self.fill),
            **fields,
        )

    def _chain(self, code: Any, values: Any) -> list[Step]:
        """Return the steps of codes [N, steps] and their values."""
        static = static_step(self.OPS, self.interpolation, self.fill)
        return [(code[:, step], values[:, step], static) for step in range(code.shape[1])]

    def program(self, params: dict[str, Any], size: Size) -> list[Step]:
        op = checked_ops(params["op"], self.OPS, type(self).__name__)
        return self._chain(*op_steps(self.OPS, op, params["magnitude"], size))


def _op_parameters(*shape: int) -> dict[str, str]:
    """Return the kinds of op and magnitude of one image."""
    sides = ", ".join(map(str, shape))
    return {"op": f"int[{sides}]", "magnitude": f"float[{sides}]"}


@dataclasses.dataclass(frozen=True)
class RandAugment(_Policy):
    """Apply `num_ops` of 14 ops, all equally likely, with one magnitude and a random sign.

    Args:
      num_ops: number of ops applied to an image; an op can be drawn repeatedly.
      magnitude: the bin of the magnitude, from 0 to num_magnitude_bins - 1.
      num_magnitude_bins: number of bins of the magnitudes, at least 2.
      interpolation: interpolation of warps, "nearest" or "bilinear".
      fill: value outside the image, a number or one per channel; None is 0.
    Parameters of an image: op i32 [num_ops], indices of `OPS`, and magnitude f32 [num_ops], in the
    units of `AutoAugment`.
    Raises: ValueError for numbers out of range and unknown interpolations.
    Source: Cubuk et al., RandAugment, 2019, with the ranges of torchvision.

    >>> import jax
    >>> from jaxkern.image import RandAugment
    >>> RandAugment(2, 9).sample(jax.random.key(0), (224, 224))["op"].shape
    (2,)
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: Any = None

    OPS: ClassVar[tuple[str, ...]] = tuple(RAND_AUGMENT)

    def __post_init__(self) -> None:
        bins = check_integer("num_magnitude_bins", self.num_magnitude_bins, 2)
        self._checked(
            num_ops=check_integer("num_ops", self.num_ops, 0),
            magnitude=check_integer("magnitude", self.magnitude, 0, bins - 1),
            num_magnitude_bins=bins,
        )

    @property
    def parameters(self) -> dict[str, str]:  # type: ignore[override]
        """Kinds and shapes of an image's parameters."""
        return _op_parameters(self.num_ops)

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        fractions = jax.random.uniform(key, (2, self.num_ops), jnp.float32)
        op = uniform_below(fractions[0], len(self.OPS))
        table = magnitude_table(RAND_AUGMENT, self.num_magnitude_bins, size)
        strength = jnp.asarray(table[:, self.magnitude])[op]
        return {"op": op, "magnitude": _with_sign(RAND_AUGMENT, op, strength, fractions[1])}


@dataclasses.dataclass(frozen=True)
class TrivialAugmentWide(_Policy):
    """Apply one of 14 ops with one of the magnitudes, all equally likely, and a random sign.

    Args:
      num_magnitude_bins, interpolation, fill: as in `RandAugment`.
    Parameters of an image: op i32 [1], an index of `OPS`, and magnitude f32 [1].
    Raises: ValueError for numbers out of range and unknown interpolations.
    Source: Müller and Hutter, TrivialAugment, 2021.

    >>> from jaxkern.image import TrivialAugmentWide
    >>> TrivialAugmentWide.OPS[:3]
    ('Identity', 'ShearX', 'ShearY')
    """

    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: Any = None

    OPS: ClassVar[tuple[str, ...]] = tuple(TRIVIAL_AUGMENT_WIDE)
    parameters: ClassVar[dict[str, str]] = _op_parameters(1)

    def __post_init__(self) -> None:
        bins = check_integer("num_magnitude_bins", self.num_magnitude_bins, 2)
        self._checked(num_magnitude_bins=bins)

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        space = TRIVIAL_AUGMENT_WIDE
        fractions = jax.random.uniform(key, (3, 1), jnp.float32)
        op = uniform_below(fractions[0], len(self.OPS))
        magnitude_bin = uniform_below(fractions[1], self.num_magnitude_bins)
        table = jnp.asarray(magnitude_table(space, self.num_magnitude_bins, size))
        strength = table[op, magnitude_bin]
        return {"op": op, "magnitude": _with_sign(space, op, strength, fractions[2])}


@dataclasses.dataclass(frozen=True)
class AutoAugment(_Policy):
    """Apply one of 25 published pairs of ops, each with its own probability and magnitude.

    Args:
      policy: "imagenet", "cifar10" or "svhn", or an `AutoAugmentPolicy`.
      interpolation, fill: as in `RandAugment`.
    Parameters of an image: op i32 [2], indices of `OPS`, -1 for an op that is not applied, and
    magnitude f32 [2]: shears as tangents, translations in pixels, angles in degrees
    counter-clockwise, factor - 1 of brightness, color, contrast and sharpness, posterize in bits,
    solarize as a fraction of the largest value; 0 for ops without a magnitude.
    Raises: ValueError for unknown policies and interpolations.
    Source: Cubuk et al., AutoAugment, 2019.

    >>> from jaxkern.image import AutoAugment
    >>> AutoAugment("cifar10").OPS[-1]
    'Invert'
    """

    policy: AutoAugmentPolicy | str = AutoAugmentPolicy.IMAGENET
    interpolation: str = "nearest"
    fill: Any = None

    OPS: ClassVar[tuple[str, ...]] = tuple(AUTO_AUGMENT)
    parameters: ClassVar[dict[str, str]] = _op_parameters(2)

    def __post_init__(self) -> None:
        word = checks.choice(self.policy, "policy", tuple(map(str, AutoAugmentPolicy)))
        self._checked(policy=AutoAugmentPolicy(word))

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        fractions = jax.random.uniform(key, (3, 2), jnp.float32)
        published = pairs(AutoAugmentPolicy(self.policy))
        pair_index = uniform_below(fractions[0, 0], len(published.op))
        op = jnp.asarray(published.op)[pair_index]
        magnitude_bin = jnp.asarray(published.magnitude_bin)[pair_index]
        applied = fractions[1] < jnp.asarray(published.probability)[pair_index]
        strength = jnp.asarray(magnitude_table(AUTO_AUGMENT, 10, size))[op, magnitude_bin]
        magnitude = _with_sign(AUTO_AUGMENT, op, strength, fractions[2])
        return {"op": jnp.where(applied, op, -1), "magnitude": jnp.where(applied, magnitude, 0.0)}


@dataclasses.dataclass(frozen=True)
class AugMix(_Policy):
    """Average the image with the results of chains of ops on it.

    Each of `mixture_width` chains has `chain_depth` of 13 ops, equally likely, with a magnitude
    below `severity`. The image's weight m is drawn from Beta(alpha, alpha), and the chains' weights
    from a Dirichlet distribution of alpha. The result is m image + (1 - m) sum(weights chain),
    truncated in uint8.

    Args:
      severity: number of the 10 magnitudes that are drawn from, 1 to 10.
      mixture_width: number of chains, at least 1.
      chain_depth: number of ops of a chain; below 1 for 1 to 3, drawn for each chain.
      alpha: above 0.
      all_ops: include brightness, color, contrast and sharpness.
      interpolation, fill: as in `RandAugment`.
    Parameters of an image: op i32 [mixture_width, depth], indices of `OPS`, -1 beyond a chain's own
    depth; magnitude f32 of the same shape; weights f32 [mixture_width]; m f32.
    Raises: ValueError for numbers out of range and unknown interpolations.
    Source: Hendrycks et al., AugMix, 2019, with the ranges of torchvision.

    >>> import jax
    >>> from jaxkern.image import AugMix
    >>> AugMix().sample(jax.random.key(0), (32, 32))["op"].shape
    (3, 3)
    """

    severity: int = 3
    mixture_width: int = 3
    chain_depth: int = -1
    alpha: float = 1.0
    all_ops: bool = True
    interpolation: str = "bilinear"
    fill: Any = None

    OPS: ClassVar[tuple[str, ...]] = tuple(AUG_MIX)

    def __post_init__(self) -> None:
        self._checked(
            severity=check_integer("severity", self.severity, 1, 10),
            mixture_width=check_integer("mixture_width", self.mixture_width, 1),
            chain_depth=check_integer("chain_depth", self.chain_depth, -(2**63)),
            alpha=checks.positive(self.alpha, "alpha"),
            all_ops=bool(self.all_ops),
        )
        check_integer(
            "mixture_width * (chain_depth + 1) + 2",
            self.mixture_width * (self._depth + 1) + 2,
            1,
            MAX_STEPS,
        )

    @property
    def _depth(self) -> int:
        return self.chain_depth if self.chain_depth > 0 else 3

    @property
    def parameters(self) -> dict[str, str]:  # type: ignore[override]
        """Kinds and shapes of an image's parameters."""
        width = self.mixture_width
        return {**_op_parameters(width, self._depth), "weights": f"float[{width}]", "m": "float"}

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        fraction_key, depth_key, weight_key = jax.random.split(key, 3)
        width, depth = self.mixture_width, self._depth
        fractions = jax.random.uniform(fraction_key, (3, width, depth), jnp.float32)
        op = uniform_below(fractions[0], len(self.OPS) - (0 if self.all_ops else 4))
        magnitude_bin = uniform_below(fractions[1], self.severity)
        strength = jnp.asarray(magnitude_table(AUG_MIX, 10, size))[op, magnitude_bin]
        magnitude = _with_sign(AUG_MIX, op, strength, fractions[2])
        used: Any = np.ones((width, depth), bool)
        if self.chain_depth < 1:
            used = jnp.arange(depth) < jax.random.randint(
                depth_key, (width, 1), 1, depth + 1, jnp.int32
            )
        # Normalized gamma variates have a Dirichlet distribution, and a beta distribution for two.
        log_gamma = jax.random.loggamma(weight_key, self.alpha, (width + 2,), jnp.float32)
        return {
            "op": jnp.where(used, op, -1),
            "magnitude": jnp.where(used, magnitude, 0.0),
            "weights": jax.nn.softmax(log_gamma[:width]),
            "m": jax.nn.softmax(log_gamma[width:])[0],
        }

    def program(self, params: dict[str, Any], size: Size) -> list[Step]:
        op = checked_ops(params["op"], self.OPS, "AugMix")
        weights, m = (jnp.asarray(params[name], jnp.float32) for name in ("weights", "m"))
        # An image with any weight that is not finite is left unchanged.
        finite = jnp.isfinite(m) & jnp.isfinite(weights).all(axis=1)
        op = jnp.where(finite[:, None, None], op, -1)
        code, values = op_steps(self.OPS, op, params["magnitude"], size)
        # The maximum keeps compilers from fusing this with the product below: otherwise one program
        # would round once less than another.
        rest = jnp.maximum(1 - m, jnp.float32(-1e38))

        def mean(code: Code, *values: Any) -> Step:
            return codes_where(finite, code), step_values(*values), ProgramStep((code,))

        steps = [mean(Code.KEEP, m)]
        for chain in range(self.mixture_width):
            steps += self._chain(code[:, chain], values[:, chain])
            steps.append(mean(Code.ADD, rest * weights[:, chain]))
        return [*steps, mean(Code.MEAN)]
