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
from jaxkern.testing.case import DEVICES, OpCase
from jaxkern.testing.derivatives import gradient_sums
from jaxkern.testing.differentials import gradient, is_inexact, weighted

_COLLECTIVES = ("all-gather", "all-to-all", "collective-permute", "all-reduce")
_DATA, _BOTH = PartitionSpec("data"), PartitionSpec(("data", "model"))


def _mesh(kind: AxisType) -> Mesh:
    return jax.make_mesh(
        (2, 2), ("data", "model"), axis_types=(kind, kind), devices=jax.devices()[:DEVICES]
    )


def _put(mesh: Mesh, arrays: Any, *specs: PartitionSpec) -> list[jax.Array]:
    chosen = specs if len(specs) > 1 else specs * len(arrays)
    return [
        jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(arrays, chosen, strict=True)
    ]


def _check_mesh(case: OpCase, kind: AxisType) -> None:
    mesh = _mesh(kind)
    # Each kind of mesh takes the gradient on one of the two placements.
    sharded = _DATA if kind == AxisType.Auto else _BOTH
    cotangents = case.cotangents()
    # The twin is asked outside: its programs would compile again for the mesh.
    others = _other_shardings(case)
    if case.differentiable:
        gradients = case.twin.gradients(case.stacked, cotangents)
    with jax.set_mesh(mesh):
        for batch in (_DATA, _BOTH):
            operands = _put(mesh, case.stacked, batch)
            program = jax.jit(case.call_batch).lower(*operands).compile()
            text = program.as_text() or ""
            found = [c for c in _COLLECTIVES if c in text]
            assert not found, f"batch-sharded over {batch}: the compiled text holds {found}"
            result = program(*operands)
            case.equal(result, case.wanted, f"batch-sharded over {batch}")
            for r in result:
                assert r.sharding.shard_shape(r.shape)[0] < case.count, "the result is replicated"
        if case.differentiable:
            got = jax.jit(gradient(case.call_batch, case.floats))(
                _put(mesh, case.stacked, sharded), _put(mesh, cotangents, sharded)
            )
            case.equal(got, gradients, f"vjp of a batch sharded over {sharded}")
        for fn, arrays, specs, wanted, what in others:
            case.equal(jax.jit(fn)(*_put(mesh, arrays, *specs)), wanted, what)


def _other_shardings(case: OpCase) -> list[tuple[Any, Any, list[PartitionSpec], Any, str]]:
    """Functions, their operands, where those lie, the wanted results, and what it is."""
    stacked, whole = case.stacked, case.call_batch
    found: list[tuple[Any, Any, list[PartitionSpec], Any, str]] = []
    some = [_DATA if i % 2 == 0 else PartitionSpec() for i in range(len(stacked))]
    if len(some) > 1:
        found.append((whole, stacked, some, case.wanted, "only some operands sharded"))
    alone = [tuple(j != i for j in range(len(stacked))) for i in {0, len(stacked) - 1}]
    for mapped in dict.fromkeys([*case.halves(), *(m for m in alone if any(m))]):
        axes = tuple(0 if m else None for m in mapped)
        operands, full = case.mixed(mapped)
        specs = [_DATA if m else PartitionSpec() for m in mapped]
        what = f"sharded, with in_axes={axes}"
        found.append((jax.vmap(case.call, axes), operands, specs, case.twin.values(*full), what))
    # Operands that are sharded along another axis than the batch are gathered: slower, but right.
    specs = [_DATA] * len(stacked)
    for i, x in enumerate(stacked):
        axis = next((a for a in range(1, x.ndim) if x.shape[a] and x.shape[a] % 2 == 0), None)
        if axis is not None:
            specs[i] = PartitionSpec("data", *[None] * (axis - 1), "model")
    if specs != [_DATA] * len(stacked):
        found.append((whole, stacked, specs, case.wanted, f"operands sharded as {specs}"))
    return found


def mesh_auto(case: OpCase) -> None:
    """Batch-sharded operands on Auto axes run locally; others are gathered and right."""
    _check_mesh(case, AxisType.Auto)


def mesh_explicit(case: OpCase) -> None:
    """The same on Explicit axes."""
    _check_mesh(case, AxisType.Explicit)


def shard_map(case: OpCase) -> None:
    """Inside shard_map, also with replicated operands, whose cotangents are summed."""
    mesh = _mesh(AxisType.Auto)
    local = jax.shard_map(case.call_batch, mesh=mesh, in_specs=_BOTH, out_specs=_BOTH)
    case.equal(jax.jit(local)(*case.stacked), case.wanted, "shard_map")
    if not case.differentiable:
        return
    cotangents = tuple(np.concatenate([c, -2 * c]) for c in case.cotangents())
    for mapped in case.halves() or [(False,)]:
        # Twice the samples: each device sums over its own ones, and then the devices' sums.
        axes = tuple(0 if m else None for m in mapped)
        operands, full = case.mixed(mapped)
        operands = [
            np.concatenate([x, x]) if m else x for x, m in zip(operands, mapped, strict=True)
        ]
        full = [np.concatenate([x, x]) for x in full]
        wanted, terms = gradient_sums(case, mapped, case.twin.gradients(full, cotangents))
        # One operand alone is shared by all devices, and so are the results of its samples.
        over = jax.vmap(case.call, axes) if any(mapped) else _repeated(case)
        specs = tuple(_BOTH if m else PartitionSpec() for m in mapped)

        def loss(xs: Any, cs: Any, over: Any = over) -> Any:
            total = weighted([r for r in over(*xs) if is_inexact(r)], cs)
            return jax.lax.psum(total, ("data", "model"))

        summed = jax.shard_map(loss, mesh=mesh, in_specs=(specs, _BOTH), out_specs=PartitionSpec())

        def of_floats(*xs: Any, summed: Any = summed, operands: Any = operands) -> Any:
            full = list(operands)
            for i, x in zip(case.floats, xs, strict=True):
                full[i] = x
            return summed(tuple(full), cotangents)

        by_floats = jax.jit(jax.grad(of_floats, tuple(range(len(case.floats)))))
        got = by_floats(*(operands[i] for i in case.floats))
        what = f"vjp in shard_map with in_axes={axes}"
        case.equal(got, wanted, what, terms)


def _repeated(case: OpCase) -> Any:
    samples = jnp.zeros(2 * case.count // DEVICES)
    return lambda x: jax.vmap(lambda _: case.call(x))(samples)


_RUN_EXPORTED = """
import pickle, sys
folder, given = sys.argv[1], pickle.load(open(sys.argv[1] + "/process", "rb"))
sys.path[:] = given["path"]
import jax, numpy as np
import jaxkern
from jaxkern.core import registry
jax.config.update("jax_enable_x64", given["x64"])
for name, platform in given["libraries"]:
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


def export_and_cache(case: OpCase) -> None:
    """An exported program runs in a fresh process; a second process hits the compilation cache."""
    disabled = [jax.export.DisabledSafetyCheck.custom_call(t) for t in registry.export_targets()]
    exported = jax.export.export(case.batched, disabled_checks=disabled)(*case.stacked)
    text = exported.mlir_module()
    assert "callback" not in text, "the exported program holds a Python callback"
    if case.native:
        assert case.op.target in text, f"the exported program does not call {case.op.target}"
    # A library that comes with a test or an example is loaded by name in the new process too, from
    # where this one has it: the working directory may hold its sources.
    process = {
        "path": sys.path,
        "libraries": [(x.module, x.platform) for x in registry.libraries() if x.problem is None],
        "x64": bool(jax.config.read("jax_enable_x64")),
    }
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "program").write_bytes(exported.serialize())
        Path(folder, "process").write_bytes(pickle.dumps(process))
        Path(folder, "operands").write_bytes(pickle.dumps(list(case.stacked)))
        for order, wanted_hits in (("first", False), ("second", True)):
            hits = _run_exported(folder)
            results = tuple(pickle.loads(Path(folder, "results").read_bytes()))
            case.equal(results, case.wanted, f"exported, {order} process")
            assert bool(hits) == wanted_hits, f"the {order} process hit the cache {hits} times"


def _run_exported(folder: str) -> int:
    done = subprocess.run(
        [sys.executable, "-P", "-c", _RUN_EXPORTED, folder],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"the fresh process failed:\n{done.stderr[-4000:]}"
    return int(done.stdout.split("hits")[-1])
