"""Adjacent JAX nodes as one jitted program, and the work items that are its input."""

from __future__ import annotations

import dataclasses
import threading
import warnings
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxkern.core.arrays import aligned_copy
from jaxkern.core.failures import note
from jaxkern.core.keys import fold_records
from jaxkern.pipeline import rows as row
from jaxkern.pipeline.graph import KeyDerivation, Vertex
from jaxkern.pipeline.nodes import merged
from jaxkern.pipeline.rows import Data


class RecompilationWarning(UserWarning):
    """A pipeline compiled a program again because a node changed the shape of its batches."""


class WorkItem(NamedTuple):
    """The operands of a program: the batches of one or several nodes.

    An array that several batches share is stored once: the leaves of the tree of all batches are
    ``leaves[indices[0]]``, ``leaves[indices[1]]`` and so on.
    """

    leaves: list[Any]
    indices: tuple[int, ...]
    tree: Any
    records: Any  # uint32 [N, 2], high and low half of each record id
    owned: bool = False  # True if only JAX uses the memory of the NumPy arrays
    bad: int = 0  # number of records that could not be read, see `BatchSource.on_bad_record`
    filled: bool = False  # the arrays are in the slot of a ring

    @classmethod
    def of(cls, batches: Sequence[Data], records: np.ndarray, **options: Any) -> WorkItem:
        """Join batches with the records int64 [N]; arrays are compared by identity."""
        leaves, tree = jax.tree.flatten(tuple(batches))
        distinct = {id(leaf): leaf for leaf in leaves}
        index = {key: number for number, key in enumerate(distinct)}
        indices = tuple(index[id(leaf)] for leaf in leaves)
        halves = records.astype(">u8").view(">u4").reshape(-1, 2).astype(np.uint32)
        return cls(list(distinct.values()), indices, tree, halves, **options)

    def batches(self) -> tuple[Data, ...]:
        """Return the batches."""
        batches: tuple[Data, ...] = self.tree.unflatten([self.leaves[i] for i in self.indices])
        return batches

    def with_owned_buffers(self) -> WorkItem:
        """Return the item with copies of the NumPy arrays that something else may use."""
        if self.owned:
            return self
        leaves = [
            aligned_copy(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in self.leaves
        ]
        return self._replace(leaves=leaves, owned=True)

    def fill(self, slot: Any) -> WorkItem:
        """Copy the arrays to a ring's slot; return the item without them."""
        for target, leaf in zip(slot["leaves"], self.leaves, strict=True):
            if leaf is not target:
                np.copyto(target, leaf)
        slot["records"][...] = self.records
        return self._replace(leaves=[], records=None, filled=True)

    def is_like(self, other: WorkItem) -> bool:
        """True if both have the same tree, with arrays of the same shapes and dtypes."""
        return self[1:3] == other[1:3] and all(
            one.shape == two.shape and one.dtype == two.dtype
            for one, two in zip(self.leaves, other.leaves, strict=True)
        )

    @property
    def ragged(self) -> bool:
        """True if it has Ragged images."""
        return row.has_ragged(self.batches())

    @property
    def nbytes(self) -> int:
        """Number of bytes of all arrays."""
        leaves = [*self.leaves, self.records]
        return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)  # also of shapes


class NodeProgram:
    """The JAX nodes that end in the vertex `root` as one program of the batches of its `inputs`.

    `compiled` maps vertices with JAX code to where they run; `derivations` maps vertices to the
    derivation of their keys from those of the records. `compilations` counts traces, one for each
    set of shapes.
    """

    def __init__(
        self,
        root: Vertex,
        compiled: Mapping[Vertex, str],
        names: Mapping[Vertex, str],
        derivations: Mapping[Vertex, KeyDerivation],
    ) -> None:
        self._root, self._names, self._derivations = root, names, derivations
        self.where = where = compiled[root]
        region = {root}
        for vertex in reversed(root.ordered()):
            if vertex in region and compiled.get(vertex) == where:
                region.update(vertex.inputs)
        ordered = [vertex for vertex in root.ordered() if vertex in region]
        self._vertices = [vertex for vertex in ordered if compiled.get(vertex) == where]
        self.inputs = tuple(vertex for vertex in ordered if compiled.get(vertex) != where)
        self.compilations = 0
        self._seen: list[list[row.Fields]] = []
        self._lock = threading.Lock()
        self._jitted = jax.jit(self._trace, static_argnums=(1, 2))

    @property
    def name(self) -> str:
        """The names of its nodes, in order."""
        return " >> ".join(self._names[vertex] for vertex in self._vertices)

    def __call__(self, item: WorkItem, key: Any) -> Data:
        """Return the batch for the batches of `inputs` and the key data uint32 [2] of the epoch."""
        data: Data = self._jitted(*item[:4], key)
        return data

    def spec(self, item: WorkItem) -> Data:
        """Return the shapes of the batch without compiling."""

        def evaluate(leaves: list[Any], records: Any, key: Any) -> Data:
            return self._evaluate(item._replace(leaves=leaves, records=records), key)

        key = np.zeros(2, np.uint32)
        spec: Data = jax.eval_shape(evaluate, item.leaves, item.records, key)
        return spec

    def compiled(self, item: WorkItem, key: Any) -> Any:
        """Return the ``jax.stages.Compiled`` that a call with these shapes uses."""
        return self._jitted.lower(*item[:4], key).compile()

    def _trace(
        self, leaves: list[Any], indices: tuple[int, ...], tree: Any, records: Any, key: Any
    ) -> Data:
        item = WorkItem(leaves, indices, tree, records)
        self._count(item.batches())
        return self._evaluate(item, key)

    def _evaluate(self, item: WorkItem, key: Any) -> Data:
        records = item.records
        values: dict[Vertex, Data] = dict(zip(self.inputs, item.batches(), strict=True))
        keys: Any = None
        for vertex in self._vertices:
            batches = [values[upstream] for upstream in vertex.inputs]
            who = f"node {self._names[vertex]!r}"
            if len(batches) > 1:
                values[vertex] = merged(batches)
                continue
            node: Any = vertex.node
            node_keys = None
            if node.stochastic:
                if keys is None:
                    first = jax.random.wrap_key_data(key, impl="threefry2x32")
                    keys = fold_records(first, records[:, 0], records[:, 1])
                derive = self._derivations.get(vertex)
                node_keys = keys if derive is None else derive(keys)
            try:
                result = node.apply_batch(batches[0], node_keys)
                row.check_rows(result, records.shape[0], who)
            except Exception as error:
                note(error, "in {} of the pipeline", who)
                raise
            values[vertex] = result
        return values[self._root]

    def _count(self, batches: tuple[Data, ...]) -> None:
        fields = [row.fields_of(batch) for batch in batches]
        with self._lock:
            self.compilations += 1
            known = fields in self._seen
            before = self._seen[-1] if self._seen else fields
            self._seen.append(fields)
        changed = [
            f"{self._names[vertex]}{name}: {old}, now {new}"
            for vertex, one, other in zip(self.inputs, before, fields, strict=True)
            for name, old, new in row.differences(one, other)
        ]
        if known or not changed:
            return
        warnings.warn(
            f"the program {self.name!r} was compiled again (compilation {self.compilations}), "
            f"because the shapes of batches changed: {'; '.join(changed)}; pad or resize to one "
            "shape in the node named",
            RecompilationWarning,
            stacklevel=2,
        )


@dataclasses.dataclass(frozen=True)
class Salt:
    """Derivation of a node's keys from those of the records [N]; equal salts derive equal keys."""

    number: int

    def __call__(self, keys: jax.Array) -> jax.Array:
        return jax.vmap(lambda key: jax.random.fold_in(key, np.uint32(self.number)))(keys)


def salt_of(stream_name: str | None, occurrence: int) -> Salt | None:
    """Return the salt of the n-th stochastic node of a stream; None for the records' own keys."""
    if stream_name is None and occurrence == 0:
        return None
    # The high bit is set because transforms fold in small numbers.
    return Salt(zlib.crc32(f"{stream_name} {occurrence}".encode()) | 0x80000000)
