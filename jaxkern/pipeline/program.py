"""Adjacent JAX nodes as one jitted program, and the work items that it takes."""

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


class DedupedLeaves(NamedTuple):
    """Batches of several nodes that store each common array once: the leaves of a tree of a tuple
    of batches are ``leaves[places[0]]``, ``leaves[places[1]]`` and so on."""

    leaves: list[Any]
    places: tuple[int, ...]
    tree: Any

    @classmethod
    def of(cls, batches: Sequence[Data]) -> DedupedLeaves:
        """Join batches; arrays are equal if they are the same object."""
        leaves, tree = jax.tree.flatten(tuple(batches))
        distinct = {id(leaf): leaf for leaf in leaves}
        index = {key: number for number, key in enumerate(distinct)}
        return cls(list(distinct.values()), tuple(index[id(leaf)] for leaf in leaves), tree)

    def batches(self) -> tuple[Data, ...]:
        """Return the batches."""
        batches: tuple[Data, ...] = self.tree.unflatten([self.leaves[p] for p in self.places])
        return batches


class WorkItem(NamedTuple):
    """The output of the workers: the batches that the last program takes, or the batch itself."""

    joint: DedupedLeaves
    records: Any  # uint32 [N, 2], see `split_uint64`
    owned: bool = False  # nobody else uses the memory of the NumPy arrays: JAX may take it
    bad: int = 0  # number of records that could not be read, see `BatchSource.on_bad_record`
    filled: bool = False  # the arrays are in the slot of a ring

    def with_owned_buffers(self) -> WorkItem:
        """Return the item with copies of the NumPy arrays that somebody else may use."""
        if self.owned:
            return self
        leaves = [
            aligned_copy(leaf) if isinstance(leaf, np.ndarray) else leaf
            for leaf in self.joint.leaves
        ]
        return self._replace(joint=self.joint._replace(leaves=leaves), owned=True)

    def fill(self, slot: Any) -> WorkItem:
        """Copy the arrays to a ring's slot; return the item without them."""
        for target, leaf in zip(slot["leaves"], self.joint.leaves, strict=True):
            if leaf is not target:
                np.copyto(target, leaf)
        slot["records"][...] = self.records
        return self._replace(joint=self.joint._replace(leaves=[]), records=None, filled=True)

    def with_arrays(self, arrays: Any) -> WorkItem:
        """Return the item with the arrays of a delivered slot."""
        joint = self.joint._replace(leaves=arrays["leaves"])
        return self._replace(joint=joint, records=arrays["records"], filled=False)

    def is_like(self, other: WorkItem) -> bool:
        """True if both have arrays of the same shapes and dtypes in the same places."""
        one, two = self.joint, other.joint
        return (one.places, one.tree) == (two.places, two.tree) and all(
            a.shape == b.shape and a.dtype == b.dtype
            for a, b in zip(one.leaves, two.leaves, strict=True)
        )

    @property
    def ragged(self) -> bool:
        return row.has_ragged(self.joint.batches())

    @property
    def nbytes(self) -> int:
        leaves = [*self.joint.leaves, self.records]
        return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)  # shapes have no nbytes


def split_uint64(records: np.ndarray) -> np.ndarray:
    """Return record ids as uint32 [N, 2]: the high and the low half."""
    return records.astype(">u8").view(">u4").reshape(-1, 2).astype(np.uint32)


class NodeProgram:
    """The JAX nodes that end in the vertex `root` as one program of the batches of its `inputs`.

    `compiled` says where vertices with JAX code run, `derivations` how to derive their keys from
    those of the records. `compilations` counts traces, one for each set of shapes.
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
        self._seen: list[dict[str, str]] = []
        self._lock = threading.Lock()
        self._jitted = jax.jit(self._trace, static_argnums=(1, 2))

    @property
    def name(self) -> str:
        """The names of its nodes, in order."""
        return " >> ".join(self._names[vertex] for vertex in self._vertices)

    def __call__(self, joint: DedupedLeaves, records: Any, key: Any) -> Data:
        """Return the batch for those of `inputs`, record ids as of `split_uint64`, and the data
        uint32 [2] of the epoch's key."""
        data: Data = self._jitted(joint.leaves, joint.places, joint.tree, records, key)
        return data

    def spec(self, joint: DedupedLeaves, records: np.ndarray) -> Data:
        """Return the shapes of the batch without compiling."""

        def evaluate(leaves: list[Any], ids: Any, key: Any) -> Data:
            return self._evaluate(joint._replace(leaves=leaves), ids, key)

        spec: Data = jax.eval_shape(evaluate, joint.leaves, records, np.zeros(2, np.uint32))
        return spec

    def compiled(self, joint: DedupedLeaves, records: Any, key: Any) -> Any:
        """Return the ``jax.stages.Compiled`` for these shapes, which such a call uses."""
        return self._jitted.lower(joint.leaves, joint.places, joint.tree, records, key).compile()

    def _trace(
        self, leaves: list[Any], places: tuple[int, ...], tree: Any, records: Any, key: Any
    ) -> Data:
        joint = DedupedLeaves(leaves, places, tree)
        self._count(joint.batches())
        return self._evaluate(joint, records, key)

    def _evaluate(self, joint: DedupedLeaves, records: Any, key: Any) -> Data:
        values: dict[Vertex, Data] = dict(zip(self.inputs, joint.batches(), strict=True))
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
        names = [self._names[vertex] for vertex in self.inputs]
        shapes = {
            name + field: _without_rows(text)
            for name, batch in zip(names, batches, strict=True)
            for field, text in row.signature(batch).items()
        }
        with self._lock:
            self.compilations += 1
            known = shapes in self._seen
            before = self._seen[-1] if self._seen else shapes
            self._seen.append(shapes)
        if known or before == shapes:
            return
        changed = [
            f"{field}: {before.get(field, 'absent')}, now {shapes.get(field, 'absent')}"
            for field in sorted({*before, *shapes})
            if before.get(field) != shapes.get(field)
        ]
        warnings.warn(
            f"the program {self.name!r} was compiled again (compilation {self.compilations}), "
            f"because the shapes of batches changed: {'; '.join(changed)}; pad or resize to one "
            "shape in the node named",
            RecompilationWarning,
            stacklevel=2,
        )


@dataclasses.dataclass(frozen=True)
class Salt:
    """Derivation of a node's keys from those of the records [N]; equal salts derive the same."""

    number: int

    def __call__(self, keys: jax.Array) -> jax.Array:
        return jax.vmap(lambda key: jax.random.fold_in(key, np.uint32(self.number)))(keys)


def salt_of(stream_name: str | None, occurrence: int) -> Salt | None:
    """Return the salt of the n-th stochastic node of a stream; None for the records' own keys."""
    if stream_name is None and occurrence == 0:
        return None
    # The high bit is set because transforms fold in small numbers.
    return Salt(zlib.crc32(f"{stream_name} {occurrence}".encode()) | 0x80000000)


def _without_rows(text: str) -> str:
    """Return a description without what may vary: the rows, and the length of a Ragged buffer."""
    kind, _, rest = text.partition("[")
    sides = rest.rstrip("]").split(", ")[1:]
    if kind == "Ragged":
        sides = [side for side in sides if not side.endswith(" bytes")]
    return f"{kind}[N{''.join(', ' + side for side in sides)}]"
