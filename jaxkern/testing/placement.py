"""Checks of where an op runs: meshes, shard_map, exported programs and the compilation cache."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxkern.core import registry
from jaxkern.testing.check import DEVICES, OpCheck, check
from jaxkern.testing.derivatives import gradient, nothing_to_do

_COLLECTIVES = ("all-gather", "all-to-all", "collective-permute", "all-reduce")


def _mesh(kind: AxisType) -> Mesh:
    return jax.make_mesh(
        (2, 2), ("data", "model"), axis_types=(kind, kind), devices=jax.devices()[:DEVICES]
    )


def _put(mesh: Mesh, operands: Any, *specs: PartitionSpec) -> list[jax.Array]:
    chosen = specs if len(specs) > 1 else specs * len(operands)
    return [
        jax.device_put(x, NamedSharding(mesh, spec))
        for x, spec in zip(operands, chosen, strict=True)
    ]


def _check_mesh(case: OpCheck, kind: AxisType) -> None:
    mesh, stacked = _mesh(kind), case.stacked
    wanted = case.references(*stacked)
    differentiable = not nothing_to_do(case)
    if differentiable:
        gradients = jax.jit(jax.vmap(gradient(case, case.reference)))(*stacked)
    fn = jax.jit(lambda *xs: case.call(*xs, batch_dims=1))
    with jax.set_mesh(mesh):
        for batch in (PartitionSpec("data"), PartitionSpec(("data", "model"))):
            operands = _put(mesh, stacked, batch)
            text = fn.lower(*operands).compile().as_text() or ""
            found = [c for c in _COLLECTIVES if c in text]
            assert not found, f"batch-sharded over {batch}: the compiled text holds {found}"
            result = fn(*operands)
            case.equal(result, wanted, f"batch-sharded over {batch}")
            for r in result:
                assert r.sharding.shard_shape(r.shape)[0] < case.count, "the result is replicated"
            if differentiable:
                batched = gradient(case, lambda *xs: case.call(*xs, batch_dims=1))
                case.equal(
                    jax.jit(batched)(*operands),
                    gradients,
                    f"grad of a batch sharded over {batch}",
                )
        _check_other_shardings(case, mesh, fn, wanted)


def _check_other_shardings(case: OpCheck, mesh: Mesh, fn: Any, wanted: Any) -> None:
    stacked = case.stacked
    some = [PartitionSpec("data") if i % 2 == 0 else PartitionSpec() for i in range(len(stacked))]
    if len(some) > 1:
        case.equal(fn(*_put(mesh, stacked, *some)), wanted, "only some operands sharded")
    first = _put(mesh, case.first, PartitionSpec())
    operands = _put(mesh, stacked, PartitionSpec("data"))
    for i in range(len(stacked) if len(stacked) > 1 else 0):
        axes = tuple(None if j == i else 0 for j in range(len(stacked)))
        mixed = [f if j == i else x for j, (f, x) in enumerate(zip(first, operands, strict=True))]
        plain = [
            f if j == i else x for j, (f, x) in enumerate(zip(case.first, stacked, strict=True))
        ]
        case.equal(
            jax.jit(jax.vmap(case.call, axes))(*mixed),
            jax.jit(jax.vmap(case.reference, axes))(*plain),
            f"sharded, with operand {i} not mapped",
        )
    # An operand that is sharded along another axis than the batch is gathered: slower, but right.
    for i, x in enumerate(stacked):
        axis = next((a for a in range(1, x.ndim) if x.shape[a] and x.shape[a] % 2 == 0), None)
        if axis is None:
            continue
        specs = [PartitionSpec("data")] * len(stacked)
        specs[i] = PartitionSpec("data", *[None] * (axis - 1), "model")
        case.equal(fn(*_put(mesh, stacked, *specs)), wanted, f"operand {i} sharded on axis {axis}")


@check
def mesh_auto(case: OpCheck) -> None:
    """Batch-sharded operands on Auto axes run locally; others are gathered and right."""
    _check_mesh(case, AxisType.Auto)


@check
def mesh_explicit(case: OpCheck) -> None:
    """The same on Explicit axes."""
    _check_mesh(case, AxisType.Explicit)


@check
def shard_map(case: OpCheck) -> None:
    """Inside shard_map, also with replicated operands, whose cotangents are summed."""
    mesh, stacked = _mesh(AxisType.Auto), case.stacked
    both = PartitionSpec(("data", "model"))
    batched = lambda *xs: case.call(*xs, batch_dims=1)  # noqa: E731
    local = jax.shard_map(batched, mesh=mesh, in_specs=both, out_specs=both)
    case.equal(jax.jit(local)(*stacked), case.references(*stacked), "shard_map")
    if nothing_to_do(case):
        return
    for i in case.floats:
        specs = tuple(PartitionSpec() if j == i else both for j in range(len(stacked)))
        axes = tuple(None if j == i else 0 for j in range(len(stacked)))
        operands = [case.first[j] if j == i else x for j, x in enumerate(stacked)]
        if len(stacked) == 1:
            specs, axes, operands = (PartitionSpec(),), (None,), [case.first[0]]
        gradients = []
        for fn in (case.call, case.reference):
            over = fn if axes == (None,) else jax.vmap(fn, axes)
            summed = _summed(over, ("data", "model"))
            loss = jax.shard_map(summed, mesh=mesh, in_specs=specs, out_specs=PartitionSpec())
            gradients.append(jax.jit(jax.grad(loss, i))(*operands))
        case.equal(gradients[0], gradients[1], f"grad in shard_map, operand {i} replicated")


def _summed(fn: Any, axes: tuple[str, ...]) -> Any:
    def loss(*operands: Any) -> Any:
        floats = [r for r in fn(*operands) if jnp.issubdtype(r.dtype, jnp.inexact)]
        total = sum(jnp.sum(r.astype(jnp.float32) ** 2) for r in floats)
        missing = tuple(a for a in axes if a not in jax.typeof(total).manual_axis_type.varying)
        total = jax.lax.pcast(total, missing, to="varying") if missing else total
        return jax.lax.psum(total, axes)

    return loss


_RUN_EXPORTED = """
import pickle, sys
import jax, numpy as np
import jaxkern
from jaxkern.core import registry
folder, libraries, x64 = sys.argv[1], pickle.loads(bytes.fromhex(sys.argv[2])), sys.argv[3]
jax.config.update("jax_enable_x64", x64 == "True")
for name, platform in libraries:
    registry.load(name, platform)
jax.config.update("jax_compilation_cache_dir", folder + "/cache")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
events = []
jax.monitoring.register_event_listener(lambda name, **kw: events.append(name))
exported = jax.export.deserialize(bytearray(open(folder + "/program", "rb").read()))
operands = pickle.load(open(folder + "/operands", "rb"))
results = jax.jit(exported.call)(*operands)
pickle.dump([np.asarray(r) for r in results], open(folder + "/results", "wb"))
print("hits", sum(e.endswith("compilation_cache/cache_hits") for e in events))
"""


@check
def export_and_cache(case: OpCheck) -> None:
    """An exported program runs in a fresh process; a second process hits the compilation cache."""
    batched = jax.jit(lambda *xs: case.call(*xs, batch_dims=1))
    disabled = [jax.export.DisabledSafetyCheck.custom_call(t) for t in registry.export_targets()]
    exported = jax.export.export(batched, disabled_checks=disabled)(*case.stacked)
    text = exported.mlir_module()
    assert "callback" not in text, "the exported program holds a Python callback"
    if case.native:
        assert case.op.target in text, f"the exported program does not call {case.op.target}"
    # A library that comes with a test or an example is loaded by name in the new process too.
    loaded = [(x.module, x.platform) for x in registry.libraries() if x.problem is None]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "program").write_bytes(exported.serialize())
        with open(Path(folder, "operands"), "wb") as file:
            pickle.dump([np.asarray(x) for x in case.stacked], file)
        for process, wanted_hits in (("first", False), ("second", True)):
            hits = _run_exported(folder, loaded)
            with open(Path(folder, "results"), "rb") as file:
                results = tuple(pickle.load(file))
            case.equal(results, case.references(*case.stacked), f"exported, {process} process")
            assert bool(hits) == wanted_hits, f"the {process} process hit the cache {hits} times"


def _run_exported(folder: str, libraries: Any) -> int:
    x64 = str(bool(jax.config.read("jax_enable_x64")))
    done = subprocess.run(
        [sys.executable, "-c", _RUN_EXPORTED, folder, pickle.dumps(libraries).hex(), x64],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"the fresh process failed:\n{done.stderr[-4000:]}"
    return int(done.stdout.split("hits")[-1])
