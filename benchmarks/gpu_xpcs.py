"""The CUDA kernels of the XPCS ops against the CPU kernels and against pure JAX on the GPU.

    python benchmarks/gpu_xpcs.py            # prints, and writes benchmarks/results/
    python benchmarks/gpu_xpcs.py --quick    # small, on the CPU; writes no results

Each arm is one compiled program on operands that are larger than the GPU's cache; programs are
enqueued back to back and waited for at the end. Values are compared first. Bytes are the least that
must move: each matrix that is read or written, once (of symmetric=True the upper half). Points are
those that count, mirrored ones too.
"""

from __future__ import annotations

from typing import Any

import harness
import jax
import numpy as np
from harness import GpuCase, copy_rate, time_on_gpu, write_gpu

from jaxkern.xpcs.model import ops

FLOW, STATIC = (3, 4), (3, 0)  # tables of A and of X of the two built-in models


def phases(n: int, angles: int, dtype: Any) -> tuple[Any, ...]:
    """A [1, n], X [angles, n], contrast and offset [angles]."""
    t = np.arange(n) / n
    A = 3 * t[None] ** 1.3
    X = np.linspace(-8, 8, angles)[:, None] * t**1.2
    contrast, offset = np.linspace(0.2, 0.4, angles), np.linspace(0.95, 1.05, angles)
    return tuple(x.astype(dtype) for x in (A, X, contrast, offset))


def matrix_case(name: str, op: str, n: int, angles: int, dtype: Any = np.float64) -> GpuCase:
    random = np.random.default_rng(0)
    A, X, contrast, offset = phases(n, angles, dtype)
    static = {"batch_dims": 1, "shear_power": 4}
    matrix, moved = angles * n * n * np.dtype(dtype).itemsize, 1
    operands: tuple[Any, ...] = (A, X, contrast)
    if op == "two_time_g2":
        operands += (offset,)
    elif op == "two_time_g2_tangent":
        operands += tuple(
            random.random(s).astype(dtype) for s in (A.shape, X.shape, angles, angles)
        )
    elif op == "two_time_g2_cotangent":
        operands += (random.standard_normal((angles, n, n)).astype(dtype),)
    else:
        data = random.uniform(0.9, 1.5, (angles, n, n)).astype(dtype)
        operands += (offset, data, np.full(angles, 0.05, dtype))
        static["sigma_rank"] = 0
        moved = 2

    def fn(*x: Any) -> Any:
        return getattr(ops, op)(*x, **static)

    return GpuCase(name, fn, [operands], moved * matrix, 1e-5 if dtype == np.float32 else 1e-10)


def normal_case(
    name: str,
    n: int,
    angles: int,
    tables: tuple[int, int] = FLOW,
    data: Any = np.float64,
    symmetric: int = 1,
    loss: int = 0,
    sigma_rank: int = 0,
) -> GpuCase:
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
        np.zeros((angles, ops.state_size(kA, kX))),
    )
    moved = operands[6].nbytes + (sigma.nbytes if sigma_rank else 0)

    def fn(*x: Any) -> Any:
        return ops.two_time_normal_equations(
            *x,
            batch_dims=1,
            shear_power=4 if kX else 0,
            loss=loss,
            symmetric=symmetric,
            sigma_rank=sigma_rank,
        )

    return GpuCase(name, fn, [operands], moved // 2 if symmetric == 1 else moved, 1e-9)


def cases(n: int, angles: int) -> list[GpuCase]:
    return [
        matrix_case("g2, f64", "two_time_g2", n, angles),
        matrix_case("g2, f32", "two_time_g2", n, angles, np.float32),
        matrix_case("tangent, f64", "two_time_g2_tangent", n, angles),
        matrix_case("cotangent, f64", "two_time_g2_cotangent", n, angles),
        matrix_case("residual, f64", "two_time_residual", n, angles),
        normal_case("normal equations, f64, mirrored", n, angles),
        normal_case("normal equations, f32, mirrored", n, angles, data=np.float32),
        normal_case("normal equations, u16, mirrored", n, angles, data=np.uint16),
        normal_case("normal equations, f32, compared", n, angles, data=np.float32, symmetric=2),
        normal_case("normal equations, f32, all", n, angles, data=np.float32, symmetric=0),
        normal_case("normal equations, f32, soft_l1", n, angles, data=np.float32, loss=1),
        normal_case("normal equations, f32, own sigmas", n, angles, data=np.float32, sigma_rank=2),
        normal_case("normal equations, static, f32", n, angles, STATIC, np.float32),
        normal_case("normal equations, 12 tables, f32", n, angles, (6, 6), np.float32),
    ]


def difference(got: Any, expected: Any) -> float:
    """The largest difference, as a share of the largest value of each result."""
    worst = 0.0
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        worst = max(worst, float(np.abs(x - y).max() / np.abs(y).max()))
    return worst


def check(case: GpuCase, name: str, got: Any, other: Any) -> None:
    """Stops the benchmark where the values differ."""
    # In float32 the pure-JAX one rounds at every step.
    allowed = case.tolerance * (100 if "JAX" in name else 1)
    worst = difference(got, other)
    if not worst <= allowed:
        raise SystemExit(f"{case.name}: differs from {name} by {worst}; expected at most {allowed}")


def report(rows: dict[str, dict[str, float]], points: int, ceiling: float) -> str:
    lines = [
        "| kernel | GPU, us | Gpoints/s | GB/s | of copy | CPU, us | over CPU | JAX on GPU, us "
        "| over JAX |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, row in rows.items():
        rate = row["bytes"] / row["gpu"]
        lines.append(
            f"| {name} | {row['gpu'] * 1e6:.1f} | {points / row['gpu'] / 1e9:.1f} "
            f"| {rate / 1e9:.0f} | {rate / ceiling:.0%} "
            f"| {row['cpu'] * 1e6:.0f} | {row['cpu'] / row['gpu']:.1f} "
            f"| {row['gpu_pure_jax'] * 1e6:.1f} | {row['gpu_pure_jax'] / row['gpu']:.2f} |"
        )
    lines.append(f"\ndevice copy: {ceiling / 1e9:.0f} GB/s read and written")
    return "\n".join(lines)


def main() -> None:
    quick = harness.parse(__doc__).quick
    jax.config.update("jax_enable_x64", True)
    cpu = jax.devices("cpu")[0]
    gpu = cpu if quick else jax.devices("cuda")[0]
    n, angles = (96, 3) if quick else (2000, 23)
    ceiling = copy_rate(gpu, 16 if quick else 1024)
    rows = {
        case.name: time_on_gpu(case, gpu, cpu, check, quick)
        for case in harness.progress(cases(n, angles), "cases")
    }
    text = report(rows, n * n * angles, ceiling)
    record = {"frames": n, "angles": angles, "copy_bytes_per_second": ceiling, "seconds": rows}
    write_gpu(
        "gpu-xpcs",
        "XPCS kernels",
        gpu,
        text,
        record,
        f"{angles} angles of {n} x {n} points.",
        quick,
    )


if __name__ == "__main__":
    main()
