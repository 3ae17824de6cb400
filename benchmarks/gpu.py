"""The CUDA kernels compared with the CPU kernels and with pure JAX on the GPU.

    python benchmarks/gpu.py               # values and times of every op
    python benchmarks/gpu.py --values      # values only, of small operands
    python benchmarks/gpu.py --kernels     # the time on the GPU of the longest kernels
    python benchmarks/gpu.py --dry-run     # small operands, with the CPU in place of the GPU

`make gpu-check` runs it and writes the results. Each arm is one compiled program on operands that
together are larger than the GPU's cache. Programs are enqueued back to back and waited for at the
end of a turn. Values are compared first; a case that fails does not end the run. Bytes are a lower
bound: the source pixels inside the boxes or each matrix once (of symmetric=True the upper half),
and the output. The expected time is the longer of the bytes at the memory rate of an H200 and the
float64 instructions at its rate.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np
import xpcs_model

import jaxkern as jk
from jaxkern.benchmarking import compare

SIDE, SIZE = 256, 224
NORMALIZE = jk.image.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
# Of an H200, per second: bytes, and float64 instructions (34 TFLOP/s of multiply-adds).
MEMORY, FLOAT64 = 4.8e12, 17e12


@dataclasses.dataclass
class Case:
    """A function on several sets of operands.

    Attributes:
      moved: bytes that a call reads and writes.
      tolerance: largest difference, as a fraction of the largest value.
      float64: float64 instructions of a call, estimated from the arithmetic of a point.
    """

    name: str
    fn: Callable[..., Any]
    sets: list[Any]
    moved: int
    tolerance: float
    float64: float = 0.0

    @property
    def expected(self) -> float:
        """Seconds of a call on an H200."""
        return max(self.moved / MEMORY, self.float64 / FLOAT64)


def compiled(case: Case, device: Any, backend: Any, sets: int) -> Callable[[], Any]:
    """Return one program that calls the function with each set on the device."""
    operands = jax.device_put(case.sets[:sets], device)
    with jk.backend(backend):
        program = jax.jit(lambda sets: [case.fn(*one) for one in sets]).lower(operands).compile()
    return functools.partial(program, operands)


def arms_of(case: Case, gpu: Any, cpu: Any, values: bool) -> dict[str, tuple[Any, int]]:
    """Return the program of each backend and its number of calls, after a comparison of values."""
    backends = {"gpu": (gpu, "native"), "cpu": (cpu, "native")}
    if not values:
        backends["jax"] = (gpu, "jax")
    calls = {"gpu": len(case.sets), "cpu": 1, "jax": min(len(case.sets), 2)}
    arms = {arm: (compiled(case, *how, calls[arm]), calls[arm]) for arm, how in backends.items()}
    ours, *others = ((arm, jax.tree.leaves(call()[0])) for arm, (call, _) in arms.items())
    for arm, leaves in others:
        for got, expected in zip(ours[1], leaves, strict=True):
            harness.check_relative(f"{case.name}: {arm}", got, expected, case.tolerance)
    return arms


def row(case: Case, gpu: Any, cpu: Any, options: Any, copied: float) -> list[Any]:
    """Compare the values of a case, measure it, and return its row of the table."""
    cells = [case.name, f"{1e6 * case.expected:.1f}"]
    arms = arms_of(case, gpu, cpu, options.values)
    if options.values:
        return [*cells, f"within {case.tolerance:g}"]
    comparison = compare(
        {name: call for name, (call, _) in arms.items()},
        check=None,
        rounds=3 if options.dry_run else 7,
        turn_seconds=0.01 if options.dry_run else 0.05,
        back_to_back=True,
    )
    seconds = {name: comparison[name].median / calls for name, (_, calls) in arms.items()}
    ours, host, pure = (seconds[arm] for arm in ("gpu", "cpu", "jax"))
    rate = case.moved / ours
    cells += [f"{1e6 * ours:.1f}", f"{rate / 1e9:.0f}", f"{rate / copied:.0%}"]
    return [
        *cells,
        f"{1e6 * host:.0f}",
        f"{host / ours:.1f}",
        f"{1e6 * pure:.1f}",
        f"{pure / ours:.2f}",
    ]


def kernels(case: Case, gpu: Any) -> Iterator[list[Any]]:
    """Yield a row for each backend, with the kernels that JAX's profiler saw on the device.

    Unlike the times of `row`, these do not include the time in which the host enqueues calls.
    """
    plane_name = "/device:GPU" if gpu.platform == "gpu" else "/host:CPU"
    for backend in ("native", "jax"):
        sets, runs = min(len(case.sets), 2), 3
        program = compiled(case, gpu, backend, sets)
        jax.block_until_ready(program())
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                jax.block_until_ready([program() for _ in range(runs)])
            (path,) = Path(folder).rglob("*.xplane.pb")
            planes = jax.profiler.ProfileData.from_file(str(path)).planes
        seconds: collections.Counter[str] = collections.Counter()
        for plane in planes:
            if plane.name.startswith(plane_name):
                for line in plane.lines:
                    if gpu.platform != "gpu" or line.name.startswith("Stream"):
                        for event in line.events:
                            seconds[event.name] += event.duration_ns * 1e-9 / (runs * sets)
        longest = ", ".join(f"{k[:60]} {1e6 * v:.1f}" for k, v in seconds.most_common(4))
        name = case.name if backend == "native" else f"{case.name}, pure JAX"
        yield [name, f"{1e6 * case.expected:.1f}", f"{1e6 * seconds.total():.1f}", longest]


MIXES = (jk.image.MixUp, jk.image.CutMix)


def image_case(
    name: str, count: int, sets: int, transforms: list[Any], dtype: Any = np.uint8,
    ragged: bool = False, **output: Any,
) -> Case:  # fmt: skip
    """Return a case of a chain on images of a dtype."""
    chain = jk.image.Compose(transforms, **output)
    operands, moved = [], 0
    for k in range(sets):
        random = np.random.default_rng(k)
        levels = random.integers(0, 256, (count, SIDE, SIDE, 3), np.uint8)
        images = levels if dtype == np.uint8 else (levels / 255).astype(dtype)
        if ragged:
            images = jk.image.Ragged.from_list([x[: SIDE - i % 9] for i, x in enumerate(levels)])
        keys = jax.random.split(jax.random.key(k), count)
        params = chain.sample(keys, images if ragged else (SIDE, SIDE))
        operands.append((images, params))
        if isinstance(transforms[0], MIXES):
            moved += 2 * images.nbytes  # with the partners
        elif "height" in params[0]:
            pixels = int((params[0]["height"] * params[0]["width"]).sum())
            moved += 3 * pixels * np.dtype(dtype).itemsize
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
            NORMALIZE,
        ]
        return image_case(f"crop, {name}", count, sets, transforms, **output)

    return [
        crop("bilinear, f32"),
        crop("antialias, f32", antialias=True),
        crop("bicubic, f32", "bicubic", antialias=True),
        crop("bilinear, bf16", dtype=jnp.bfloat16),
        crop("bilinear, f32 NCHW", layout="NCHW"),
        image_case("normalize only, f32", count, sets, [NORMALIZE]),
        image_case("MixUp, f32", count, sets, [jk.image.MixUp()], np.float32),
        image_case("CutMix, f32", count, sets, [jk.image.CutMix()], np.float32),
        crop("ragged, f32", ragged=True),
        image_case("colours, u8", count, sets, [jk.image.ColorJitter(0.4, 0.4, 0.4, 0.1)]),
        image_case("blur, u8", count, sets, [jk.image.GaussianBlur(9)]),
        image_case("rotation, f32", count, sets, [jk.image.RandomRotation(30)], np.float32),
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

    def matrix(
        name: str, fn: Callable[..., Any], *operands: Any, matrices: int = 1, of_point: float = 0
    ) -> Case:
        moved = matrices * measured.nbytes
        return Case(name, fn, [operands], moved, 1e-10, of_point * measured.size)

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
        # About 160 in the model, its 7 derivatives and the products of 9 columns; 60 of 5 columns.
        points = measured.size / (2 if symmetric is not False else 1)
        count = points * (160 if model is flow else 60)
        return Case(name, fn, [(of_type[data], sigma, params)], moved, 1e-9, count)

    two = jk.xpcs.TwoComponent(flow.geometry)

    def components_fn(data: Any, params: Any) -> Any:
        return jk.xpcs.normal_equations(
            two, params, contrast, offset, data, 0.05, symmetric=True, loss="linear"
        )

    # About 200 in the model, its 14 derivatives of 18 tables, and the products of 16 columns.
    components = Case(
        "normal equations, f32, two components", components_fn, [(of_type["f32"], two.defaults)],
        of_type["f32"].nbytes // 2, 1e-9, 400 * measured.size / 2,
    )  # fmt: skip

    def of_model(model: Any, params: Any, suffix: str, instructions: float) -> list[Case]:
        """Return a case of g2, its derivatives and the residual; instructions are those of g2."""
        g2 = functools.partial(jk.xpcs.g2, model)
        primals = (params, contrast, offset)
        return [
            matrix(f"g2{suffix}", g2, *primals, of_point=instructions),
            matrix(
                f"tangent{suffix}", lambda *x: jax.jvp(g2, x, x)[1], *primals,
                of_point=1.5 * instructions,
            ),
            matrix(
                f"cotangent{suffix}", lambda ct, *x: jax.vjp(g2, *x)[1](ct), cotangent, *primals,
                of_point=4.5 * instructions,
            ),
            matrix(
                f"residual{suffix}", lambda data, *x: jk.xpcs.residual(model, *x, data, 0.05),
                measured, *primals, matrices=2, of_point=2 * instructions,
            ),
        ]  # fmt: skip

    return [
        *of_model(flow, physics, "", 13),
        *of_model(two, two.defaults, ", two components", 40),
        points_case(flow, physics, contrast, offset, measured.shape),
        normal("mirrored", "f64"),
        normal("mirrored"),
        normal("mirrored", "u16"),
        normal("compared", symmetric="auto"),
        normal("all", symmetric=False),
        normal("soft_l1", loss="soft_l1"),
        normal("sigma of each point", sigma=np.full(measured.shape, 0.05)),
        normal("static", model=static),
        components,
    ]  # fmt: skip


def points_case(flow: Any, physics: Any, contrast: Any, offset: Any, shape: Any) -> Case:
    count = shape[-1] ** 2 // 4
    index = np.random.default_rng(1).integers(0, shape, (count, 3)).astype(np.int32)
    fn = functools.partial(jk.xpcs.g2_at, flow)
    # An index, a value, and two of A and of X, each a memory transaction of 32 bytes.
    return Case("g2 at points", fn, [(physics, contrast, offset, index)], count * 148, 1e-10)


def multitau_case(pixels: int, frames: int) -> Case:
    """Counts of u8 frames; a state is read and written once, since it is not donated."""
    state = jk.xpcs.multitau_init(pixels, 1024, np.uint8)
    block = np.random.default_rng(2).integers(0, 4, (frames, pixels)).astype(np.uint8)
    moved = block.nbytes + 2 * sum(x.nbytes for x in jax.tree.leaves(state))
    return Case("multi-tau update, u8", jk.xpcs.multitau_update, [(state, block)], moved, 0.0)


def cases(small: bool) -> Iterator[Case]:
    """Yield the cases, each with the 64-bit mode that it needs."""
    with jax.enable_x64(False):
        yield from image_cases(*((2, 2) if small else (256, 4)))
    with jax.enable_x64(True):
        yield from xpcs_cases(*((96, 3) if small else (2000, 23)))
        yield multitau_case(*((300, 5) if small else (1 << 20, 16)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--values", "--quick", action="store_true", help="compare values only")
    parser.add_argument("--kernels", action="store_true", help="times of kernels by the profiler")
    parser.add_argument("--dry-run", action="store_true", help="the CPU in place of the GPU")
    parser.add_argument("--cases", default="", help="a regular expression of names")
    options = parser.parse_args()
    cpu = jax.devices("cpu")[0]
    gpu = cpu if options.dry_run else jax.devices("cuda")[0]
    small, failed, copied = options.values or options.dry_run, 0, 1.0
    header = "op | expected on an H200, us"
    if options.values:
        header += " | values"
    elif options.kernels:
        header += " | on the device, us | longest kernels, us"
    else:
        copied = jk.performance.ceilings(gpu).best.copy
        print(f"{gpu.device_kind}: a device copy reads and writes {copied / 1e9:.0f} GB/s.\n")
        header += " | GPU, us | GB/s | of copy | CPU, us | over CPU | JAX on GPU, us | over JAX"
    columns = header.count("|") + 1
    print("\n".join(harness.table(header, "l" + "r" * (columns - 1), [])), flush=True)
    for case in cases(small):
        if not re.search(options.cases, case.name):
            continue
        try:
            if options.kernels:
                rows = list(kernels(case, gpu))
            else:
                rows = [row(case, gpu, cpu, options, copied)]
        except (Exception, SystemExit) as error:
            failed += 1
            text = " ".join(f"{type(error).__name__}: {error}".split()).replace("|", "/")
            rows = [[case.name, f"**failed**: {text[:300]}"]]
        for cells in rows:
            cells += [""] * (columns - len(cells))
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
