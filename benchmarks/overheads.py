"""Overheads of jaxkern: import, commands, plots, tracing, memory, tools that are not in use.

Import times are measured in new processes, compile times with new functions in one process. Memory
is the peak of a process minus the input and the output of the call. A jitted call is timed in
processes that have used `watch_compiles` and in others that have not, in turns. The first calls of
a list of transforms, jitted and then eager, are measured in a new process, and its draws per 64 of
4,096 images.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import harness
import image_augment
import jax
import jax.numpy as jnp
import numpy as np
from photographs import crops

import jaxkern as jk
from jaxkern.core.threads import schedulable_cpus

IMPORTS = (
    "import time; a = time.perf_counter(); import jax; b = time.perf_counter(); import jaxkern;"
    "print(time.perf_counter() - b)"
)


def call(function: str, argument: bool) -> float:
    return float(harness.call("overheads", function, argument, JAXKERN_BACKEND="native"))


def inputs(copies: int, antialias: bool) -> tuple[Any, Any, Any]:
    """Return a chain, images, and parameters."""
    images = jnp.asarray(np.tile(crops(), (copies, 1, 1, 1)))
    aug = image_augment.chain(antialias=antialias)
    return aug, images, image_augment.draw(aug, len(images))


def import_seconds() -> float:
    """Return the seconds of importing jaxkern after jax in a new process."""
    command = [sys.executable, "-P", "-c", IMPORTS]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def command_seconds() -> float:
    """Return the CPU seconds of ``jaxkern --version`` beyond those of an empty program."""

    def seconds(*arguments: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-P", *arguments], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return seconds("-m", "jaxkern", "--version") - seconds("-c", "")


def plot_seconds() -> float:
    """Return the CPU seconds of the plots of g2 of 216 bins, without importing matplotlib."""
    bins = np.arange(1, 217).repeat(128).reshape(432, 64)
    phi = np.tile(np.linspace(-90, 70, 9), 24)
    qmap = jk.xpcs.QMap(bins, q=np.linspace(0.01, 0.1, 24).repeat(9), phi=phi)
    frames = np.random.default_rng(0).poisson(1.0, (1024, 432, 64)).astype(np.uint8)
    result = jk.xpcs.multitau(frames, qmap, overview=True, frame_time=0.01, progress=False)
    with tempfile.TemporaryDirectory() as folder:
        import matplotlib.backends.backend_agg  # noqa: F401

        start = time.process_time()
        jk.xpcs.plot_correlations(folder, result)
        return time.process_time() - start


def compile_seconds(rounds: int) -> list[tuple[float, float]]:
    """Return the seconds of compiling new functions: an empty one, and one with the op."""
    aug, images, params = inputs(1, antialias=False)

    def seconds(function: Callable[..., Any]) -> float:
        jax.clear_caches()
        start = time.perf_counter()
        jax.jit(function).lower(images, params).compile()
        return time.perf_counter() - start

    return [
        (seconds(lambda x, p: x), seconds(lambda x, p: aug.apply(x, p)))
        for _ in harness.progress(range(rounds), "compiling")
    ]


def chains() -> dict[str, jk.image.Compose]:
    """Return the lists of transforms whose first call is measured."""
    crop = [jk.image.RandomResizedCrop(224), jk.image.RandomHorizontalFlip()]
    jitter = jk.image.RandomApply([jk.image.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8)
    added: dict[str, list[jk.image.Transform]] = {
        "crop and flip": [],
        "RandAugment": [jk.image.RandAugment()],
        "TrivialAugment": [jk.image.TrivialAugmentWide()],
        "SimCLR": [jitter, jk.image.RandomGrayscale(0.2), jk.image.GaussianBlur(23)],
        "AugMix": [jk.image.AugMix()],
    }
    last = jk.image.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    return {name: jk.image.Compose([*crop, *steps, last]) for name, steps in added.items()}


def first_call(name: str) -> tuple[float, int, float, float, int]:
    """Return CPU seconds until a list of transforms is compiled, HLO instructions, us a draw.

    Then the CPU seconds of the first eager call with another number of images, and the programs
    that it compiles.
    """
    aug, count = chains()[name], 64
    keys = jax.random.split(jax.random.key(0), count)
    images = jax.ShapeDtypeStruct((count, 256, 256, 3), np.uint8)
    start = time.process_time()
    compiled = jax.jit(lambda keys, images: aug(keys, images)).lower(keys, images).compile()
    seconds = time.process_time() - start
    text = compiled.as_text() or ""
    many = jax.random.split(jax.random.key(0), 64 * count)
    draw = jax.jit(lambda keys: aug.sample(keys, (256, 256)))
    jax.block_until_ready(draw(many))
    draws = []
    for _ in range(20):
        start = time.process_time()
        jax.block_until_ready(draw(many))
        draws.append((time.process_time() - start) / 64)
    instructions = len(re.findall(r"^\s+(?:ROOT )?%?[\w.-]+ = ", text, re.MULTILINE))
    eager_keys = jax.random.split(jax.random.key(1), count // 2)
    batch = np.zeros((count // 2, 256, 256, 3), np.uint8)
    start = time.process_time()
    with jk.performance.watch_compiles() as watch:
        jax.block_until_ready(aug(eager_keys, batch))
    eager = time.process_time() - start
    return seconds, instructions, 1e6 * min(draws), eager, watch.compiles


def memory(antialias: bool) -> float:
    """Return MiB per thread of this process's peak beyond the result of a call on 512 images."""
    aug, images, params = inputs(8, antialias)
    compiled = jax.jit(aug.apply).lower(images, params).compile()
    with jk.benchmarking.ResourceMeter() as meter:
        out = compiled(images, params).block_until_ready()
    beyond = meter.used.peak_bytes - meter.used.start_bytes - out.nbytes
    return float(beyond / 2**20 / schedulable_cpus())


def jitted_call(watched: bool) -> float:
    """Return the seconds of a jitted call, the least of this process, perhaps after a watch."""
    fn, x = jax.jit(lambda x: x + 1), jnp.ones(4)
    if watched:
        with jk.performance.watch_compiles():
            fn(x)
    jax.block_until_ready(fn(x))
    best = float("inf")
    for _ in range(400):
        start = time.perf_counter()
        for _ in range(100):
            y = fn(x)
        y.block_until_ready()
        best = min(best, (time.perf_counter() - start) / 100)
    return best


def main() -> None:
    bench = harness.Benchmark(__doc__, rounds=(15, 5))
    processes = harness.progress(range(bench.rounds + 1), "imports")
    imports = [import_seconds() for _ in processes][1:]  # the first fills the file cache
    commands = [command_seconds() for _ in range(bench.rounds)]
    plots = [plot_seconds() for _ in range(3)]
    compiles = compile_seconds(bench.rounds)
    empty, apply = (median(pair[i] for pair in compiles) for i in range(2))
    processes = harness.progress(range(bench.rounds // 2 + 1), "watches")
    calls = [(call("jitted_call", False), call("jitted_call", True)) for _ in processes]
    alone, watched = (median(pair[i] for pair in calls) for i in range(2))
    values = [
        ("import jaxkern beyond import jax, ms", 1e3 * median(imports), 60),
        ("jaxkern --version beyond an empty program, ms of CPU", 1e3 * median(commands), 100),
        ("plots of the correlations of 216 bins, s of CPU", median(plots), 1),
        ("tracing and compiling apply beyond an empty function, ms", 1e3 * (apply - empty), 60),
        ("a jitted call after watch_compiles beyond one without, us", 1e6 * (watched - alone), 1),
    ]
    for antialias in (False, True):
        name = f"memory beyond input and output, antialias={antialias}, MiB a thread"
        values.append((name, call("memory", antialias), 4))
    firsts = {}
    for name, aug in chains().items():
        firsts[name] = harness.call("overheads", "first_call", name)
        seconds, instructions, draw, eager, programs = firsts[name]
        most = 40 + 10 * len(aug.transforms)
        values += [
            (f"first call of 64 x 256^2, {name}, ms of CPU", 1e3 * seconds, 300),
            (f"HLO instructions, {name}", instructions, most),
            (f"draws of 64 images, {name}, us of CPU", draw, 30),
            (f"eager call of 32 x 256^2, {name}, ms of CPU", 1e3 * eager, 300),
            (f"programs that it compiles, {name}", programs, 1),
        ]
    rows = ((n, f"{v:.1f}", f"{bar:g}", harness.at_most(v, bar)) for n, v, bar in values)
    lines = harness.table(" | measured | bar | ", "lrrl", rows)
    bench.write(lines, imports=imports, compiles=compiles, calls=calls, firsts=firsts)


if __name__ == "__main__":
    main()
