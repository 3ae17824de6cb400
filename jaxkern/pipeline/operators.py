"""Nodes in JAX: element operators, image augmentation, and choices made for each record."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image import ChainProducer, Compose, EncodedProducer, MaskProducer
from jaxkern.image.compose.targets import move_points
from jaxkern.pipeline.nodes import KeyDerivation, PipelineNode, digest, qualified_name
from jaxkern.pipeline.rows import Data, described, is_ragged
from jaxkern.pipeline.sources.source import EncodedImages, check_choice

SeededProducer = ChainProducer | EncodedProducer | MaskProducer
On = Literal["auto", "device", "host"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Element:
    """One record, as an operator receives it; a pytree.

    >>> from jaxkern.pipeline import Element
    >>> Element({"x": 1, "y": 2}).update_data({"y": 3}).data
    {'x': 1, 'y': 3}
    """

    data: dict[str, Any]

    def __getitem__(self, field: str) -> Any:
        return self.data[field]

    def update_data(self, fields: Mapping[str, Any]) -> Element:
        """Return the element with these fields added or replaced."""
        return Element({**self.data, **fields})


@dataclasses.dataclass(frozen=True)
class ElementOperatorConfig:
    """Options of an `ElementOperator`.

    Attributes:
      stochastic: True if `apply` receives a key, which depends on record, seed, epoch and stream.
      stream_name: name of the random stream. Operators with different names draw independently; so
        do operators with the same name, which are distinguished by their order in the pipeline.

    Example:
      >>> import jax, jaxkern as jk
      >>> class Noise(jk.ElementOperator):
      ...     def apply(self, element, key=None):
      ...         return element.update_data({"x": element["x"] + jax.random.normal(key)})
      >>> noise = Noise(jk.pipeline.ElementOperatorConfig(stochastic=True, stream_name="noise"))
      >>> len(jk.from_source({"x": [1.0, 2.0]}, batch_size=2) >> jk.OperatorNode(noise))
      1
    """

    stochastic: bool = False
    stream_name: str | None = None

    def __post_init__(self) -> None:
        if self.stream_name is not None and not self.stochastic:
            raise ValueError(f"stream_name is {self.stream_name!r}; it needs stochastic=True")


class ElementOperator:
    """A JAX function of one record: override `apply`, or pass it as `fn`.

    Args:
      config: see `ElementOperatorConfig`.
      fn: ``fn(element, key) -> element``, instead of an overridden `apply`; key is None if the
        operator is not stochastic.

    >>> import jaxkern as jk
    >>> class Shift(jk.ElementOperator):
    ...     def apply(self, element, key=None):
    ...         return element.update_data({"x": element["x"] + 1})
    >>> pipe = jk.from_source({"x": [1.0, 2.0]}, batch_size=2) >> jk.OperatorNode(Shift())
    >>> [batch["x"].tolist() for batch in pipe]
    [[2.0, 3.0]]
    """

    def __init__(
        self,
        config: ElementOperatorConfig | None = None,
        fn: Callable[[Element, Any], Element] | None = None,
    ) -> None:
        self.config = ElementOperatorConfig() if config is None else config
        self.fn = fn

    def apply(self, element: Element, key: jax.Array | None = None) -> Element:
        """Return the transformed record; traced once for all records of a batch."""
        if self.fn is None:
            name = type(self).__name__
            raise NotImplementedError(f"{name} has no apply; override it, or use fn=")
        return self.fn(element, key)

    def apply_batch(self, batch: dict[str, Any], keys: jax.Array | None = None) -> dict[str, Any]:
        """Return the transformed batch: `apply` mapped over the leading axis of each field.

        Override it to process a whole batch at once; the result for a record must then depend only
        on that record and its key.
        """
        same: list[str] = []  # a merge compares the fields of branches by identity

        def one(data: dict[str, Any], key: Any) -> dict[str, Any]:
            result = self.apply(Element(data), key)
            if not isinstance(result, Element):
                kind = type(result).__name__
                raise TypeError(f"apply returned a {kind}; expected element.update_data(...)")
            same[:] = [name for name in data if result.data.get(name) is data[name]]
            return {name: value for name, value in result.data.items() if name not in same}

        changed = jax.vmap(one, (0, None if keys is None else 0))(batch, keys)
        return {**{name: batch[name] for name in same}, **changed}


class OperatorNode(PipelineNode):
    """A JAX operator as a node; adjacent ones compile into one program.

    Args:
      op: an `ElementOperator`; a `jaxkern.image.Compose`; or a JAX function of the batch, a dict,
        whose result for a record does not depend on other records. A Compose transforms the field
        "image" (and, if it mixes images, one-hot floats in "label"), with masks, boxes and
        keypoints, and uses the key of each record from `jaxkern.random.record_keys`.
      name: name of the node in messages, states and explanations.
      on: "device", on JAX's device when batches are delivered; or "host", on the CPU in worker
        threads, so that the device receives finished batches. "auto" is "device", except for a
        Compose: see `Pipeline.explain`.
      image, label: names of the fields of images and labels for a Compose.
      mask, boxes, keypoints: names of the fields that a Compose transforms with the images, if the
        batch has them with two or more axes per record; None leaves such a field unchanged. A
        single box or keypoint per record, without an axis for several, raises an error. The result
        also has the fields "boxes_valid", "keypoints_visible" and "image_size", see
        `Compose.apply`; they are renamed with `boxes`, `keypoints` and `image`.
    Raises: TypeError for anything else.

    A subclass runs as a JAX program, unless its class body sets ``native = True``: then a Compose
    may also run in native threads, which do not call `apply_batch`.

    >>> import jaxkern as jk
    >>> double = jk.OperatorNode(lambda batch: {"x": batch["x"] * 2})
    >>> pipe = jk.from_source({"x": [1.0, 2.0]}, batch_size=2) >> double
    >>> next(iter(pipe))["x"].tolist()
    [2.0, 4.0]
    """

    def __init__(
        self,
        op: Any,
        name: str | None = None,
        *,
        on: On = "auto",
        image: str = "image",
        label: str = "label",
        mask: str | None = "mask",
        boxes: str | None = "boxes",
        keypoints: str | None = "keypoints",
    ) -> None:
        check_choice("on", on, "auto", "device", "host")
        self.op = as_operator(op, _Fields(image, label, mask, boxes, keypoints))
        self.name = name or qualified_name(op)
        plain = _declares_native(self, OperatorNode)
        self.native = self.op.native and plain
        is_compose = isinstance(self.op, ImageAdapter) and plain
        self.compiled_for = "device" if on == "auto" and not is_compose else on
        self.stochastic, self.stream_name = self.op.stochastic, self.op.stream_name
        self.description = self.op.text

    def describe(self) -> str:
        # The host's arithmetic may differ from the device's.
        return self.description + (" on the host" if self.compiled_for == "host" else "")

    def apply_batch(self, batch: Data, keys: Any) -> Data:
        """Return the transformed batch; traced."""
        return self.op(batch, keys)


def _declares_native(value: Any, base: type) -> bool:
    """True for the class itself, and for a subclass whose body sets ``native = True``."""
    return bool(vars(type(value)).get("native", type(value) is base))


class Probabilistic(OperatorNode):
    """Applies an operator to each record with a probability, drawn from the record's key.

    Args:
      op: as for `OperatorNode`; its result must have the shapes and dtypes of its input.
      probability: probability of applying it, from 0 to 1.
      on: as for `OperatorNode`.

    >>> import jaxkern as jk
    >>> from jaxkern.pipeline import Probabilistic
    >>> pipe = jk.from_source({"x": list(range(100))}, batch_size=100)
    >>> pipe = pipe >> Probabilistic(lambda batch: {"x": -batch["x"]}, 0.25)
    >>> 0 < sum(x < 0 for x in next(iter(pipe))["x"].tolist()) < 50
    True
    """

    def __init__(
        self, op: Any, probability: float, name: str | None = None, *, on: On = "device"
    ) -> None:
        super().__init__(op, name or f"Probabilistic({qualified_name(op)})", on=on)
        if not 0 <= probability <= 1:
            raise ValueError(f"probability is {probability}; expected a number from 0 to 1")
        self.probability = float(probability)
        self.stochastic, self.stream_name = True, self.op.stream_name or "probabilistic"
        self.description = f"Probabilistic({self.op.text}, {self.probability})"

    def apply_batch(self, batch: Data, keys: Any) -> Data:
        split = jax.vmap(jax.random.split)(keys)
        drawn = jax.vmap(lambda key: jax.random.bernoulli(key, self.probability))(split[:, 0])
        return _select(drawn, self.op(batch, split[:, 1]), batch, self.name)


class Conditional(OperatorNode):
    """Applies one operator to records for which a predicate is True, and another to the rest.

    Both run on all records; their results must have the same shapes and dtypes.

    Args:
      predicate: ``predicate(element) -> bool``, a JAX function of one record.
      op: operator for records for which it is True; as for `OperatorNode`.
      otherwise: operator for the other records; None leaves them unchanged.
      on: as for `OperatorNode`.

    >>> import jaxkern as jk
    >>> from jaxkern.pipeline import Conditional
    >>> negate = lambda batch: {"x": -batch["x"]}
    >>> pipe = jk.from_source({"x": [-1, 2]}, batch_size=2)
    >>> pipe = pipe >> Conditional(lambda element: element["x"] < 0, negate)
    >>> next(iter(pipe))["x"].tolist()
    [1, 2]
    """

    def __init__(
        self,
        predicate: Callable[[Element], Any],
        op: Any,
        otherwise: Any = None,
        name: str | None = None,
        *,
        on: On = "device",
    ) -> None:
        super().__init__(op, name or f"Conditional({qualified_name(op)})", on=on)
        self.predicate = predicate
        self.otherwise = None if otherwise is None else as_operator(otherwise)
        self.stochastic |= self.otherwise is not None and self.otherwise.stochastic
        self.stream_name = self.op.stream_name or "conditional"
        other = None if self.otherwise is None else self.otherwise.text
        self.description = f"Conditional({qualified_name(predicate)}, {self.op.text}, {other})"

    def apply_batch(self, batch: Data, keys: Any) -> Data:
        arrays = {name: value for name, value in batch.items() if not is_ragged(value)}
        holds = jax.vmap(lambda data: jnp.asarray(self.predicate(Element(data)), bool))(arrays)
        if holds.ndim != 1:
            shape = holds.shape[1:]
            raise ValueError(f"the predicate of {self.name!r} returned shape {shape}; expected []")
        other = batch if self.otherwise is None else self.otherwise(batch, keys)
        return _select(holds, self.op(batch, keys), other, self.name)


def _select(which: jax.Array, then: Data, other: Data, name: str) -> Data:
    """Return the fields of `then` or of `other` for each record."""
    if then.keys() != other.keys():
        both = f"{sorted(then)} or {sorted(other)}"
        raise ValueError(f"{name!r} returns the fields {both}; expected the same in both cases")

    def select(field: str, a: Any, b: Any) -> Any:
        if a is b:
            return a
        if is_ragged(a) or is_ragged(b) or a.shape != b.shape or a.dtype != b.dtype:
            raise ValueError(
                f"{name!r} returns field {field!r} as {described(a)} or as {described(b)}; "
                "expected one shape and dtype in both cases"
            )
        return jnp.where(which.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    return {
        field: jax.tree.map(functools.partial(select, field), a, other[field], is_leaf=is_ragged)
        for field, a in then.items()
    }


@dataclasses.dataclass(eq=False)
class BatchOperator:
    """The argument of an `OperatorNode` as a JAX function of a batch.

    A stochastic one is called with keys [N], too. `text` describes it in states.
    """

    function: Callable[[Data, Any], Data]
    text: str
    stochastic: bool = False
    stream_name: str | None = None
    native: bool = False  # record producers may replace it

    def __call__(self, batch: Data, keys: Any) -> Data:
        return self.function(batch, keys if self.stochastic else None)


class _Fields(NamedTuple):
    """Names of the fields that a Compose transforms: images, labels, and targets of the images."""

    image: str = "image"
    label: str = "label"
    mask: str | None = "mask"
    boxes: str | None = "boxes"
    keypoints: str | None = "keypoints"

    def targets(self, batch: Mapping[str, Any], axes: int) -> dict[str, str]:
        """Return target name -> field for targets that the batch has with at least `axes` axes."""
        names = {"mask": self.mask, "boxes": self.boxes, "keypoints": self.keypoints}
        return {
            name: field
            for name, field in names.items()
            if field is not None
            and field in batch
            and (is_ragged(batch[field]) or len(batch[field].shape) >= axes)
        }

    def with_flags(self, names: dict[str, str]) -> dict[str, str]:
        """Return `names`, and the names of the flags that a Compose adds for each target."""
        flags = {flag: target for target, flag in _FLAGS.items() if target in names}
        return names | {flag: names[t] + flag.removeprefix(t) for flag, t in flags.items()}

    def without_axis(self, batch: Mapping[str, Any], axes: int) -> str | None:
        """Return a field with a single box or keypoint per record, without an axis for several."""
        for field, numbers in ((self.boxes, 4), (self.keypoints, 2)):
            shape: tuple[int, ...] = getattr(batch.get(field or ""), "shape", ())
            if len(shape) == axes and shape[-1] == numbers:
                return field
        return None


def as_operator(op: Any, fields: _Fields | None = None) -> BatchOperator:
    """Convert an element operator, a Compose or a JAX function to a `BatchOperator`."""
    if isinstance(op, ElementOperator):
        plain = {
            name: value
            for name, value in sorted(vars(op).items())
            if isinstance(value, int | float | str | tuple | None)
        }
        fn = "" if op.fn is None else f", {qualified_name(op.fn)}"
        text = f"{qualified_name(op)}({op.config}{fn})#{digest(repr(plain))}"
        stream_name = op.config.stream_name or "element"
        apply = functools.partial(_apply_elements, op)
        return BatchOperator(apply, text, op.config.stochastic, stream_name)
    if isinstance(op, Compose):
        return ImageAdapter(op, fields or _Fields())
    if isinstance(op, type) or not callable(op):
        more = "; create an object of the class" if isinstance(op, type) else ""
        raise TypeError(
            f"op is {op!r:.80}; expected an ElementOperator, a jaxkern.image.Compose or a JAX "
            f"function of a batch{more}"
        )
    return BatchOperator(functools.partial(_apply_function, op), f"function {qualified_name(op)}")


def _apply_elements(op: ElementOperator, batch: Data, keys: Any) -> Data:
    # Ragged images have no axis of records to map over; they are not changed.
    ragged = {name: value for name, value in batch.items() if is_ragged(value)}
    arrays = {name: value for name, value in batch.items() if name not in ragged}
    return {**ragged, **op.apply_batch(arrays, keys)}


def _apply_function(fn: Callable[[Data], Data], batch: Data, keys: Any) -> Data:
    result = fn(dict(batch))
    if not isinstance(result, dict):
        kind = type(result).__name__
        raise TypeError(f"{qualified_name(fn)} returned a {kind}; expected a dict of fields")
    return {
        name: jax.tree.map(lambda x: x if hasattr(x, "dtype") else np.asarray(x), value)
        for name, value in result.items()
    }


# The flags that a Compose adds for its targets, and for images of different sizes.
_FLAGS = {"boxes": "boxes_valid", "keypoints": "keypoints_visible", "image": "image_size"}


class ImageAdapter(BatchOperator):
    """A Compose applied to fields of a batch.

    A Compose can run in native threads. A subclass cannot, unless its body sets ``native = True``,
    which declares that it computes the same as Compose.
    """

    def __init__(self, op: Compose, fields: _Fields) -> None:
        self._op, self._fields = op, fields
        self._image, self._label = fields.image, fields.label
        stochastic = any(transform.parameters for transform in op.transforms)
        super().__init__(self._apply, f"Compose#{digest(repr(op))}({fields.image})", stochastic)
        self._mixes = any(transform.kind == "batch" for transform in op.transforms)
        self._moves = any(transform.geometric for transform in op.transforms)
        self._is_compose = _declares_native(op, Compose)
        self.native = self._is_compose and not self._mixes

    def _apply(self, batch: Data, keys: Any) -> Data:
        if self._image not in batch:
            raise ValueError(
                f"the batch has no field {self._image!r}; it has {sorted(batch)}: name the field "
                "of the images with OperatorNode(aug, image=...)"
            )
        if self._moves and (field := self._fields.without_axis(batch, axes=2)):
            raise ValueError(
                f"field {field!r} has shape {batch[field].shape}, one for each record; expected "
                f"[N, 1, {batch[field].shape[-1]}] to move with the images, or "
                "OperatorNode(aug, boxes=None, keypoints=None) to leave it unchanged"
            )
        names = {"image": self._image, **self._fields.targets(batch, axes=3)}
        if self._mixes and batch.get(self._label) is not None:
            names["label"] = self._label
        if not self._is_compose and names.keys() <= {"image", "label"}:
            return self._apply_images(batch, keys)
        names = self._fields.with_flags(names)
        fields = {name: batch[field] for name, field in names.items() if field in batch}
        result = self._op(keys, fields) if self.stochastic else self._op.apply(fields)
        return {**batch, **{names[name]: value for name, value in result.items()}}

    def _apply_images(self, batch: Data, keys: Any) -> Data:
        """Apply a subclass of Compose, which may not support dicts."""
        images = batch[self._image]
        labels = batch.get(self._label) if self._mixes else None
        if self.stochastic:
            result = self._op(keys, images, labels)
        else:
            result = self._op.apply(images, labels=labels)
        if labels is None:
            return {**batch, self._image: result}
        return {**batch, self._image: result[0], self._label: result[1]}

    def record_producer(
        self,
        fields: Mapping[str, jax.ShapeDtypeStruct | EncodedImages],
        derive: KeyDerivation | None,
    ) -> dict[str, SeededProducer] | None:
        """Return the producers of the fields that native threads can compute per record, or None.

        Args:
          fields: shape and dtype of a record of each field, or its encoded images.
          derive: (keys of records [N]) -> keys of the node [N]; None if they are equal.
        """
        image = fields.get(self._image)
        arrays = {name: field for name, field in fields.items() if hasattr(field, "shape")}
        needs_boxes = any(transform.needs_boxes for transform in self._op.transforms)
        # The program raises for a field without an axis.
        if image is None or needs_boxes or (self._moves and self._fields.without_axis(arrays, 1)):
            return None
        targets = self._fields.targets(arrays, axes=2)
        start: Any = (None, None)
        make: Any = EncodedProducer
        if not isinstance(image, EncodedImages):
            start, make = image.shape[:2], ChainProducer
        elif targets or None in self._op.sizes(start)[-1]:
            return None  # targets, or outputs of different sizes, of images of different sizes
        try:
            producers: dict[str, SeededProducer] = {
                self._image: make(self._op, image, derive=derive)
            }
            if "mask" in targets and self._moves:
                mask = arrays[targets["mask"]]
                if mask.shape != start:
                    return None
                producers[targets["mask"]] = MaskProducer(self._op, mask, derive=derive)
        except (TypeError, ValueError):  # unsupported images; the program raises the error
            return None
        return producers

    def residual(self, fields: Mapping[str, jax.ShapeDtypeStruct]) -> BatchOperator | None:
        """Return the operator for fields that the producers do not compute; None without any.

        These are the boxes, keypoints and sizes of images of equal size. The operator returns the
        fields that it changes.
        """
        names = {"image": self._image, **self._fields.targets(fields, axes=2)}
        names.pop("mask", None)
        size: Any = fields[self._image].shape[:2] if self._image in fields else (None, None)
        if None in size or (len(names) == 1 and None not in self._op.sizes(size)[-1]):
            return None
        move = functools.partial(self._move_points, self._fields.with_flags(names), size)
        return BatchOperator(move, self.text, self.stochastic)

    def _move_points(
        self, names: dict[str, str], size: tuple[int, int], batch: Data, keys: Any
    ) -> Data:
        """Transform boxes and keypoints like the images, which native threads make."""
        count = len(keys) if keys is not None else len(next(iter(batch.values())))
        fields = {name: batch[field] for name, field in names.items() if field in batch}
        params = None if keys is None else self._op.sample(keys, size)
        moved = move_points(self._op, fields, params, count, size)
        return {names[name]: value for name, value in moved.items()}
