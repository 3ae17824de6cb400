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
import jax
import numpy as np

import jaxkern as jk
from jaxkern.benchmarking import compare
from jaxkern.image import ops as image_ops
from jaxkern.image.chain.plan import ChainPlan, Dtype, Filter, Layout, Operands, Segment, jax_dtype
from jaxkern.xpcs.model import ops as xpcs_ops

SIDE, SIZE = 256, 224
MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
FLOW, STATIC = (3, 4), (3, 0)  # tables of A and of X of the two built-in models


@dataclasses.dataclass
class Case:
    """An op on several sets of operands."""

    name: str
    fn: Callable[..., Any]
    sets: list[Any]
    moved: int  # bytes that a call reads and writes
    tolerance: float  # absolute for images, relative to the largest value for XPCS


def compiled(case: Case, device: Any, backend: Any, sets: int) -> tuple[Any, Any]:
    """Return one program that runs the op on each set, and its operands on the device."""
    operands = jax.device_put(case.sets[:sets], device)
    with jk.backend(backend):
        program = jax.jit(lambda sets: [case.fn(*one) for one in sets]).lower(operands).compile()
    return program, operands


def check(case: Case, name: str, got: Any, expected: Any, relative: bool) -> None:
    """End the benchmark where the values differ."""
    # In float32, pure JAX rounds at every step.
    limit = case.tolerance * (100 if relative and "JAX" in name else 1)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        worst = float(np.abs(x - y).max() / (np.abs(y).max() if relative else 1))
        harness.within(f"{case.name}: {name}", worst, limit, "")


def timed(case: Case, gpu: Any, cpu: Any, relative: bool, quick: bool) -> dict[str, float]:
    """Compare the values of three backends; return seconds per call, and the bytes."""
    sets = len(case.sets)
    runs = {
        "gpu": (*compiled(case, gpu, "native", sets), sets),
        "gpu_pure_jax": (*compiled(case, gpu, "jax", sets), sets),
        "cpu": (*compiled(case, cpu, "native", 1), 1),
    }
    native, pure, kernel = (run(operands)[0] for run, operands, _ in runs.values())
    check(case, "pure JAX on the GPU", native, pure, relative)
    check(case, "the CPU kernel", native, kernel, relative)
    del native, pure, kernel
    comparison = compare(
        {name: functools.partial(run, operands) for name, (run, operands, _) in runs.items()},
        check=None,
        rounds=3 if quick else 9,
        turn_seconds=0.01 if quick else 0.1,
        back_to_back=True,
    )
    seconds = {name: comparison[name].median / calls for name, (_, _, calls) in runs.items()}
    return {**seconds, "bytes": case.moved}


def copy_rate(device: Any, megabytes: int) -> float:
    """Return the bytes per second that a large elementwise program reads and writes."""
    x = jax.device_put(np.ones(megabytes << 18, np.float32), device)
    program = jax.jit(lambda x: x * 2).lower(x).compile()
    # compare() needs two arms; the faster of two equal ones is closer to the peak.
    arms = {name: functools.partial(program, x) for name in ("first", "second")}
    comparison = compare(arms, check=None, rounds=7, turn_seconds=0.05, back_to_back=True)
    return 2 * x.nbytes / comparison[comparison.fastest].median


def chain_case(
    name: str,
    count: int,
    sets: int,
    filter_: Filter = Filter.BILINEAR,
    output: Dtype = Dtype.F32,
    layout: Layout = Layout.NHWC,
) -> Case:
    """Random resized crop, flip and normalize; the whole image if nothing is resampled."""
    size = SIDE if filter_ is Filter.NONE else SIZE
    plan = ChainPlan((Segment(filter_, size, size),), 3, Dtype.U8, output, layout)
    crop = jk.image.RandomResizedCrop(SIZE)
    operands, moved = [], 0
    for k in range(sets):
        random = np.random.default_rng(k)
        images = random.integers(0, 256, (count, SIDE, SIDE, 3), np.uint8)
        keys = jax.random.split(jax.random.key(k), count)
        box = jax.vmap(lambda key: crop.sample(key, (SIDE, SIDE)))(keys)
        box = np.stack([np.asarray(box[n]) for n in ("top", "left", "height", "width")], 1)
        if filter_ is Filter.NONE:
            box = np.tile(np.int32([0, 0, SIDE, SIDE]), (count, 1))
        flip = random.random(count) < 0.5
        fixed = np.tile(np.int32([size, size, 0, 0, size, size, 0, 1]), (count, 1))
        columns = np.stack([np.where(flip, size - 1, 0), np.where(flip, -1, 1)], 1)
        geometry = np.concatenate([box, fixed, columns], 1).astype(np.int32)[:, None]
        value_steps = np.stack([1 / (255 * STD), -MEAN / STD])[None, None]
        empty = np.zeros((1, 0, 4), np.int32), np.zeros((1, 0, 3), np.float32)
        fill = np.zeros((1, 1, 3), np.float32)
        operands.append((images, Operands(geometry, value_steps, fill, *empty)))
        moved += int((box[:, 2] * box[:, 3]).sum()) * 3
    written = count * size * size * 3 * np.dtype(jax_dtype(output)).itemsize

    def fn(images: Any, operands: Any) -> Any:
        return image_ops.chain(images, *operands, batch_dims=1, plan=plan)

    tolerance = 0.03 if output is Dtype.BF16 else 1e-3
    return Case(name, fn, operands, moved // sets + written, tolerance)


def mix_case(name: str, count: int, sets: int, cut: bool) -> Case:
    operands = []
    for k in range(sets):
        x, partner = np.random.default_rng(k).random((2, count, SIZE, SIZE, 3), np.float32)
        lam = np.float32([1.0 if cut else 0.3])
        operands.append((x, partner, lam, np.int32([[40, 60, 100, 90] if cut else [0, 0, 0, 0]])))

    def fn(*operands: Any) -> Any:
        return image_ops.mix(*operands, batch_dims=1, layout=Layout.NHWC)

    return Case(name, fn, operands, 3 * operands[0][0].nbytes, 1e-5)


def image_cases(count: int, sets: int) -> list[Case]:
    return [
        chain_case("crop, bilinear, f32", count, sets),
        chain_case("crop, antialias, f32", count, sets, Filter.ANTIALIAS),
        chain_case("crop, bicubic, f32", count, sets, Filter.BICUBIC_ANTIALIAS_LEVELS),
        chain_case("crop, bilinear, bf16", count, sets, output=Dtype.BF16),
        chain_case("crop, bilinear, f32 NCHW", count, sets, layout=Layout.NCHW),
        chain_case("normalize only, f32", count, sets, Filter.NONE),
        mix_case("MixUp, f32", count, sets, cut=False),
        mix_case("CutMix, f32", count, sets, cut=True),
    ]


def phases(n: int, angles: int, dtype: Any) -> tuple[Any, ...]:
    """Return A [1, n], X [angles, n], contrast and offset [angles]."""
    t = np.arange(n) / n
    A = 3 * t[None] ** 1.3
    X = np.linspace(-8, 8, angles)[:, None] * t**1.2
    contrast, offset = np.linspace(0.2, 0.4, angles), np.linspace(0.95, 1.05, angles)
    return tuple(x.astype(dtype) for x in (A, X, contrast, offset))


def matrix_case(name: str, op: str, n: int, angles: int, dtype: Any = np.float64) -> Case:
    random = np.random.default_rng(0)
    A, X, contrast, offset = phases(n, angles, dtype)
    static = {"batch_dims": 1, "shear_power": 4}
    matrix, moved = angles * n * n * np.dtype(dtype).itemsize, 1
    operands: tuple[Any, ...] = (A, X, contrast)
    if op == "two_time_g2":
        operands += (offset,)
    elif op == "two_time_g2_tangent":
        shapes = (A.shape, X.shape, angles, angles)
        operands += tuple(random.random(shape).astype(dtype) for shape in shapes)
    elif op == "two_time_g2_cotangent":
        operands += (random.standard_normal((angles, n, n)).astype(dtype),)
    else:
        data = random.uniform(0.9, 1.5, (angles, n, n)).astype(dtype)
        operands += (offset, data, np.full(angles, 0.05, dtype))
        static["sigma_rank"] = 0
        moved = 2
    fn = functools.partial(getattr(xpcs_ops, op), **static)
    return Case(name, fn, [operands], moved * matrix, 1e-5 if dtype == np.float32 else 1e-10)


def normal_case(
    name: str,
    n: int,
    angles: int,
    tables: tuple[int, int] = FLOW,
    data: Any = np.float64,
    symmetric: int = 1,
    loss: int = 0,
    sigma_rank: int = 0,
) -> Case:
    random = np.random.default_rng(0)
    measured = random.uniform(0.9, 1.5, (angles, n, n))
    measured = (measured + measured.swapaxes(1, 2)) / 2
    if data is np.uint16:
        measured = np.round(measured * 40000)
    sigma = np.full((angles, n, n), 0.05) if sigma_rank else np.full(1, 0.05)
    A, X, contrast, offset = phases(n, angles, np.float64)
    kA, kX = tables
    operands = (
        A,
        X,
        np.cumsum(random.random((1, kA, n)), 2) / n,
        np.cumsum(random.random((angles, kX, n)), 2) / n,
        contrast,
        offset,
        measured.astype(data),
        np.array([[1 / 40000 if data is np.uint16 else 1.0, 0.0]]),
        sigma,
        np.ones((1, n), np.uint8),
        np.array([2.0]),
        np.zeros(1, np.int32),
        np.zeros((angles, xpcs_ops.state_size(kA, kX))),
    )
    moved = operands[6].nbytes + (sigma.nbytes if sigma_rank else 0)
    fn = functools.partial(
        xpcs_ops.two_time_normal_equations, batch_dims=1, shear_power=4 if kX else 0, loss=loss,
        symmetric=symmetric, sigma_rank=sigma_rank,
    )  # fmt: skip
    return Case(name, fn, [operands], moved // 2 if symmetric == 1 else moved, 1e-9)


def xpcs_cases(n: int, angles: int) -> list[Case]:
    f32 = np.float32
    return [
        matrix_case("g2, f64", "two_time_g2", n, angles),
        matrix_case("g2, f32", "two_time_g2", n, angles, f32),
        matrix_case("tangent, f64", "two_time_g2_tangent", n, angles),
        matrix_case("cotangent, f64", "two_time_g2_cotangent", n, angles),
        matrix_case("residual, f64", "two_time_residual", n, angles),
        normal_case("normal equations, f64, mirrored", n, angles),
        normal_case("normal equations, f32, mirrored", n, angles, data=f32),
        normal_case("normal equations, u16, mirrored", n, angles, data=np.uint16),
        normal_case("normal equations, f32, compared", n, angles, data=f32, symmetric=2),
        normal_case("normal equations, f32, all", n, angles, data=f32, symmetric=0),
        normal_case("normal equations, f32, soft_l1", n, angles, data=f32, loss=1),
        normal_case("normal equations, f32, own sigmas", n, angles, data=f32, sigma_rank=2),
        normal_case("normal equations, static, f32", n, angles, STATIC, f32),
        normal_case("normal equations, 12 tables, f32", n, angles, (6, 6), f32),
    ]


def report(rows: dict[str, dict[str, float]], ceiling: float, points: int | None) -> list[str]:
    cells = []
    for name, row in rows.items():
        gpu, cpu, pure = (1e6 * row[arm] for arm in ("gpu", "cpu", "gpu_pure_jax"))
        rate = row["bytes"] / row["gpu"]
        cell = [name, f"{gpu:.1f}", f"{rate / 1e9:.0f}", f"{rate / ceiling:.0%}", f"{cpu:.0f}"]
        cell += [f"{cpu / gpu:.1f}", f"{pure:.1f}", f"{pure / gpu:.2f}"]
        cells.append(cell if points is None else [*cell, f"{points / row['gpu'] / 1e9:.1f}"])
    header = "op | GPU, us | GB/s | of copy | CPU, us | over CPU | JAX on GPU, us | over JAX"
    header += "" if points is None else " | Gpoints/s"
    copied = f"Device copy: {ceiling / 1e9:.0f} GB/s read and written."
    return [*harness.table(header, "l" + "r" * header.count("|"), cells), "", copied]


def main() -> None:
    options = harness.parse(__doc__, ("kernels", {"choices": ["image", "xpcs"]}))
    quick, xpcs = options.quick, options.kernels == "xpcs"
    jax.config.update("jax_enable_x64", xpcs)
    cpu = jax.devices("cpu")[0]
    gpu = cpu if quick else jax.devices("cuda")[0]
    if xpcs:
        frames, angles = (96, 3) if quick else (2000, 23)
        cases, points = xpcs_cases(frames, angles), frames * frames * angles
        title, note = "XPCS kernels", f"{angles} angles of {frames} x {frames} points."
    else:
        count, sets = (2, 2) if quick else (64, 6)
        cases, points = image_cases(count, sets), None
        title, note = "Image kernels", f"{count} images per call."
    ceiling = copy_rate(gpu, 16 if quick else 1024)
    progress = harness.progress(cases, "cases")
    rows = {case.name: timed(case, gpu, cpu, xpcs, quick) for case in progress}
    chip = re.sub(r"[^a-z0-9]+", "-", gpu.device_kind.lower()).strip("-")
    record = {"gpu": gpu.device_kind, "copy_bytes_per_second": ceiling, "seconds": rows}
    harness.write(
        f"gpu-{options.kernels}-{chip}", f"{title} on {gpu.device_kind}",
        report(rows, ceiling, points), record, ["jax-cuda13-plugin"], note, quick,
    )  # fmt: skip


if __name__ == "__main__":
    main()
