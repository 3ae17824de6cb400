"""A named measurement: samples, where they come from, and its form in JSON."""

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
    """Seconds of something that was measured several times; ``result["median"]`` works too.

    Attributes:
      name: of what was measured.
      kind: what one sample is: a call, a batch, or a turn of an arm of a comparison.
      samples: the seconds.
      environment: machine, versions and settings.
      dimensions: what the work's size is, in words and numbers.
      methodology: how it was measured, a sentence each.
      rounds: equal for arms whose i-th samples were measured in the same round; "" otherwise.
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
        """Seconds; half of the samples took longer."""
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
        """Every figure by its name."""
        names = ("median", "mean", "std", "min", "max", "p90")
        return {"count": len(self.samples), **{name: getattr(self, name) for name in names}}

    def __getitem__(self, name: str) -> Any:
        figures = self.figures()
        if name not in figures:
            raise KeyError(f"no figure {name!r}; there are {', '.join(figures)}")
        return figures[name]

    def as_dict(self) -> dict[str, Any]:
        """What is written to disk."""
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
        lines = [f"{self.name}: {len(self.samples)} samples, one a {self.kind}"]
        spread = f"{format_duration(self.min)} to {format_duration(self.max)}"
        lines.append(
            f"  median {format_duration(self.median)}, p90 {format_duration(self.p90)}, {spread}"
        )
        lines.append(f"  mean {format_duration(self.mean)}, std {format_duration(self.std)}")
        if self.resources is not None:
            lines.append(f"  {self.resources}")
        return "\n".join(lines)


def from_dict(record: dict[str, Any]) -> Measurement:
    """A measurement as it was written; figures that only its class knew are in the file alone.

    Raises:
      ValueError: for what is no such record.
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
        raise ValueError(f"no record of a measurement: {error!r}") from error


def plain(value: Any) -> Any:
    """A value as JSON keeps it, so that one that was saved equals the one that is not.

    Numbers of NumPy become Python's, arrays and tuples lists, NaN and infinity None, and what JSON
    has no form for is text.

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
