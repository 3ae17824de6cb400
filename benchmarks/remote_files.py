"""Packed shards on a server: the share of a link's rate, and epochs from a cache.

The server is a process on this machine that waits 20 ms before each answer and sends 125 MB/s over
all connections, as a link of 1 Gbit/s. Records are uint8 [224, 224, 3], in 8 shards and batches of
64. An epoch by URL transfers all records. `jaxkern.pipeline.cached` transfers the files once; later
epochs are compared with those of the local files, in turns. First the batches of all arms are
compared. CPU time is that of the client.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import numpy as np

import jaxkern as jk

BATCH, LATENCY, RATE, BAR = 64, 0.02, 125e6, 0.9
WORKERS = 16


class Server:
    """Serves a folder by HTTP with ranges, after a latency and at most at a rate."""

    def __init__(self, folder: str) -> None:
        self._folder, self._free = folder, 0.0
        self._files: dict[str, np.ndarray] = {}

    async def run(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := (await reader.readuntil(b"\r\n\r\n")).decode().lower():
            first, *lines = request.split("\r\n")
            headers = dict(line.split(": ", 1) for line in lines if line)
            method, path, _ = first.split()
            data = self._files.setdefault(path, np.memmap(self._folder + path, np.uint8, "r"))
            begin, end, size = 0, len(data), len(data)
            if span := headers.get("range"):
                begin, end = (int(n) for n in span.removeprefix("bytes=").split("-"))
                end += 1
            status = f"206 Partial Content\r\nContent-Range: bytes {begin}-{end - 1}/{size}"
            await asyncio.sleep(LATENCY)
            writer.write(
                f"HTTP/1.1 {status if span else '200 OK'}\r\nContent-Length: {end - begin}\r\n"
                f'ETag: "{size}"\r\n\r\n'.encode()
            )
            for at in range(begin, end if method == "get" else begin, 1 << 18):
                part = data[at : min(at + (1 << 18), end)].data
                self._free = max(self._free, time.monotonic() - 0.01) + len(part) / RATE
                await asyncio.sleep(max(0, self._free - time.monotonic()))
                writer.write(part)
                await writer.drain()


def epoch(source: Any, shuffle: bool) -> Callable[[], Any]:
    pipe = jk.from_source(
        source, BATCH, shuffle, seed=1, num_workers=WORKERS, prefetch_size=WORKERS
    )
    return pipe.__iter__


def measure(batches: Callable[[], Any], size: int) -> tuple[float, float]:
    """Return bytes per second of an epoch, and CPU seconds per GB."""
    begin, cpu = time.perf_counter(), time.process_time()
    for batch in batches():
        batch["image"].block_until_ready()
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    return size / seconds, cpu / size * 1e9


def main() -> None:
    bench = harness.Benchmark(__doc__, rounds=(5, 1))
    count = 512 if bench.quick else 2048
    images = np.random.default_rng(0).integers(0, 256, (count, 224, 224, 3), np.uint8)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "files")
        folder.mkdir()
        paths = jk.pipeline.pack({"image": images}, folder / "x.jkp", shards=8)
        command = [sys.executable, __file__, "--serve", str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            base = f"http://127.0.0.1:{server.stdout.readline().strip()}"
            try:
                urls = [f"{base}/{path.name}" for path in paths]
                lines = compare(bench, paths, urls, Path(temporary, "cache"), images.nbytes)
            finally:
                server.kill()
    load = f"Medians; load average {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores."
    bench.write(lines, ["fsspec", "aiohttp"], load)


def compare(
    bench: harness.Benchmark, paths: list[Path], urls: list[str], folder: Path, size: int
) -> list[str]:
    remote = jk.pipeline.PackedSource(urls)
    begin = time.perf_counter()
    copies = jk.pipeline.cached(urls, folder)
    files = sum(map(os.path.getsize, copies))
    download = files / (time.perf_counter() - begin)
    for one, other in zip(epoch(remote, True)(), epoch(copies, True)(), strict=True):
        np.testing.assert_array_equal(one["image"], other["image"])
    by_url = {"shuffled": epoch(remote, True), "in order": epoch(remote, False)}
    rows = [("download to the cache", f"{download / RATE:.1%}", "")]
    for name, batches in by_url.items():
        results = [measure(batches, size) for _ in range(bench.rounds)]
        rate, cpu = (statistics.median(values) for values in zip(*results, strict=True))
        verdict = harness.at_least(rate / RATE, BAR)
        rows.append((f"by URL, {name}", f"{rate / RATE:.1%} ({verdict})", f"{cpu:.2f}"))
    arms = {"cache": epoch(copies, True), "local": epoch(paths, True)}
    ratios, cpus = [], []
    for _ in range(bench.rounds):
        (cached, cpu), (local, _) = (measure(arm, size) for arm in arms.values())
        ratios.append(cached / local)
        cpus.append(cpu)
    text = f"{statistics.median(ratios):.2f} of the rate of local files"
    rows.append(("later epochs from the cache", text, f"{statistics.median(cpus):.2f}"))
    return harness.table("records | share of 125 MB/s | CPU seconds per GB", "lll", rows)


if __name__ == "__main__":
    if "--serve" in sys.argv:
        asyncio.run(Server(sys.argv[-1]).run())
    else:
        main()
