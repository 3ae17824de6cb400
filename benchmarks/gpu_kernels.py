"""Registers, spills and shared memory of every CUDA kernel, and the expected times of every op.

    python benchmarks/gpu_kernels.py               # prints, and writes benchmarks/results/
    python benchmarks/gpu_kernels.py --quick --architectures 90

Needs nvcc, and no GPU: the figures are those of `ptxas -v`, the times those of `gpu.py --expected`.
Fails if a kernel spills more than 32 bytes.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import harness

ROOT = Path(__file__).resolve().parents[1]
FLAGS = {"cuda_program.cu": ["-fmad=false"]}  # as in csrc/CMakeLists.txt
MOST_SPILLED = 32
TYPES = {"Dtype": ["u8", "f16", "bf16", "f32"], "MatrixOp": ["g2", "tangent", "residual"]}
TYPES["Filter"] = ["", "nearest", "bilinear", "antialias", "bicubic"]


def shorter(name: str) -> str:
    """Return the name of a kernel with words for the numbers of its parameters."""
    name = re.sub(
        r"\(anonymous namespace\)::|jaxkern::|(image|xpcs|correlators)::|^void ", "", name
    )
    depth, end = 0, len(name)
    for i, letter in enumerate(name):  # up to the parentheses of the arguments
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth == 0:
            end = i
            break
    for kind, words in TYPES.items():
        pattern = rf"\({kind}\)(\d+)"
        name = re.sub(pattern, lambda m, words=words: words[int(m[1])].ljust(len(m[0])), name)
    name = re.sub(r" +([,>])", r"\1", name[:end]).replace("unsigned char", "u8")
    return name.replace("unsigned ", "u").replace("&", "").replace(" >", ">").strip()


def compiled(source: Path, architecture: str) -> Iterator[tuple[str, int, int, int]]:
    """Yield each kernel's name, registers, spilled and shared bytes."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["nvcc", "-std=c++17", "-O3", *FLAGS.get(source.name, []), f"-I{ROOT / 'csrc'}"]
        command += [f"-arch=sm_{architecture}", "-cubin", "-Xptxas", "-v", str(source)]
        command += ["-o", f"{folder}/kernels"]
        run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        raise SystemExit(f"{source.name}: {run.stderr[-2000:]}")
    names = re.findall(r"Compiling entry function '(\S+)'", run.stderr)
    text = subprocess.run(
        ["c++filt"], input="\n".join(names), capture_output=True, text=True
    ).stdout
    for name, part in zip(
        text.splitlines(), run.stderr.split("Compiling entry function")[1:], strict=True
    ):
        figures = [r"Used (\d+) registers", r"(\d+) bytes spill stores", r"(\d+) bytes smem"]
        found = (re.search(figure, part) for figure in figures)
        registers, spilled, shared = (int(match[1]) if match else 0 for match in found)
        yield shorter(name), registers, spilled, shared


def main() -> int:
    options = {"--architectures": {"nargs": "+", "default": ["80", "90", "100"]}}
    bench = harness.Benchmark(__doc__ or "", options)
    architectures = bench.options.architectures
    rows: dict[str, list[str]] = {}
    spilling = []
    for source in sorted((ROOT / "csrc").glob("*/*.cu")):
        for architecture in architectures:
            for name, registers, spilled, shared in compiled(source, architecture):
                rows.setdefault(name, []).append(f"{registers} / {spilled} / {shared}")
                if spilled > MOST_SPILLED:
                    spilling.append(f"{name} spills {spilled} bytes on sm_{architecture}")
    columns = " | ".join(f"sm_{architecture}" for architecture in architectures)
    lines = harness.table(
        f"kernel | {columns}",
        "l" + "r" * len(architectures),
        ([f"`{name}`", *cells] for name, cells in rows.items()),
    )
    command = [sys.executable, str(ROOT / "benchmarks/gpu.py"), "--expected"]
    expected = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines += [
        "",
        "Expected times: the longer of the bytes over 4.8 TB/s and of the estimated float64",
    ]
    lines += ["instructions over 17e12/s. No kernel has run on a GPU yet.", "", expected.rstrip()]
    nvcc = subprocess.run(["nvcc", "--version"], capture_output=True, text=True).stdout
    version = re.search(r"release ([\d.]+)", nvcc)
    note = (
        f"nvcc {version[1] if version else ''}. Registers / bytes of spill stores / shared bytes."
    )
    bench.write(lines, note=note)
    print("\n".join(spilling), file=sys.stderr)
    return int(bool(spilling))


if __name__ == "__main__":
    sys.exit(main())
