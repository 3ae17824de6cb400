"""A named measurement: samples, their conditions, and conversion to and from JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

import jax
import numpy as np

from jaxkern.benchmarking.resources import Resources
from jaxkern.benchmarking.samples import Samples
from jaxkern.core.quantities import format_duration

Kind = Literal["call", "batch", "arm"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """Repeated measurements of a time; figures are attributes and items, ``result["median"]``.

    Attributes:
      name: name of the measured function or stream.
      kind: unit of a sample: a call, a batch, or a turn of an arm of a comparison.
      samples: times in seconds.
      environment: machine, versions and settings.
      dimensions: size of the work.
      methodology: sentences that describe the measurement.
      resources: CPU time and memory; None if not measured.
      rounds: identifier shared by arms whose i-th samples were measured in the same round, or "".
    """

    name: str
    kind: Kind
    samples: Samples
    environment: dict[str, Any]
    dimensions: dict[str, Any] = dataclasses.field(default_factory=dict)
    methodology: tuple[str, ...] = ()
    resources: Resources | None = None
    rounds: str = ""

    @property
    def median(self) -> float:
        return self.samples.median

    @property
    def mean(self) -> float:
        return self.samples.mean

    @property
    def std(self) -> float:
        return self.samples.std

    @property
    def min(self) -> float:
        return self.samples.min

    @property
    def max(self) -> float:
        return self.samples.max

    @property
    def p90(self) -> float:
        return self.samples.p90

    def figures(self) -> dict[str, Any]:
        """Return all figures by name; times in seconds."""
        names = ("median", "mean", "std", "min", "max", "p90")
        return {"count": len(self.samples), **{name: getattr(self, name) for name in names}}

    def __getitem__(self, name: str) -> Any:
        figures = self.figures()
        if name not in figures:
            raise KeyError(f"no figure {name!r}; the figures are {', '.join(figures)}")
        return figures[name]

    def as_dict(self) -> dict[str, Any]:
        """Return the record that `save` writes."""
        return {
            "name": self.name,
            "kind": self.kind,
            "figures": self.figures(),
            "seconds": list(self.samples.seconds),
            "dimensions": self.dimensions,
            "methodology": list(self.methodology),
            "resources": self.resources.as_dict() if self.resources is not None else None,
            "environment": self.environment,
            "rounds": self.rounds,
        }

    def __str__(self) -> str:
        figures = (self.median, self.p90, self.min, self.max, self.mean, self.std)
        median, p90, low, high, mean, std = map(format_duration, figures)
        lines = [
            f"{self.name}: {len(self.samples)} samples, one per {self.kind}",
            f"  median {median}, p90 {p90}, {low} to {high}",
            f"  mean {mean}, std {std}",
        ]
        return "\n".join([*lines, *([f"  {self.resources}"] if self.resources else [])])


def from_dict(record: dict[str, Any]) -> Measurement:
    """Return the measurement of a record; figures of a subclass are only in the record.

    Raises:
      ValueError: if the record is not one of a measurement.
    """
    try:
        used = record["resources"]
        return Measurement(
            name=record["name"],
            kind=record["kind"],
            samples=Samples(tuple(record["seconds"])),
            environment=record["environment"],
            dimensions=record["dimensions"],
            methodology=tuple(record["methodology"]),
            resources=Resources(**used) if used is not None else None,
            rounds=record["rounds"],
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"expected the record of a measurement: {error!r}") from error


def plain(value: Any) -> Any:
    """Convert a value to types of JSON, so that a saved value equals an unsaved one.

    Numbers of NumPy become Python numbers, arrays and tuples lists, NaN and infinity None, and
    other objects text.

    >>> plain({"shape": (2, np.int64(3)), "std": float("nan"), "dtype": np.dtype("f4")})
    {'shape': [2, 3], 'std': None, 'dtype': 'float32'}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, (np.generic, np.ndarray, jax.Array)):
        return plain(np.asarray(value).tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
