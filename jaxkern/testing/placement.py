"""Checks of placement: meshes, shard_map, exported programs and the compilation cache."""

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
from jaxkern.testing.case import DEVICES, OpCase, expect, gradient, is_inexact, weighted
from jaxkern.testing.derivatives import gradient_sums

_COLLECTIVES = ("all-gather", "all-to-all", "collective-permute", "all-reduce")
_DATA, _BOTH = PartitionSpec("data"), PartitionSpec(("data", "model"))


def _mesh(kind: AxisType) -> Mesh:
    devices = jax.devices()[:DEVICES]
    return jax.make_mesh((2, 2), ("data", "model"), axis_types=(kind, kind), devices=devices)


def _put(mesh: Mesh, arrays: Any, *specs: PartitionSpec) -> list[jax.Array]:
    chosen = specs if len(specs) > 1 else specs * len(arrays)
    pairs = zip(arrays, chosen, strict=True)
    return [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in pairs]


def _check_mesh(case: OpCase, kind: AxisType) -> None:
    mesh = _mesh(kind)
    # Each kind of mesh checks the gradient for one of the two shardings.
    sharded = _DATA if kind == AxisType.Auto else _BOTH
    cotangents = case.cotangents()
    # Outside of the mesh context, in which the programs of the reference would compile again.
    others = _other_shardings(case)
    if case.differentiable:
        gradients = case.reference.gradients(case.stacked, cotangents)
    with jax.set_mesh(mesh):
        for batch in (_DATA, _BOTH):
            operands = _put(mesh, case.stacked, batch)
            program = jax.jit(case.call_batch).lower(*operands).compile()
            text = program.as_text() or ""
            expect([c for c in _COLLECTIVES if c in text], [], f"collectives over {batch}")
            result = program(*operands)
            case.equal(result, case.expected, f"batch-sharded over {batch}")
            for r in result:
                assert r.sharding.shard_shape(r.shape)[0] < case.count, "the result is replicated"
        if case.differentiable:
            placed = _put(mesh, case.stacked, sharded), _put(mesh, cotangents, sharded)
            actual = jax.jit(gradient(case.call_batch, case.floats))(*placed)
            case.equal(actual, gradients, f"vjp of a batch sharded over {sharded}")
        for fn, arrays, specs, expected, label in others:
            case.equal(jax.jit(fn)(*_put(mesh, arrays, *specs)), expected, label)


def _other_shardings(case: OpCase) -> list[tuple[Any, Any, list[PartitionSpec], Any, str]]:
    """Return functions with their operands, shardings, expected results and labels."""
    stacked, fn = case.stacked, case.call_batch
    checks: list[tuple[Any, Any, list[PartitionSpec], Any, str]] = []
    specs = [_DATA if i % 2 == 0 else PartitionSpec() for i in range(len(stacked))]
    if len(specs) > 1:
        checks.append((fn, stacked, specs, case.expected, "only some operands sharded"))
    single = [tuple(j != i for j in range(len(stacked))) for i in {0, len(stacked) - 1}]
    for mapped in dict.fromkeys([*case.alternating_masks(), *(m for m in single if any(m))]):
        axes = tuple(0 if m else None for m in mapped)
        operands, full = case.broadcast_unmapped(mapped)
        specs = [_DATA if m else PartitionSpec() for m in mapped]
        over, expected = jax.vmap(case.call, axes), case.reference.values(*full)
        checks.append((over, operands, specs, expected, f"sharded, with in_axes={axes}"))
    # Operands that are sharded along an axis other than the batch are gathered.
    specs = [_DATA] * len(stacked)
    for i, x in enumerate(stacked):
        axis = next((a for a in range(1, x.ndim) if x.shape[a] and x.shape[a] % 2 == 0), None)
        if axis is not None:
            specs[i] = PartitionSpec("data", *[None] * (axis - 1), "model")
    if specs != [_DATA] * len(stacked):
        checks.append((fn, stacked, specs, case.expected, f"operands sharded as {specs}"))
    return checks


def mesh_auto(case: OpCase) -> None:
    """On Auto axes, batch-sharded operands run locally, and other shardings are correct."""
    _check_mesh(case, AxisType.Auto)


def mesh_explicit(case: OpCase) -> None:
    """On Explicit axes, batch-sharded operands run locally, and other shardings are correct."""
    _check_mesh(case, AxisType.Explicit)


def shard_map(case: OpCase) -> None:
    """Calls in shard_map, also with replicated operands, whose cotangents are summed."""
    mesh = _mesh(AxisType.Auto)
    local = jax.shard_map(case.call_batch, mesh=mesh, in_specs=_BOTH, out_specs=_BOTH)
    case.equal(jax.jit(local)(*case.stacked), case.expected, "shard_map")
    if not case.differentiable:
        return
    cotangents = tuple(np.concatenate([c, -2 * c]) for c in case.cotangents())
    for mapped in case.alternating_masks() or [(False,)]:
        # Double the samples, so that each device sums over several before the psum.
        axes = tuple(0 if m else None for m in mapped)
        operands, full = case.broadcast_unmapped(mapped)
        pairs = zip(operands, mapped, strict=True)
        operands = [np.concatenate([x, x]) if m else x for x, m in pairs]
        full = [np.concatenate([x, x]) for x in full]
        expected, terms = gradient_sums(case, mapped, case.reference.gradients(full, cotangents))
        # A single unmapped operand needs an explicit axis of repeated results.
        over = jax.vmap(case.call, axes) if any(mapped) else _repeated(case)
        specs = tuple(_BOTH if m else PartitionSpec() for m in mapped)

        def loss(xs: Any, cs: Any, over: Any = over) -> Any:
            total = weighted([r for r in over(*xs) if is_inexact(r)], cs)
            return jax.lax.psum(total, ("data", "model"))

        summed = jax.shard_map(loss, mesh=mesh, in_specs=(specs, _BOTH), out_specs=PartitionSpec())

        def float_function(*xs: Any, summed: Any = summed, operands: Any = operands) -> Any:
            moved = dict(zip(case.floats, xs, strict=True))
            return summed(tuple(moved.get(i, x) for i, x in enumerate(operands)), cotangents)

        by_floats = jax.jit(jax.grad(float_function, tuple(range(len(case.floats)))))
        actual = by_floats(*(operands[i] for i in case.floats))
        case.equal(actual, expected, f"vjp in shard_map with in_axes={axes}", terms)


def _repeated(case: OpCase) -> Any:
    samples = jnp.zeros(2 * case.count // DEVICES)
    return lambda x: jax.vmap(lambda _: case.call(x))(samples)


_RUN_EXPORTED = """
import pickle, sys
folder, settings = sys.argv[1], pickle.load(open(sys.argv[1] + "/process", "rb"))
sys.path[:] = settings["path"]
import jax, numpy as np
import jaxkern
from jaxkern.core import registry
jax.config.update("jax_enable_x64", settings["x64"])
for name, platform in settings["libraries"]:
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
    assert "callback" not in text, "the exported program contains a Python callback"
    if case.native:
        assert case.op.target in text, f"the exported program does not call {case.op.target}"
    # The new process loads the libraries of tests and examples by name, from the same path: the
    # working directory may contain their sources.
    process = {
        "path": sys.path,
        "libraries": [(x.module, x.platform) for x in registry.libraries() if x.problem is None],
        "x64": bool(jax.config.read("jax_enable_x64")),
    }
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "program").write_bytes(exported.serialize())
        Path(folder, "process").write_bytes(pickle.dumps(process))
        Path(folder, "operands").write_bytes(pickle.dumps(list(case.stacked)))
        for order, expect_hits in (("first", False), ("second", True)):
            command = [sys.executable, "-P", "-c", _RUN_EXPORTED, folder]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == 0, f"the new process failed:\n{done.stderr[-4000:]}"
            results = tuple(pickle.loads(Path(folder, "results").read_bytes()))
            case.equal(results, case.expected, f"exported, {order} process")
            hits = int(done.stdout.split("hits")[-1])
            expect(hits > 0, expect_hits, f"the {order} process had cache hits")
