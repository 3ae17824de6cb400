"""Time to open a folder of many image files, the first time and with an index.

Opening walks the folder and determines the size of every image: the first time by reading all
headers, later from the index, after comparing the size and modification time of each file. Each
measurement is of a new process, without imports. Files are small JPEG images in folders of 100, in
the page cache. In the third process of each turn one file has changed, and the index is written
again.
"""

from __future__ import annotations

import io
import os
import statistics
import tempfile
import time
from pathlib import Path

import harness
import numpy as np

from jaxkern.pipeline import ImageFolder

LIMIT = 1.0  # seconds, of 100,000 files the second time
FIRST, SECOND = "the first time: every header is read", "the second time"
WALK, CHANGED = "of which the walk through the folder", "the second time, with one file changed"


def make_folder(root: Path, count: int) -> list[Path]:
    """Write ``count`` files with an old modification time, 100 per folder."""
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "jpeg", quality=50)
    paths = [root / f"class{number // 100:05}" / f"{number:08}.jpg" for number in range(count)]
    for path in harness.progress(paths, "files"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.getvalue())
        os.utime(path, (1.6e9, 1.6e9))
    return paths


def open_folder(root: Path, count: int) -> tuple[float, float]:
    """Return the seconds of opening the folder in this process, and of the walk alone."""
    begin = time.perf_counter()
    photos = ImageFolder(root)
    walked = time.perf_counter()
    sizes = photos.encoded_images()["image"].size
    end = time.perf_counter()
    assert len(photos) == count
    assert (sizes == (40, 50)).all()
    return end - begin, walked - begin


def main() -> None:
    bench = harness.Benchmark(__doc__, rounds=(9, 2))
    count = 2_000 if bench.quick else 100_000
    times: dict[str, list[float]] = {FIRST: [], SECOND: [], WALK: [], CHANGED: []}
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary, "photos")
        paths = make_folder(root, count)
        for turn in range(bench.rounds):
            cache = str(Path(temporary, f"cache{turn}"))
            for name in (FIRST, SECOND, CHANGED):
                if name == CHANGED:
                    os.utime(paths[turn], (1.6e9 + turn + 1, 1.6e9 + turn + 1))
                opened, walked = harness.call(
                    "open_files", "open_folder", root, count, XDG_CACHE_HOME=cache
                )
                times[name].append(opened)
                if name == SECOND:
                    times[WALK].append(walked)
    rows = (
        (name, f"{statistics.median(values):.2f}", f"{min(values):.2f} to {max(values):.2f}")
        for name, values in times.items()
    )
    lines = harness.table(f"{count:,} files | seconds, median | lowest to highest", "lll", rows)
    verdict = harness.at_most(statistics.median(times[SECOND]), LIMIT)
    lines += ["", f"At most {LIMIT:g} s the second time: {verdict}."]
    note = f"{bench.rounds} processes each, in turns; the page cache is warm."
    bench.write(lines, ["pillow"], note, seconds=times)


if __name__ == "__main__":
    main()
