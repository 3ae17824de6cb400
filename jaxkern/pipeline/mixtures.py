"""`mix`, `concat` and `zip`: several pipelines, or several sources, as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jaxkern.core.arguments import check_integer
from jaxkern.pipeline.arrangement import Concatenation, Mixture, Pairing
from jaxkern.pipeline.combining import Arrange, Settings, check_random_access, combined
from jaxkern.pipeline.pipeline import Pipeline
from jaxkern.pipeline.schedule import Schedule, whole_weights
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
    """A pipeline whose batches hold records of several, in exact proportions.

    Which of them a record comes from is a function of its place: in any records in a row of a
    shard, two pipelines are within 1 of their share, three and four within 2, eight within 3. Each
    comes in its own order, with its own seed; what is drawn at random behind the mixture differs
    between any two records.

    Args:
      pipelines: {pipeline: weight}, or pairs of them, of records with the same fields, shapes and
        dtypes. Weights are above 0, and are divided by their sum.
      seed: of where the proportions' periods begin, and of everything random behind the mixture.
      stop: "first": an epoch ends where a pipeline would have to give a record twice; "last": when
        every record of all of them has come, while shorter ones go on with their next epochs.
      batch_size: records of a batch; by default that of the pipelines, which agree in it.
    Raises: TypeError or ValueError that names the argument, or what the pipelines differ in.

    >>> import jaxkern as jk
    >>> a = jk.from_source({"x": [1] * 70}, batch_size=10)
    >>> b = jk.from_source({"x": [2] * 30}, batch_size=10)
    >>> mixture = jk.mix({a: 0.7, b: 0.3})
    >>> [batch["x"].tolist().count(1) for batch in mixture]
    [7, 7, 7, 7, 7, 7, 7, 7, 7, 7]
    """
    if not isinstance(pipelines, Mapping | Sequence) or isinstance(pipelines, str | bytes):
        raise TypeError(
            f"pipelines is {pipelines!r:.80}; wanted {{pipeline: weight, ...}} or pairs"
        )
    pairs = list(pipelines.items() if isinstance(pipelines, Mapping) else pipelines)
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise TypeError("pipelines holds what is no pair; wanted [(pipeline, weight), ...]")
    if stop not in ("first", "last"):
        raise ValueError(f"stop is {stop!r}; wanted 'first' or 'last'")
    weights = whole_weights([weight for _, weight in pairs])
    return _combined(
        "mix",
        [pipe for pipe, _ in pairs],
        lambda orders, seed: Mixture(orders, Schedule(weights, seed), stop),
        batch_size,
        check_integer("seed", seed, -(2**63)),
    )


def concat(*inputs: Any, batch_size: int | None = None) -> Any:
    """Pipelines, or sources, one behind the other.

    Of pipelines: an epoch is one of the first, then one of the second, and so on; each is shuffled
    within itself, and batches run on over their ends. Of sources: a source, to shuffle as a whole:
    ``from_source(concat(a, b), 64, shuffle=True)``.

    Args:
      inputs: pipelines, or what `from_source` takes; one by one or in a list.
      batch_size: of pipelines: records of a batch; by default theirs.
    Raises: TypeError or ValueError that names what the inputs differ in.

    >>> import jaxkern as jk
    >>> a, b = {"x": [1, 2, 3]}, {"x": [4, 5]}
    >>> pipe = jk.concat(jk.from_source(a, 2), jk.from_source(b, 2))
    >>> [batch["x"].tolist() for batch in pipe]
    [[1, 2], [3, 4], [5]]
    >>> len(jk.concat([a, b]))
    5
    """
    given = _listed("concat", inputs)
    if isinstance(given[0], Pipeline):
        return _combined("concat", given, lambda orders, seed: Concatenation(orders), batch_size)
    sources = _sources("concat", given, batch_size)
    return JoinedSource(sources, [len(source) for source in sources])


def zip(*inputs: Any, strict: bool = False, batch_size: int | None = None) -> Any:
    """Pipelines, or sources, side by side: record by record, with the fields of all.

    Of pipelines: the first record of each, the second of each, and so on. Shuffled pipelines of
    equally many records pair the same ones in every epoch where they have the same seed. The draws
    behind go by the first one's records. Of sources: a source, whose record i holds theirs.

    Args:
      inputs: with different fields; or one dict name -> input, whose fields then lie under the
        names: ``batch["name"]["field"]``.
      strict: whether different lengths are an error; otherwise the shortest decides.
      batch_size: of pipelines: records of a batch; by default theirs.
    Raises: TypeError or ValueError that names what the inputs differ in.

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
    given = _listed("zip", inputs)
    pipelines = isinstance(given[0], Pipeline)
    sources = [] if pipelines else _sources("zip", given, batch_size)
    lengths = (
        [pipe._records for pipe in _pipelines("zip", given)]
        if pipelines
        else [len(source) for source in sources]
    )
    if strict and len(set(lengths)) > 1:
        raise ValueError(
            f"the inputs of zip have {lengths} records; strict=True wants equally many"
        )
    if not pipelines:
        return ZippedSource(sources, names)
    return _combined("zip", given, lambda orders, seed: Pairing(orders), batch_size, names=names)


def _listed(name: str, inputs: Sequence[Any]) -> list[Any]:
    given = list(inputs[0]) if len(inputs) == 1 and isinstance(inputs[0], list | tuple) else inputs
    if not given:
        raise ValueError(f"{name} was given nothing; wanted at least one pipeline or source")
    return list(given)


def _sources(name: str, given: Sequence[Any], batch_size: int | None) -> list[BatchSource]:
    if any(isinstance(each, Pipeline) for each in given):
        raise TypeError(f"{name} was given pipelines and sources; wanted all of one kind")
    if batch_size is not None:
        raise ValueError(f"batch_size is of pipelines, and {name} of sources makes a source")
    return [as_source(each) for each in given]


def _pipelines(name: str, given: Sequence[Any]) -> list[Pipeline]:
    if not given:
        raise ValueError(f"{name} was given nothing; wanted at least one pipeline")
    for number, pipe in enumerate(given):
        if not isinstance(pipe, Pipeline):
            raise TypeError(f"input {number} of {name} is {pipe!r:.80}; wanted a Pipeline")
    return list(given)


def _combined(
    name: str,
    given: Sequence[Any],
    arrange: Arrange,
    batch_size: int | None,
    seed: int | None = None,
    names: Sequence[str] | None = None,
) -> Pipeline:
    pipelines = _pipelines(name, given)
    first = pipelines[0]
    vertices = [pipe._output for pipe in pipelines]
    check_random_access(name, vertices)
    settings = [Settings.of(vertex) for vertex in vertices]
    if batch_size is not None:
        size = check_integer("batch_size", batch_size, 1)
        settings = [each._replace(batch_size=size) for each in settings]
    for number, pipe in enumerate(pipelines):
        _agree(name, number, settings[number]._asdict(), settings[0]._asdict())
        _agree(name, number, vars(pipe._options), vars(first._options))
    seed = first._seed if seed is None else seed
    return Pipeline(combined(name, vertices, arrange, settings[0], seed, names), first._options)


def _agree(name: str, number: int, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for key, value in wanted.items():
        if found[key] != value:
            more = f", or {name}(..., batch_size=)" if key == "batch_size" else ""
            raise ValueError(
                f"{key} is {value!r} in input 0 of {name} and {found[key]!r} in input {number}; "
                f"wanted the same{more}"
            )
