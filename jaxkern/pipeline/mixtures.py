"""`mix`, `concat` and `zip`: several pipelines, or several sources, as one."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from jaxkern.core.arguments import check_integer
from jaxkern.pipeline.arrangement import Concatenation, Mixture, Pairing
from jaxkern.pipeline.combining import (
    Arrange,
    Settings,
    check_random_access,
    combined,
    source_seed,
)
from jaxkern.pipeline.order import Schedule, integer_weights
from jaxkern.pipeline.pipeline import Pipeline
from jaxkern.pipeline.sources.as_source import as_source
from jaxkern.pipeline.sources.combined import JoinedSource, ZippedSource
from jaxkern.pipeline.sources.source import BatchSource


def mix(
    pipelines: Mapping[Pipeline, float] | Sequence[tuple[Pipeline, float]],
    *,
    seed: int = 0,
    stop: Literal["first", "last"] = "first",
    batch_size: int | None = None,
) -> Pipeline:
    """Return a pipeline that mixes the records of several pipelines in exact proportions.

    The position of a record determines its pipeline. In any range of consecutive records of a
    shard, the counts of two pipelines are within 1 of their proportions, of three or four within 2,
    of up to eight within 3. Each pipeline keeps its own order and seed. No two records have
    the same random draws after the mixture.

    Args:
      pipelines: {pipeline: weight}, or (pipeline, weight) pairs. Their records must have the same
        fields, shapes and dtypes. Weights are positive, and are divided by their sum.
      seed: seed of the phase of the mixing pattern, and of random draws after the mixture.
      stop: "first": an epoch ends before a pipeline would have to repeat a record; "last": it ends
        when every record has occurred, and shorter pipelines continue with their next epochs.
      batch_size: records per batch; by default that of the pipelines, which must be equal.
    Raises: TypeError or ValueError that names the argument, or the difference between pipelines.

    >>> import jaxkern as jk
    >>> a = jk.from_source({"x": [1] * 70}, batch_size=10)
    >>> b = jk.from_source({"x": [2] * 30}, batch_size=10)
    >>> mixture = jk.mix({a: 0.7, b: 0.3})
    >>> [batch["x"].tolist().count(1) for batch in mixture]
    [7, 7, 7, 7, 7, 7, 7, 7, 7, 7]
    """
    pairs: Any = pipelines.items() if isinstance(pipelines, Mapping) else pipelines
    pairs = list(pairs) if isinstance(pairs, Iterable) else [None]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise TypeError(
            f"pipelines is {pipelines!r:.80}; expected {{pipeline: weight, ...}} or pairs of them"
        )
    if stop not in ("first", "last"):
        raise ValueError(f"stop is {stop!r}; expected 'first' or 'last'")
    weights = integer_weights([weight for _, weight in pairs])
    return _combine(
        "mix",
        [pipe for pipe, _ in pairs],
        lambda orders, seed: Mixture(orders, Schedule(weights, seed), stop),
        batch_size,
        check_integer("seed", seed, -(2**63)),
    )


def concat(*inputs: Any, batch_size: int | None = None) -> Any:
    """Concatenate pipelines or sources.

    For pipelines: an epoch is an epoch of the first pipeline, followed by one of the second, and so
    on. Each is shuffled separately, and a batch can contain records of two. For sources: the result
    is a source, which can be shuffled as a whole: ``from_source(concat(a, b), 64, shuffle=True)``.

    Args:
      inputs: pipelines, or what `from_source` takes; as arguments or in a list.
      batch_size: for pipelines: records per batch; by default that of the inputs.
    Raises: TypeError or ValueError that names the difference between inputs.

    >>> import jaxkern as jk
    >>> a, b = {"x": [1, 2, 3]}, {"x": [4, 5]}
    >>> pipe = jk.concat(jk.from_source(a, 2), jk.from_source(b, 2))
    >>> [batch["x"].tolist() for batch in pipe]
    [[1, 2], [3, 4], [5]]
    >>> len(jk.concat([a, b]))
    5
    """
    items = _as_list("concat", inputs)
    if isinstance(items[0], Pipeline):
        return _combine("concat", items, lambda orders, seed: Concatenation(orders), batch_size)
    sources = _sources("concat", items, batch_size)
    return JoinedSource(sources, [len(source) for source in sources])


def zip(*inputs: Any, strict: bool = False, batch_size: int | None = None) -> Any:
    """Combine pipelines or sources record by record, with the fields of all.

    For pipelines: record i of an epoch combines record i of each input. Shuffled pipelines with the
    same seed and number of records pair the same records in every epoch. Random draws after `zip`
    use the record ids of the first input. For sources: the result is a source whose record i
    combines records i of the inputs.

    Args:
      inputs: pipelines or sources with different fields; or one dict name -> input, which nests
        their fields under the names: ``batch["name"]["field"]``.
      strict: True to raise for different lengths; otherwise the shortest determines the length.
      batch_size: for pipelines: records per batch; by default that of the inputs.
    Raises: TypeError or ValueError that names the difference between inputs.

    >>> import jaxkern as jk
    >>> a, b = jk.from_source({"x": [1, 2, 3]}, 2), jk.from_source({"y": [4, 5]}, 2)
    >>> [{k: v.tolist() for k, v in sorted(batch.items())} for batch in jk.zip(a, b)]
    [{'x': [1, 2], 'y': [4, 5]}]
    >>> next(iter(jk.zip({"left": a, "right": a})))["right"]["x"].tolist()
    [1, 2]
    """
    names: list[str] | None = None
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        names = list(inputs[0])
        inputs = tuple(inputs[0].values())
    items = _as_list("zip", inputs)
    pipelines = isinstance(items[0], Pipeline)
    sources = [] if pipelines else _sources("zip", items, batch_size)
    if strict:
        pipes = _pipelines("zip", items) if pipelines else []
        lengths = [pipe._records for pipe in pipes] + [len(source) for source in sources]
        if len(set(lengths)) > 1:
            raise ValueError(f"the inputs of zip have {lengths} records; expected equal numbers")
    if not pipelines:
        return ZippedSource(sources, names)
    return _combine("zip", items, lambda orders, seed: Pairing(orders), batch_size, names=names)


def _as_list(name: str, inputs: Sequence[Any]) -> list[Any]:
    items = list(inputs[0]) if len(inputs) == 1 and isinstance(inputs[0], list | tuple) else inputs
    if not items:
        raise ValueError(f"{name} expected at least one pipeline or source, got none")
    return list(items)


def _sources(name: str, items: Sequence[Any], batch_size: int | None) -> list[BatchSource]:
    if any(isinstance(each, Pipeline) for each in items):
        raise TypeError(f"{name} expected only pipelines or only sources, got both")
    if batch_size is not None:
        raise ValueError(f"{name} of sources takes no batch_size: it returns a source")
    return [as_source(each) for each in items]


def _pipelines(name: str, items: Sequence[Any]) -> list[Pipeline]:
    if not items:
        raise ValueError(f"{name} expected at least one pipeline, got none")
    for number, pipe in enumerate(items):
        if not isinstance(pipe, Pipeline):
            raise TypeError(f"input {number} of {name} is {pipe!r:.80}; expected a Pipeline")
    return list(items)


def _combine(
    name: str,
    items: Sequence[Any],
    arrange: Arrange,
    batch_size: int | None,
    seed: int | None = None,
    names: Sequence[str] | None = None,
) -> Pipeline:
    pipelines = _pipelines(name, items)
    first = pipelines[0]
    vertices = [pipe._output for pipe in pipelines]
    check_random_access(name, vertices)
    settings = [Settings.of(vertex) for vertex in vertices]
    if batch_size is not None:
        size = check_integer("batch_size", batch_size, 1)
        settings = [each._replace(batch_size=size) for each in settings]
    options = [
        each._asdict() | vars(pipe._options)
        for each, pipe in builtins.zip(settings, pipelines, strict=True)
    ]
    for number, values in enumerate(options):
        for key, expected in options[0].items():
            if values[key] != expected:
                more = f", or {name}(..., batch_size=)" if key == "batch_size" else ""
                raise ValueError(
                    f"{key} is {expected!r} in input 0 of {name} and {values[key]!r} in input "
                    f"{number}; expected the same{more}"
                )
    seed = source_seed(vertices[0]) if seed is None else seed
    return Pipeline(combined(name, vertices, arrange, settings[0], seed, names), first._options)
