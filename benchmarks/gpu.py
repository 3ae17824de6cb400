"""The CUDA kernels compared with the CPU kernels and with pure JAX on the GPU.

    python benchmarks/gpu.py image|xpcs            # prints, and writes benchmarks/results/
    python benchmarks/gpu.py image|xpcs --quick    # small, on the CPU; writes no results

Each arm is one compiled program on operands that together are larger than the GPU's cache. Programs
are enqueued back to back and waited for at the end of a turn. Values are compared first. Bytes are
a lower bound: the source pixels inside the boxes or each matrix once (of symmetric=True the upper
half), and the output. XPCS points are those that count, including mirrored ones.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import harness
import image_augment
import jax
import jax.numpy as jnp
import numpy as np
import xpcs_model

import jaxkern as jk
from jaxkern.benchmarking import compare

SIDE, SIZE = 256, 224


@dataclasses.dataclass
class Case:
    """A function on several sets of operands.

    Attributes:
      moved: bytes that a call reads and writes.
      tolerance: largest difference, as a fraction of the largest value.
    """

    name: str
    fn: Callable[..., Any]
    sets: list[Any]
    moved: int
    tolerance: float


def compiled(case: Case, device: Any, backend: Any, sets: int) -> Callable[[], Any]:
    """Return one program that calls the function with each set on the device."""
    operands = jax.device_put(case.sets[:sets], device)
    with jk.backend(backend):
        program = jax.jit(lambda sets: [case.fn(*one) for one in sets]).lower(operands).compile()
    return functools.partial(program, operands)


def timed(case: Case, gpu: Any, cpu: Any, quick: bool) -> dict[str, float]:
    """Compare the values of three backends; return seconds per call, and the bytes."""
    calls = {"gpu": len(case.sets), "jax": len(case.sets), "cpu": 1}
    arms = {
        "gpu": compiled(case, gpu, "native", calls["gpu"]),
        "jax": compiled(case, gpu, "jax", calls["jax"]),
        "cpu": compiled(case, cpu, "native", calls["cpu"]),
    }
    native, pure, kernel = (jax.tree.leaves(arm()[0]) for arm in arms.values())
    for ours, in_jax, on_cpu in zip(native, pure, kernel, strict=True):
        harness.check_relative(f"{case.name}: pure JAX", ours, in_jax, case.tolerance)
        harness.check_relative(f"{case.name}: the CPU kernel", ours, on_cpu, case.tolerance)
    del native, pure, kernel
    comparison = compare(
        arms,
        check=None,
        rounds=3 if quick else 9,
        turn_seconds=0.01 if quick else 0.1,
        back_to_back=True,
    )
    seconds = {name: comparison[name].median / calls[name] for name in arms}
    return {**seconds, "bytes": case.moved}


def image_case(
    name: str, count: int, sets: int, transforms: list[Any], dtype: Any = np.uint8, **output: Any
) -> Case:
    """Return a case of a chain on images of a dtype."""
    chain = jk.image.Compose(transforms, **output)
    operands, moved = [], 0
    for k in range(sets):
        levels = np.random.default_rng(k).integers(0, 256, (count, SIDE, SIDE, 3), np.uint8)
        images = levels if dtype == np.uint8 else (levels / 255).astype(dtype)
        params = chain.sample(jax.random.split(jax.random.key(k), count), (SIDE, SIDE))
        operands.append((images, params))
        if dtype != np.uint8:
            moved += 2 * images.nbytes  # a mix also reads the partners
        elif "height" in params[0]:
            moved += 3 * int((params[0]["height"] * params[0]["width"]).sum())
        else:
            moved += images.nbytes
    result = jax.eval_shape(chain.apply, *operands[0])
    moved = moved // sets + result.size * result.dtype.itemsize
    tolerance = 0.01 if result.dtype == jnp.bfloat16 else 1e-3
    return Case(name, chain.apply, operands, moved, tolerance)


def image_cases(count: int, sets: int) -> list[Case]:
    def crop(name: str, interpolation: str = "bilinear", antialias: bool = False, **output: Any):
        transforms = [
            jk.image.RandomResizedCrop(SIZE, interpolation=interpolation, antialias=antialias),
            jk.image.RandomHorizontalFlip(),
            image_augment.NORMALIZE,
        ]
        return image_case(f"crop, {name}", count, sets, transforms, **output)

    return [
        crop("bilinear, f32"),
        crop("antialias, f32", antialias=True),
        crop("bicubic, f32", "bicubic", antialias=True),
        crop("bilinear, bf16", dtype=jnp.bfloat16),
        crop("bilinear, f32 NCHW", layout="NCHW"),
        image_case("normalize only, f32", count, sets, [image_augment.NORMALIZE]),
        image_case("MixUp, f32", count, sets, [jk.image.MixUp()], np.float32),
        image_case("CutMix, f32", count, sets, [jk.image.CutMix()], np.float32),
    ]


def xpcs_cases(n: int, angles: int) -> list[Case]:
    flow = jk.xpcs.LaminarFlow(xpcs_model.geometry(angles, n))
    static = jk.xpcs.Static(flow.geometry)
    parameters, measured = xpcs_model.simulate(angles, n)
    contrast, offset, physics = np.split(parameters, [angles, 2 * angles])
    random = np.random.default_rng(0)
    cotangent = random.standard_normal(measured.shape)
    step = measured.max() / 65535
    of_type = {
        "f64": measured,
        "f32": measured.astype(np.float32),
        "u16": np.round(measured / step).astype(np.uint16),
    }

    def matrix(name: str, fn: Callable[..., Any], *operands: Any, matrices: int = 1) -> Case:
        return Case(name, fn, [operands], matrices * measured.nbytes, 1e-10)

    def normal(
        name: str, data: str = "f32", model: Any = flow, symmetric: Any = True,
        sigma: Any = 0.05, loss: str = "linear",
    ) -> Case:  # fmt: skip
        def fn(data: Any, sigma: Any, *rest: Any) -> Any:
            return jk.xpcs.normal_equations(
                model, *rest, contrast, offset, data, sigma, symmetric=symmetric, loss=loss,
                quantization=(step, 0.0) if data.dtype == np.uint16 else None,
            )  # fmt: skip

        params = physics if model is flow else np.asarray(static.defaults)
        moved = of_type[data].nbytes + (np.size(sigma) * 8 if np.size(sigma) > 1 else 0)
        moved //= 2 if symmetric is True else 1
        name = f"normal equations, {data}, {name}"
        return Case(name, fn, [(of_type[data], sigma, params)], moved, 1e-9)

    g2 = functools.partial(jk.xpcs.g2, flow)
    primals = (physics, contrast, offset)
    return [
        matrix("g2", g2, *primals),
        matrix("tangent", lambda *x: jax.jvp(g2, x, x)[1], *primals),
        matrix("cotangent", lambda ct, *x: jax.vjp(g2, *x)[1](ct), cotangent, *primals),
        matrix(
            "residual", lambda data, *x: jk.xpcs.residual(flow, *x, data, 0.05), measured,
            *primals, matrices=2,
        ),
        normal("mirrored", "f64"),
        normal("mirrored"),
        normal("mirrored", "u16"),
        normal("compared", symmetric="auto"),
        normal("all", symmetric=False),
        normal("soft_l1", loss="soft_l1"),
        normal("sigma of each point", sigma=np.full(measured.shape, 0.05)),
        normal("static", model=static),
    ]  # fmt: skip


def report(rows: dict[str, dict[str, float]], ceiling: float, points: int | None) -> list[str]:
    cells = []
    for name, row in rows.items():
        gpu, cpu, pure = (1e6 * row[arm] for arm in ("gpu", "cpu", "jax"))
        rate = row["bytes"] / row["gpu"]
        cell = [name, f"{gpu:.1f}", f"{rate / 1e9:.0f}", f"{rate / ceiling:.0%}", f"{cpu:.0f}"]
        cell += [f"{cpu / gpu:.1f}", f"{pure:.1f}", f"{pure / gpu:.2f}"]
        cells.append(cell if points is None else [*cell, f"{points / row['gpu'] / 1e9:.1f}"])
    header = "op | GPU, us | GB/s | of copy | CPU, us | over CPU | JAX on GPU, us | over JAX"
    header += "" if points is None else " | Gpoints/s"
    copied = f"Device copy: {ceiling / 1e9:.0f} GB/s read and written."
    return [*harness.table(header, "l" + "r" * header.count("|"), cells), "", copied]


def main() -> None:
    bench = harness.Benchmark(__doc__, {"kernels": {"choices": ["image", "xpcs"]}})
    quick, kernels = bench.quick, bench.options.kernels
    jax.config.update("jax_enable_x64", kernels == "xpcs")
    cpu = jax.devices("cpu")[0]
    gpu = cpu if quick else jax.devices("cuda")[0]
    if kernels == "xpcs":
        frames, angles = (96, 3) if quick else (2000, 23)
        cases, points = xpcs_cases(frames, angles), frames * frames * angles
        note = f"{angles} angles of {frames} x {frames} points."
    else:
        count, sets = (2, 2) if quick else (64, 6)
        cases, points = image_cases(count, sets), None
        note = f"{count} images per call."
    ceiling = jk.performance.ceilings(gpu).best.copy
    rows = {case.name: timed(case, gpu, cpu, quick) for case in harness.progress(cases, "cases")}
    chip = re.sub(r"[^a-z0-9]+", "-", gpu.device_kind.lower()).strip("-")
    lines, name = report(rows, ceiling, points), f"gpu-{kernels}-{chip}"
    bench.write(lines, ["jax-cuda13-plugin"], note, name, seconds=rows)


if __name__ == "__main__":
    main()
