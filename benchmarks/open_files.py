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

IN_A_FOLDER = 100
LIMIT = 1.0  # seconds, of 100,000 files the second time

OPEN = """
import json, sys, time
from jaxkern.pipeline import ImageFolder

begin = time.perf_counter()
photos = ImageFolder(sys.argv[1])
walked = time.perf_counter()
found = photos.encoded_images()["image"]
end = time.perf_counter()
assert (found.size == (40, 50)).all()
print(json.dumps({"files": len(photos), "walk": walked - begin, "all": end - begin}))
"""


def make_folder(root: Path, count: int) -> list[Path]:
    """Write ``count`` files with an old modification time."""
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "jpeg", quality=50)
    paths = []
    for number in harness.progress(range(count), "files"):
        path = root / f"class{number // IN_A_FOLDER:05}" / f"{number:08}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.getvalue())
        os.utime(path, (1.6e9, 1.6e9))
        paths.append(path)
    return paths


def opened(root: Path, cache: Path, count: int) -> dict[str, float]:
    """Seconds of one process."""
    text = harness.in_new_python("-c", OPEN, str(root), XDG_CACHE_HOME=str(cache))
    found: dict[str, float] = json.loads(text.splitlines()[-1])
    assert found["files"] == count
    return found


def main() -> None:
    options = harness.parse(__doc__)
    count, rounds = (2_000, 2) if options.quick else (100_000, 9)
    times: dict[str, list[float]] = {"first": [], "second": [], "one changed": [], "walk": []}
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary, "photos")
        paths = make_folder(root, count)
        for turn in range(rounds):
            cache = Path(temporary, f"cache{turn}")
            times["first"].append(opened(root, cache, count)["all"])
            second = opened(root, cache, count)
            times["second"].append(second["all"])
            times["walk"].append(second["walk"])
            os.utime(paths[turn], (1.6e9 + turn + 1, 1.6e9 + turn + 1))
            times["one changed"].append(opened(root, cache, count)["all"])
    medians = {name: statistics.median(values) for name, values in times.items()}
    lines = [
        f"| {count:,} files | seconds, median | lowest to highest |",
        "|---|---|---|",
        *(
            f"| {said} | {medians[name]:.2f} | {min(times[name]):.2f} to {max(times[name]):.2f} |"
            for name, said in [
                ("first", "the first time: every header is read"),
                ("second", "the second time"),
                ("walk", "of which the walk through the folder"),
                ("one changed", "the second time, with one file changed"),
            ]
        ),
        "",
        f"At most {LIMIT:g} s the second time: {harness.at_most(medians['second'], LIMIT)}.",
    ]
    text = "\n".join(lines)
    record = {"files": count, "seconds": times, "limit": LIMIT}
    note = f"{rounds} processes each, in turns; the page cache is warm."
    harness.write(
        "open-files", "Opening image files", text, record, ["pillow"], note, quick=options.quick
    )


if __name__ == "__main__":
    main()
