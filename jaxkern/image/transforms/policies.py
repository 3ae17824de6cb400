"""Augmentation policies: published tables of ops and magnitudes, drawn for each image."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.arguments import check_integer
from jaxkern.image.chain.axis import is_static
from jaxkern.image.program.program import (
    MAX_STEPS,
    VALUES,
    Code,
    ProgramStep,
    Step,
    affine_coefficients,
    program_step,
)
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.checks import checked
from jaxkern.image.transforms.transform import Params, Size, Transform, set_fields, uniform_below
from jaxkern.image.transforms.warps import NO_FILL


class AutoAugmentPolicy(enum.StrEnum):
    """The data set that a policy of AutoAugment was trained for.

    >>> AutoAugmentPolicy("svhn").name
    'SVHN'
    """

    IMAGENET = "imagenet"
    CIFAR10 = "cifar10"
    SVHN = "svhn"

    def __repr__(self) -> str:
        return repr(str(self))


class Magnitude(NamedTuple):
    """Magnitudes of an op, linear over the bins."""

    first: float
    last: float
    side: int | None = None  # of the image, which multiplies `last`: 0 height, 1 width
    divisor: float = 1.0  # of the product of `last` and that side
    signed: bool = True  # a draw has a random sign
    integer: bool = False  # rounded to integers, half to even


Space = dict[str, Magnitude | None]

_WARPS = "ShearX ShearY TranslateX TranslateY Rotate"
_FACTORS = "Brightness Color Contrast Sharpness"
_TABLES = "Posterize Solarize AutoContrast Equalize"


def _space(
    names: str,
    shear: float,
    translate: tuple[float, float | None],
    rotate: float,
    bits: tuple[float, float],
    factor: float,
) -> Space:
    """Return magnitudes of ops; `translate` is in pixels, or over / under of the image's side."""
    over, under = translate
    sides = (None, None) if under is None else (1, 0)
    across, down = (Magnitude(0.0, over, side, under or 1.0) for side in sides)
    magnitudes = {
        **dict.fromkeys(("ShearX", "ShearY"), Magnitude(0.0, shear)),
        **{"TranslateX": across, "TranslateY": down, "Rotate": Magnitude(0.0, rotate)},
        **dict.fromkeys(_FACTORS.split(), Magnitude(0.0, factor)),
        "Posterize": Magnitude(*bits, signed=False, integer=True),
        "Solarize": Magnitude(1.0, 0.0, signed=False),
    }
    return {name: magnitudes.get(name) for name in names.split()}


_ALL = f"{_WARPS} {_FACTORS} {_TABLES}"
RAND_AUGMENT = _space(f"Identity {_ALL}", 0.3, (150.0, 331.0), 30.0, (8.0, 4.0), 0.9)
AUTO_AUGMENT = _space(f"{_ALL} Invert", 0.3, (150.0, 331.0), 30.0, (8.0, 4.0), 0.9)
TRIVIAL_AUGMENT_WIDE = _space(f"Identity {_ALL}", 0.99, (32.0, None), 135.0, (8.0, 2.0), 0.99)
# The last four are used only with `all_ops`.
AUG_MIX = _space(f"{_WARPS} {_TABLES} {_FACTORS}", 0.3, (1.0, 3.0), 30.0, (4.0, 0.0), 0.9)


def magnitude_table(space: Space, bins: int, size: Size) -> Any:
    """Return magnitudes f32 [ops, bins], rounded once from float64; NumPy if sizes are known."""
    xp: Any = np if is_static(*size) else jnp
    with jax.enable_x64(True):
        sides = [xp.asarray(side).astype(np.float64) for side in size]
        return xp.stack([_row(row, bins, sides, xp) for row in space.values()]).astype(np.float32)


def _row(magnitude: Magnitude | None, bins: int, size: Any, xp: Any) -> Any:
    if magnitude is None:
        return xp.zeros(bins)
    side = 1 if magnitude.side is None else size[magnitude.side]
    last = side * magnitude.last / magnitude.divisor
    row = magnitude.first + (last - magnitude.first) * np.arange(float(bins)) / (bins - 1)
    return xp.asarray(np.round(row) if magnitude.integer else row)


def signed_ops(space: Space) -> np.ndarray:
    return np.asarray([row is not None and row.signed for row in space.values()])


class Pairs(NamedTuple):
    """A policy of AutoAugment: arrays [pairs, 2]. One pair is drawn for each image."""

    op: np.ndarray
    probability: np.ndarray
    magnitude_bin: np.ndarray  # of the magnitude, of 10


def pairs(policy: AutoAugmentPolicy) -> Pairs:
    """Return the published pairs, with ops as indices of AUTO_AUGMENT."""
    names = list(AUTO_AUGMENT)
    steps = [step.split() for step in re.split("[,;\n]", _PAIRS[policy]) if step.strip()]
    op = np.asarray([names.index(name) for name, _, _ in steps], np.int32)
    probability = np.asarray([chance for _, chance, _ in steps], np.float32)
    bins = np.asarray([0 if text == "-" else int(text) for _, _, text in steps], np.int32)
    return Pairs(op.reshape(-1, 2), probability.reshape(-1, 2), bins.reshape(-1, 2))


_CODES = {
    **dict.fromkeys(_WARPS.split(), Code.WARP),
    **{n: Code[n.upper()] for n in f"Brightness Contrast Sharpness {_TABLES} Invert".split()},
    **{"Color": Code.SATURATION, "Identity": Code.NONE},
}


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
    blend = named(*_FACTORS.split())
    # A blend with the factor 1 + m has the second value 1 - factor = -m, without rounding.
    first = jnp.where(blend, 1.0 + magnitude, magnitude)
    first = jnp.where(named("Posterize"), truncated, first)
    rest = jnp.where(blend, -magnitude, 0.0)
    zeros = [jnp.zeros_like(magnitude)] * (VALUES - 2)
    values = jnp.stack([first, rest, *zeros], axis=-1)
    warp = (code == int(Code.WARP))[..., None]
    return code, jnp.where(warp, _coefficients(named, magnitude, truncated, size), values)


def _coefficients(named: Any, magnitude: Any, truncated: Any, size: Size) -> Any:
    """Return coefficients of warps; shears fix the top left corner, rotations the centre."""
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


class _Policy(Transform):
    """Base class: ops of a table, applied in order."""

    OPS: ClassVar[tuple[str, ...]]
    kind = "program"
    expects_unit_range = True
    geometric = True
    _space: ClassVar[Space]

    interpolation: str
    fill: Any

    def _drawn(self, op: Any, magnitude_bin: Any, bins: int, size: Size, fraction: Any) -> Any:
        """Return magnitudes of ops, negated if the op is signed and the fraction is below 1/2."""
        table = jnp.asarray(magnitude_table(self._space, bins, size))
        negative = jnp.asarray(signed_ops(self._space))[op] & (fraction < 0.5)
        strength = table[op, magnitude_bin]
        return jnp.where(negative, -strength, strength)

    def _checked_op(self, op: Any) -> Any:
        """Return `op`; reject invalid indices in NumPy arrays."""
        count = len(self.OPS)
        if isinstance(op, np.ndarray) and op.size and not -1 <= op.min() <= op.max() < count:
            raise ValueError(
                f"{type(self).__name__}: expected op to index OPS, 0 to {count - 1}, or -1 for no "
                f"op, got {op[(op < -1) | (op >= count)].flat[0]}"
            )
        return op

    def _chain(self, code: Any, values: Any) -> list[Step]:
        codes = tuple(sorted({_CODES[name] for name in self.OPS} - {Code.NONE}))
        fill = NO_FILL if self.fill is None else self.fill
        static = ProgramStep(codes, self.interpolation, fill=fill)
        return [(code[:, step], values[:, step], static) for step in range(code.shape[1])]

    def program(self, params: Params, size: Size) -> list[Step]:
        op = self._checked_op(params["op"])
        return self._chain(*op_steps(self.OPS, op, params["magnitude"], size))


def _op_parameters(*shape: int) -> dict[str, str]:
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
    Source: Cubuk et al., RandAugment, 2019, with the ranges of torchvision.

    >>> import jax
    >>> RandAugment(2, 9).sample(jax.random.key(0), (224, 224))["op"].shape
    (2,)
    """

    num_ops: int = checked(checks.integer(0), 2)
    magnitude: int = checked(checks.integer(0), 9)
    num_magnitude_bins: int = checked(checks.integer(2), 31)
    interpolation: str = checked(checks.warping, "nearest")
    fill: Any = checked(checks.static_fill, None)

    OPS = tuple(RAND_AUGMENT)
    _space = RAND_AUGMENT

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("magnitude", self.magnitude, 0, self.num_magnitude_bins - 1)
        set_fields(self, parameters=_op_parameters(self.num_ops))

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        fractions = jax.random.uniform(key, (2, self.num_ops), jnp.float32)
        op, bins = uniform_below(fractions[0], len(self.OPS)), self.num_magnitude_bins
        return {"op": op, "magnitude": self._drawn(op, self.magnitude, bins, size, fractions[1])}


@dataclasses.dataclass(frozen=True)
class TrivialAugmentWide(_Policy):
    """Apply one of 14 ops with one of the magnitudes, all equally likely, and a random sign.

    Args:
      num_magnitude_bins, interpolation, fill: as in `RandAugment`.
    Parameters of an image: op i32 [1], an index of `OPS`, and magnitude f32 [1].
    Source: Müller and Hutter, TrivialAugment, 2021.

    >>> TrivialAugmentWide.OPS[:3]
    ('Identity', 'ShearX', 'ShearY')
    """

    num_magnitude_bins: int = checked(checks.integer(2), 31)
    interpolation: str = checked(checks.warping, "nearest")
    fill: Any = checked(checks.static_fill, None)

    OPS = tuple(TRIVIAL_AUGMENT_WIDE)
    _space = TRIVIAL_AUGMENT_WIDE
    parameters = _op_parameters(1)

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        fractions = jax.random.uniform(key, (3, 1), jnp.float32)
        op, bins = uniform_below(fractions[0], len(self.OPS)), self.num_magnitude_bins
        magnitude_bin = uniform_below(fractions[1], bins)
        return {"op": op, "magnitude": self._drawn(op, magnitude_bin, bins, size, fractions[2])}


def _policy(value: Any, name: str) -> AutoAugmentPolicy:
    return AutoAugmentPolicy(checks.choice(*map(str, AutoAugmentPolicy))(value, name))


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
    Source: Cubuk et al., AutoAugment, 2019.

    >>> AutoAugment("cifar10").OPS[-1]
    'Invert'
    """

    policy: AutoAugmentPolicy | str = checked(_policy, AutoAugmentPolicy.IMAGENET)
    interpolation: str = checked(checks.warping, "nearest")
    fill: Any = checked(checks.static_fill, None)

    OPS = tuple(AUTO_AUGMENT)
    _space = AUTO_AUGMENT
    parameters = _op_parameters(2)

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        fractions = jax.random.uniform(key, (3, 2), jnp.float32)
        published = pairs(AutoAugmentPolicy(self.policy))
        pair_index = uniform_below(fractions[0, 0], len(published.op))
        op, probability, magnitude_bin = (jnp.asarray(rows)[pair_index] for rows in published)
        applied = fractions[1] < probability
        magnitude = self._drawn(op, magnitude_bin, 10, size, fractions[2])
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
    Source: Hendrycks et al., AugMix, 2019, with the ranges of torchvision.

    >>> import jax
    >>> AugMix().sample(jax.random.key(0), (32, 32))["op"].shape
    (3, 3)
    """

    severity: int = checked(checks.integer(1, 10), 3)
    mixture_width: int = checked(checks.integer(1), 3)
    chain_depth: int = checked(checks.integer(-(2**63)), -1)
    alpha: float = checked(checks.positive, 1.0)
    all_ops: bool = checked(checks.flag, True)
    interpolation: str = checked(checks.warping, "bilinear")
    fill: Any = checked(checks.static_fill, None)

    OPS = tuple(AUG_MIX)
    _space = AUG_MIX

    def __post_init__(self) -> None:
        super().__post_init__()
        width, depth = self.mixture_width, self._depth
        steps = width * (depth + 1) + 2
        check_integer("mixture_width * (chain_depth + 1) + 2", steps, 1, MAX_STEPS)
        own = {"weights": f"float[{width}]", "m": "float"}
        set_fields(self, parameters=_op_parameters(width, depth) | own)

    @property
    def _depth(self) -> int:
        return self.chain_depth if self.chain_depth > 0 else 3

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        fraction_key, depth_key, weight_key = jax.random.split(key, 3)
        width, depth = self.mixture_width, self._depth
        fractions = jax.random.uniform(fraction_key, (3, width, depth), jnp.float32)
        op = uniform_below(fractions[0], len(self.OPS) - (0 if self.all_ops else 4))
        magnitude_bin = uniform_below(fractions[1], self.severity)
        magnitude = self._drawn(op, magnitude_bin, 10, size, fractions[2])
        used: Any = np.ones((width, depth), bool)
        if self.chain_depth < 1:
            depths = 1 + uniform_below(
                jax.random.uniform(depth_key, (width, 1), jnp.float32), depth
            )
            used = jnp.arange(depth) < depths
        # Normalized gamma variates have a Dirichlet distribution, and a beta distribution for two.
        shape = (width + 2,)
        if self.alpha == 1.0:
            log_gamma = jnp.log(jax.random.exponential(weight_key, shape, jnp.float32))
        else:
            log_gamma = jax.random.loggamma(weight_key, self.alpha, shape, jnp.float32)
        return {
            "op": jnp.where(used, op, -1),
            "magnitude": jnp.where(used, magnitude, 0.0),
            "weights": jax.nn.softmax(log_gamma[:width]),
            "m": jax.nn.softmax(log_gamma[width:])[0],
        }

    def program(self, params: Params, size: Size) -> list[Step]:
        op = self._checked_op(params["op"])
        weights, m = (jnp.asarray(params[name], jnp.float32) for name in ("weights", "m"))
        # An image with any weight that is not finite is left unchanged.
        finite = jnp.isfinite(m) & jnp.isfinite(weights).all(axis=1)
        op = jnp.where(finite[:, None, None], op, -1)
        code, values = op_steps(self.OPS, op, params["magnitude"], size)
        # The maximum keeps compilers from fusing this with the product below: otherwise one program
        # would round once less than another.
        rest = jnp.maximum(1 - m, jnp.float32(-1e38))
        steps = [program_step(Code.KEEP, m, apply=finite)]
        for chain in range(self.mixture_width):
            steps += self._chain(code[:, chain], values[:, chain])
            steps.append(program_step(Code.ADD, rest * weights[:, chain], apply=finite))
        return [*steps, program_step(Code.MEAN, apply=finite)]


# Cubuk et al., AutoAugment: Learning Augmentation Strategies from Data, 2019, appendix. Each step:
# the op, its probability, and the bin of its magnitude or "-" if it has none.
_PAIRS = {
    AutoAugmentPolicy.IMAGENET: """
        Posterize 0.4 8, Rotate 0.6 9; Solarize 0.6 5, AutoContrast 0.6 -
        Equalize 0.8 -, Equalize 0.6 -; Posterize 0.6 7, Posterize 0.6 6
        Equalize 0.4 -, Solarize 0.2 4; Equalize 0.4 -, Rotate 0.8 8
        Solarize 0.6 3, Equalize 0.6 -; Posterize 0.8 5, Equalize 1.0 -
        Rotate 0.2 3, Solarize 0.6 8; Equalize 0.6 -, Posterize 0.4 6
        Rotate 0.8 8, Color 0.4 0; Rotate 0.4 9, Equalize 0.6 -
        Equalize 0.0 -, Equalize 0.8 -; Invert 0.6 -, Equalize 1.0 -
        Color 0.6 4, Contrast 1.0 8; Rotate 0.8 8, Color 1.0 2
        Color 0.8 8, Solarize 0.8 7; Sharpness 0.4 7, Invert 0.6 -
        ShearX 0.6 5, Equalize 1.0 -; Color 0.4 0, Equalize 0.6 -
        Equalize 0.4 -, Solarize 0.2 4; Solarize 0.6 5, AutoContrast 0.6 -
        Invert 0.6 -, Equalize 1.0 -; Color 0.6 4, Contrast 1.0 8
        Equalize 0.8 -, Equalize 0.6 -
    """,
    AutoAugmentPolicy.CIFAR10: """
        Invert 0.1 -, Contrast 0.2 6; Rotate 0.7 2, TranslateX 0.3 9
        Sharpness 0.8 1, Sharpness 0.9 3; ShearY 0.5 8, TranslateY 0.7 9
        AutoContrast 0.5 -, Equalize 0.9 -; ShearY 0.2 7, Posterize 0.3 7
        Color 0.4 3, Brightness 0.6 7; Sharpness 0.3 9, Brightness 0.7 9
        Equalize 0.6 -, Equalize 0.5 -; Contrast 0.6 7, Sharpness 0.6 5
        Color 0.7 7, TranslateX 0.5 8; Equalize 0.3 -, AutoContrast 0.4 -
        TranslateY 0.4 3, Sharpness 0.2 6; Brightness 0.9 6, Color 0.2 8
        Solarize 0.5 2, Invert 0.0 -; Equalize 0.2 -, AutoContrast 0.6 -
        Equalize 0.2 -, Equalize 0.6 -; Color 0.9 9, Equalize 0.6 -
        AutoContrast 0.8 -, Solarize 0.2 8; Brightness 0.1 3, Color 0.7 0
        Solarize 0.4 5, AutoContrast 0.9 -; TranslateY 0.9 9, TranslateY 0.7 9
        AutoContrast 0.9 -, Solarize 0.8 3; Equalize 0.8 -, Invert 0.1 -
        TranslateY 0.7 9, AutoContrast 0.9 -
    """,
    AutoAugmentPolicy.SVHN: """
        ShearX 0.9 4, Invert 0.2 -; ShearY 0.9 8, Invert 0.7 -
        Equalize 0.6 -, Solarize 0.6 6; Invert 0.9 -, Equalize 0.6 -
        Equalize 0.6 -, Rotate 0.9 3; ShearX 0.9 4, AutoContrast 0.8 -
        ShearY 0.9 8, Invert 0.4 -; ShearY 0.9 5, Solarize 0.2 6
        Invert 0.9 -, AutoContrast 0.8 -; Equalize 0.6 -, Rotate 0.9 3
        ShearX 0.9 4, Solarize 0.3 3; ShearY 0.8 8, Invert 0.7 -
        Equalize 0.9 -, TranslateY 0.6 6; Invert 0.9 -, Equalize 0.6 -
        Contrast 0.3 3, Rotate 0.8 4; Invert 0.8 -, TranslateY 0.0 2
        ShearY 0.7 6, Solarize 0.4 8; Invert 0.6 -, Rotate 0.8 4
        ShearY 0.3 7, TranslateX 0.9 3; ShearX 0.1 6, Invert 0.6 -
        Solarize 0.7 2, TranslateY 0.6 7; ShearY 0.8 4, Invert 0.8 -
        ShearX 0.7 9, TranslateY 0.8 3; ShearY 0.8 5, AutoContrast 0.7 -
        ShearX 0.7 2, Invert 0.1 -
    """,
}
