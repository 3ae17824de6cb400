"""Time to open a folder of many image files, the first time and with an index.

    python benchmarks/open_files.py              # 100,000 files; prints, writes benchmarks/results/
    python benchmarks/open_files.py --quick      # few files, writes nothing

Opening walks the folder and determines the size of every image: the first time by reading all
headers, later from the index, after comparing the size and modification time of each file. Each
measurement is of a new process, without imports. Files are small JPEG images in folders of 100, in
the page cache. In the third process of each turn one file has changed, and the index is written
again.
"""

from __future__ import annotations

import io
import json
import os
import statistics
import tempfile
from pathlib import Path

import harness
import numpy as np

LIMIT = 1.0  # seconds, of 100,000 files the second time
OPEN = """
import json, sys, time
from jaxkern.pipeline import ImageFolder

begin = time.perf_counter()
photos = ImageFolder(sys.argv[1])
walked = time.perf_counter()
sizes = photos.encoded_images()["image"].size
end = time.perf_counter()
assert (sizes == (40, 50)).all()
print(json.dumps({"files": len(photos), "walk": walked - begin, "all": end - begin}))
"""
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


def opened(root: Path, cache: Path, count: int) -> dict[str, float]:
    """Return the seconds of one process."""
    text = harness.in_new_python("-c", OPEN, str(root), XDG_CACHE_HOME=str(cache))
    seconds: dict[str, float] = json.loads(text.splitlines()[-1])
    assert seconds["files"] == count
    return seconds


def main() -> None:
    options = harness.parse(__doc__, rounds=(9, 2))
    count = 2_000 if options.quick else 100_000
    times: dict[str, list[float]] = {FIRST: [], SECOND: [], WALK: [], CHANGED: []}
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary, "photos")
        paths = make_folder(root, count)
        for turn in range(options.rounds):
            cache = Path(temporary, f"cache{turn}")
            times[FIRST].append(opened(root, cache, count)["all"])
            second = opened(root, cache, count)
            times[SECOND].append(second["all"])
            times[WALK].append(second["walk"])
            os.utime(paths[turn], (1.6e9 + turn + 1, 1.6e9 + turn + 1))
            times[CHANGED].append(opened(root, cache, count)["all"])
    medians = {name: statistics.median(values) for name, values in times.items()}
    rows = (
        (name, f"{medians[name]:.2f}", f"{min(values):.2f} to {max(values):.2f}")
        for name, values in times.items()
    )
    lines = harness.table(f"{count:,} files | seconds, median | lowest to highest", "lll", rows)
    verdict = harness.at_most(medians[SECOND], LIMIT)
    lines += ["", f"At most {LIMIT:g} s the second time: {verdict}."]
    note = f"{options.rounds} processes each, in turns; the page cache is warm."
    record = {"files": count, "seconds": times}
    title = "Opening image files"
    harness.write("open-files", title, lines, record, ["pillow"], note, options.quick)


if __name__ == "__main__":
    main()
