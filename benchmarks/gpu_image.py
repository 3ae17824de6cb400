"""The CUDA kernels of the image ops against the CPU kernels and against pure JAX on the GPU.

    python benchmarks/gpu_image.py            # prints, and writes benchmarks/results/
    python benchmarks/gpu_image.py --quick    # small, on the CPU; writes no results

Each arm is one compiled program that runs the op on several sets of operands, together larger than
the GPU's cache; programs are enqueued back to back and waited for at the end. Values are compared
first. Bytes are the least that must move: the source pixels inside the boxes, once, and the output.
"""

from __future__ import annotations

from typing import Any

import harness
import jax
import numpy as np
from harness import GpuCase, copy_rate, time_on_gpu, write_gpu

import jaxkern as jk
from jaxkern.image import ops
from jaxkern.image.chain.plan import ChainPlan, Dtype, Filter, Layout, Operands, Segment, jax_dtype

SIDE, SIZE = 256, 224
MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])


def chain_case(
    name: str,
    count: int,
    sets: int,
    filter_: Filter = Filter.BILINEAR,
    output: Dtype = Dtype.F32,
    layout: Layout = Layout.NHWC,
) -> GpuCase:
    """Random resized crop, flip and normalize; the whole image where nothing is resampled."""
    size = SIDE if filter_ is Filter.NONE else SIZE
    plan = ChainPlan((Segment(filter_, size, size),), 3, Dtype.U8, output, layout)
    crop = jk.image.RandomResizedCrop(SIZE)
    made, moved = [], 0
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
        operands = Operands(
            geometry,
            np.stack([1 / (255 * STD), -MEAN / STD])[None, None],
            np.zeros((1, 1, 3), np.float32),
            np.zeros((1, 0, 4), np.int32),
            np.zeros((1, 0, 3), np.float32),
        )
        made.append((images, operands))
        moved += int((box[:, 2] * box[:, 3]).sum()) * 3
    written = count * size * size * 3 * np.dtype(jax_dtype(output)).itemsize
    tolerance = 0.03 if output is Dtype.BF16 else 1e-3

    def fn(images: Any, operands: Any) -> Any:
        return ops.chain(images, *operands, batch_dims=1, plan=plan)

    return GpuCase(name, fn, made, moved // sets + written, tolerance)


def mix_case(name: str, count: int, sets: int, cut: bool) -> GpuCase:
    made = []
    for k in range(sets):
        random = np.random.default_rng(k)
        x, partner = random.random((2, count, SIZE, SIZE, 3), np.float32)
        lam = np.float32([1.0 if cut else 0.3])
        box = np.int32([[40, 60, 100, 90] if cut else [0, 0, 0, 0]])
        made.append((x, partner, lam, box))

    def fn(x: Any, partner: Any, lam: Any, box: Any) -> Any:
        return ops.mix(x, partner, lam, box, batch_dims=1, layout=Layout.NHWC)

    return GpuCase(name, fn, made, 3 * made[0][0].nbytes, 1e-5)


def cases(count: int, sets: int) -> list[GpuCase]:
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


def check(case: GpuCase, name: str, got: Any, other: Any) -> None:
    """Stops the benchmark where the values differ."""
    worst = float(np.abs(np.asarray(got, np.float32) - np.asarray(other, np.float32)).max())
    if not worst <= case.tolerance:
        raise SystemExit(
            f"{case.name}: differs from {name} by {worst}; expected at most {case.tolerance}"
        )


def report(rows: dict[str, dict[str, float]], ceiling: float) -> str:
    lines = [
        "| op | GPU, us | GB/s | of copy | CPU, us | over CPU | JAX on GPU, us | over JAX |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, row in rows.items():
        rate = row["bytes"] / row["gpu"]
        lines.append(
            f"| {name} | {row['gpu'] * 1e6:.1f} | {rate / 1e9:.0f} | {rate / ceiling:.0%} "
            f"| {row['cpu'] * 1e6:.0f} | {row['cpu'] / row['gpu']:.1f} "
            f"| {row['gpu_pure_jax'] * 1e6:.1f} | {row['gpu_pure_jax'] / row['gpu']:.2f} |"
        )
    lines.append(f"\ndevice copy: {ceiling / 1e9:.0f} GB/s read and written")
    return "\n".join(lines)


def main() -> None:
    quick = harness.parse(__doc__).quick
    cpu = jax.devices("cpu")[0]
    gpu = cpu if quick else jax.devices("cuda")[0]
    count, sets = (2, 2) if quick else (64, 6)
    ceiling = copy_rate(gpu, 16 if quick else 1024)
    rows = {
        case.name: time_on_gpu(case, gpu, cpu, check, quick)
        for case in harness.progress(cases(count, sets), "cases")
    }
    text = report(rows, ceiling)
    record = {"images": count, "sets": sets, "copy_bytes_per_second": ceiling, "seconds": rows}
    write_gpu("gpu", "Image kernels", gpu, text, record, f"{count} images per call.", quick)


if __name__ == "__main__":
    main()
