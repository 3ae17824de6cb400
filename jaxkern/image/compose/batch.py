"""Checks of the arguments of `Compose`: images, keys, parameters and labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.arguments import to_integers
from jaxkern.core.axes import on_batch
from jaxkern.image.chain.plan import CHANNEL_COUNTS, MAX_SIZE, Dtype, checked_dtype
from jaxkern.image.ragged import Ragged
from jaxkern.image.transforms.transform import Params, Transform
from jaxkern.image.transforms.values import ToDtype


class Batch(NamedTuple):
    """A checked batch; sizes are ints, or int32 [N] of which `largest` is the upper bound."""

    images: int
    height: Any
    width: Any
    channels: int
    dtype: Dtype
    largest: tuple[int, int] | None = None


def checked_images(images: Any) -> Batch:
    """Check the images of `apply`; raise TypeError or ValueError for invalid ones."""
    if isinstance(images, Ragged):
        return _checked_ragged(images)
    if not hasattr(images, "shape") or not hasattr(images, "dtype"):
        raise TypeError(f"images: expected an array or a Ragged, got a {type(images).__name__}")
    shape = images.shape
    if len(shape) != 4:
        more = "; add a batch axis with images[None]" if len(shape) == 3 else ""
        raise ValueError(f"images: expected [N, H, W, C] or [N, T, H, W, C], got {shape}{more}")
    if shape[3] not in CHANNEL_COUNTS:
        more = ", which looks like NCHW" if shape[1] in CHANNEL_COUNTS else ""
        raise ValueError(f"images: expected NHWC with 1, 3 or 4 channels, got shape {shape}{more}")
    if not (1 <= shape[1] <= MAX_SIZE and 1 <= shape[2] <= MAX_SIZE):
        raise ValueError(f"images: expected a height and width from 1 to 2**24, got shape {shape}")
    code = checked_dtype(images.dtype, "images", "uint16, ")
    return Batch(shape[0], int(shape[1]), int(shape[2]), int(shape[3]), code)


_UINT16_MAX = 65535.0


def is_uint16(images: Any) -> bool:
    """Return True for uint16 levels, which a chain processes as float32."""
    return not isinstance(images, Ragged) and getattr(images, "dtype", None) == np.uint16


def uint16_to_float(images: Any, scale: bool, transforms: Sequence[Transform]) -> Any:
    """Convert uint16 images to float32, with `scale` x / 65535; return others unchanged."""
    if not is_uint16(images):
        return images
    for transform in transforms:
        if scale and getattr(transform, "scale", None) is False:
            raise ValueError(f"{transform!r}: expected scale=True for uint16")
        if transform.linear or isinstance(transform, ToDtype):  # later values have another range
            break
        _check_values(transform, scale)
    values = jnp.asarray(images).astype(jnp.float32)
    return values / _UINT16_MAX if scale else values


def _check_values(transform: Transform, scale: bool) -> None:
    for inner in getattr(transform, "transforms", ()):
        _check_values(inner, scale)
    constants = {name: getattr(transform, name, None) for name in ("fill", "value", "threshold")}
    numbers = {name: np.max(v) for name, v in constants.items() if isinstance(v, float | tuple)}
    for name, largest in numbers.items():
        if scale and largest > 1.0:
            raise ValueError(
                f"{transform!r}: expected {name} up to 1, since uint16 images are x / 65535, got "
                f"{largest:g}; a level is {name}={largest:g} / 65535"
            )
    if not scale and transform.expects_unit_range:
        raise ValueError(f"{transform!r}: expected values from 0 to 1; use scale=True")


def float_to_uint16(values: jax.Array, scale: bool) -> jax.Array:
    """Clamp floats and round them to uint16 levels, half to even; NaN becomes 0."""
    levels = values.astype(jnp.float32) * (_UINT16_MAX if scale else 1.0)
    positive = jnp.where(levels > 0.0, levels, 0.0)
    return jnp.round(jnp.minimum(positive, _UINT16_MAX)).astype(jnp.uint16)


def split_clips(images: Any) -> tuple[Any, int | None]:
    """Return clips [N, T, H, W, C] as images [N T, H, W, C], and T; or other images and None."""
    if isinstance(images, Ragged) or getattr(images, "ndim", 0) != 5:
        return images, None
    clips, frames = images.shape[:2]
    return images.reshape(clips * frames, *images.shape[2:]), int(frames)


def frame_parameters(
    transform: Transform, params: Params, clips: int, frames: int | None
) -> Params:
    """Return the parameters of frames, from a transform's checked parameters of their clips."""
    if frames is None:
        return params
    repeated = dict(params)
    for name, value in params.items():
        if hasattr(value, "shape") and value.shape[0] == clips:
            repeated[name] = on_batch(lambda x: x.repeat(frames, axis=0), value.ndim, value)
    return transform.frame_parameters(repeated, np.tile(np.arange(frames, dtype=np.int32), clips))


def canonicalize(images: Any) -> Any:
    """Return images; a `Ragged` with int32 integers, and int64 offsets if x64 is enabled."""
    if not isinstance(images, Ragged):
        return images
    fields = {}
    for name in ("offset", "height", "width"):
        value, where = getattr(images, name), f"images.{name}"
        value = value if hasattr(value, "dtype") else _array(value)
        if np.dtype(value.dtype).kind not in "iu":
            raise TypeError(f"{where}: expected integers, got dtype {value.dtype}")
        wide = name == "offset" and value.dtype != np.int32
        dtype = jax.dtypes.canonicalize_dtype(np.int64) if wide else np.dtype(np.int32)
        fields[name] = to_integers(value, where, dtype)
    return dataclasses.replace(images, **fields)


def _array(value: Any) -> Any:
    array = np.asarray(value)
    return array.astype(np.int64) if array.size == 0 else array


def _checked_ragged(images: Ragged) -> Batch:
    if images.buffer.ndim != 1 or images.buffer.dtype != np.uint8:
        raise TypeError(f"images.buffer: expected uint8 [B], got {_described(images.buffer)}")
    if images.buffer.shape[0] == 0:
        raise ValueError("images.buffer: expected at least one byte, got none")
    count = images.height.shape
    for name in ("offset", "height", "width"):
        array = getattr(images, name)
        if array.ndim != 1 or array.shape != count:
            raise ValueError(f"images.{name}: expected shape [N] = {count}, got {array.shape}")
    if images.channels not in CHANNEL_COUNTS:
        raise ValueError(f"images.channels: expected 1, 3 or 4, got {images.channels}")
    for name, size in (("max_height", images.max_height), ("max_width", images.max_width)):
        if not 1 <= size <= MAX_SIZE:
            raise ValueError(f"images.{name}: expected a size from 1 to 2**24, got {size}")
    largest = images.max_height, images.max_width
    return Batch(count[0], images.height, images.width, images.channels, Dtype.U8, largest)


def is_single_key(key: Any) -> bool:
    """Return True if a typed or uint32 key array holds one key; raise TypeError otherwise."""
    if hasattr(key, "dtype") and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        rank = 0
    elif hasattr(key, "dtype") and key.dtype == jnp.uint32 and key.ndim in (1, 2):
        rank = 1
    else:
        raise TypeError(f"keys: expected keys, as from jax.random.split, got {_described(key)}")
    if key.ndim not in (rank, rank + 1):
        raise ValueError(f"keys: expected one key or one key per image, got shape {key.shape}")
    return bool(key.ndim == rank)


def _described(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype} {value.shape}"
    return type(value).__name__


_KINDS = {"int": "iu", "bool": "b", "float": "f", "number": "iuf"}


def _kind(dtype: Any) -> str:
    return "f" if jnp.issubdtype(dtype, jnp.floating) else np.dtype(dtype).kind


def checked_parameters(transforms: tuple[Transform, ...], params: Any, count: int) -> list[Params]:
    """Check parameters: one dict per transform, of ints, bools, int32 [N], bool [N] or f32 [N]."""
    if params is None:
        params = tuple({} for _ in transforms)
    if not isinstance(params, tuple | list) or len(params) != len(transforms):
        count_or_type = len(params) if isinstance(params, tuple | list) else type(params).__name__
        raise ValueError(f"params: expected {len(transforms)} dicts, got {count_or_type}")
    checked = []
    for index, (transform, values) in enumerate(zip(transforms, params, strict=True)):
        where = f"params[{index}] ({type(transform).__name__})"
        if not isinstance(values, dict):
            raise TypeError(f"{where}: expected a dict, got a {type(values).__name__}")
        missing = [name for name in transform.parameters if name not in values]
        unknown = [name for name in values if name not in transform.parameters]
        if missing or unknown:
            raise ValueError(
                f"{where}: expected {[*transform.parameters]}, missing {missing}, unknown {unknown}"
            )
        checked.append(
            {
                name: _checked_parameter(values[name], kind, count, f"{where}[{name!r}]")
                for name, kind in transform.parameters.items()
            }
        )
    return checked


def _checked_parameter(value: Any, spec: str, count: int, where: str) -> Any:
    kind, _, sides = spec.partition("[")
    shape = (count, *(int(side) for side in sides.rstrip("]").split(",") if side))
    if not isinstance(value, jax.Array):
        value = np.asarray(value)
        if value.ndim == 0 and len(shape) == 1 and value.dtype.kind in _KINDS[kind]:
            value = to_integers(value, where) if kind == "int" else value
            if kind in ("float", "number"):
                return np.asarray(value, np.float32).reshape(1)
            return value.item()
    if _kind(value.dtype) not in _KINDS[kind]:
        raise TypeError(f"{where}: expected {kind} values, got dtype {value.dtype}")
    if kind == "int":
        value = to_integers(value, where)
    if value.shape == shape[1:]:
        value = jnp.broadcast_to(value, shape)
    if value.shape != shape:
        raise ValueError(f"{where}: expected shape {shape}, got {value.shape}")
    if kind in ("float", "number") and value.dtype != np.float32:
        return value.astype(np.float32)
    return value


def checked_labels(labels: Any, count: int) -> Any:
    labels = labels if hasattr(labels, "shape") else np.asarray(labels)
    if labels.ndim != 2 or not jnp.issubdtype(labels.dtype, jnp.floating):
        raise TypeError(f"labels: expected floats, as of jax.nn.one_hot, got {_described(labels)}")
    if labels.shape[0] != count:
        raise ValueError(f"labels: expected {count} rows, one per image, got {labels.shape[0]}")
    return jnp.asarray(labels)
