"""Would catch a report that differs from the memory of the process, and a wrong collective."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support.core.processes import python_output

from jaxkern import performance
from jaxkern.performance.programs import HloModule, shape_bytes

# Runs one program once and prints the growth of the peak resident memory meanwhile.
MEASURED = """
import sys, jax, jax.numpy as jnp
from jaxkern import performance

def status(name):
    for line in open("/proc/self/status"):
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024

def fn(x):
    y = jax.lax.optimization_barrier(x * 2)  # a temporary as large as x
    return y[::-1] + 1, y.sum()

x = jax.block_until_ready(jnp.full((2048, 4096), 2.0))
report = performance.memory_report(fn, jax.ShapeDtypeStruct(x.shape, x.dtype))
compiled = jax.jit(fn).lower(x).compile()
open("/proc/self/clear_refs", "w").write("5")  # resets the peak
before = status("RssAnon")
jax.block_until_ready(compiled(x))
print(status("VmHWM") - status("VmRSS") + status("RssAnon") - before,
      report.output_bytes + report.temporary_bytes, report.argument_bytes, x.nbytes)
"""


def test_report_equals_the_figures_of_the_operating_system():
    measured, planned, arguments, array = map(int, python_output(MEASURED).split())
    assert arguments == array == 32 << 20
    assert planned > 63 << 20
    assert measured == pytest.approx(planned, rel=0.1)


def test_known_figures():
    x = jnp.ones((256, 1024), jnp.float32)
    report = performance.memory_report(lambda x: (x + 1, x.sum()), x)
    assert report.argument_bytes == x.nbytes
    assert report.output_bytes - (x.nbytes + 4) in range(0, 33)  # and the tuple of pointers
    assert report.aliased_bytes == 0
    assert report.collectives == ()
    donating = jax.jit(lambda x: x + 1, donate_argnums=0)
    donated = performance.memory_report(donating, jax.ShapeDtypeStruct(x.shape, x.dtype))
    assert donated.aliased_bytes == x.nbytes
    assert donated.peak_bytes == donated.argument_bytes + donated.temporary_bytes
    assert "aliased" in str(donated)
    assert "-1.049 MB" in str(donated)


def test_collectives_have_bytes_and_counts():
    mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
    split, replicated = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("d",), ()))
    x = jax.device_put(np.ones((64, 256), np.float32), split)

    def fn(x):
        return jax.lax.with_sharding_constraint(x * 2, replicated), x.sum()

    report = performance.memory_report(fn, x)
    collectives = sorted((c.kind, c.bytes, c.count) for c in report.collectives)
    assert collectives == [("all-gather", x.nbytes, 1), ("all-reduce", 4, 1)]
    assert report.argument_bytes == x.nbytes // 4
    assert "all-gather" in str(report)

    def looped(x):
        step = lambda c, _: (jax.lax.psum(c, "d") / 4 + 1, None)  # noqa: E731
        return jax.lax.scan(step, x, None, length=7)[0]

    specs = dict.fromkeys(("in_specs", "out_specs"), split.spec)
    mapped = jax.shard_map(looped, mesh=mesh, check_vma=False, **specs)
    (collective,) = performance.memory_report(mapped, x[:, 0]).collectives
    assert (collective.kind, collective.bytes, collective.count) == ("all-reduce", 64, 7)


def test_functions_that_cannot_be_compiled():
    for fn, *args in ((3,), (lambda x: x, "text"), (lambda x: x if x > 0 else -x, jnp.float32(1))):
        with pytest.raises(TypeError):
            performance.memory_report(fn, *args)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("f32[2,3]{1,0}", 24),
        ("bf16[5]{0}", 10),
        ("pred[7]", 7),
        ("(f32[2]{0}, s8[3]{0}, u64[])", 19),
        ("f8e4m3fn[4]", 4),
        ("s4[3]", 2),
        ("c64[2]", 16),
        ("f32[0,5]", 0),
        ("token[]", 0),
    ],
)
def test_bytes_of_shapes(shape, size):
    assert shape_bytes(shape) == size


@pytest.mark.parametrize(
    ("shape", "opcode", "size"),
    [
        ("((f32[4]{0}, f32[8]{0}), (f32[16]{0}, f32[32]{0}))", "all-gather-start", 192),
        ("(f32[16]{0}, f32[32]{0})", "all-reduce-start", 192),
        ("f32[16]{0}", "all-reduce-start", 64),
        ("(f32[4]{0}, f32[4]{0}, u32[], u32[])", "collective-permute-start", 16),
        ("(f32[2,8]{1,0}, f32[2,8]{0,1}, u32[])", "copy-start", 64),
    ],
)
def test_combined_asynchronous_collectives_count_all_results(shape, opcode, size):
    text = f"ENTRY %main () -> f32[] {{\n  %start = {shape} {opcode}(%a, %b), channel_id=1\n}}\n"
    ((instruction, _),) = HloModule(text).executed()
    assert (instruction.opcode, instruction.bytes) == (opcode, size)


def test_instructions_of_asynchronous_collectives():
    text = """HloModule m, input_output_alias={ {0}: (1, {}, may-alias), {1}: (3, {}, must-alias) }

ENTRY %main (p: f32[4]) -> f32[16] {
  %p = f32[4]{0} parameter(0), metadata={op_name="s[\\'a\\']"}
  %all-gather-start.1 = (f32[4]{0}, f32[16]{0}) all-gather-start(%p), dimensions={0}
  ROOT %all-gather-done.1 = f32[16]{0} all-gather-done(%all-gather-start.1)
}
"""
    program = HloModule(text)
    assert program.aliased_parameters == {1, 3}
    assert program.parameters()[0].op_name == "s['a']"
    collectives = [(i.name, i.collective, i.bytes) for i, _ in program.executed() if i.collective]
    assert collectives == [("all-gather-start.1", "all-gather", 64)]
