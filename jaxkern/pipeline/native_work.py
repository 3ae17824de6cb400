"""What native threads can do of a pipeline: rows of arrays, and a node's producer on one field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from jaxkern.core import registry
from jaxkern.pipeline.graph import Derivation, SeededProducer, Vertex
from jaxkern.pipeline.nodes import SourceNode
from jaxkern.pipeline.program import NodeProgram
from jaxkern.ring import RowParts


class NativeWork(NamedTuple):
    """What native threads can do of a plan: all that its worker threads would.

    Attributes:
      source: the only vertex that reads records.
      arrays: field -> array [records, ...]; of encoded images, where they lie.
      producers: field -> what makes its records of rows; the other fields are copied.
      masks: whether a field "valid" says which records the producers could make.
      beside: what is computed of the other fields when a batch is there; None for nothing.
    """

    source: Vertex
    arrays: Mapping[str, np.ndarray | RowParts]
    producers: dict[str, SeededProducer]
    masks: bool = False
    beside: NodeProgram | None = None


def native_work(
    frontier: Sequence[Vertex],
    compiled: Mapping[Vertex, str],
    derivations: Mapping[Vertex, Derivation],
) -> NativeWork | None:
    """What native threads make of a plan; None where its batches need Python or a JAX program.

    Args:
      frontier, compiled, derivations: of the plan.
    """
    if len(frontier) != 1 or registry.module("cpu") is None:
        return None
    (last,) = frontier
    source = last if isinstance(last.node, SourceNode) else last.inputs[0]
    if not isinstance(source.node, SourceNode):
        return None
    if last is not source and compiled.get(last) != "host":  # before headers are read for it
        return None
    reader = source.node.source
    parts, encoded = _row_parts(source.node), reader.encoded_images()
    if parts is None or not (parts[0] or encoded):
        return None
    arrays: dict[str, np.ndarray | RowParts] = {**parts[0]}
    if len(parts) > 1:
        arrays = {name: RowParts(tuple(part[name] for part in parts)) for name in parts[0]}
    masks = reader.on_bad_record == "mask"
    if last is source:
        return None if encoded or masks else NativeWork(source, arrays, {})
    fields: dict[str, jax.ShapeDtypeStruct] = {
        name: jax.ShapeDtypeStruct(array.shape[1:], array.dtype) for name, array in parts[0].items()
    }
    made = last.node.record_producer({**fields, **encoded}, derivations.get(last))
    # Nobody else decodes.
    if made is None or encoded.keys() - made.keys() or (masks and not encoded):
        return None
    if not all(part[name].flags.aligned for part in parts for name in made.keys() & part.keys()):
        return None
    places = {name: images.place for name, images in encoded.items()}
    node, beside = last.node.beside_producers(fields), None
    if node is not None:
        vertex = Vertex(node, (source,))
        keys = {vertex: derivations[last]} if last in derivations else {}
        names = {source: source.node.name, vertex: node.name}
        beside = NodeProgram(vertex, {vertex: "host"}, names, keys)
    return NativeWork(source, {**arrays, **places}, made, masks, beside)


def _row_parts(node: SourceNode) -> Sequence[Mapping[str, np.ndarray]] | None:
    parts = node.source.row_parts()
    if parts is None or (node.remainder == "pad" and any("mask" in part for part in parts)):
        return None
    for part in parts:
        for array in part.values():
            if not array.dtype.isnative or (array.size and not array[:1].flags.c_contiguous):
                return None
    kinds = [{k: (a.dtype, a.shape[1:]) for k, a in part.items()} for part in parts]
    return parts if all(kind == kinds[0] for kind in kinds) else None  # reading them says it
