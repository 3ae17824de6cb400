"""Nodes in JAX: element operators, image augmentation, and choices made for each record."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image import ChainProducer, Compose, EncodedProducer, MaskProducer
from jaxkern.image.compose.targets import move_points
from jaxkern.pipeline.element import Element, ElementOperator
from jaxkern.pipeline.graph import Derivation, PipelineNode, SeededProducer, digest, named
from jaxkern.pipeline.rows import Data, described, is_ragged
from jaxkern.pipeline.sources.source import EncodedImages


class OperatorNode(PipelineNode):
    """A step in JAX; neighbouring ones compile into one program.

    Args:
      op: an `ElementOperator`; a `jaxkern.image.Compose`, which acts on the field "image" (and,
        where it mixes images, on one-hot floats in "label") and moves masks, boxes and keypoints
        with it, each record with its key of `jaxkern.random.record_keys`; or a JAX function of the
        batch, a dict, that treats records alike whatever their batch.
      name: in messages, states and explanations.
      on: "device", where JAX computes, as batches are delivered; or "host", on the CPU in the
        worker threads, so that the device gets ready batches; "auto" is "device", but for a
        Compose what is faster, see `Pipeline.explain`.
      image, label: the fields that a Compose acts on.
      mask, boxes, keypoints: the fields that it moves with the images, where the batch has them
        with two axes or more a record; None leaves such a field as it is. One box or keypoint a
        record without an axis of its own is refused beside what moves it. Beside them come
        "boxes_valid", "keypoints_visible" and "image_size", see `Compose.apply`, which begin with
        the names of their fields.
    Raises: TypeError for anything else.

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
        on: Literal["auto", "device", "host"] = "auto",
        image: str = "image",
        label: str = "label",
        mask: str | None = "mask",
        boxes: str | None = "boxes",
        keypoints: str | None = "keypoints",
    ) -> None:
        if on not in ("auto", "device", "host"):
            raise ValueError(f"on is {on!r}; wanted 'auto', 'device' or 'host'")
        self.op = as_operator(op, _Fields(image, label, mask, boxes, keypoints))
        self.name = name or named(op)
        either = self.op.on_either and self._is_the_operator
        self.compiled_for = "device" if on == "auto" and not either else on

    @property
    def stochastic(self) -> bool:
        """Whether it needs keys."""
        return self.op.stochastic

    @property
    def stream_name(self) -> str | None:
        """The random stream of the operator; None is the record's own key."""
        return self.op.stream_name

    @property
    def _is_the_operator(self) -> bool:
        """Whether the node does what `op` does; a subclass may have its own way."""
        return type(self).apply_batch is OperatorNode.apply_batch

    def record_producer(
        self,
        fields: Mapping[str, jax.ShapeDtypeStruct | EncodedImages],
        derive: Derivation | None,
    ) -> dict[str, SeededProducer] | None:
        """The operator's."""
        return self.op.record_producer(fields, derive) if self._is_the_operator else None

    def beside_producers(self, fields: Mapping[str, jax.ShapeDtypeStruct]) -> PipelineNode | None:
        """The operator's."""
        op = self.op.beside_producers(fields)
        if op is None:
            return None
        node = copy.copy(self)
        node.op = op
        return node

    def describe(self) -> str:
        return self._placed(self.op.describe())

    def _placed(self, text: str) -> str:
        """A description, which tells the host's arithmetic from the device's."""
        return f"{text} on the host" if self.compiled_for == "host" else text

    def apply_batch(self, batch: Data, keys: Any) -> Data:
        """The batch after the step; traced."""
        return self.op.apply_batch(batch, keys)


class Probabilistic(OperatorNode):
    """Applies an operator to each record with a probability, drawn from the record's key.

    The operator runs on all records; those that are not drawn keep their fields, so that shapes
    and dtypes must stay the same.

    Args:
      op: as for `OperatorNode`.
      probability: 0 to 1.
      on: as for `OperatorNode`.

    >>> import jaxkern as jk
    >>> from jaxkern.pipeline import Probabilistic
    >>> double = Probabilistic(lambda batch: {"x": batch["x"] * 2}, 0.5)
    >>> pipe = jk.from_source({"x": [1.0] * 100}, batch_size=100) >> double
    >>> 20 < sum(x == 2 for x in next(iter(pipe))["x"].tolist()) < 80
    True
    """

    def __init__(
        self,
        op: Any,
        probability: float,
        name: str | None = None,
        *,
        on: Literal["device", "host"] = "device",
    ) -> None:
        if not 0 <= probability <= 1:
            raise ValueError(f"probability is {probability}; wanted 0 to 1")
        super().__init__(op, name or f"Probabilistic({named(op)})", on=on)
        self.probability = float(probability)

    @property
    def stochastic(self) -> bool:
        """Always: whether the operator applies is drawn."""
        return True

    @property
    def stream_name(self) -> str | None:
        return self.op.stream_name or "probabilistic"

    def describe(self) -> str:
        return self._placed(f"Probabilistic({self.op.describe()}, {self.probability})")

    def apply_batch(self, batch: Data, keys: Any) -> Data:
        """Both outcomes, and for each record the one that its key draws."""
        split = jax.vmap(jax.random.split)(keys)
        drawn = jax.vmap(lambda key: jax.random.bernoulli(key, self.probability))(split[:, 0])
        applied = self.op.apply_batch(batch, split[:, 1] if self.op.stochastic else None)
        return _chosen(drawn, applied, batch, self.name)


class Conditional(OperatorNode):
    """Applies one operator to the records where a predicate holds, another one elsewhere.

    Both run on all records; their results must have the same shapes and dtypes.

    Args:
      predicate: ``predicate(element) -> bool``, in JAX, of one record.
      op: where it holds; as for `OperatorNode`.
      otherwise: where it does not; None keeps the record.
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
        on: Literal["device", "host"] = "device",
    ) -> None:
        super().__init__(op, name or f"Conditional({named(op)})", on=on)
        self.predicate = predicate
        self.otherwise = None if otherwise is None else as_operator(otherwise)

    @property
    def stochastic(self) -> bool:
        return self.op.stochastic or (self.otherwise is not None and self.otherwise.stochastic)

    @property
    def stream_name(self) -> str | None:
        return self.op.stream_name or "conditional"

    def describe(self) -> str:
        other = None if self.otherwise is None else self.otherwise.describe()
        return self._placed(f"Conditional({named(self.predicate)}, {self.op.describe()}, {other})")

    def apply_batch(self, batch: Data, keys: Any) -> Data:
        """Both outcomes, and for each record the one that its predicate names."""
        arrays = {name: value for name, value in batch.items() if not is_ragged(value)}
        holds = jax.vmap(lambda data: jnp.asarray(self.predicate(Element(data)), bool))(arrays)
        if holds.ndim != 1:
            raise ValueError(
                f"the predicate of {self.name!r} returned shape {holds.shape[1:]}; wanted one bool"
            )
        then = self.op.apply_batch(batch, keys if self.op.stochastic else None)
        other = batch
        if self.otherwise is not None:
            other = self.otherwise.apply_batch(batch, keys if self.otherwise.stochastic else None)
        return _chosen(holds, then, other, self.name)


def _chosen(which: jax.Array, then: Data, other: Data, name: str) -> Data:
    """For each record the fields of `then` or of `other`."""
    if then.keys() != other.keys():
        raise ValueError(
            f"{name!r} gives the fields {sorted(then)} or {sorted(other)}, as chance or the "
            "predicate has it; wanted the same fields in both cases"
        )

    def choose(field: str, a: Any, b: Any) -> Any:
        if a is b:
            return a
        if is_ragged(a) or is_ragged(b) or a.shape != b.shape or a.dtype != b.dtype:
            raise ValueError(
                f"{name!r} gives field {field!r} as {described(a)} or as {described(b)}; wanted "
                "one shape and dtype in both cases"
            )
        return jnp.where(which.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    def tree(field: str, a: Any, b: Any) -> Any:
        return jax.tree.map(lambda x, y: choose(field, x, y), a, b, is_leaf=is_ragged)

    return {field: tree(field, then[field], other[field]) for field in then}


class BatchOperator:
    """What `OperatorNode` makes of whatever it was given.

    Attributes:
      stochastic, stream_name: as of `PipelineNode`.
      on_either: whether it runs on the device or the host, wherever that is faster.
    """

    stochastic: bool = False
    stream_name: str | None = None
    on_either: bool = False

    def describe(self) -> str:
        """As `PipelineNode.describe`."""
        raise NotImplementedError

    def apply_batch(self, batch: Data, keys: Any) -> Data:
        """The batch after the step; keys [N] where it is stochastic, else None."""
        raise NotImplementedError

    def record_producer(
        self,
        fields: Mapping[str, jax.ShapeDtypeStruct | EncodedImages],
        derive: Derivation | None,
    ) -> dict[str, SeededProducer] | None:
        """As `PipelineNode.record_producer`."""
        return None

    def beside_producers(self, fields: Mapping[str, jax.ShapeDtypeStruct]) -> BatchOperator | None:
        """What does to batches what a node of `PipelineNode.beside_producers` does."""
        return None


class _Fields(NamedTuple):
    """The fields of a batch that a Compose acts on, and those that move with its images."""

    image: str = "image"
    label: str = "label"
    mask: str | None = "mask"
    boxes: str | None = "boxes"
    keypoints: str | None = "keypoints"

    def targets(self, batch: Mapping[str, Any], axes: int) -> dict[str, str]:
        """Compose's names for what the batch has with so many axes: those names -> fields."""
        named = {"mask": self.mask, "boxes": self.boxes, "keypoints": self.keypoints}
        found = {name: field for name, field in named.items() if field in batch}
        return {
            name: field
            for name, field in found.items()
            if field is not None and (is_ragged(batch[field]) or len(batch[field].shape) >= axes)
        }

    def with_flags(self, names: dict[str, str]) -> dict[str, str]:
        """Those names, and beside each target that of what a Compose says of it."""
        return names | {
            more: names[target] + more.removeprefix(target)
            for target, more in _OF_TARGETS.items()
            if target in names
        }

    def alone(self, batch: Mapping[str, Any], axes: int) -> str | None:
        """The field whose records are one box or one keypoint, without an axis of them."""
        for field, numbers in ((self.boxes, 4), (self.keypoints, 2)):
            shape: tuple[int, ...] = getattr(batch.get(field or ""), "shape", ())
            if len(shape) == axes and shape[-1] == numbers:
                return field
        return None


def as_operator(op: Any, fields: _Fields | None = None) -> BatchOperator:
    """An element operator, a Compose or a JAX function as a `BatchOperator`."""
    if isinstance(op, ElementOperator):
        return _OfElements(op)
    if isinstance(op, Compose):
        return _OfImages(op, fields or _Fields())
    if isinstance(op, type) or not callable(op):
        more = ": make one of the class first" if isinstance(op, type) else ""
        raise TypeError(
            f"op is {op!r:.80}{more}; wanted an ElementOperator, a jaxkern.image.Compose or a JAX "
            "function of a batch"
        )
    return _OfBatches(op)


class _OfElements(BatchOperator):
    def __init__(self, op: ElementOperator) -> None:
        self._op = op
        self.stochastic = op.config.stochastic
        self.stream_name = op.config.stream_name or "element"

    def describe(self) -> str:
        plain = {
            name: value
            for name, value in sorted(vars(self._op).items())
            if isinstance(value, int | float | str | tuple | None)
        }
        fn = "" if self._op.fn is None else f", {named(self._op.fn)}"
        return f"{named(self._op)}({self._op.config}{fn})#{digest(repr(plain))}"

    def apply_batch(self, batch: Data, keys: Any) -> Data:
        # Ragged images have no axis of records to map over; they pass by.
        ragged = {name: value for name, value in batch.items() if is_ragged(value)}
        arrays = {name: value for name, value in batch.items() if name not in ragged}
        return {**ragged, **self._op.apply_batch(arrays, keys)}


# What a Compose says of its targets, and of images that it leaves with sizes of their own.
_OF_TARGETS = {"boxes": "boxes_valid", "keypoints": "keypoints_visible", "image": "image_size"}


class _OfImages(BatchOperator):
    on_either = True

    def __init__(self, op: Compose, fields: _Fields) -> None:
        self._op, self._fields = op, fields
        self._image, self._label = fields.image, fields.label
        self.stochastic = any(transform.parameters for transform in op.transforms)
        self._mixes = any(transform.kind == "batch" for transform in op.transforms)
        self._moves = any(transform.geometric for transform in op.transforms)
        names = ("__call__", "sample", "apply")
        self._own_way = any(getattr(type(op), n) is not getattr(Compose, n) for n in names)

    def describe(self) -> str:
        return f"Compose#{digest(repr(self._op))}({self._image})"

    def apply_batch(self, batch: Data, keys: Any) -> Data:
        if self._image not in batch:
            raise ValueError(
                f"the batch has no field {self._image!r} but {sorted(batch)}; wanted the images' "
                "field: OperatorNode(aug, image=...)"
            )
        if self._moves and (alone := self._fields.alone(batch, axes=2)):
            raise ValueError(
                f"field {alone!r} has shape {batch[alone].shape}, one place a record, which moves "
                f"with its image only as [N, 1, {batch[alone].shape[-1]}]; wanted that, or "
                "OperatorNode(aug, boxes=None, keypoints=None) to leave it as it is"
            )
        names = {"image": self._image, **self._fields.targets(batch, axes=3)}
        if self._mixes and batch.get(self._label) is not None:
            names["label"] = self._label
        if self._own_way and names.keys() <= {"image", "label"}:
            return self._apply_images(batch, keys)
        names = self._fields.with_flags(names)
        given = {name: batch[field] for name, field in names.items() if field in batch}
        result = self._op(keys, given) if self.stochastic else self._op.apply(given)
        return {**batch, **{names[name]: value for name, value in result.items()}}

    def _apply_images(self, batch: Data, keys: Any) -> Data:
        """Of a subclass, which may know nothing of dicts."""
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
        derive: Derivation | None,
    ) -> dict[str, SeededProducer] | None:
        if self._own_way or self._mixes or self._image not in fields:
            return None
        image = fields[self._image]
        arrays = {name: field for name, field in fields.items() if hasattr(field, "shape")}
        if self._moves and self._fields.alone(arrays, axes=1):
            return None  # which the program refuses
        targets = self._fields.targets(arrays, axes=2)
        encoded = isinstance(image, EncodedImages)
        start: Any = (None, None) if isinstance(image, EncodedImages) else image.shape[:2]
        # Beside images of different sizes, and for draws by boxes, a program does it all.
        if encoded and (targets or None in self._op.sizes(start)[-1]):
            return None
        if any(transform.needs_boxes for transform in self._op.transforms):
            return None
        make: Any = EncodedProducer if encoded else ChainProducer
        try:
            made: dict[str, SeededProducer] = {self._image: make(self._op, image, derive=derive)}
            if "mask" in targets and self._moves:
                mask = arrays[targets["mask"]]
                if mask.shape != start:
                    return None
                made[targets["mask"]] = MaskProducer(self._op, mask, derive=derive)
        except (TypeError, ValueError):  # they take no such images: the program says so
            return None
        return made

    def beside_producers(self, fields: Mapping[str, jax.ShapeDtypeStruct]) -> BatchOperator | None:
        """Of images of one size: their boxes and keypoints, and what sizes they have then."""
        names = {"image": self._image, **self._fields.targets(fields, axes=2)}
        names.pop("mask", None)
        size = fields[self._image].shape[:2] if self._image in fields else (None, None)
        if None in size or (len(names) == 1 and None not in self._op.sizes(size)[-1]):
            return None
        return _OfPoints(self._op, self._fields.with_flags(names), size)


class _OfPoints(BatchOperator):
    """What a Compose does to boxes and keypoints, of images that are made elsewhere."""

    def __init__(self, op: Compose, names: dict[str, str], size: tuple[int, ...]) -> None:
        self._op, self._names, self._size = op, names, size
        self.stochastic = any(transform.parameters for transform in op.transforms)

    def apply_batch(self, batch: Data, keys: Any) -> Data:
        names, (height, width) = self._names, self._size
        count = len(keys) if keys is not None else len(next(iter(batch.values())))
        given = {name: batch[field] for name, field in names.items() if field in batch}
        params = self._op.sample(keys, (height, width)) if self.stochastic else None
        moved = move_points(self._op, given, params, count, (height, width))
        return {names[name]: value for name, value in moved.items()}


class _OfBatches(BatchOperator):
    def __init__(self, fn: Callable[[Data], Data]) -> None:
        self._fn = fn

    def describe(self) -> str:
        return f"function {named(self._fn)}"

    def apply_batch(self, batch: Data, keys: Any) -> Data:
        del keys
        result = self._fn(dict(batch))
        if not isinstance(result, dict):
            raise TypeError(
                f"{named(self._fn)} returned a {type(result).__name__}; wanted a dict of fields"
            )
        return {
            name: jax.tree.map(lambda x: x if hasattr(x, "dtype") else np.asarray(x), value)
            for name, value in result.items()
        }
