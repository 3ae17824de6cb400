"""Element operators: functions of one record, which a pipeline maps over the batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Element:
    """One record in an operator; a pytree.

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
      stochastic: True if `apply` gets a key: a function of the record, the seed and the epoch.
      stream_name: names the random stream. Operators with different names draw independently;
        operators of one name do too, in the order of the pipeline.
    """

    stochastic: bool = False
    stream_name: str | None = None

    def __post_init__(self) -> None:
        if self.stream_name is not None and not self.stochastic:
            raise ValueError(
                f"stream_name is {self.stream_name!r} for an operator that is not stochastic; use "
                "stochastic=True, or no stream_name"
            )


class ElementOperator:
    """A function of one record, in JAX: override `apply`, or pass it as `fn`.

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
        """Return the record after the operator; traced, once for all records."""
        if self.fn is None:
            raise NotImplementedError(
                f"{type(self).__name__} has no apply: override apply(self, element, key=None), or "
                "use ElementOperator(config, fn=...)"
            )
        return self.fn(element, key)

    def apply_batch(self, batch: dict[str, Any], keys: jax.Array | None = None) -> dict[str, Any]:
        """Return the batch after the operator: `apply` mapped over the leading axis of each field.

        Override it to process a whole batch at once; the result for a record must then depend on
        that record and its key only.
        """

        same: list[str] = []  # a merge compares fields of two branches by identity

        def one(data: dict[str, Any], key: Any) -> dict[str, Any]:
            result = self.apply(Element(data), key)
            if not isinstance(result, Element):
                raise TypeError(
                    f"{type(self).__name__}.apply returned a {type(result).__name__}; expected an "
                    "Element: element.update_data({...})"
                )
            same[:] = [name for name in data if result.data.get(name) is data[name]]
            return {name: value for name, value in result.data.items() if name not in same}

        changed = jax.vmap(one, (0, None if keys is None else 0))(batch, keys)
        return {**{name: batch[name] for name in same}, **changed}
