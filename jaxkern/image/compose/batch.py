"""Checks of what `Compose` is given: images, keys, parameters and labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.explicit import batch_sharding, explicit_axes, in_auto_mode
from jaxkern.core.integers import as_integers, to_int32
from jaxkern.image.chain.plan import CHANNEL_COUNTS, MAX_SIZE, Dtype, dtype_code
from jaxkern.image.ragged import Ragged
from jaxkern.image.transforms.transform import Transform
from jaxkern.image.transforms.values import ToDtype


class Batch(NamedTuple):
    """A checked batch: how many images, their sizes (ints, or int32 [N]), channels and dtype.

    Of different sizes also what they are at most.
    """

    images: int
    height: Any
    width: Any
    channels: int
    dtype: Dtype
    largest: tuple[int, int] | None = None


def checked_images(images: Any) -> Batch:
    """What `apply` was given as images; raises TypeError or ValueError that names the problem."""
    if isinstance(images, Ragged):
        return _checked_ragged(images)
    if not hasattr(images, "shape") or not hasattr(images, "dtype"):
        raise TypeError(
            f"images is a {type(images).__name__}; wanted an array [N, H, W, C] or a Ragged batch"
        )
    shape = images.shape
    if len(shape) != 4:
        more = "; add a batch axis with images[None]" if len(shape) == 3 else ""
        raise ValueError(
            f"images has shape {shape}; wanted [N, H, W, C], or [N, T, H, W, C] of clips{more}"
        )
    if shape[3] not in CHANNEL_COUNTS:
        more = "; this looks like NCHW, wanted NHWC" if shape[1] in CHANNEL_COUNTS else ""
        raise ValueError(
            f"images has shape {shape}; wanted 1, 3 or 4 channels on the last axis{more}"
        )
    if not (1 <= shape[1] <= MAX_SIZE and 1 <= shape[2] <= MAX_SIZE):
        raise ValueError(f"images has shape {shape}; wanted a height and width from 1 to 2**24")
    code = dtype_code(images.dtype)
    if code is None:
        raise TypeError(
            f"images has dtype {images.dtype}; wanted uint8, uint16, float16, bfloat16 or "
            "float32: convert with images.astype(...)"
        )
    return Batch(shape[0], int(shape[1]), int(shape[2]), int(shape[3]), code)


_MOST = 65535.0  # of uint16


def is_uint16(images: Any) -> bool:
    """Whether images are uint16 levels, which a chain has as float32."""
    return not isinstance(images, Ragged) and getattr(images, "dtype", None) == np.uint16


def as_unit(images: Any, scale: bool, transforms: Sequence[Transform]) -> Any:
    """uint16 images as float32, x / 65535 or with `scale` False as they are; others untouched.

    Raises:
      ValueError: for a ToDtype without scale, for which it is too late; for constants above 1 where
        values are not, and what takes values up to 1 where they are more.
    """
    if not is_uint16(images):
        return images
    for transform in transforms:
        if scale and getattr(transform, "scale", None) is False:
            raise ValueError(
                f"{transform!r} got uint16 images, which a chain takes as x / 65535; wanted "
                "scale=True, or Compose(..., scale=False) for their levels"
            )
        if transform.linear or isinstance(transform, ToDtype):  # other values from there on
            break
        _check_values(transform, scale)
    values = jnp.asarray(images).astype(jnp.float32)
    return values / _MOST if scale else values


def _check_values(transform: Transform, scale: bool) -> None:
    for inner in getattr(transform, "transforms", ()):
        _check_values(inner, scale)
    constants = {name: getattr(transform, name, None) for name in ("fill", "value", "threshold")}
    numbers = {name: np.max(v) for name, v in constants.items() if isinstance(v, float | tuple)}
    for name, most in numbers.items():
        if scale and most > 1.0:
            raise ValueError(
                f"{transform!r} got uint16 images, which a chain takes as x / 65535; wanted {name} "
                f"up to 1: of a level, {name}={most:g} / 65535"
            )
    if not scale and transform.of_unit_values:
        raise ValueError(
            f"{transform!r} takes values from 0 to 1, and Compose(..., scale=False) keeps the "
            "levels of uint16 images; wanted scale=True"
        )


def as_uint16(values: jax.Array, scale: bool) -> jax.Array:
    """Floats as uint16 levels: clamped, rounded to the nearest, of two the even one; NaN to 0."""
    levels = values.astype(jnp.float32) * (_MOST if scale else 1.0)
    positive = jnp.where(levels > 0.0, levels, 0.0)
    return jnp.round(jnp.minimum(positive, _MOST)).astype(jnp.uint16)


def as_frames(images: Any) -> tuple[Any, int | None]:
    """Clips [N, T, H, W, C] as the images [N T, H, W, C], and T; other images as they are."""
    if isinstance(images, Ragged) or getattr(images, "ndim", 0) != 5:
        return images, None
    clips, frames = images.shape[:2]
    return images.reshape(clips * frames, *images.shape[2:]), int(frames)


def _repeated(value: Any, frames: int) -> Any:
    if isinstance(value, np.ndarray):
        return value.repeat(frames, axis=0)
    repeat = in_auto_mode(
        lambda value: value.repeat(frames, axis=0),
        batch_sharding([value], value.ndim),
        explicit_axes([value]),
    )
    return repeat(value)


def of_frames(
    transform: Transform, params: dict[str, Any], clips: int, frames: int | None
) -> dict[str, Any]:
    """Checked parameters of a transform of clips as those of their frames."""
    if frames is None:
        return params
    repeated = {
        name: _repeated(value, frames)
        if hasattr(value, "shape") and value.shape[0] == clips
        else value
        for name, value in params.items()
    }
    return transform._of_frames(repeated, np.tile(np.arange(frames, dtype=np.int32), clips))


def canonical(images: Any) -> Any:
    """`images`; of a `Ragged` with integers in int32, offsets in int64 where they are that.

    Raises:
      TypeError: for places and sizes that are no integers.
      ValueError: for integers in host memory that do not fit the type.
    """
    if not isinstance(images, Ragged):
        return images
    fields = {}
    for name in ("offset", "height", "width"):
        value, where = getattr(images, name), f"images.{name}"
        value = value if hasattr(value, "dtype") else _array(value)
        if np.dtype(value.dtype).kind not in "iu":
            raise TypeError(f"{where} has dtype {value.dtype}; wanted integers")
        wide = name == "offset" and value.dtype != np.int32
        dtype = jax.dtypes.canonicalize_dtype(np.int64) if wide else np.dtype(np.int32)
        fields[name] = as_integers(value, dtype, where)
    return dataclasses.replace(images, **fields)


def _array(value: Any) -> Any:
    array = np.asarray(value)
    return array.astype(np.int64) if array.size == 0 else array


def _checked_ragged(images: Ragged) -> Batch:
    if images.buffer.ndim != 1 or images.buffer.dtype != np.uint8:
        raise TypeError(
            f"images.buffer is {images.buffer.dtype} {images.buffer.shape}; wanted uint8 [B]"
        )
    if images.buffer.shape[0] == 0:
        raise ValueError("images.buffer is empty; wanted at least one byte")
    count = images.height.shape
    for name in ("offset", "height", "width"):
        array = getattr(images, name)
        if array.ndim != 1 or array.shape != count:
            raise ValueError(f"images.{name} has shape {array.shape}; wanted [N] = {count}")
    if images.channels not in CHANNEL_COUNTS:
        raise ValueError(f"images.channels={images.channels}; wanted 1, 3 or 4")
    for name, size in (("max_height", images.max_height), ("max_width", images.max_width)):
        if not 1 <= size <= MAX_SIZE:
            raise ValueError(f"images.{name}={size}; wanted a size from 1 to 2**24")
    largest = images.max_height, images.max_width
    return Batch(count[0], images.height, images.width, images.channels, Dtype.U8, largest)


def is_single_key(key: Any) -> bool:
    """Whether a typed or uint32 key array holds one key; raises TypeError for anything else."""
    if hasattr(key, "dtype") and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        rank = 0
    elif hasattr(key, "dtype") and key.dtype == jnp.uint32 and key.ndim in (1, 2):
        rank = 1
    else:
        raise TypeError(
            f"keys is {_described(key)}; wanted keys from jax.random.key, jax.random.split or "
            "jaxkern.random.record_keys"
        )
    if key.ndim not in (rank, rank + 1):
        raise ValueError(f"keys has shape {key.shape}; wanted one key or one key per image")
    return bool(key.ndim == rank)


def _described(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype} {value.shape}"
    return type(value).__name__


_KINDS = {"int": "iu", "bool": "b", "float": "f", "number": "iuf"}


def _kind(dtype: Any) -> str:
    return "f" if jnp.issubdtype(dtype, jnp.floating) else np.dtype(dtype).kind


def checked_parameters(
    transforms: tuple[Transform, ...], params: Any, count: int
) -> list[dict[str, Any]]:
    """One dict a transform; ints and bools become ints or int32/bool [N], others float32 [N]."""
    if params is None:
        params = tuple({} for _ in transforms)
    if not isinstance(params, tuple | list) or len(params) != len(transforms):
        given = len(params) if isinstance(params, tuple | list) else type(params).__name__
        raise ValueError(
            f"params is {given}; wanted {len(transforms)} dicts, one per transform, as from sample"
        )
    checked = []
    for place, (transform, given) in enumerate(zip(transforms, params, strict=True)):
        where = f"params[{place}] ({type(transform).__name__})"
        if not isinstance(given, dict):
            raise TypeError(f"{where} is a {type(given).__name__}; wanted a dict")
        missing = [name for name in transform.parameters if name not in given]
        unknown = [name for name in given if name not in transform.parameters]
        if missing or unknown:
            raise ValueError(
                f"{where} has missing {missing} and unknown {unknown}; "
                f"wanted exactly {list(transform.parameters)}"
            )
        checked.append(
            {
                name: _checked_parameter(given[name], kind, count, f"{where}[{name!r}]")
                for name, kind in transform.parameters.items()
            }
        )
    return checked


def _checked_parameter(value: Any, wanted: str, count: int, where: str) -> Any:
    kind, _, sides = wanted.partition("[")
    shape = (count, *(int(side) for side in sides.rstrip("]").split(",") if side))
    if not isinstance(value, jax.Array):
        value = np.asarray(value)
        if value.ndim == 0 and len(shape) == 1 and value.dtype.kind in _KINDS[kind]:
            value = to_int32(value, where) if kind == "int" else value
            if kind in ("float", "number"):
                return np.asarray(value, np.float32).reshape(1)
            return value.item()
    if _kind(value.dtype) not in _KINDS[kind]:
        raise TypeError(f"{where} has dtype {value.dtype}; wanted {kind} values")
    if kind == "int":
        value = to_int32(value, where)
    if value.shape == shape[1:]:
        value = jnp.broadcast_to(value, shape)
    if value.shape != shape:
        each = "one value" if len(shape) == 1 else f"{list(shape[1:])} values"
        raise ValueError(f"{where} has shape {value.shape}; wanted {shape}: {each} per image")
    if kind in ("float", "number") and value.dtype != np.float32:
        return value.astype(np.float32)
    return value


def checked_labels(labels: Any, count: int) -> Any:
    """Labels as float [N, classes]."""
    labels = labels if hasattr(labels, "shape") else np.asarray(labels)
    if labels.ndim != 2 or not jnp.issubdtype(labels.dtype, jnp.floating):
        raise TypeError(
            f"labels is {_described(labels)}; wanted one-hot floats [N, classes]: "
            "use jax.nn.one_hot(labels, classes)"
        )
    if labels.shape[0] != count:
        raise ValueError(f"labels has {labels.shape[0]} rows and the batch {count} images")
    return jnp.asarray(labels)
