"""Neighbouring JAX nodes as one jitted program, and the count of its compilations."""

from __future__ import annotations

import dataclasses
import threading
import warnings
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxkern.core.failures import note
from jaxkern.core.keys import fold_records
from jaxkern.pipeline import rows as row
from jaxkern.pipeline.graph import Batches, Block, Derivation, Vertex
from jaxkern.pipeline.nodes import merged
from jaxkern.pipeline.rows import Data


class RecompilationWarning(UserWarning):
    """A pipeline compiled a program again because a node changed the shape of its batches."""


class Joint(NamedTuple):
    """Batches of several nodes whose common arrays are held once.

    Attributes:
      leaves: the distinct arrays.
      places: which of them each leaf of the tree is.
      tree: of a tuple of batches.
    """

    leaves: list[Any]
    places: tuple[int, ...]
    tree: Any

    @classmethod
    def of(cls, batches: Sequence[Data]) -> Joint:
        """Joins batches; arrays are the same where they are one object."""
        leaves, tree = jax.tree.flatten(tuple(batches))
        first: dict[int, int] = {}
        distinct: list[Any] = []
        for leaf in leaves:
            if id(leaf) not in first:
                first[id(leaf)] = len(distinct)
                distinct.append(leaf)
        return cls(distinct, tuple(first[id(leaf)] for leaf in leaves), tree)

    def batches(self) -> tuple[Data, ...]:
        """The batches again."""
        batches: tuple[Data, ...] = self.tree.unflatten([self.leaves[p] for p in self.places])
        return batches


class BatchUnit(NamedTuple):
    """What worker threads hand over: the batches that the last program takes, or the batch.

    Attributes:
      joint: the batches.
      records: uint32 [N, 2], see `halves`.
      private: whether nobody else has the memory of its NumPy arrays, so that JAX may take it.
      bad: how many of the records could not be read, see `BatchSource.on_bad_record`.
    """

    joint: Joint
    records: Any
    private: bool = False
    bad: int = 0

    def made_private(self) -> BatchUnit:
        """The unit with copies of NumPy arrays, where somebody else may have them."""
        if self.private:
            return self
        leaves = [
            row.aligned_copy(leaf) if isinstance(leaf, np.ndarray) else leaf
            for leaf in self.joint.leaves
        ]
        return self._replace(joint=self.joint._replace(leaves=leaves), private=True)

    @property
    def nbytes(self) -> int:
        """Of its arrays."""
        leaves = [*self.joint.leaves, self.records]
        return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)  # shapes have no nbytes


def halves(records: np.ndarray) -> np.ndarray:
    """Record numbers as uint32 [N, 2]: the high and the low half."""
    bits = records.astype(np.uint64)
    return np.stack([bits >> np.uint64(32), bits & np.uint64(0xFFFFFFFF)], 1).astype(np.uint32)


class NodeProgram:
    """The JAX nodes that end in `root` as one program of the batches before them.

    Args:
      root: the last vertex.
      compiled: the vertices that are JAX code, and where it runs.
      names: of vertices.
      derivations: of vertices' keys from the records', where they are not those.

    Attributes:
      frontier: the vertices whose batches it takes.
      compilations: how often it was traced; once for each set of shapes.
    """

    def __init__(
        self,
        root: Vertex,
        compiled: Mapping[Vertex, str],
        names: Mapping[Vertex, str],
        derivations: Mapping[Vertex, Derivation],
    ) -> None:
        self._root, self._names, self._derivations = root, names, derivations
        self._where = where = compiled[root]
        region = {root}
        for vertex in reversed(root.ordered()):
            if vertex in region and compiled.get(vertex) == where:
                region.update(vertex.inputs)
        ordered = [vertex for vertex in root.ordered() if vertex in region]
        self._vertices = [vertex for vertex in ordered if compiled.get(vertex) == where]
        self.frontier = tuple(vertex for vertex in ordered if compiled.get(vertex) != where)
        self.compilations = 0
        self._seen: list[dict[str, str]] = []
        self._lock = threading.Lock()
        self._jitted = jax.jit(self._traced, static_argnums=(1, 2))

    @property
    def name(self) -> str:
        """The names of its nodes, in order."""
        return " >> ".join(self._names[vertex] for vertex in self._vertices)

    def block(self, epoch: Batches, batch: int) -> Block:
        """One batch, in a worker thread."""
        blocks = [epoch.block(vertex, batch) for vertex in self.frontier]
        records = blocks[0].records
        if self._where == "device":
            joint = Joint.of([block.data for block in blocks])
            return Block(self(joint, halves(records), epoch.key), records)
        joint = Joint.of([row.on_host(block.data) for block in blocks])
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            data = self(joint, halves(records), epoch.key)
        return Block(row.on_host(data), records)

    def __call__(self, joint: Joint, records: Any, key: Any) -> Data:
        """The batch that the program makes.

        Args:
          joint: the batches of the frontier.
          records: uint32 [N, 2], see `halves`.
          key: uint32 [2], the data of the epoch's key.
        """
        data: Data = self._jitted(joint.leaves, joint.places, joint.tree, records, key)
        return data

    def spec(self, joint: Joint, records: np.ndarray) -> Data:
        """The shapes of what it makes; compiles nothing."""

        def evaluate(leaves: list[Any], ids: Any, key: Any) -> Data:
            return self._evaluate(Joint(leaves, joint.places, joint.tree), ids, key)

        spec: Data = jax.eval_shape(evaluate, joint.leaves, records, np.zeros(2, np.uint32))
        return spec

    def compiled(self, joint: Joint, records: Any, key: Any) -> Any:
        """The ``jax.stages.Compiled`` for these shapes, which a call with such arguments uses."""
        return self._jitted.lower(joint.leaves, joint.places, joint.tree, records, key).compile()

    def _traced(
        self, leaves: list[Any], places: tuple[int, ...], tree: Any, records: Any, key: Any
    ) -> Data:
        joint = Joint(leaves, places, tree)
        self._count(joint.batches())
        return self._evaluate(joint, records, key)

    def _evaluate(self, joint: Joint, records: Any, key: Any) -> Data:
        found: dict[Vertex, Data] = dict(zip(self.frontier, joint.batches(), strict=True))
        keys: Any = None
        for vertex in self._vertices:
            batches = [found[before] for before in vertex.inputs]
            who = f"node {self._names[vertex]!r}"
            if len(batches) > 1:
                found[vertex] = merged(batches)
                continue
            node: Any = vertex.node
            given = None
            if node.stochastic:
                if keys is None:
                    first = jax.random.wrap_key_data(key, impl="threefry2x32")
                    keys = fold_records(first, records[:, 0], records[:, 1])
                derive = self._derivations.get(vertex)
                given = keys if derive is None else derive(keys)
            try:
                result = node.apply_batch(batches[0], given)
                row.check_rows(result, records.shape[0], who)
            except Exception as error:
                note(error, "in {} of the pipeline", who)
                raise
            found[vertex] = result
        return found[self._root]

    def _count(self, batches: tuple[Data, ...]) -> None:
        with self._lock:
            self.compilations += 1
            names = [self._names[vertex] for vertex in self.frontier]
            shapes = {
                name + field: _without_rows(text)
                for name, batch in zip(names, batches, strict=True)
                for field, text in row.signature(batch).items()
            }
            known = shapes in self._seen
            before = self._seen[-1] if self._seen else shapes
            self._seen.append(shapes)
        if known or before == shapes:
            return
        changed = [
            f"{place}: {before.get(place, 'absent')}, now {shapes.get(place, 'absent')}"
            for place in sorted({*before, *shapes})
            if before.get(place) != shapes.get(place)
        ]
        warnings.warn(
            f"the shapes of batches changed, and the program {self.name!r} was compiled again (for "
            f"the {self.compilations}. time): {'; '.join(changed)}; each new shape costs a "
            "compilation: pad or resize to one shape in the node named",
            RecompilationWarning,
            stacklevel=2,
        )


@dataclasses.dataclass(frozen=True)
class Salt:
    """From the records' keys [N] to a node's; equal ones derive the same.

    Attributes:
      number: of the node, see `salt_of`.
    """

    number: int

    def __call__(self, keys: jax.Array) -> jax.Array:
        """The keys with the number folded in."""
        return jax.vmap(lambda key: jax.random.fold_in(key, np.uint32(self.number)))(keys)


def salt_of(stream_name: str | None, occurrence: int) -> Salt | None:
    """Of the stochastic node that is the n-th with its stream's name; None: the records' keys."""
    if stream_name is None and occurrence == 0:
        return None
    # Transforms fold in small numbers.
    return Salt(zlib.crc32(f"{stream_name} {occurrence}".encode()) | 0x80000000)


def _without_rows(text: str) -> str:
    """A description without what may vary: the rows, and the length of a Ragged buffer."""
    kind, _, rest = text.partition("[")
    sides = rest.rstrip("]").split(", ")[1:]
    if kind == "Ragged":
        sides = [side for side in sides if not side.endswith(" bytes")]
    return f"{kind}[N{''.join(', ' + side for side in sides)}]"
